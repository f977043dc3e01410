"""The effects, the verdicts and the tables of experiments/held_apart; a tiny sweep."""

import json
from itertools import product

import numpy as np
import pytest

from experiments.held_apart import __main__ as command
from experiments.held_apart import answers, runs
from experiments.intervals import NOT, SHOWS, UNTOLD

RECORD = {"commit": "0", "config": "c", "date": "2026-01-01", "versions": {}, "seconds": 60.0}
CURVATURE = [name for name in answers.CURVATURE if " CE " in name]


def _runs(gamma: float, rate: float, seeds: int = 4) -> list:
    """Log curvature = gamma * (place of gamma) + rate * (place of rate), and a little noise by seed."""
    noise = np.random.default_rng(5)
    found = []
    for seed, *at in product(range(seeds), *answers.LEVELS.values()):
        run = dict(zip(answers.FACTORS, at, strict=True)) | {"seed": seed, "record": RECORD}
        places = [answers.LEVELS[factor].index(run[factor]) for factor in ("gamma", "rate")]
        size = float(np.exp(gamma * places[0] + rate * places[1] + 0.01 * noise.normal()))
        found.append(run | dict.fromkeys(CURVATURE, size) | {"train accuracy": 1.0, "accuracy": 0.9, "ece": 0.1})
    return found


def _verdicts(own: list) -> dict[str, str]:
    title = answers.CURVATURE["lambda_max CE val"]
    return {
        claim.claim.replace(title, "it"): claim.verdict for claim in answers.claims(own) if f"{title} " in claim.claim
    }


def test_spreads_are_those_of_the_levels_means():
    logs = answers.table_of(_runs(0.5, -0.2), "lambda_max CE val")
    assert logs.shape == (4, 3, 3, 3, 2)
    found = answers.spreads(logs)
    expected = np.std([0, 1, 2])
    np.testing.assert_allclose(found["gamma"], 0.5 * expected, atol=0.01)
    np.testing.assert_allclose(found["rate"], 0.2 * expected, atol=0.01)
    np.testing.assert_allclose(found["batch"], 0, atol=0.01)
    shares = answers.shares(logs)
    np.testing.assert_allclose(shares["gamma"] + shares["rate"], 1, atol=0.01)


def test_verdicts_follow_the_spreads_and_the_slopes():
    found = _verdicts(_runs(-0.5, 0.2))
    assert found["γ moves it more than the learning rate"] == SHOWS
    assert found["it falls with γ at every learning rate, batch size and optimiser"] == SHOWS
    found = _verdicts(_runs(0.2, 0.5))
    assert found["γ moves it more than the learning rate"] == NOT
    assert found["it falls with γ at every learning rate, batch size and optimiser"] == NOT
    found = _verdicts(_runs(-0.5, 0.2, seeds=1))
    assert set(found.values()) == {UNTOLD}


def test_a_spread_that_rests_on_one_level_is_not_told():
    own = _runs(-0.5, 0.2)
    for run in own:
        if run["rate"] == 2 and run["batch"] == 16:  # as runs that do not train
            for name in CURVATURE:
                run[name] *= np.exp(-9)
    found = _verdicts(own)
    assert found["γ moves it more than the learning rate"] == UNTOLD
    assert found["γ moves it more than the optimiser"] == SHOWS


def test_a_curvature_below_0_tells_nothing():
    own = _runs(-0.5, 0.2)
    own[0]["lambda_max CE val"] = -1.0
    assert SHOWS not in _verdicts(own).values()


def test_a_seed_that_lacks_a_setting_is_left_out():
    own = _runs(0.5, 0.2)
    assert answers.table_of(own[1:], "lambda_max CE val").shape[0] == 3


def test_all_is_written_and_refused_where_a_setting_lacks(tmp_path):
    (tmp_path / "README.md").write_text("<!-- effects -->\n<!-- end -->\n<!-- levels -->\n<!-- end -->\n")
    command.write(_runs(0.5, 0.2), tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| learning rate | high | " in text
    assert (tmp_path / "figures" / "lambda_max.png").exists()
    with pytest.raises(command.InputError, match="not every setting is stored"):
        command.write([run for run in _runs(0.5, 0.2) if run["batch"] != 16], tmp_path)


def test_the_readme_s_tables_are_those_of_the_stored_runs():
    text = (command.HERE / "README.md").read_text(encoding="utf-8")
    path = command.HERE / "results.json"
    if not path.exists():
        assert "Not yet run" in text
        return
    own = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert answers.effects_table(own) in text
    assert answers.levels_table(own) in text


@pytest.mark.slow
def test_a_tiny_sweep_gives_a_run_for_each_setting(tmp_path):
    quick = {
        "optimizer.epochs": 1,
        "optimizer.decay_epochs": (),
        "curvature.examples": 40,
        "curvature.batch_size": 40,
        "curvature.num_probes": 8,
    }
    own = runs.train(tmp_path, "adam", 256, 1, quick)
    assert [(run["gamma"], run["rate"], run["seed"]) for run in own] == [
        (g, r, 0) for g in runs.GAMMAS for r in range(3)
    ]
    assert {"lambda_max CE val", "lambda_max own train", "trace own val", "ece"} <= own[-1].keys()
