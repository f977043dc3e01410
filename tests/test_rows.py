"""Rows: every kind survives its JSON line; what is no row, or no finite number, is refused by name."""

import json
from typing import get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focalgeo import rows
from focalgeo.rows import Metric, Row, Scalar
from focalgeo.types import RunError

VALUES = {float: st.floats(allow_nan=False, allow_infinity=False), str: st.text(), bool: st.booleans()}
VALUES[int] = st.integers(0, 2**63 - 1)


@st.composite
def drawn_rows(draw):
    """A row of any kind, each optional field there or not."""
    kind = draw(st.sampled_from(get_args(Row)))
    values = {}
    for field in msgspec.inspect.type_info(kind).fields:
        types = getattr(field.type, "types", (field.type,))
        (plain,) = (t for t in types if not isinstance(t, msgspec.inspect.NoneType))
        of = VALUES[{"FloatType": float, "IntType": int, "StrType": str, "BoolType": bool}[type(plain).__name__]]
        if field.required or draw(st.booleans()):
            values[field.name] = draw(of)
    return kind(**values)


@settings(max_examples=200, deadline=None)
@given(drawn_rows())
def test_a_row_of_any_kind_is_read_back_from_its_line(row):
    line = rows.encode(row)
    assert rows.DECODER.decode(line) == row
    assert b"null" not in line or "null" in repr(row)
    assert json.loads(line)["kind"] == type(row).__struct_config__.tag


def test_what_has_another_field_than_its_kind_is_read_and_kinds_differ():
    assert rows.DECODER.decode(b'{"kind":"metric","name":"ece","value":1,"later":2,"n":10}') == Metric("ece", 1, n=10)
    assert len({kind.__struct_config__.tag for kind in get_args(Row)}) == len(get_args(Row)) == 13


@pytest.mark.parametrize(
    "change",
    ['"value":"low"', '"value":true', '"value":NaN', '"value":1e999', '"n":1.5', '"n":-1', '"split":3', '"kind":"a"'],
)
def test_what_is_no_row_is_refused(change):
    with pytest.raises(msgspec.MsgspecError):
        rows.DECODER.decode(f'{{"kind":"metric","name":"ece","value":1,{change}}}'.encode())
    with pytest.raises(msgspec.MsgspecError, match="value"):
        rows.DECODER.decode(b'{"kind":"metric","name":"ece"}')


def test_numbers_become_pythons_own_and_must_be_finite():
    row = rows.finite(Metric("ece", np.float32(0.5), n=np.int64(7)))
    assert (type(row.value), type(row.n)) == (float, int)
    with pytest.raises(RunError, match=r"not finite in .*ece.*nan.*test.*3"):
        rows.encode(Metric("ece", np.float32("nan"), split="test", step=3))


def test_rows_are_selected_by_fields_and_tags_and_none_means_absent():
    some = [Metric("ece", 0.1, criterion="nll"), Metric("ece", 0.2), *rows.tagged([Metric("ece", 0.3)], seed=1)]
    some.append(Scalar("ece", 0.4))
    assert [row.value for row in rows.select(some, Metric, name="ece", criterion=None)] == [0.2, 0.3]
    assert [row.value for row in rows.select(some, Metric, seed=1)] == [0.3]


def test_a_series_has_all_that_tells_rows_apart():
    row = Metric("ece", 0.02, n=360, split="val", method="vector_scaling", criterion="nll", gamma=3.0, seed=12345678)
    assert rows.series(row) == "gamma_3.0/seed_12345678/val/ece/vector_scaling/nll"
    telling = {"run", "gamma", "trace_penalty", "trace_target", "learning_rate", "weight_decay", "seed", "quantile"}
    for kind in get_args(Row):
        words = {name for name, of in kind.__annotations__.items() if of in (str, str | None)}
        for field in (telling | words) - {"estimator"}:
            if field in kind.__struct_fields__:
                required = {f.name: 0.5 for f in msgspec.structs.fields(kind) if f.required}
                one, other = (kind(**{**required, field: of}) for of in ("1", "2"))
                assert rows.series(one) != rows.series(other), (kind, field)
