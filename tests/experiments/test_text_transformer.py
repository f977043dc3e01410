"""The verdicts and the tables of experiments/text_transformer; a tiny job on trees."""

import json

import numpy as np
import pytest

from experiments.intervals import NOT, SHOWS, UNTOLD
from experiments.text_transformer import __main__ as command
from experiments.text_transformer import answers, runs

RECORD = {"commit": "0", "config": "c", "date": "2026-01-01", "versions": {}, "seconds": 60.0}
COSTS = {"ce": 1e9, "fl3": 1e9, "hessian": 3e9, "gauss_newton": 2.5e9}


def _runs(ece: dict[str, float], seeds: int = 3) -> list:
    """Runs whose ECE is 5% and what is given more, with a little noise; all else is the same."""
    found = []
    for name in runs.TRAININGS:
        for seed in range(seeds):
            noise = 1e-3 * np.random.default_rng([seed, len(name)]).normal()
            numbers = dict.fromkeys((*answers.NUMBERS, "train seconds"), 0.5) | {"ece": 0.05 + ece.get(name, 0) + noise}
            found.append({"training": name, "seed": seed, "record": RECORD} | numbers)
    return found


def test_verdicts_follow_the_differences():
    def told(own):
        return {claim.claim: claim.verdict for claim in answers.claims(own)}

    found = told(_runs({"fl3": -0.03, "hessian": 0.03}))
    assert found["focal loss has a lower ECE as trained than cross-entropy"] == SHOWS
    assert found["the Hessian's trace as a penalty lowers ECE as trained"] == NOT
    assert found["the Gauss-Newton trace as a penalty lowers ECE as trained"] == UNTOLD
    assert set(told(_runs({}, seeds=1)).values()) == {UNTOLD}


def test_all_is_written_and_refused_where_a_way_lacks(tmp_path):
    (tmp_path / "README.md").write_text("<!-- numbers -->\n<!-- end -->\n<!-- cost -->\n<!-- end -->\n")
    command.write(_runs({"fl3": -0.03}), COSTS, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| trace of the Hessian, 0.0003 | 3 | " in text
    assert (tmp_path / "figures" / "calibration.png").exists()
    with pytest.raises(command.InputError, match="not every way of training is stored"):
        command.write([run for run in _runs({}) if run["training"] != "fl3"], COSTS, tmp_path)


def test_the_readme_s_tables_are_those_of_the_stored_runs():
    text = (command.HERE / "README.md").read_text(encoding="utf-8")
    path = command.HERE / "results.json"
    if not path.exists():
        assert "Not yet run" in text
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    assert answers.table(found["runs"]) in text
    assert answers.changes_table(found["runs"]) in text
    assert answers.cost_table(found["runs"], found["operations"]) in text


@pytest.mark.slow
def test_a_tiny_job_on_trees_gives_the_numbers(tmp_path, real_archive):
    data = f"sst:{real_archive('sst-trees.tar.xz')}"
    quick = {
        "optimizer.epochs": 1,
        "data.train_size": 60,
        "data.val_size": 60,
        "data.test_size": 60,
        "model.options.width": 8,
        "model.options.depth": 1,
        "curvature.examples": 20,
        "curvature.batch_size": 20,
        "curvature.max_products": 2,
        "curvature.num_probes": 6,
    }
    found = runs.train(tmp_path, "gauss_newton", 0, data, quick)
    assert {name for name in answers.NUMBERS if " own " not in name} <= found.keys()
    assert found["train seconds"] > 0
