"""Questions that train: their jobs are accepted, and what they measure agrees with oracles and with what is stored."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments import (
    bounds,
    curvature_and_gamma,
    jobs,
    learned_gamma,
    map_and_matrix,
    numbers,
    question,
    sharpness_aware,
    switch,
    trace_penalty,
    two_parameters,
)
from experiments.bounds import measured
from experiments.curvature_and_gamma import minima
from experiments.learned_gamma import training
from experiments.numbers import NOT, SHOWS, UNTOLD
from focalgeo import job
from focalgeo.config import load_config, with_values

TRAINED = ("text_transformer", "switch", "held_apart", "sharpness_aware", "curvature_of_losses", "bounds")


class Accepted(Exception):
    """A job was checked."""


@pytest.mark.parametrize("name", [*TRAINED, "trace_penalty", "curvature_and_gamma"])
def test_every_job_is_accepted_by_the_config(name, monkeypatch, tmp_path):
    checked = []

    def check(config, workdir, fields):
        path, _, words = config.partition(":")
        starts = {name: "" for name in ("start.run",) if name in fields}
        job.check_config(with_values(load_config(jobs.ROOT / path, words), dict(fields) | starts))
        checked.append(workdir)
        raise Accepted

    monkeypatch.setattr(jobs, "trained", check)
    asked = question.load(name)
    stored = question.stored(asked.folder)
    every = [each for each in asked.jobs(question.parse(asked, []), stored) if each.seeds]
    for each in every:
        assert each.is_stored(stored), each
        with pytest.raises(Accepted):
            each.make(tmp_path)
    assert len(set(checked)) == len(every)


@pytest.mark.long
def test_gradient_descent_on_clusters_gives_the_stored_runs():
    stored = pd.DataFrame(question.stored(two_parameters.QUESTION.folder)["runs"])
    again = pd.DataFrame(two_parameters.measure(2))
    both = stored.merge(again, on=["deviation", "loss", "seed"])
    assert len(both) == 2 * 4 * 2
    for name in ("weight norm", "logit norm", "error", "ece", "confidence of wrong", "nll of wrong"):
        np.testing.assert_allclose(both[f"{name}_x"], both[f"{name}_y"], rtol=2e-3, atol=1e-5)


def test_the_hypergradient_is_the_derivative_of_val_s_loss_through_a_step():
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=3), jnp.float32) for _ in range(2))

    def loss(params, gamma):
        return jnp.sum((params - a) ** 2) * jnp.exp(-0.3 * gamma) + gamma * jnp.sum(jnp.sin(params))

    def val_loss(params):
        return jnp.sum((params - b) ** 4)

    def through_a_step(gamma):
        return val_loss(a - 0.1 * jax.grad(loss)(a, gamma))

    after = a - 0.1 * jax.grad(loss)(a, 0.7)
    found = training.hypergradient(loss, val_loss, a, jnp.float32(0.7), after, jnp.float32(0.1))
    np.testing.assert_allclose(found, jax.grad(through_a_step)(jnp.float32(0.7)), rtol=1e-5)


@pytest.mark.long
def test_a_learned_gamma_trains_as_the_stored_runs_did():
    stored = pd.DataFrame(question.stored(learned_gamma.QUESTION.folder)["runs"])
    again = pd.DataFrame(training.measure("few", 1))
    both = stored.merge(again, on=["task", "kind", "gamma", "seed"])
    assert len(both) == 10
    np.testing.assert_allclose(both.nll_x, both.nll_y, rtol=0.03)
    np.testing.assert_allclose(
        [path[-1] for path in both.path_x.dropna()], [path[-1] for path in both.path_y.dropna()], rtol=0.05
    )


def test_the_constants_of_bounds_are_the_stored_ones():
    stored = question.stored(bounds.QUESTION.folder)["constants"]
    for row, kept in zip(measured.lipschitz(), stored, strict=True):
        assert row == pytest.approx(kept, rel=1e-4)
    upper = measured.binomial_upper(0.1, 1000, 0.01)
    divergence = 0.1 * np.log(0.1 / upper) + 0.9 * np.log(0.9 / (1 - upper))
    assert divergence == pytest.approx(np.log(100) / 1000)
    assert upper > 0.1
    assert measured.binomial_upper(1.0, 10, 0.1) == 1.0


def test_an_expansion_is_right_up_to_a_radius_between_those_tried():
    rows = [{"ratios": np.exp(-times * measured.RADII).tolist(), "fisher": 1.0} for times in (1.0, 200.0)]
    radius = bounds.near(pd.DataFrame(rows)).radius
    assert radius[0] == pytest.approx(np.log1p(bounds.CLOSE), rel=0.1)
    assert np.isnan(radius[1])


def test_the_parts_of_the_nll_add_up_and_errors_vanish_where_they_should():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4000, 4))
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    labels = np.array([rng.choice(4, p=row) for row in np.exp(log_probs)])
    found = map_and_matrix.parts_of(log_probs, labels, logits.argmax(-1))
    assert found["right or wrong"] + found["which else"] == pytest.approx(found["nll"])
    assert 0 <= found["confidence"] < 0.01
    assert 0 <= found["class shares"] < 0.001
    sure = map_and_matrix.parts_of(log_probs * 0 - np.log([10 / 7, 10, 10, 10]), labels, logits.argmax(-1))
    assert sure["class shares"] > 0.1


def test_a_partial_rank_correlation_is_that_of_the_textbook():
    points = np.random.default_rng(0).normal(size=(50, 3))
    points[:, 0] += points[:, 2]
    points[:, 1] -= points[:, 2]
    r01, r02, r12 = pd.DataFrame(points).corr("spearman").to_numpy()[[0, 0, 1], [1, 2, 2]]
    expected = (r01 - r02 * r12) / np.sqrt((1 - r02**2) * (1 - r12**2))
    assert numbers.partial_rank_correlation(points) == pytest.approx(expected)
    assert np.isnan(numbers.partial_rank_correlation(points[:, [0, 1, 0]]))


def runs_over(ece, noise):
    """Runs of eight seeds and six gammas, whose ECE is a function of u, the logarithm of the trace."""
    rng, places = np.random.default_rng(0), np.arange(6) / 5
    rows = [(seed, u, np.exp(u), ece(u) + noise * rng.normal()) for seed in range(8) for u in places]
    return pd.DataFrame(rows, columns=["seed", "gamma", "trace", "ece"])


@pytest.mark.parametrize(("sign", "verdict"), [(1, SHOWS), (-1, NOT)])
def test_an_inner_minimum_is_found_where_there_is_one(sign, verdict):
    runs = runs_over(lambda u: sign * (u - 0.4) ** 2, 0.002)
    alone = minima.inner_minimum(runs, "trace")
    together = minima.shared_minimum({"a": runs, "b": runs}, "trace", within=True)
    assert alone.verdict == together.verdict == verdict
    for found in (alone, together):
        assert found.curvature.mean == pytest.approx(sign, abs=0.05)
        assert (found.inside == found.groups) == (sign > 0)
    if sign > 0:
        assert together.vertex.mean == pytest.approx(0.4, abs=0.02)


def test_a_rise_that_grows_steeper_has_no_inner_minimum():
    # the parabola's vertex lies inside, its rise from the first to the second all the same
    found = minima.inner_minimum(runs_over(lambda u: max(u - 0.1, 0) ** 2 + 0.03 * u, 0.0002), "trace")
    assert found.inside == 0
    assert found.vertex.low > 0
    assert found.verdict == UNTOLD


@pytest.mark.parametrize(("eces", "why"), [((2, 1, 3), ""), ((3, 2, 1), "ECE is least at the least trace, γ = 2")])
def test_a_minimum_is_tested_where_a_trace_below_it_is(eces, why):
    runs = pd.DataFrame({"gamma": (0.0, 1.0, 2.0), "ece": eces, "trace": (9.0, 8.0, 7.0), "temperature": 2.0})
    assert curvature_and_gamma.untried(runs, "trace") == why


def test_a_network_outside_the_regime_is_left_out_of_the_minimum_of_all():
    curves = {"resnet18": lambda u: (u - 0.4) ** 2, "vgg19": lambda u: (u - 0.5) ** 2, "vit": lambda u: u}
    runs = {name: runs_over(ece, 0.002).assign(temperature=2.0) for name, ece in curves.items()}
    runs = {name: of.assign(**dict.fromkeys(curvature_and_gamma.SURFACES, of.trace)) for name, of in runs.items()}
    claim = next(each for each in curvature_and_gamma._of_all(runs) if "within networks" in each.claim)
    assert (claim.verdict, claim.because.endswith("; not tested: ViT")) == (SHOWS, True)


def test_orders_by_chance_are_as_rare_as_they_are():
    assert trace_penalty.by_chance(1.0, 4, 1) == pytest.approx(2 / 24, abs=0.01)
    assert trace_penalty.by_chance(0.0, 4, 2) == 1.0


def test_a_step_of_a_penalty_costs_more_operations():
    plain, penalised = (
        jobs.operations(sharpness_aware.CONFIG, sharpness_aware.fields_of(method, strength, 1, 0.1))
        for method, strength in (("plain", 0.0), ("gauss_newton", 0.001))
    )
    stored = question.stored(sharpness_aware.QUESTION.folder)["operations"]
    assert penalised / plain == pytest.approx(stored["gauss_newton"] / stored["plain"], rel=0.05)


def quick(monkeypatch, **fields):
    """Jobs with these fields beside."""
    trained = jobs.trained
    fields = {name.replace("__", "."): value for name, value in fields.items()}
    monkeypatch.setattr(jobs, "trained", lambda config, workdir, own: trained(config, workdir, {**own, **fields}))


@pytest.mark.long
def test_a_switched_network_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    quick(monkeypatch, model__options__hidden=(8,), curvature__num_probes=4, curvature__every=1, diagnostics__every=1)
    quick(monkeypatch, optimizer__epochs=2)
    monkeypatch.setattr(switch, "HALF", 1)
    monkeypatch.setattr(switch, "WAYS", [switch.Way(0.0, 0, "fresh", 0.0), switch.Way(0.0, 1, "kept", 3.0)])
    _, runs = (each.make(tmp_path) for each in switch.plan(question.parse(switch.QUESTION, ["--seeds", "2"]), {}))
    assert [run["seed"] for run in runs] == [0, 1]
    for run in runs:
        assert run["path"]["epoch"] == [1, 2]
        assert {len(values) for values in run["path"].values()} == {2}
        assert run["trace CE val"] == run["path"]["trace"][-1]
