"""The edge cases of experiments/which_ece, in focalgeo's own column."""

import math

import pytest

from experiments.which_ece import __main__ as command
from experiments.which_ece import cases, libraries

EXPECTED = {
    "p = 1": 0.475,
    "p = 0": 0.475,
    "tie at an edge": 0.1875,
    "float32 above an edge": 0.125,
    "empty bins": 0.25,
    "a class no label has": 0.25,
    "two columns, class 1": 0.1,
    "two columns, top label": 0.0,
    "a NaN row": math.nan,
    "bfloat16": 0.1015625,
}


@pytest.mark.parametrize("case", cases.cases(), ids=lambda case: case.name)
def test_focalgeo_and_exact_arithmetic_give_the_value_worked_out_by_hand(case):
    by_hand = pytest.approx(EXPECTED[case.name], abs=1e-6, nan_ok=True)
    assert cases.expected(case) == by_hand
    assert libraries.answer("focalgeo", case) == by_hand


def test_every_case_has_equal_counts_so_that_a_curve_can_be_compared():
    for case in cases.cases():
        p = cases.event(case)[0].astype(float)
        counts = [sum(p == value) for value in set(p[p == p])]
        assert len(set(counts)) == 1, case.name


def test_the_table_says_what_is_not_installed_and_marks_what_differs():
    row = {"case": "one", "asked": "top_label", "fault": "why", "expected": 0.5, "answers": {"a": 0.5, "b": 0.25}}
    text = command.table({"versions": {"a": "1.0", "b": "2.0", "c": None}, "rows": [row]})
    assert text.splitlines()[-1] == "| one | top label | 0.5 | 0.5 | **0.25** | not installed | why |"
    assert "c (not installed)" in text
    assert command.agrees("error: refused", math.nan)
    assert not command.agrees("error: refused", 0.5)
