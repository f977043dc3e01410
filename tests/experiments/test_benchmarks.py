"""The parts of benchmarks that have a row for each pair of fits and for each size of the calibrate command."""

import sys

import jax
import numpy as np
import pytest

from experiments import benchmarks, peers, question, timing
from experiments.benchmarks import commands, fits, outputs
from focalgeo import calibration

MACHINE = {"machine": {"cores": "2"}}


def test_outputs_are_too_sure_by_a_known_factor_and_the_same_for_a_seed():
    (logits, labels), (test, _), (again, of_again) = outputs.made(4_000, 5, seeds=(0, 1, 0))
    np.testing.assert_array_equal(logits, again)
    np.testing.assert_array_equal(labels, of_again)
    assert not np.array_equal(logits, test)
    assert (logits.dtype, labels.dtype) == (np.float32, np.int32)
    fitted = calibration.fit("temperature_scaling", logits, labels)
    assert float(fitted.params["temperature"]) == pytest.approx(outputs.TOO_SURE, rel=0.06)


def test_calls_take_turns_and_no_round_begins_too_late():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    seconds = timing.alternated(calls, rounds=2, most=100)
    assert order == ["a", "b", "a", "b"]
    assert [len(each) for each in seconds.values()] == [2, 2]
    assert [len(each) for each in timing.alternated(calls, rounds=5, most=0).values()] == [1, 1]


# ---- fits


@pytest.mark.parametrize("name", fits.EVERY)
def test_a_peer_does_nearly_what_its_counterpart_here_does(name):
    peer = fits.EVERY[name]
    if not timing.version(peer.package):
        pytest.skip("pip install -e '.[peers]'")
    classes = 2 if name in peers.TWO_CLASSES else 4
    (val, labels), (test, truth) = outputs.made(300, classes, seeds=(0, 1))
    val, test = (np.array(calibration.temperature_scaling(rows, 1.0)) for rows in (val, test))
    found = peers.fitted(peer, val, labels)(test)
    assert found.shape == (300, classes)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1, atol=1e-5)
    room = 0.1 if "bins" in peer.title else 0.02
    if peer.counterpart and "one versus rest" not in peer.title and "float32" not in peer.title:
        here = calibration.fit(peer.counterpart, val, labels).predict_log_proba(test)
        assert fits._nll(found, truth) == pytest.approx(fits._nll(here, truth), abs=room)


def test_a_pair_is_a_row_of_seconds_and_of_nll_on_fresh_examples():
    of = {"examples": 2_000, "classes": 2, "method": "platt_scaling", "peer": "scikit-learn sigmoid"}
    folder = jax.config.jax_compilation_cache_dir
    (row,) = fits.measured(of, rounds=2)
    assert jax.config.jax_compilation_cache_dir == folder
    assert of.items() <= row.items()
    assert row["rounds"] == 2
    assert min(row["first"], row["ours"], row["theirs"]) > 0
    assert row["nll"]["ours"] == pytest.approx(row["nll"]["theirs"], abs=1e-3)
    assert row["nll"]["ours"] < row["nll"]["given"]


def test_a_first_call_compiles_whatever_is_kept():
    compiled = []
    call = jax.jit(lambda x: compiled.append(1) or x + 1)
    call(1.0)
    call(1.0)
    assert len(compiled) == 1
    assert fits.timed_anew(lambda: call(1.0)) > 0
    assert len(compiled) == 2


def test_a_peer_that_refuses_is_a_row_and_one_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(fits.EVERY, "refusing", peers.Peer("scipy", "", lambda *_: 1 / 0, "temperature_scaling"))
    of = {"examples": 30, "classes": 2, "method": "temperature_scaling", "peer": "refusing"}
    (row,) = fits.measured(of, rounds=1)
    assert row["error"] == "ZeroDivisionError: division by zero"
    assert "| ZeroDivisionError: division by zero |" in fits.fits_table([row])
    assert fits.beside_table([row]).count("\n") == 2
    monkeypatch.setattr(fits.timing, "version", lambda package: "1.0" if package == "netcal" else None)
    assert {of["peer"].partition(" ")[0] for of in fits.cases()} == {"netcal"}
    assert fits.missing() == ["probmetrics", "scikit-learn", "scipy"]


def test_tables_of_fits_have_ratios_and_the_readme_some_rows():
    def row(name, seconds, classes=10):
        peer = fits.EVERY[name]
        of = {"method": peer.counterpart, "peer": name, "examples": 5000, "classes": classes, "title": peer.title}
        numbers = {"first": 2.0, "ours": 0.1, "theirs": seconds, "nll": {"given": 1.0, "ours": 0.5, "theirs": 0.6}}
        return of | {"package": peer.package, "version": "1.4"} | numbers | MACHINE

    rows = [row("netcal temperature", 9.0), row("netcal temperature float64", 1.5)]
    rows.append(row("scikit-learn sigmoid", 0.05, 2))
    assert "\n| platt scaling | scikit-learn: sigmoid | 5,000 x 2 | 0.1 | 2 | 0.05 | 0.5 | 0.5000 | 0.6000 |\n" in (
        fits.fits_table(rows)
    )
    beside = fits.beside_table(rows)
    assert "| 5,000 x 10 | temperature scaling | 0.1 |  |  | 15 |" in beside  # that of float64
    filled = question.filled("<!-- beside: 5,000 x 10 | -->\n<!-- end -->\n", {"beside": beside})
    assert "temperature" in filled
    assert "platt" not in filled


def test_every_case_is_of_a_method_that_takes_so_many_classes():
    for (_, classes), names in fits.CASES.items():
        methods = {name: calibration.METHODS[fits.EVERY[name].counterpart] for name in names}
        assert calibration.usable(methods, {}, classes) == methods


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
