"""Other libraries' methods, and the part of benchmarks that has a row for each size of the calibrate command."""

import sys

import numpy as np
import pytest

from experiments import benchmarks, peers, question, timing
from experiments.benchmarks import commands, outputs
from experiments.posthoc import measured
from focalgeo import calibration


def test_outputs_are_too_sure_by_a_known_factor_and_the_same_for_a_seed():
    (logits, labels), (test, _), (again, of_again) = outputs.made(4_000, 5, seeds=(0, 1, 0))
    np.testing.assert_array_equal(logits, again)
    np.testing.assert_array_equal(labels, of_again)
    assert not np.array_equal(logits, test)
    assert (logits.dtype, labels.dtype) == (np.float32, np.int32)
    fitted = calibration.fit("temperature_scaling", logits, labels)
    assert float(fitted.params["temperature"]) == pytest.approx(outputs.TOO_SURE, rel=0.06)


@pytest.mark.parametrize("name", peers.PEERS)
def test_a_peer_does_nearly_what_its_counterpart_here_does(name):
    peer = peers.PEERS[name]
    if not timing.version(peer.package):
        pytest.skip("pip install -e '.[peers]'")
    (val, labels), (test, truth) = outputs.made(300, 4, seeds=(0, 1))
    val, test = (np.array(calibration.temperature_scaling(rows, 1.0)) for rows in (val, test))
    found = peers.fitted(peer, val, labels)(test)
    assert found.shape == (300, 4)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1, atol=1e-5)
    if peer.counterpart and "float32" not in peer.title:
        here = calibration.fit(peer.counterpart, val, labels).predict_log_proba(test)
        nll, of_here = (measured.scores(log_probs, truth)["nll"] for log_probs in (found, here))
        assert nll == pytest.approx(of_here, abs=0.02)


# ---- the command


def test_a_process_is_measured_without_what_its_parent_holds(tmp_path):
    held = b"x" * (300 << 20)
    small = commands.metered([sys.executable, "-S", "-c", ""], tmp_path)
    large = commands.metered([sys.executable, "-S", "-c", "b'x' * (200 << 20)"], tmp_path)
    assert len(held) > small["bytes"]
    assert 190 << 20 < large["bytes"] - small["bytes"] < 215 << 20
    failed = commands.metered([sys.executable, "-c", "raise SystemExit('no memory')"], tmp_path)
    assert (failed["code"], failed["said"]) == (1, ["no memory"])


def test_the_fastest_of_the_later_runs_is_kept_and_a_failure_is_a_row(monkeypatch, tmp_path):
    seconds, commanded = iter((9.0, 3.0, 2.0, 4.0)), []

    def metered(command, programs):
        commanded.append((command, programs))
        return {"code": 0, "said": [], "seconds": next(seconds), "processor": 1.0, "bytes": 2**30}

    monkeypatch.setattr(commands, "metered", metered)
    of = {"examples": 40, "classes": 3}
    (row,) = commands.measured(of, tmp_path)
    assert (row["first"]["seconds"], row["again"]["seconds"], row["runs"]) == (9.0, 2.0, 3)
    assert len({command[-1] for command, _ in commanded}) == 4  # each into a folder of its own
    assert len({programs for _, programs in commanded}) == 1
    assert list(tmp_path.iterdir()) == []
    failed = {"code": 3, "said": ["focalgeo: the files need more memory than is free"]}
    monkeypatch.setattr(commands, "metered", lambda *_: failed | {"seconds": 1.0})
    (failure,) = commands.measured(of | {"classes": 4}, tmp_path)
    assert failure["error"] == "exit code 3: focalgeo: the files need more memory than is free"
    lines = commands.sizes_table([failure, row]).splitlines()
    assert lines[-2] == "| 40 | 3 | 2 | 1 | 1.00 | 9 | 1.00 |"
    assert lines[-1].startswith("| 40 | 4 | exit code 3: ")
    figure = commands.sizes_figure([failure, row])
    assert [axis.lines[0].get_xydata().tolist() for axis in figure.axes] == [[[40, 2]], [[40, 1]]]


@pytest.mark.long
def test_a_later_run_finds_all_programs_and_rows_are_not_made_again(monkeypatch, tmp_path):
    kept, metered = [], commands.metered

    def counted(command, programs):
        run = metered(command, programs)
        kept.append({path.name for path in programs.iterdir() if path.name.endswith("-cache")})
        return run

    monkeypatch.setattr(commands, "SIZES", ((100, 3),))
    monkeypatch.setattr(commands, "RUNS", 1)
    for spy in (counted, lambda *_: 1 / 0):
        monkeypatch.setattr(commands, "metered", spy)
        question.answer(benchmarks.QUESTION, [f"--out={tmp_path}", "--parts", "command"])
    assert len(kept[0]) > 5
    assert kept[0] == kept[1]
    (row,) = question.stored(tmp_path)["command"]
    assert row["runs"] == 1
    assert all(2**27 < row[run]["bytes"] < 2**31 for run in ("first", "again"))
    assert (tmp_path / "figures" / "sizes.png").exists()
