"""Workdirs of random content: what is read is right, or one line that names the file; what is written comes back."""

import copy
import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_workdir import MANIFEST, write_workdir

from focalgeo import records
from focalgeo.rows import _TYPES as TYPES
from focalgeo.rows import KINDS, Metric, Tags, from_json, to_json
from focalgeo.types import InputError

pytestmark = pytest.mark.long

SCALARS = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=6), each, max_size=3)
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = {
    float: FINITE,
    int: st.integers(0, 2**63 - 1),
    str: st.text(max_size=20),
    bool: st.booleans(),
    type(None): st.none(),
}


def refused_or(read, path):
    """What `read` returns, or None where it refuses the file in one line that names it."""
    try:
        return read()
    except InputError as error:
        said = str(error)
    assert len(said.splitlines()) == 1
    assert str(path) in said
    assert len(said) < 600
    return None


def fields_of(kind):
    return st.fixed_dictionaries(
        {
            name: st.one_of([VALUES[each] for each in types])
            for name, types in TYPES[kind].items()
            if name not in kind._field_defaults or kind is not Tags
        }
    )


@st.composite
def rows(draw):
    kind = draw(st.sampled_from(list(KINDS.values())))
    tags = {name: draw(st.one_of([VALUES[each] for each in types])) for name, types in TYPES[Tags].items()}
    return kind(**draw(fields_of(kind)), tags=Tags(**tags))


@settings(max_examples=100, deadline=None)
@given(rows())
def test_any_row_comes_back(row):
    line = json.dumps(to_json(row), allow_nan=False)
    assert from_json(json.loads(line)) == row


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.dictionaries(st.sampled_from(sorted({*Metric._fields, *Tags._fields})), JSON))
def test_fields_of_any_type_are_a_row_or_refused(kind, fields):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        path.write_text(json.dumps({"kind": kind, "name": "ece", **fields}) + "\n")
        for row in refused_or(lambda: records.read_rows(folder), path) or ():
            for value in (*row[:-1], *row.tags):
                assert value is None or isinstance(value, str | int | float)
                assert isinstance(value, str | None) or math.isfinite(value)


def flips(length):
    flip = st.tuples(st.integers(0, length - 1), st.integers(0, 255))
    return st.tuples(st.lists(flip, max_size=5), st.integers(0, length))


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    write_workdir(folder)
    records.write_predictions(folder, "val", np.zeros((7, 3)), np.zeros(7))
    return folder


def damaged(data, flips, end):
    changed = bytearray(data)
    for position, value in flips:
        changed[position] = value
    return bytes(changed[:end])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_bytes_that_flip_or_are_cut_are_rows_or_refused(workdir, data):
    whole = b"".join((workdir / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:20])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        path.write_bytes(damaged(whole, *data.draw(flips(len(whole)))))
        found = refused_or(lambda: records.read_rows(folder), path)
        assert found is None or len(found) <= 25


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_arrays_that_flip_or_are_cut_are_predictions_or_refused(workdir, data):
    whole = (workdir / "predictions" / "val.npz").read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions" / "val.npz"
        path.parent.mkdir()
        path.write_bytes(damaged(whole, *data.draw(flips(len(whole)))))
        found = refused_or(lambda: records.read_predictions(folder, "val"), path)
        assert found is None or (found.logits.ndim, found.logits.dtype) == (2, np.float32)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_manifest_with_any_part_replaced_is_read_or_refused(data):
    found = copy.deepcopy(MANIFEST)
    part, name = found, None
    for _ in range(data.draw(st.integers(1, 3))):
        if not isinstance(part, dict) or not part:
            break
        parent, name = part, data.draw(st.sampled_from(sorted(part)))
        part = part[name]
    parent[name] = data.draw(JSON)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "manifest.json"
        path.write_text(json.dumps(found))
        read = refused_or(lambda: records.read_manifest(folder), path)
        assert read is None or isinstance(read, dict)
        how = refused_or(lambda: records.check_workdir(folder, MANIFEST["config"], but="sweep"), folder)
        assert how in (None, "resume")


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_any_json_as_manifest_is_no_workdir_of_ours(value):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "manifest.json").write_text(json.dumps(value))
        assert refused_or(lambda: records.check_workdir(folder, MANIFEST["config"]), folder) is None


@settings(max_examples=50, deadline=None)
@given(JSON)
def test_what_is_written_as_json_comes_back_or_is_refused(value):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.json"
        path.write_text(json.dumps(value))
        read = refused_or(lambda: records.read_json(path), path)
        assert read is None or json.dumps(read) == json.dumps(value)
