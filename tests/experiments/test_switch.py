"""The shares of the way, the verdicts and the tables of experiments/switch; tiny jobs from each other's checkpoints."""

import json

import numpy as np
import pytest

from experiments.intervals import NOT, SHOWS, UNTOLD
from experiments.switch import __main__ as command
from experiments.switch import answers, runs
from focalgeo import job
from focalgeo.config import load_config, with_values

RECORD = {"commit": "0", "config": "c", "date": "2026-01-01", "versions": {}, "seconds": 60.0}
ECE, TRACE = {0.0: 0.02, 3.0: 0.10}, {0.0: 2.0, 3.0: 3.5}  # of networks trained throughout; of the log


def _runs(speed: dict[float, float], seeds: int = 8) -> list:
    """Switched networks that go 1 - exp(-speed[gamma] epochs) of the way to gamma's, curvature as fast as ECE."""
    generator = np.random.default_rng(1)
    found = []
    for way in runs.ways():
        last = runs.MORE if way.at else runs.EPOCHS
        epochs = np.arange(runs.EVERY, last + 1, runs.EVERY)
        share = 1 - np.exp(-speed[way.gamma] * epochs)
        for seed in range(seeds):
            ece, trace = (
                each[way.source] + share * (each[way.gamma] - each[way.source]) + 0.001 * generator.normal()
                for each in (ECE, TRACE)
            )
            path = {"epoch": epochs.tolist(), "ece": ece.tolist()}
            path |= dict.fromkeys(("trace", "lambda_max"), np.exp(trace).tolist())
            last = {"ece": float(ece[-1]), "trace CE val": float(np.exp(trace[-1]))}
            names = ("accuracy", "ece after T", "nll", "nll after T", "temperature", "lambda_max CE val")
            found.append(
                way._asdict() | dict.fromkeys(names, 1.0) | last | {"seed": seed, "path": path, "record": RECORD}
            )
    return found


def _verdicts(own: list) -> dict[str, str]:
    return {claim.claim: claim.verdict for claim in answers.claims(own)}


def test_the_share_of_the_way_is_that_of_the_path():
    own = _runs({3.0: 0.2, 0.0: 0.2})
    for epoch in (2, 10):
        found = answers.share(own, 0.0, (runs.HALF, "kept"), "ece", epoch)
        assert found.low < 1 - np.exp(-0.2 * epoch) < found.high
        assert found.high - found.low < 0.1


def test_verdicts_follow_the_paths():
    fast = _verdicts(_runs({3.0: 1.0, 0.0: 0.1}))
    forth, back = "cross-entropy to focal loss, half way", "focal loss to cross-entropy, half way"
    early = f"after {answers.EARLY} epochs more than half of the way of ECE is gone"
    assert (fast[f"{forth}: {early}"], fast[f"{back}: {early}"]) == (SHOWS, NOT)
    assert fast[f"{forth}: test ECE ends within a point of focal loss's throughout"] == SHOWS
    assert fast[f"{forth}: by then the trace has gone as much of its way, to a quarter of it"] == SHOWS
    words = f"half way: after {answers.EARLY} epochs ECE has gone more of its way to focal loss than back"
    assert fast[words] == SHOWS
    assert _verdicts(_runs({3.0: 0.1, 0.0: 1.0}))[words] == NOT
    few = _verdicts(_runs({3.0: 1.0, 0.0: 0.1}, seeds=1))
    assert set(few.values()) == {UNTOLD}


def test_a_trace_that_lags_is_not_together():
    own = _runs({3.0: 1.0, 0.0: 1.0})
    for run in own:
        if run["at"] and run["gamma"] != run["source"]:
            stayed = answers.of(own, runs.Way(run["source"], run["at"], run["optimizer"], run["source"]))
            run["path"]["trace"] = stayed[run["seed"]]["path"]["trace"]
    assert (
        _verdicts(own)[
            "cross-entropy to focal loss, half way: by then the trace has gone as much of its way, to a quarter of it"
        ]
        == NOT
    )


def test_all_is_written(tmp_path):
    (tmp_path / "README.md").write_text("<!-- shares -->\n<!-- end -->\n<!-- ends -->\n<!-- end -->\n")
    command.write(_runs({3.0: 1.0, 0.0: 0.1}), tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| cross-entropy to focal loss, half way | ECE on val | 86" in text
    assert "| focal loss, after the end, then cross-entropy | 8 | " in text
    assert (tmp_path / "figures" / "paths.png").exists()


def test_the_readme_s_tables_are_those_of_the_stored_runs():
    text = (command.HERE / "README.md").read_text(encoding="utf-8")
    path = command.HERE / "results.json"
    if not path.exists():
        assert "Not yet run" in text
        return
    own = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert answers.ends_table(own) in text
    assert answers.shares_table(own) in text


@pytest.mark.parametrize("way", list(runs.ways()), ids=str)
def test_every_way_is_a_job(tmp_path, way):
    config = load_config(command.HERE.parents[1] / runs.CONFIG, "")
    job.check_config(with_values(config, runs.fields_of(tmp_path, way, 3)))


@pytest.mark.slow
def test_tiny_jobs_go_on_from_each_other(tmp_path):
    quick = {
        "optimizer.decay_epochs": (),
        "evaluation.num_resamples": 50,
        "curvature.examples": 40,
        "curvature.batch_size": 40,
        "curvature.num_probes": 8,
    }
    whole = runs.train(
        tmp_path, runs.Way(0.0, 0, "fresh", 0.0), 1, quick | {"optimizer.epochs": 4, "checkpoint.every": 34}
    )
    more = runs.train(
        tmp_path, runs.Way(0.0, runs.HALF, "kept", 3.0), 1, quick | {"optimizer.epochs": 2, "start.step": 34}
    )
    assert whole[0]["path"]["epoch"] == [2, 4]
    assert more[0]["path"]["epoch"] == [2]
    assert more[0]["path"]["p_y"][0] > whole[0]["path"]["p_y"][0] - 0.3
    assert np.isfinite([more[0][name] for name in ("ece", "trace CE val", "lambda_max CE val")]).all()
