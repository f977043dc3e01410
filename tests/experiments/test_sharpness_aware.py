"""The level of equal trace, the choice on val, the verdicts and tables of experiments/sharpness_aware; a tiny sweep."""

import json

import numpy as np
import pytest

from experiments.intervals import NOT, SHOWS, UNTOLD
from experiments.sharpness_aware import __main__ as command
from experiments.sharpness_aware import answers, runs
from focalgeo import job
from focalgeo.config import load_config, with_values

RECORD = {"commit": "0", "config": "c", "date": "2026-01-01", "versions": {}, "seconds": 60.0}
COSTS = {"plain": 1.0, "sam": 2.0, "asam": 2.0, "hessian": 3.0, "gauss_newton": 2.5}


def _run(job_: runs.Job, seed: int, rate: float, ece: float, trace: float, val_nll: float):
    noise = 1e-4 * np.random.default_rng([seed, round(1e4 * job_.strength), len(job_.method)]).normal()
    run = {"method": job_.method, "strength": job_.strength, "times": job_.times, "rate": rate, "seed": seed}
    numbers = dict.fromkeys((*answers.NUMBERS, *answers.CURVATURE), 0.9) | {"ece": ece + noise, "val nll": val_nll}
    return run | numbers | {answers.TRACE: trace * float(np.exp(noise)), "record": RECORD}


def _runs(slope: float, seeds: int = 5) -> list:
    """Each strength halves the trace; ECE is 0.05 + slope for each halving; the higher rate is better on val."""
    found = []
    for job_ in runs.equal_epochs():
        place = 0 if job_.method == "plain" else 0.4 + runs.METHODS[job_.method].strengths.index(job_.strength)
        for seed in range(seeds):
            for rate in runs.RATES:
                better = rate == max(runs.RATES)
                own = (0.05 + slope * place if better else 9.0, 100 * 2.0**-place, 1 + place / 10 - better)
                found.append(_run(job_, seed, rate, *own))
    return found


def _verdicts(own: list) -> dict[str, str]:
    return {claim.claim: claim.verdict for claim in answers.claims(own)}


def test_the_rate_is_chosen_on_val_and_not_where_a_seed_learned_nothing():
    own = _runs(-0.01)
    assert answers.best_rate(own, "sam", 0.05) == 0.1
    next(run for run in own if (run["method"], run["strength"], run["rate"]) == ("sam", 0.05, 0.1))["accuracy"] = 0.1
    assert answers.best_rate(own, "sam", 0.05) == 0.03


def test_at_half_the_trace_numbers_lie_between_neighbours():
    found = answers.at_level(_runs(-0.01), "sam")
    assert (found.below, found.above) == (0.02, 0.05)
    np.testing.assert_allclose(found.share, 0.6, atol=0.01)
    np.testing.assert_allclose(np.mean(list(found.numbers["ece"].values())), 0.04, atol=2e-4)


def test_verdicts_follow_the_level():
    words = "SAM, at half the trace of cross-entropy's Hessian on val: ECE as trained is lower"
    assert _verdicts(_runs(-0.01))[words] == SHOWS
    assert _verdicts(_runs(0.01))[words] == NOT
    assert _verdicts(_runs(-0.01, seeds=1))[words] == UNTOLD
    pair = "at half the trace ECE as trained is the same, to half a point: SAM, ASAM"
    own = _runs(-0.01)
    assert _verdicts(own)[pair] == SHOWS
    for run in own:
        run["ece"] += 0.02 * (run["method"] == "asam")
    assert _verdicts(own)[pair] == NOT


def test_a_method_that_does_not_reach_the_level_is_not_told():
    own = _runs(-0.01)
    for run in own:
        if run["method"] == "asam":
            run[answers.TRACE] = 90.0
    words = "ASAM, at half the trace of cross-entropy's Hessian on val: ECE as trained is lower"
    assert _verdicts(own)[words] == UNTOLD


def test_equal_cost_is_told_by_the_longest_runs_of_the_choice():
    own = _runs(-0.01)
    longer = list(command._longer(own, COSTS))
    assert [(each.method, each.times) for each in longer] == [
        ("plain", 3.0),
        ("sam", 1.5),
        ("asam", 1.5),
        ("gauss_newton", 1.2),
    ]
    assert all(each.rate == 0.1 for each in longer)
    own += [_run(each, seed, each.rate, 0.5 - each.times / 10, 50.0, 0.1) for each in longer for seed in range(5)]
    words = "SAM, strength chosen on val, beside plain cross-entropy of as many operations: ECE as trained is lower"
    assert _verdicts(own)[words] == NOT
    assert runs.fields_of(longer[0], 2)["optimizer.decay_epochs"] == (120, 150)


def test_all_is_written_and_refused_where_a_strength_lacks(tmp_path):
    (tmp_path / "README.md").write_text("<!-- level -->\n<!-- end -->\n<!-- cost -->\n<!-- end -->\n")
    command.write(_runs(-0.01), COSTS, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| SAM | 0.02 to 0.05 | " in text
    assert "| trace of the Hessian | 0.0003 | 0.1 | 3 | 60 | " in text
    assert (tmp_path / "figures" / "trace.png").exists()
    with pytest.raises(command.InputError, match="not every strength is stored"):
        command.write([run for run in _runs(0.0) if run["method"] != "asam"], COSTS, tmp_path)


def test_the_readme_s_tables_are_those_of_the_stored_runs():
    text = (command.HERE / "README.md").read_text(encoding="utf-8")
    path = command.HERE / "results.json"
    if not path.exists():
        assert "Not yet run" in text
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    for table in (
        answers.level_table(found["runs"]),
        answers.strengths_table(found["runs"]),
        answers.cost_table(found["runs"], found["operations"]),
    ):
        assert table in text


@pytest.mark.parametrize("each", list(runs.equal_epochs()), ids=str)
def test_every_strength_is_a_job(each):
    config = load_config(command.HERE.parents[1] / runs.CONFIG, "")
    job.check_config(with_values(config, runs.fields_of(each, 3)))


def test_a_step_of_sam_costs_twice_the_plain_one():
    plain, sam = (runs.cost(name) for name in ("plain", "sam"))
    assert 1.7 < sam / plain < 2.1


@pytest.mark.slow
def test_a_tiny_sweep_gives_the_numbers(tmp_path):
    quick = {
        "optimizer.epochs": 1,
        "optimizer.decay_epochs": (),
        "curvature.examples": 40,
        "curvature.batch_size": 40,
        "curvature.num_probes": 8,
    }
    own = runs.train(tmp_path, runs.Job("sam", 0.05), 1, quick)
    assert [(run["rate"], run["seed"]) for run in own] == [(0.03, 0), (0.1, 0)]
    assert {*answers.NUMBERS, *answers.CURVATURE, "val nll"} <= own[0].keys()
