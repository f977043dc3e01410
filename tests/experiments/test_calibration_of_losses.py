"""The tables, choice and verdicts of experiments/calibration_of_losses, from runs made up with known numbers."""

import json

import numpy as np
import pytest

from experiments import cells
from experiments.calibration_of_losses import __main__ as command
from experiments.calibration_of_losses import choice, quantities, tables, verdicts
from experiments.intervals import NOT, SHOWS, UNTOLD

ECE = {"ce": 0.06, "brier": 0.03, "mmce": 0.05, "fl1": 0.04, "fl3": 0.02, "flsd53": 0.01}


def _run(loss: str, seed: int, ece: float) -> dict:
    own = {
        "accuracy": 0.8 + 0.001 * seed,
        "nll": 10 * ece + 0.3,
        "ece": ece,
        "adaptive_ece": ece + 0.001,
        "classwise_ece": ece / 5,
        "mce": 5 * ece,
        "brier": 0.3,
        "high_confidence": ece,
        "high_confidence_accuracy": 0.99,
    }
    after = {**own, "ece": ece / 2, "nll": own["nll"] - 0.05}
    methods = {"uncalibrated": own} | {
        f"temperature_scaling/{criterion}": after for criterion in ("nll", "ece", "adaptive_ece")
    }
    return {
        "task": "cifar10",
        "loss": loss,
        "seed": seed,
        "record": {"commit": "0", "config": "c", "date": "2026-01-01", "versions": {}, "seconds": 10.0},
        "classes": 10,
        "train_accuracy": 1.0,
        "metrics": {"val": methods, "test": methods},
        "fits": {name: {"temperature": 1 + 10 * ece} for name in methods if "/" in name},
        "temperatures": {},
    }


def _runs(seeds: int = 3, **ece: float) -> list[dict]:
    """Runs whose seeds differ by the same numbers in another order for each loss, so that equal means are equal."""
    values, noise = {**ECE, **ece}, 1e-4 * (np.arange(seeds) - (seeds - 1) / 2)
    return [
        _run(loss, seed, value + np.roll(noise, number)[seed])
        for number, (loss, value) in enumerate(values.items())
        for seed in range(seeds)
    ]


def _verdict(runs: list[dict], loss: str) -> str:
    claims = verdicts.claims({"cifar10": runs})
    return next(one.verdict for one in claims if f"{loss}: ECE as trained is below cross" in one.claim)


def test_verdicts_follow_the_numbers():
    assert _verdict(_runs(), "FLSD-53") == SHOWS
    assert _verdict(_runs(flsd53=0.09), "FLSD-53") == NOT
    assert _verdict(_runs(seeds=1), "FLSD-53") == UNTOLD
    assert _verdict(_runs(flsd53=0.06), "FLSD-53") == UNTOLD
    assert _verdict([run for run in _runs() if run["loss"] != "flsd53"], "FLSD-53") == UNTOLD


def test_flsd53_is_judged_beside_its_rivals():
    found = {one.claim: one.verdict for one in verdicts.claims({"cifar10": _runs(mmce=0.005)})}
    said = "CIFAR-10 (JPEG), FLSD-53: ECE as trained is below that of"
    assert (found[f"{said} Brier"], found[f"{said} MMCE"]) == (SHOWS, NOT)


def test_accuracy_is_kept_only_within_a_point():
    worse = [
        run | {"metrics": {"test": {"uncalibrated": {**run["metrics"]["test"]["uncalibrated"], "accuracy": 0.7}}}}
        if run["loss"] == "fl3"
        else run
        for run in _runs()
    ]
    found = {
        one.claim: one.verdict
        for one in (verdicts._keeps_accuracy(worse, "cifar10", loss) for loss in ("fl3", "flsd53"))
    }
    assert list(found.values()) == [NOT, SHOWS]


def test_the_papers_numbers_stand_beside_ours():
    table = tables.paper_table("M Table 1", {"cifar10": _runs(), "newsgroups": [], "sst": []})
    here, resnet50 = table.splitlines()[2:4]
    assert here.startswith("| CIFAR-10 (JPEG) | here | 6 (5.9")
    assert resnet50.split(" | ")[2:5] == ["4.35", "1.35", "2.5"]
    assert "| 17.92 | 2.39 |" in table  # 20 Newsgroups, of which nothing is run here


def test_gamma_is_chosen_on_val_and_its_cost_is_that_on_test():
    runs = _runs()
    assert choice.chosen(runs, choice.GAMMAS, "ece") == "fl3"
    for run in runs:  # on test gamma 1 is best
        run["metrics"] = dict(run["metrics"]) | {"test": json.loads(json.dumps(run["metrics"]["test"]))}
        if run["loss"] == "fl1":
            run["metrics"]["test"]["uncalibrated"]["ece"] = 0.001
    best, cost = choice.cost(runs, choice.GAMMAS, "ece")
    assert best == "fl1"
    np.testing.assert_allclose(cost.mean, 1.9, atol=0.05)


def test_ranks_of_the_losses_are_compared_where_the_paper_has_them():
    ours, theirs = tables._matched(_runs(), "cifar10", "ece")
    assert len(ours) == len(theirs) == len(ECE)
    np.testing.assert_allclose(theirs[0], (4.35 + 4.41 + 3.23 + 4.52) / 4)


def test_all_is_written_from_stored_runs(tmp_path):
    (tmp_path / "README.md").write_text("<!-- cifar10 -->\n<!-- end -->\n<!-- claims -->\n<!-- end -->\n")
    command.write({"cifar10": _runs(), "newsgroups": [], "sst": []}, tmp_path)
    found = json.loads((tmp_path / "results.json").read_text())
    np.testing.assert_allclose(found["means"]["cifar10"]["ce"]["ece"]["mean"], 6, atol=0.02)
    assert found["means"]["cifar10"]["ce"]["nll after vector scaling"] == {"mean": None, "low": None, "high": None}
    text = (tmp_path / "README.md").read_text()
    assert "| FLSD-53 | 3 | 80.1" in text
    assert "| shows |" in text
    assert (tmp_path / "figures" / "ece.png").stat().st_size < 200_000


def test_error_is_what_accuracy_leaves():
    assert quantities.value(_run("ce", 0, 0.05), "error") == pytest.approx(20)


def test_rows_are_kept_by_loss_and_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "ROWS", tmp_path / "rows")
    cells.store([_run("fl3", 0, 0.05), _run("ce", 1, 0.05)], "cifar10")
    cells.store([_run("ce", 0, 0.06), _run("fl3", 0, 0.07)], "cifar10")
    found = cells.stored("cifar10")
    assert [(run["loss"], run["seed"]) for run in found] == [("ce", 0), ("ce", 1), ("fl3", 0)]
    assert found[2]["metrics"]["test"]["uncalibrated"]["ece"] == 0.07
    assert cells.stored("sst") == []


def test_a_seed_that_not_all_losses_have_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "ROWS", tmp_path / "rows")
    cells.store([_run("ce", 0, 0.05), _run("ce", 1, 0.05), _run("fl3", 0, 0.05), _run("fl3", 2, 0.05)], "cifar10")
    assert [(run["loss"], run["seed"]) for run in cells.compared("cifar10")] == [("ce", 0), ("fl3", 0)]
    assert cells.compared("sst") == []
