"""The workdir: what was written is read back, and a kill, a full disk or a stranger's folder loses nothing."""

import errno
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from focalgeo import records
from focalgeo.config import default_config
from focalgeo.rows import Eigenvalue, Metric, Scalar, Tags
from focalgeo.types import InputError, RunError

CONFIG = {"loss": {"name": "focal_loss", "gamma": 3.0}, "model": {"widths": (32, 64)}, "seed": 0}


def row(step, value=0.5):
    return Scalar("loss", value, split="train", tags=Tags(step=step))


def test_rows_come_back_in_the_order_written_and_numpy_scalars_become_numbers(tmp_path):
    records.append_rows(tmp_path / "run", [row(1), row(2, np.float32(0.25))])
    largest = Eigenvalue("lambda_max", 1.5, 1e-4, 7, converged=True, n=100, split="train", loss="focal_loss")
    records.append_rows(tmp_path / "run", [largest._replace(converged=np.bool_(True), products=np.int32(7))])
    records.append_rows(tmp_path / "run", [])
    assert records.read_rows(tmp_path / "run") == [row(1), row(2, 0.25), largest]


def test_a_line_is_one_flat_object_without_what_does_not_apply(tmp_path):
    records.append_rows(tmp_path, [row(1)])
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert line == {"kind": "scalar", "name": "loss", "value": 0.5, "split": "train", "step": 1}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"name": "loss", "value": 0.5}, "it was written by an older focalgeo; make the folder again with this one"),
        ({"kind": "scalr", "name": "loss", "value": 0.5}, "a row's kind is 'scalr': did you mean 'scalar'?"),
        ({"kind": "scalar", "name": "loss"}, "row 'loss' has no value"),
        ({"kind": "scalar", "name": "loss", "value": "low"}, "row 'loss' has value 'low', which is no finite number"),
    ],
)
def test_a_line_that_holds_no_row_is_named_with_its_mend(tmp_path, line, says):
    records.append_rows(tmp_path, [row(1)])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(InputError) as caught:
        records.read_rows(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'metrics.jsonl'}, line 2: ")
    assert str(caught.value).endswith(says)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("nan")])
def test_a_number_that_is_not_finite_is_refused_by_name_and_step_and_nothing_is_written(tmp_path, value):
    records.append_rows(tmp_path, [row(1)])
    with pytest.raises(RunError, match=r"row 'loss' at step 2: value is (nan|inf)"):
        records.append_rows(tmp_path, [row(1), row(2, value)])
    assert records.read_rows(tmp_path) == [row(1)]


def test_a_torn_last_line_is_ignored_and_corruption_elsewhere_names_its_line(tmp_path):
    records.append_rows(tmp_path, [row(1), row(2)])
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    for cut in range(1, len(whole) // 2):
        path.write_bytes(whole[:-cut])
        assert records.read_rows(tmp_path) == [row(1)]
    path.write_bytes(whole[:10] + b"\n" + whole)
    with pytest.raises(InputError, match=r"metrics\.jsonl is corrupt at line 1; delete that line"):
        records.read_rows(tmp_path)


def test_replace_drops_later_steps_and_a_torn_line_and_keeps_rows_without_a_step(tmp_path):
    final = Metric("accuracy", 0.9)
    records.append_rows(tmp_path, [row(1), final, row(2), row(3)])
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "scal')
    records.replace_rows(tmp_path, [], where=lambda row: (row.tags.step or 2) > 2)
    records.append_rows(tmp_path, [row(3, 0.125)])
    assert records.read_rows(tmp_path) == [row(1), final, row(2), row(3, 0.125)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.jsonl"]


def test_replace_swaps_matching_rows_for_new_ones_or_changes_nothing(tmp_path):
    old, new = Metric("accuracy", 0.9), Metric("accuracy", 0.95)
    records.replace_rows(tmp_path, [row(1), old, row(2)], where=lambda row: True)
    records.replace_rows(tmp_path, [new], where=lambda row: row.tags.step is None)
    assert records.read_rows(tmp_path) == [row(1), row(2), new]
    with pytest.raises(RunError, match="value is nan"):
        records.replace_rows(tmp_path, [Metric("nll", float("nan"))], where=lambda row: True)
    assert records.read_rows(tmp_path) == [row(1), row(2), new]


def test_a_row_of_a_matrix_is_a_line_and_texts_stay_as_they_are(tmp_path):
    value = {
        "matrix": [[1.5, -2e-9], [0, None]],
        "text": "[ 1,  2 ] [\n 3 ]",
        "names": ["a", "[ 1 ]"],
        "none": [],
        "x": [1],
    }
    records.write_json(tmp_path / "file.json", value)
    assert records.read_json(tmp_path / "file.json") == value
    lines = (tmp_path / "file.json").read_text().splitlines()
    assert {"    [1.5, -2e-09],", '  "x": [1]'} <= set(lines)


def test_a_failed_write_leaves_the_old_file_whole_and_no_temporary_behind(tmp_path, monkeypatch):
    records.write_manifest(tmp_path, {"config": {"seed": 1}})

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    message = r"cannot write .*manifest\.json: No space left on device; free some space or choose another --workdir"
    with pytest.raises(InputError, match=message):
        records.write_manifest(tmp_path, {"config": {"seed": 2}})
    assert records.read_manifest(tmp_path) == {"config": {"seed": 1}}
    assert [p.name for p in tmp_path.iterdir()] == ["manifest.json"]


def test_rows_on_a_full_disk_are_one_line(tmp_path, monkeypatch):
    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(InputError, match="No space left on device; free some space") as caught:
        records.append_rows(tmp_path, [row(1)])
    assert "\n" not in str(caught.value)


def test_rows_that_fit_only_in_part_are_undone(tmp_path, monkeypatch):
    records.append_rows(tmp_path, [row(1)])
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    with pytest.raises(InputError, match="No space left on device"):
        records.append_rows(tmp_path, [row(2)])
    monkeypatch.undo()
    records.append_rows(tmp_path, [row(3)])
    assert records.read_rows(tmp_path) == [row(1), row(3)]


@pytest.mark.parametrize(
    ("number", "mend"),
    [(errno.EROFS, "make it writable"), (errno.EACCES, "make it writable"), (errno.EIO, "choose another --workdir")],
)
def test_writing_turns_an_os_error_into_what_where_and_how_to_mend(number, mend):
    with pytest.raises(InputError, match=mend) as caught, records.writing("runs/x"):
        raise OSError(number, os.strerror(number))
    assert str(caught.value).startswith(f"cannot write runs/x: {os.strerror(number)}; ")


def test_a_file_where_a_folder_should_be_is_one_line(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(InputError, match="a file stands where a folder should be"):
        records.append_rows(tmp_path / "run", [row(1)])
    with pytest.raises(InputError, match="is a file, not a folder"):
        records.check_workdir(tmp_path / "run", CONFIG)


def test_predictions_come_back_in_their_types(tmp_path):
    logits, labels = np.arange(6.0).reshape(3, 2), np.array([0, 1, 1])
    records.write_predictions(tmp_path, "val", logits, labels)
    predictions = records.read_predictions(tmp_path, "val")
    assert (predictions.logits.dtype, predictions.labels.dtype) == (np.float32, np.int32)
    np.testing.assert_array_equal(predictions.logits, logits)
    np.testing.assert_array_equal(predictions.labels, labels)
    assert predictions.mask.all()
    assert (tmp_path / "predictions" / "val.npz").exists()


def test_corrupt_missing_and_pickled_arrays_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*search\.npz: No such file"):
        records.read_arrays(tmp_path, "search")
    records.write_arrays(tmp_path, "search", {"gammas": np.zeros(3)})
    assert records.read_arrays(tmp_path, "search")["gammas"].shape == (3,)
    data = (tmp_path / "search.npz").read_bytes()
    (tmp_path / "search.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"search\.npz is corrupt"):
        records.read_arrays(tmp_path, "search")
    np.savez(tmp_path / "pickled.npz", data=np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"pickled\.npz is corrupt"):
        records.read_arrays(tmp_path, "pickled")
    records.write_arrays(tmp_path, "predictions/val", {"logits": np.zeros((3, 2)), "labels": np.zeros(2)})
    with pytest.raises(InputError, match=r"val\.npz does not hold logits"):
        records.read_predictions(tmp_path, "val")


def test_a_workdir_is_fresh_then_resumes_for_the_same_config(tmp_path):
    run = tmp_path / "runs" / "digits"
    assert records.check_workdir(run, CONFIG) == "fresh"
    run.mkdir(parents=True)
    (run / ".manifest.json.tmp").write_text("{")  # a kill during the very first write
    (run / ".ipynb_checkpoints").mkdir()
    for name in (".DS_Store", "._.DS_Store", "Thumbs.db", "desktop.ini", ".gitkeep"):
        (run / name).touch()
    assert records.check_workdir(run, CONFIG) == "fresh"
    records.write_manifest(run, {"config": CONFIG})
    assert records.check_workdir(run, CONFIG) == "resume"


def test_a_truth_value_is_of_every_field_that_no_shape_names(tmp_path):
    config = default_config().to_dict()
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        part["new"] = True
    config["sweep"].pop("new")  # its fields are axes, lists all
    records.write_manifest(tmp_path, {"config": config, "new": True})
    assert records.read_manifest(tmp_path)["config"]["loss"]["new"] is True
    assert records.check_workdir(tmp_path, config) == "resume"


def test_a_part_of_the_config_may_differ_where_that_is_said(tmp_path):
    records.write_manifest(tmp_path, {"config": {**CONFIG, "sweep": {"seed": [0]}}})
    grown = {**CONFIG, "sweep": {"seed": [0, 1]}}
    assert records.check_workdir(tmp_path, grown, but="sweep") == "resume"
    with pytest.raises(InputError, match="belongs to another config"):
        records.check_workdir(tmp_path, grown)


def test_a_field_that_is_newer_than_the_run_counts_as_its_default(tmp_path):
    records.write_manifest(tmp_path, {"config": CONFIG})
    here = {**CONFIG, "newer": {"name": "none", "sizes": ()}}
    assert records.check_workdir(tmp_path, here, defaults=here) == "resume"
    other = {**here, "newer": {"name": "some", "sizes": ()}}
    with pytest.raises(InputError, match=r"\(newer\.name: none there, some here\)"):
        records.check_workdir(tmp_path, other, defaults=here)


def test_one_run_alone_may_write_to_a_workdir(tmp_path):
    with records.locked(tmp_path), pytest.raises(InputError, match="another run is writing"), records.locked(tmp_path):
        pass
    with records.locked(tmp_path):
        pass


def test_a_workdir_of_another_config_names_the_first_fields_that_differ(tmp_path):
    records.write_manifest(tmp_path, {"config": CONFIG})
    other = {**CONFIG, "loss": {"name": "focal_loss", "gamma": 2.0}}
    with pytest.raises(
        InputError, match=r"\(loss\.gamma: 3\.0 there, 2\.0 here\); choose another --workdir, or delete"
    ):
        records.check_workdir(tmp_path, other)
    with pytest.raises(InputError, match=r"seed: 0 there, absent here"):
        records.check_workdir(tmp_path, {key: CONFIG[key] for key in ("loss", "model")})
    with pytest.raises(InputError, match=r"c: absent there, 3 here and 1 more\)"):
        records.check_workdir(tmp_path, {**CONFIG, "a": 1, "b": 2, "c": 3, "d": 4})


def test_a_strange_folder_and_a_corrupt_manifest_are_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"is not a focalgeo workdir: it is not empty and has no manifest\.json"):
        records.check_workdir(tmp_path, CONFIG)
    for text in ("{", "[]"):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(InputError, match=r"manifest\.json is corrupt"):
            records.check_workdir(tmp_path, CONFIG)


def test_a_workdir_of_the_first_version_is_named_as_such(tmp_path):
    records.write_manifest(tmp_path, {"config": {"seed": 0}})
    (tmp_path / "rounds.json").write_text("[]")
    with pytest.raises(InputError, match=r"was written by an older focalgeo.*choose another --workdir"):
        records.check_workdir(tmp_path, {"seed": 0})


def test_what_killed_processes_left_is_swept_away_and_a_living_one_s_stays(tmp_path):
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    left = tmp_path / "figures" / f".a.svg.{int(ended.stdout)}-0123456789abcdef.tmp"
    living, mine = left.with_name(f".a.svg.{os.getpid()}-0123456789abcdef.tmp"), tmp_path / ".mine.tmp"
    left.parent.mkdir()
    for path in (left, living, mine):
        path.write_text("")
    with records.locked(tmp_path):
        assert [path.exists() for path in (left, living, mine)] == [False, True, True]
        with pytest.raises(InputError, match="another run is writing"), records.locked(tmp_path):
            pass


def test_nothing_is_written_through_links(tmp_path):
    (tmp_path / "victim").write_text("mine")
    run = tmp_path / "run"
    for name in (".lock", "metrics.jsonl", "manifest.json"):
        run.mkdir(exist_ok=True)
        (run / name).symlink_to("../victim")
    with pytest.raises(InputError, match=r"\.lock: .*; it is a link"), records.locked(run):
        pass
    with pytest.raises(InputError, match=r"metrics\.jsonl: .*; it is a link"):
        records.append_rows(run, [row(1)])
    records.write_manifest(run, {"config": CONFIG})
    assert not (run / "manifest.json").is_symlink()
    with pytest.raises(InputError, match=r"\.lock is a link, and|metrics\.jsonl is a link, and"):
        records.check_workdir(run, CONFIG)
    assert (tmp_path / "victim").read_text() == "mine"


def test_pipes_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    for use in (records.read_rows, lambda folder: records.append_rows(folder, [row(1)])):
        with pytest.raises(InputError, match=r"metrics\.jsonl"):
            use(tmp_path)
    (tmp_path / ".lock").mkdir()
    with pytest.raises(InputError, match="a folder stands where"), records.locked(tmp_path):
        pass


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "\udcff", "a\u2028b"])
def test_a_name_that_no_line_can_show_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="holds control characters or bytes that are no UTF-8") as caught:
        records.check_workdir(tmp_path / name, CONFIG)
    assert len(str(caught.value).splitlines()) == 1


def test_arrays_that_declare_more_than_the_file_holds_are_corrupt(tmp_path):
    np.savez_compressed(tmp_path / "search.npz", ece=np.zeros(1_000_000))
    with pytest.raises(InputError, match=r"search\.npz is corrupt"):
        records.read_arrays(tmp_path, "search")
    with zipfile.ZipFile(tmp_path / "search.npz", "w") as archive:
        archive.writestr("notes.txt", "no array")
    with pytest.raises(InputError, match=r"search\.npz is corrupt"):
        records.read_arrays(tmp_path, "search")
