"""The workdir: what was written is read back, and a kill, a full disk or a stranger's folder loses nothing."""

import errno
import json
import os

import msgspec
import numpy as np
import pytest

from focalgeo import records
from focalgeo.rows import Eigenvalue, Metric, Scalar
from focalgeo.types import InputError, RunError

CONFIG = {"loss": {"name": "focal_loss", "gamma": 3.0}, "model": {"widths": (32, 64)}, "seed": 0}


def row(step, value=0.5):
    return Scalar("loss", value, split="train", step=step)


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_rows_come_back_in_the_order_written_and_numpy_scalars_become_numbers(tmp_path):
    records.append_rows(tmp_path / "run", [row(1), row(2, np.float32(0.25))])
    largest = Eigenvalue("lambda_max", 1.5, 1e-4, 7, converged=True, n=100, split="train", loss="focal_loss")
    records.append_rows(tmp_path / "run", [msgspec.structs.replace(largest, converged=np.bool_(True))])
    records.append_rows(tmp_path / "run", [])
    assert records.read_rows(tmp_path / "run") == [row(1), row(2, 0.25), largest]
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert line == {"kind": "scalar", "name": "loss", "value": 0.5, "split": "train", "step": 1}


def test_a_line_that_holds_no_row_is_named(tmp_path):
    records.append_rows(tmp_path, [row(1)])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"kind":"scalar","name":"loss"}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2 is no row: .*value.*; delete that line"):
        records.read_rows(tmp_path)


def test_a_number_that_is_not_finite_is_refused_and_nothing_is_written(tmp_path):
    records.append_rows(tmp_path, [row(1)])
    with pytest.raises(RunError, match=r"not finite in .*loss.*nan.*train.*2"):
        records.append_rows(tmp_path, [row(1), row(2, np.float32("nan"))])
    assert records.read_rows(tmp_path) == [row(1)]


def test_a_torn_last_line_is_ignored_and_dropped_by_the_next_replacement(tmp_path):
    records.append_rows(tmp_path, [row(1), row(2)])
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    for cut in range(1, len(whole) // 2):
        path.write_bytes(whole[:-cut])
        assert records.read_rows(tmp_path) == [row(1)]
    final = Metric("accuracy", 0.9)
    records.replace_rows(tmp_path, [final], where=lambda row: False)
    records.replace_rows(tmp_path, [row(3)], where=lambda row: row.step == 1)
    assert records.read_rows(tmp_path) == [final, row(3)]
    with pytest.raises(RunError, match="not finite"):
        records.replace_rows(tmp_path, [Metric("nll", float("nan"))], where=lambda row: True)
    assert records.read_rows(tmp_path) == [final, row(3)]
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_a_row_of_a_matrix_is_a_line_and_texts_stay_as_they_are(tmp_path):
    value = {"matrix": [[1.5, -2e-9], [0, None]], "text": "[ 1,  2 ] [\n 3 ]", "names": ["a", "[ 1 ]"], "x": [1]}
    records.write_json(tmp_path / "file.json", value)
    text = (tmp_path / "file.json").read_text()
    assert json.loads(text) == value
    assert {"    [1.5, -2e-09],", '  "x": [1]'} <= set(text.splitlines())


def test_a_full_disk_is_one_line_and_leaves_what_was_there(tmp_path, monkeypatch):
    records.write_manifest(tmp_path, {"config": {"seed": 1}})
    records.append_rows(tmp_path, [row(1)])
    monkeypatch.setattr(os, "fsync", full)
    for write in (
        lambda: records.write_manifest(tmp_path, {"config": {"seed": 2}}),
        lambda: records.append_rows(tmp_path, [row(2)]),
        lambda: records.replace_rows(tmp_path, [row(2)], where=lambda row: True),
    ):
        with pytest.raises(InputError, match=r"^cannot write .*: No space left on device; free some space.*$"):
            write()
    assert records.read_manifest(tmp_path) == {"config": {"seed": 1}}
    assert records.read_rows(tmp_path)[0] == row(1)
    assert sorted(os.listdir(tmp_path)) == ["manifest.json", "metrics.jsonl"]


def test_predictions_come_back_in_their_types(tmp_path):
    logits, labels = np.arange(6.0).reshape(3, 2), np.array([0, 1, 1])
    records.write_predictions(tmp_path, "val", logits, labels)
    predictions = records.read_predictions(tmp_path, "val")
    assert (predictions.logits.dtype, predictions.labels.dtype) == (np.float32, np.int32)
    np.testing.assert_array_equal(predictions.logits, logits)
    np.testing.assert_array_equal(predictions.labels, labels)
    records.write_arrays(tmp_path, "predictions/val", {"logits": np.zeros((3, 2)), "labels": np.zeros(2)})
    with pytest.raises(InputError, match=r"val\.npz does not hold logits"):
        records.read_predictions(tmp_path, "val")


def test_missing_torn_pickled_and_compressed_arrays_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"search\.npz cannot be read .*No such file"):
        records.read_arrays(tmp_path, "search")
    records.write_arrays(tmp_path, "search", {"gammas": np.zeros(3)})
    assert records.read_arrays(tmp_path, "search")["gammas"].shape == (3,)
    whole = (tmp_path / "search.npz").read_bytes()
    (tmp_path / "torn.npz").write_bytes(whole[: len(whole) // 2])
    np.savez(tmp_path / "pickled.npz", data=np.array([{}], dtype=object), allow_pickle=True)
    for name in ("torn", "pickled"):
        with pytest.raises(InputError, match=rf"{name}\.npz cannot be read"):
            records.read_arrays(tmp_path, name)


def test_a_workdir_is_fresh_then_resumes_for_the_same_config_alone(tmp_path):
    run = tmp_path / "runs" / "digits"
    assert records.check_workdir(run, CONFIG) == "fresh"
    run.mkdir(parents=True)
    for name in (".manifest.json.7-0123456789abcdef.tmp", ".DS_Store", "Thumbs.db", "lost+found"):
        (run / name).touch()
    assert records.check_workdir(run, CONFIG) == "fresh"
    records.write_manifest(run, {"config": CONFIG})
    assert records.check_workdir(run, CONFIG) == "resume"
    other = {**CONFIG, "loss": {"name": "focal_loss", "gamma": 2.0}}
    with pytest.raises(InputError, match=r"\(loss\.gamma: 3\.0 there, 2\.0 here\); choose another folder"):
        records.check_workdir(run, other)
    with pytest.raises(InputError, match=r"c: absent there, 3 here; d: absent"):
        records.check_workdir(run, {**CONFIG, "a": 1, "b": 2, "c": 3, "d": 4})


def test_one_run_alone_may_write_to_a_workdir_and_sweeps_up_what_killed_ones_left(tmp_path):
    (tmp_path / "figures").mkdir()
    half_written, figure = tmp_path / "figures" / ".a.svg.7-0123456789abcdef.tmp", tmp_path / "figures" / "a.svg"
    half_written.touch(), figure.touch()
    with records.locked(tmp_path), pytest.raises(InputError, match="another run is writing"), records.locked(tmp_path):
        pass
    with records.locked(tmp_path):
        assert (half_written.exists(), figure.exists()) == (False, True)


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(InputError, match=r"metrics\.jsonl is no regular file"):
        records.read_rows(tmp_path)
