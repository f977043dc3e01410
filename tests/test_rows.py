"""Rows: every kind survives its JSON line; what is no row, or no finite number, is refused by name."""

import json
from typing import get_args

import numpy as np
import pytest

from focalgeo import rows
from focalgeo.rows import KINDS, Metric, Scalar, Tags, finite, from_json, select, tagged, to_json
from focalgeo.types import InputError, RunError

EXAMPLES = {float: 0.25, int: 3, str: "a", bool: True}


def example(kind, *, full):
    """A row with a value in every field, or in those alone that it must have."""
    types = rows._TYPES[kind]
    fields = types if full else [field for field in types if field not in kind._field_defaults]
    tags = Tags(gamma=3.0, seed=0, step=10) if full else Tags()
    return kind(**{field: EXAMPLES[types[field][0]] for field in fields}, tags=tags)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_is_read_back_from_its_line(kind, full):
    row = example(kind, full=full)
    line = json.loads(json.dumps(to_json(row)))
    assert from_json(line) == row
    assert None not in line.values()
    assert from_json({**line, "later_field": 1}) == row


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"value": "low"}, "has value 'low', which is no finite number"),
        ({"value": True}, "has value True, which is no finite number"),
        ({"value": float("nan")}, "has value nan, which is no finite number"),
        ({"value": None}, "row 'ece' has no value"),
        ({"n": 1.5}, "has n 1.5, which is no whole number"),
        ({"split": 3}, "has split 3, which is no text"),
        ({"seed": "0"}, "has seed '0', which is no whole number"),
        ({"kind": "metrc"}, "did you mean 'metric'?"),
        ({"kind": None}, "a row's kind is 'None'"),
    ],
)
def test_what_is_no_row_is_refused_by_name(change, says):
    line = {"kind": "metric", "name": "ece", "value": 1, "n": 10}
    assert from_json(line) == Metric("ece", 1, n=10)  # a whole number is a number
    with pytest.raises(InputError, match="row") as caught:
        from_json({**line, **change})
    assert says in str(caught.value)


def test_numbers_become_pythons_own_and_must_be_finite():
    row = finite(Metric("ece", np.float32(0.5), n=np.int64(7)))
    assert (type(row.value), type(row.n)) == (float, int)
    with pytest.raises(RunError, match="name ece, split test has value nan"):
        finite(Metric("ece", np.float32("nan"), split="test"))


def test_rows_are_selected_by_fields_and_tags_and_none_means_absent():
    found = [Metric("ece", 0.1, criterion="nll"), Metric("ece", 0.2), *tagged([Metric("ece", 0.3)], seed=1)]
    found.append(Scalar("ece", 0.4))
    assert [row.value for row in select(found, Metric, name="ece", criterion=None)] == [0.2, 0.3]
    assert [row.value for row in select(found, Metric, seed=1)] == [0.3]
    assert len(get_args(rows.Row)) == len(KINDS)
