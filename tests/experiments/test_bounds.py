"""The measures, the verdicts and the tables of experiments/bounds; tiny sweeps from each other's checkpoints."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from experiments.bounds import __main__ as command
from experiments.bounds import answers, measured, runs
from experiments.intervals import NOT, SHOWS, UNTOLD
from focalgeo import job
from focalgeo.config import load_config, with_values

RECORD = {"commit": "0", "config": "c", "date": "2026-01-01", "versions": {}, "seconds": 60.0}


def test_constants_of_cross_entropy_are_known_and_those_of_focal_loss_larger():
    plain, focal = measured.lipschitz((0.0, 2.0))
    np.testing.assert_allclose(plain["gradient"], np.sqrt(2), rtol=1e-5)
    np.testing.assert_allclose(plain["second derivative"], 0.5, rtol=1e-5)
    assert focal["gradient"] > plain["gradient"]


def test_the_upper_end_of_a_mean_is_chernoff_s():
    for mean, draws in ((0.0, 100), (0.1, 100), (0.5, 1000)):
        found = measured.binomial_upper(mean, draws, 0.01)
        assert stats.binom.cdf(round(mean * draws), draws, found) <= 0.01
        assert found < mean + np.sqrt(np.log(100) / (2 * draws)) + 1e-9
    np.testing.assert_allclose(measured.binomial_upper(0.0, 100, 0.01), 1 - 0.01 ** (1 / 100), rtol=1e-9)


def test_the_bound_grows_with_the_divergence_and_is_at_most_1():
    values = [measured.bound(0.05, divergence, 500) for divergence in (0.0, 10.0, 100.0, 1e5)]
    assert values == sorted(values)
    assert 0.05 < values[0] < 0.15
    assert values[-1] == 1


def test_the_largest_gradient_is_that_of_the_worst_example(monkeypatch):
    everything = measured.dataset()
    apply = measured.apply_of()
    model = measured.models.build("mlp", 10)
    x, y = measured.arrays_of(everything.val)
    params = model.init(jax.random.PRNGKey(0), x[:1])["params"]
    found = measured.make_gradients(everything)(params, 0.0)
    p = jax.nn.softmax(apply(params, x))
    norms = jnp.linalg.norm(p - jax.nn.one_hot(y, 10), axis=-1)
    np.testing.assert_allclose(found["gradient in logits, val"], norms.max(), rtol=1e-4)
    assert found["gradient, train"] > 0


def test_near_by_kl_is_half_the_quadratic_form():
    everything = measured.dataset()
    model = measured.models.build("mlp", 10)
    params = model.init(jax.random.PRNGKey(0), measured.arrays_of(everything.val)[0][:1])["params"]
    found = measured.make_distances(everything.val)(params, jax.random.PRNGKey(1))
    for kind in ("random", "uphill"):
        np.testing.assert_allclose(found[kind][0], 1, rtol=0.02)
        assert abs(np.log(found[kind][0])) < abs(np.log(found[kind][3]))
        assert len(found[kind]) == len(measured.DISTANCES)
        assert abs(np.log(found[kind][-1])) > 0.05


def _runs(trace: float, more: float = 0.0, seeds: int = 5) -> list:
    """The trace's log grows by `trace` with gamma; the penalty's ECE is `more` above focal loss's."""
    found = []
    for loss in ("focal", "penalised"):
        for gamma in runs.GAMMAS:
            for seed in range(seeds):
                noise = 1e-4 * np.random.default_rng([seed, round(10 * gamma), len(loss)]).normal()
                run = {"loss": loss, "gamma": gamma, "seed": seed, "record": RECORD}
                run |= dict.fromkeys((*answers.OUTPUTS, *answers.ALIKE), 0.5 + noise)
                run |= {"trace CE val": float(np.exp(trace * gamma + noise)), "ece": 0.05 + more * (loss != "focal")}
                if loss == "focal":
                    run |= {name: float(np.exp(-0.1 * gamma + noise)) for name in answers.GRADIENTS}
                    ratio = (np.array(measured.DISTANCES) ** 2 + 1 + noise).tolist()
                    run |= {"distances": {"random": ratio, "uphill": [5 * each for each in ratio]}}
                    if gamma in runs.HALF_GAMMAS:
                        names = ("sigma", "divergence", "drawn", "error")
                        run |= {"gaussian": dict.fromkeys(names, 0.1) | {"bound": 0.3 - 0.01 * gamma + noise}}
                found.append(run)
    return found


FINITE = [
    {"gamma": gamma, "group": group, "uniform": 0.10 + 0.001 * group, "boltzmann": 0.12, "error": 0.04}
    for gamma in runs.GAMMAS
    for group in range(2)
]
CONSTANTS = [{"gamma": gamma, "gradient": 1.4 + gamma, "second derivative": 1 / (1 + gamma)} for gamma in runs.GAMMAS]


def test_verdicts_follow_the_numbers():
    def told(own):
        return {claim.claim: claim.verdict for claim in answers.claims(own, CONSTANTS, FINITE)}

    found = told(_runs(0.2, 0.03))
    assert found["the Lipschitz constant of focal loss in the logits falls with γ"] == NOT
    assert found["the Lipschitz constant of its gradient in the logits falls with γ"] == SHOWS
    assert found["the largest gradient over examples of train falls with γ, of trained networks"] == SHOWS
    assert found["KL is half d'Fd to a tenth, 1% of the parameters' norm away, in random directions"] == SHOWS
    assert found["KL is half d'Fd to a tenth, 1% of the parameters' norm away, up the gradient"] == NOT
    assert found["the bound about a network of half the data is below 1 at every γ"] == SHOWS
    assert found["this bound falls with γ"] == SHOWS
    uniform = "with the Maxwell-Boltzmann prior the bound for five networks is lower than with a uniform one"
    assert found[uniform] == NOT
    alike = "γ = 1: focal loss and cross-entropy + γ KL(p, uniform) are alike in test ECE, to 1 points"
    assert found[alike] == NOT
    assert told(_runs(0.2))[alike] == SHOWS
    falls = "the trace of cross-entropy's Hessian on val falls with the γ of focal loss"
    assert (found[falls], told(_runs(-0.2))[falls]) == (NOT, SHOWS)
    assert UNTOLD in told(_runs(0.2, seeds=1)).values()


def test_all_is_written(tmp_path):
    names = ("constants", "gradients", "distances", "bounds", "objectives")
    (tmp_path / "README.md").write_text("".join(f"<!-- {name} -->\n<!-- end -->\n" for name in names))
    command.write({"runs": _runs(0.2), "constants": CONSTANTS, "finite": FINITE}, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| confidence penalty | 7 | 5 | " in text
    assert "| up the gradient | 7 | " in text
    assert (tmp_path / "figures" / "bounds.png").exists()


def test_the_readme_s_tables_are_those_of_the_stored_runs():
    text = (command.HERE / "README.md").read_text(encoding="utf-8")
    path = command.HERE / "results.json"
    if not path.exists():
        assert "Not yet run" in text
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    own, finite = found["runs"], found["finite"]
    for table in (
        answers.constants_table(found["constants"]),
        answers.gradients_table(own),
        answers.distances_table(own),
        answers.bounds_table(own, finite),
        answers.objectives_table(own),
    ):
        assert table in text


@pytest.mark.parametrize("each", list(runs.JOBS), ids=lambda each: each.name)
def test_every_sweep_is_a_job(tmp_path, each):
    config = load_config(command.HERE.parents[1] / runs.CONFIG, "")
    job.check_config(with_values(config, runs.fields_of(tmp_path, each, 3)))


@pytest.mark.slow
def test_tiny_sweeps_are_measured(tmp_path, monkeypatch):
    quick = {
        "optimizer.epochs": 1,
        "optimizer.decay_epochs": (),
        "curvature.examples": 40,
        "curvature.batch_size": 40,
        "curvature.num_probes": 8,
    }
    few = {"sweep.gamma": (0.0, 1.0)}
    monkeypatch.setattr(measured, "DRAWS", 20)
    for each in runs.JOBS:
        more = {} if each.fields.get("curvature.examples", 1) else {"curvature.examples": 0}
        runs.train(tmp_path, each, 5, quick | few | more)
    found = measured.measure(tmp_path, 5)
    assert [(run["loss"], run["gamma"]) for run in found[::5]] == [
        (loss, gamma) for loss in ("focal", "penalised") for gamma in (0.0, 1.0)
    ]
    assert all(0 < run["gaussian"]["drawn"] <= run["gaussian"]["bound"] <= 1 for run in found[:10])
    assert found[0]["gaussian"]["examples"] == 1079 - runs.HALF
    finite = measured.finite_bounds(tmp_path, 5)
    assert [row["gamma"] for row in finite] == [0, 1]
    assert all(row["error"] < row["uniform"] <= 1.5 for row in finite)
