"""Random files of outputs and random calibrators: an InputError of one line, or what was written is what is read."""

import csv
import io
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hostile.cases import ROOT
from hostile.tables.output_files import CLASSES, LABELS, LOGITS, N
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from focalgeo.calibrate import main
from focalgeo.calibration import read_calibrator
from focalgeo.data.logits_files import Keys, read_outputs
from focalgeo.types import InputError

pytestmark = pytest.mark.long
tried = lambda examples: settings(max_examples=examples, deadline=None)  # noqa: E731


def attempted(name, content, read):
    """What `read` makes of a file of these bytes; None where it is refused, in one line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        try:
            return read(path)
        except InputError as error:
            message = str(error)
    assert "\n" not in message
    assert len(message) < 1000
    return None


def outputs(path):
    found = read_outputs(str(path), Keys(), where="val")
    assert np.isfinite(found.logits).all()
    assert len(found.labels) == len(found.logits) >= 30
    assert 0 <= found.labels.min() <= found.labels.max() < found.logits.shape[1]
    return found


TEXTS = ["", "nan", "1_0", "0x1", "1,5", '"', '"1', '1"', "1e", "#", " 1 ", "1e-400", "\0", "\r"]
CELLS = st.one_of(st.floats(-1e6, 1e6).map(repr), st.sampled_from(TEXTS), st.text(max_size=4))
COLUMNS = st.sampled_from(["labels", "logits_0", "logits_1", "logits_2", "group", "logits_10", "logits", ""])


@tried(100)
@given(
    st.lists(COLUMNS, min_size=1, max_size=5),
    st.dictionaries(st.integers(0, N - 1), st.lists(CELLS, max_size=6), max_size=3),
    st.sampled_from(["\n", "\r\n", "\r", "\n\n"]),
    st.sampled_from([",", ";", "\t"]),
)
def test_csv_of_random_headers_and_rows(columns, rows, end, mark):
    lines = [["0" if k % 2 else "1"] + ["0.5"] * (len(columns) - 1) for k in range(N)]
    for row, cells in rows.items():
        lines[row] = cells
    text = end.join(mark.join(cells) for cells in [columns, *lines])
    attempted("val.csv", text.encode(errors="surrogatepass"), outputs)


@tried(40)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=N * CLASSES, max_size=N * CLASSES),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from(["utf-8", "utf-8-sig"]),
    st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1), min_size=N, max_size=N),
)
def test_a_right_csv_is_read_as_it_was_written(numbers, quoting, encoding, groups):
    logits, file = np.reshape(numbers, (N, CLASSES)), io.StringIO(newline="")
    writer = csv.writer(file, quoting=quoting)
    writer.writerow(["group", "labels", *(f"logits_{k}" for k in range(CLASSES))])
    writer.writerows([group, label, *map(float, row)] for group, label, row in zip(groups, LABELS, logits, strict=True))
    found = attempted("val.csv", file.getvalue().encode(encoding), outputs)
    np.testing.assert_array_equal(found.logits, logits.astype(np.float32))
    np.testing.assert_array_equal(found.labels, LABELS)
    assert found.group.tolist() == groups


def whole(write):
    file = io.BytesIO()
    write(file, logits=LOGITS, labels=LABELS)
    return file.getvalue()


GOOD = {
    "a.npz": whole(np.savez),
    "b.npz": whole(np.savez_compressed),
    "c.safetensors": save({"logits": LOGITS, "labels": LABELS}),
}


@tried(150)
@given(st.sampled_from(sorted(GOOD)), st.data())
def test_a_good_file_with_bytes_changed_or_cut(name, data):
    content = bytearray(GOOD[name])
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.just(0) | st.integers(0, len(content)))
    found = attempted(name, bytes(content[: len(content) - cut]), outputs)
    if found is not None and name != "c.safetensors":  # which has no checksums
        np.testing.assert_array_equal(found.logits, LOGITS)
        np.testing.assert_array_equal(found.labels, LABELS)


CALIBRATOR = {
    "format": "focalgeo-calibrator",
    "version": 2,
    "method": "focal_temperature_scaling",
    "criterion": "ece",
    "num_classes": 3,
    "parameters": {"gamma": 0.5, "temperature": 1.5},
}
SCALARS = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=5)
JSON = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=5), SCALARS, max_size=3)


@tried(100)
@given(
    st.dictionaries(st.sampled_from(sorted(CALIBRATOR)), JSON, max_size=2),
    st.dictionaries(st.sampled_from(["gamma", "temperature"]), JSON),
)
def test_calibrators_of_random_values(changed, parameters):
    value = {**CALIBRATOR, "parameters": {**CALIBRATOR["parameters"], **parameters}, **changed}
    found = attempted("calibrator.json", json.dumps(value).encode(), read_calibrator)
    if found is not None:
        log_probs = np.asarray(found.predict_log_proba(np.zeros((4, found.num_classes))))
        assert not np.isnan(log_probs).any()
        if "gamma" not in parameters:  # a large one leaves float32 few digits
            np.testing.assert_allclose(np.exp(log_probs).sum(1), 1, atol=1e-4)


def test_a_hangup_leaves_complete_files_and_the_same_command_makes_them_whole(tmp_path):
    np.savez(tmp_path / "val.npz", logits=LOGITS, labels=LABELS)
    arguments = [f"--val={tmp_path}/val.npz", f"--out={tmp_path}/out", "--num-resamples=100", "--folds=2"]
    command = [sys.executable, "-m", "focalgeo.calibrate", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        next(line for line in running.stderr if "measuring" in line)
        running.send_signal(signal.SIGHUP)
    assert running.returncode == -signal.SIGHUP
    assert not list((tmp_path / "out").glob("*.npz"))  # nothing is written before all is measured
    assert main(arguments) == 0
    assert read_calibrator(tmp_path / "out" / "calibrator.json").num_classes == CLASSES
