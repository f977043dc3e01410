"""Intervals over seeds and the verdicts that follow from them."""

import math

import numpy as np
import pytest

from experiments import intervals
from experiments.intervals import NOT, SHOWS, UNKNOWN, UNTOLD, Interval
from experiments.writing import plain


def test_the_interval_is_students():
    values = [1.0, 2.0, 4.0]
    found = intervals.interval(values)
    half = 4.302652729911275 * np.std(values, ddof=1) / math.sqrt(3)
    np.testing.assert_allclose(found, (7 / 3, 7 / 3 - half, 7 / 3 + half), rtol=1e-9)


def test_one_seed_has_no_interval_and_no_verdict():
    found = intervals.interval([-3.0])
    assert found == (-3.0, -math.inf, math.inf)
    assert intervals.verdict(found) == UNTOLD
    assert intervals.shown(found, signed=True) == "-3"
    assert math.isnan(intervals.interval([]).mean)
    assert intervals.shown(UNKNOWN) == ""


def test_pairs_are_of_the_seeds_that_both_have():
    found = intervals.paired({0: 2.0, 1: 3.0, 7: 100.0}, {0: 1.0, 1: 1.0, 8: 0.0})
    assert found.mean == 1.5


@pytest.mark.parametrize(
    ("difference", "fall", "rise"),
    [
        (Interval(-2, -3, -1), SHOWS, NOT),
        (Interval(2, 1, 3), NOT, SHOWS),
        (Interval(0.1, -1, 1.2), UNTOLD, UNTOLD),
        (UNKNOWN, UNTOLD, UNTOLD),
    ],
)
def test_verdicts(difference, fall, rise):
    assert intervals.verdict(difference) == fall
    assert intervals.verdict(difference, falls=False) == rise


def test_a_margin_moves_the_edge_of_a_verdict():
    assert intervals.verdict(Interval(0.5, 0.1, 0.9), margin=1) == intervals.SHOWS
    assert intervals.verdict(Interval(1.5, 1.1, 1.9), margin=1) == intervals.NOT
    assert intervals.verdict(Interval(-0.5, -0.9, -0.1), falls=False, margin=1) == intervals.SHOWS
    assert intervals.verdict(Interval(-1.0, -1.5, -0.5), falls=False, margin=1) == intervals.UNTOLD


def test_a_claim_of_several_parts_shows_only_if_all_do():
    assert intervals.joined([SHOWS, SHOWS]) == SHOWS
    assert intervals.joined([SHOWS, UNTOLD]) == UNTOLD
    assert intervals.joined([SHOWS, UNTOLD, NOT]) == NOT
    assert intervals.joined([]) == UNTOLD


def test_rank_correlation_is_spearmans_with_an_interval():
    found = intervals.rank_correlation([1, 2, 3, 4, 5, 6], [2, 1, 3, 4, 6, 5])
    np.testing.assert_allclose(found.mean, 1 - 6 * 4 / (6 * 35))
    assert found.low < found.mean < 1.0001
    assert intervals.rank_correlation([1, 2, 3], [1, 2, 3]) == UNKNOWN
    assert math.isnan(intervals.rank_correlation([1, 1, 1, 1], [1, 2, 3, 4]).mean)


def test_what_is_shown():
    assert intervals.shown(Interval(0.01, 0.005, 0.015), scale=100) == "1 (0.5 to 1.5)"
    assert intervals.shown(Interval(1049, 987, 1120), signed=True) == "**+1,050 (+987 to +1,120)**"
    assert intervals.shown(Interval(1, 0.5, 1.5), signed=True) == "**+1 (+0.5 to +1.5)**"
    assert intervals.shown(Interval(1, -0.5, 1.5), signed=True) == "+1 (-0.5 to +1.5)"
    assert intervals.shown(Interval(-1, -2, -0.0), signed=True) == "-1 (-2 to +0)"
    assert intervals.as_json(UNKNOWN) == {"mean": None, "low": None, "high": None}


@pytest.mark.parametrize(
    ("number", "digits", "expected"),
    [
        (1431, 4, "1,431"),
        (1431, 3, "1,430"),
        (999.6, 3, "1,000"),
        (0.0123, 2, "0.012"),
        (-0.0, 3, "0"),
        (110, 2, "110"),
    ],
)
def test_plain_numbers_have_no_exponent_above_1(number, digits, expected):
    assert plain(number, digits) == expected


def test_halves_of_the_same_examples_have_the_corrected_interval():
    values = [1.0, 2.0, 4.0]
    found = intervals.resampled_interval(values)
    half = 4.302652729911275 * math.sqrt(1 / 3 + 1) * np.std(values, ddof=1)
    np.testing.assert_allclose(found, (7 / 3, 7 / 3 - half, 7 / 3 + half), rtol=1e-9)
