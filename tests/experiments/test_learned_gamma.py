"""The derivative in gamma, the runs, the verdicts and the tables of experiments/learned_gamma."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.intervals import NOT, SHOWS, UNTOLD
from experiments.jobs import ROOT
from experiments.learned_gamma import __main__ as command
from experiments.learned_gamma import answers, training
from focalgeo import losses

RATE = 0.3


def test_the_derivative_is_that_of_val_after_a_step():
    """Against central differences in float64 of the whole: step, then val's loss."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 5)), rng.integers(0, 3, 20)
    val_x, val_y = rng.normal(size=(15, 5)), rng.integers(0, 3, 15)
    with jax.enable_x64(True):
        params = {"w": jnp.asarray(rng.normal(size=(5, 3)))}

        def loss(at, gamma):
            return losses.focal_loss(jnp.asarray(x) @ at["w"], jnp.asarray(y), gamma).mean()

        def val_loss(at):
            return losses.cross_entropy(jnp.asarray(val_x) @ at["w"], jnp.asarray(val_y)).mean()

        def stepped(gamma):
            return jax.tree.map(lambda leaf, slope: leaf - RATE * slope, params, jax.grad(loss)(params, gamma))

        for gamma in (0.5, 3.0):
            at = jnp.asarray(gamma, jnp.float64)
            found = training.hypergradient(loss, val_loss, params, at, stepped(at), RATE)
            expected = (val_loss(stepped(at + 1e-5)) - val_loss(stepped(at - 1e-5))) / 2e-5
            np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.fixture(scope="module")
def small():
    arrays, recipe = training.read("few", str(ROOT))
    assert arrays.x.shape == (150, 8, 8, 1)
    return arrays, recipe._replace(epochs=8)


def test_a_gamma_that_is_not_learned_stays_and_one_that_is_moves(small):
    seed, gamma = jnp.int32(0), jnp.float32(2.0)
    fixed = jax.jit(training.make_run(*small, learned=False))(seed, gamma)
    learned = jax.jit(training.make_run(*small, learned=True))(seed, gamma)
    assert fixed[0].shape == (359, 10)
    np.testing.assert_array_equal(fixed[2], 2.0)
    assert np.abs(np.diff(learned[2])).max() > 0
    assert np.abs(np.asarray(learned[2]) - 2.0).max() <= training.RATE * len(learned[2]) * 1.01


def test_by_sample_gamma_does_not_matter(small):
    run = jax.jit(training.make_run(*small, learned=False, by_sample=True))
    np.testing.assert_array_equal(run(jnp.int32(0), jnp.float32(0.0))[0], run(jnp.int32(0), jnp.float32(5.0))[0])


def test_the_labels_that_are_drawn_anew_are_a_fifth_of_the_training_ones():
    plain, _ = training.read("digits", str(ROOT))
    noisy, _ = training.read("noisy", str(ROOT))
    changed = float((plain.y != noisy.y).mean())
    assert 0.14 < changed < 0.22  # a tenth of those drawn are drawn as they were
    np.testing.assert_array_equal(plain.val_y, noisy.val_y)


def _runs(learned: float, seeds: int = 6, ends=(1.0, 1.2)):
    noise = np.random.default_rng(1)
    found = []
    for task in training.TASKS:
        for seed in range(seeds):
            ways = [("fixed", gamma, 0.1 + 0.05 * abs(gamma - 2)) for gamma in training.GAMMAS]
            ways += [("flsd", 0.0, 0.25), *(("learned", start, learned) for start in training.STARTS)]
            for kind, gamma, nll in ways:
                score = nll + 1e-4 * noise.normal()
                run = {"task": task, "kind": kind, "gamma": gamma, "seed": seed, "val nll": score}
                run |= dict.fromkeys(answers.NUMBERS, score)
                if kind == "learned":
                    run["path"] = [gamma, ends[training.STARTS.index(gamma)] + 0.01 * noise.normal()]
                found.append(run)
    return found


def _verdicts(runs):
    return {
        claim.claim.removeprefix("digits: "): claim.verdict
        for claim in answers.claims(runs)
        if claim.claim.startswith("digits: ")
    }


def test_the_sweep_chooses_by_val_for_each_seed():
    assert {run["gamma"] for run in answers.chosen(_runs(0.1), "digits").values()} == {2.0}


def test_verdicts_follow_the_differences():
    words = "γ learned from 3 has a test NLL at most 0.01 above that of the sweep's choice on val"
    ends = "γ ends within 0.5 of the same from 0 and from 3"
    assert _verdicts(_runs(0.1))[words] == SHOWS
    assert _verdicts(_runs(0.15))[words] == NOT
    assert _verdicts(_runs(0.15))[words.replace("the sweep's choice on val", "FLSD-53")] == SHOWS
    assert _verdicts(_runs(0.1))[ends] == SHOWS
    assert _verdicts(_runs(0.1, ends=(0.0, 3.0)))[ends] == NOT
    assert set(_verdicts(_runs(0.1, seeds=1)).values()) == {UNTOLD}


def test_all_is_written(tmp_path):
    (tmp_path / "README.md").write_text("<!-- digits -->\n<!-- end -->\n<!-- claims -->\n<!-- end -->\n")
    results = {"runs": _runs(0.12), "seconds": 1.0, "cost": {"run": 1.7}, "date": "2026-01-01"}
    command.write(results, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| γ learned from 3 | " in text
    assert (tmp_path / "figures" / "gamma.png").exists()
    assert json.loads((tmp_path / "results.json").read_text())["cost"] == {"run": 1.7}


def test_the_readme_s_tables_are_those_of_the_stored_runs():
    text = (command.HERE / "README.md").read_text(encoding="utf-8")
    path = command.HERE / "results.json"
    if not path.exists():
        assert "Not yet run" in text
        return
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    for task in answers.tasks(runs):
        assert answers.table(runs, task) in text
