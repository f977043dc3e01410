import json
from pathlib import Path

import numpy as np
import pytest

from experiments.theory.__main__ import DIGITS
from experiments.theory.errata import as_rows, errata, markdown
from experiments.theory.numbers import anchors, matches, printed_pairs
from experiments.writing import rounded

FOLDER = Path(__file__).parents[2] / "experiments" / "theory"
COARSE = {2: 1000, 3: 50, 4: 50}


@pytest.fixture(scope="module")
def stored():
    return json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def coarse():
    return errata(COARSE)


def test_every_erratum_is_confirmed_by_its_numbers(coarse):
    assert [row.where for row in coarse if not row.refuted] == []


def test_errata_are_those_stored_and_shown(coarse, stored):
    got = rounded(as_rows(coarse), DIGITS)
    for row, kept in zip(got, stored["errata"], strict=True):
        assert {name: row[name] for name in row if name != "numbers"} == {
            name: kept[name] for name in kept if name != "numbers"
        }
        assert row["numbers"] == pytest.approx(kept["numbers"], rel=0.05, abs=1e-5)
    kept = [type(coarse[0])(**row) for row in stored["errata"]]
    assert markdown(kept) in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_matching_temperatures_at_coarse_size(stored):
    for kept in stored["matching_temperatures"]:
        classes = kept["num_classes"]
        got = matches(classes, (1.0, 3.0), steps=COARSE[classes])
        expected = [row["temperature"] for row in kept["rows"] if row["gamma"] in (1.0, 3.0)]
        np.testing.assert_allclose([row["temperature"] for row in got["rows"]], expected, rtol=0.02)


def test_printed_pairs_at_coarse_size(stored):
    got = printed_pairs(steps=20)
    for row, kept in zip(got, stored["printed_pairs"], strict=True):
        assert row["figure"] == kept["figure"]
        assert row["temperature"] == pytest.approx(kept["temperature"], rel=0.02)


def test_anchors_are_those_stored(stored):
    for row, kept in zip(rounded(anchors(), DIGITS), stored["anchors"], strict=True):
        assert row["ours"] == pytest.approx(kept["ours"], rel=1e-4)
        assert row["what"] == kept["what"]
