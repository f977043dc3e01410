"""The partial correlations, the verdicts and the tables of experiments/curvature_of_losses; a tiny sweep."""

import json

import numpy as np
import pytest

from experiments.curvature_of_losses import __main__ as command
from experiments.curvature_of_losses import answers, runs
from experiments.intervals import NOT, SHOWS, UNTOLD
from focalgeo import job
from focalgeo.config import load_config, with_values

RECORD = {"commit": "0", "config": "c", "date": "2026-01-01", "versions": {}, "seconds": 60.0}
NUMBERS = (*(name for name in answers.CURVATURE if " own " not in name), *answers.OUTPUTS)


def _runs(ece_of, seeds: int = 8, trainings=tuple(runs.TRAININGS)) -> list:
    """Runs of random numbers, with ECE a function of (curvature, p_y)."""
    generator = np.random.default_rng(3)
    found = []
    for name in trainings:
        centre = generator.random(3)
        for seed in range(seeds):
            curvature, known, accuracy = centre + 0.2 * generator.random(3)
            run = {"training": name, "seed": seed, "record": RECORD} | dict.fromkeys(NUMBERS, 1 + generator.random())
            run |= {number: 1 + curvature for number in answers.CURVATURE if " own " not in number}
            found.append(run | {"p_y": known, "accuracy": 0.5 + accuracy / 4, "ece": 0.01 + ece_of(curvature, known)})
    return found


def test_what_the_fixed_numbers_explain_is_taken_away():
    generator = np.random.default_rng(0)
    fixed = generator.normal(size=(4000, 1))
    one, other = (fixed[:, 0] + 0.5 * generator.normal(size=4000) for _ in range(2))
    assert answers.partial_rank_correlation(one, other, np.empty((4000, 0))) > 0.7
    assert abs(answers.partial_rank_correlation(one, other, fixed)) < 0.1
    more = answers.partial_rank_correlation(one, one + 0.1 * other, fixed)
    assert more > 0.9
    assert np.isnan(answers.partial_rank_correlation(fixed[:, 0], other, fixed))


@pytest.mark.parametrize("correlation", [answers.between, answers.within])
def test_a_correlation_by_way_of_confidence_goes_once_that_is_held_fixed(correlation):
    own = _runs(lambda curvature, known: known)
    for run in own:
        run["trace CE val"] = 1 + run["p_y"] + 0.02 * np.sin(1e4 * run["p_y"])
    plain, held = (correlation(own, "trace CE val", "ece", fixed) for fixed in ((), answers.FIXED))
    assert plain.low > 0.5
    assert np.isnan(held.mean) or held.low < 0 < held.high


def test_verdicts_follow_the_partial_correlation():
    grows = {claim.claim: claim.verdict for claim in answers.claims(_runs(lambda curvature, known: curvature))}
    falls = {claim.claim: claim.verdict for claim in answers.claims(_runs(lambda curvature, known: 1 - curvature / 4))}
    assert set(grows.values()) == {SHOWS}
    assert set(falls.values()) == {NOT}
    few = _runs(lambda curvature, known: curvature, seeds=2, trainings=("ce", "ls"))
    assert {claim.verdict for claim in answers.claims(few)} == {UNTOLD}


def test_ratios_to_cross_entropy_are_paired_by_seed():
    own = _runs(lambda curvature, known: curvature, seeds=3, trainings=("ce", "sam"))
    for run in own:
        run["trace CE val"] = (2.0 if run["training"] == "sam" else 4.0) * (1 + run["seed"])
    assert "| **-50 (-50 to -50)** |" in answers.changes_table(own)


def test_a_run_that_learned_nothing_is_left_out():
    own = _runs(lambda curvature, known: curvature)
    plain = answers.between(own, "trace CE val", "ece", ())
    chance = own[0] | {"seed": 99, "accuracy": 0.1, "trace CE val": 1e9, "ece": 0.0}
    assert answers.between([*own, chance], "trace CE val", "ece", ()) == plain
    assert answers.outputs_table([*own, chance]) == answers.outputs_table(own)


@pytest.mark.parametrize("name", runs.TRAININGS)
def test_every_way_of_training_is_a_job(name):
    config = with_values(
        load_config(command.HERE.parents[1] / runs.CONFIG, ""), runs.TRAININGS[name].fields | {"sweep.gamma": ()}
    )
    job.check_config(config)


def test_the_readme_s_tables_are_those_of_the_stored_runs():
    text = (command.HERE / "README.md").read_text(encoding="utf-8")
    path = command.HERE / "results.json"
    if not path.exists():
        assert "Not yet run" in text
        return
    own = json.loads(path.read_text(encoding="utf-8"))["runs"]
    for table in (answers.curvature_table, answers.changes_table, answers.outputs_table):
        assert table(own) in text


@pytest.mark.slow
def test_a_tiny_sweep_gives_the_numbers_and_is_written(tmp_path):
    quick = {
        "optimizer.epochs": 2,
        "optimizer.decay_epochs": (1,),
        "evaluation.num_resamples": 50,
        "curvature.examples": 40,
        "curvature.batch_size": 40,
        "curvature.num_probes": 8,
    }
    own = [run for name in ("ce", "sam") for run in runs.train(tmp_path, name, 2, quick)]
    assert [(run["training"], run["seed"]) for run in own] == [("ce", 0), ("ce", 1), ("sam", 0), ("sam", 1)]
    assert all(0 < run["p_y"] < 1 for run in own)
    assert own[0]["trace CE val"] != own[2]["trace CE val"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text("<!-- outputs -->\n<!-- end -->\n")
    command.write(own, tmp_path / "out")
    assert "| SAM, 0.05 | " in (tmp_path / "out" / "README.md").read_text()
    assert (tmp_path / "out" / "figures" / "trace_and_ece.png").exists()


@pytest.mark.long
def test_cross_entropy_trained_again_lies_inside_its_stored_interval(tmp_path):
    path = command.HERE / "results.json"
    if not path.exists():
        pytest.skip("not yet run")
    known = [run for run in json.loads(path.read_text(encoding="utf-8"))["runs"] if run["training"] == "ce"]
    again = runs.train(tmp_path, "ce", 3)
    for name in ("trace CE val", "lambda_max CE val", "ece", "nll after T", "accuracy"):
        values = np.array([run[name] for run in known])
        mean = np.mean([run[name] for run in again])
        assert abs(mean - values.mean()) < 2.8 * values.std(ddof=1) / np.sqrt(3), name
