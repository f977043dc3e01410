"""Sentences of the page of `python -m focalgeo.calibrate`; each rests on a paired difference or on an interval."""

from collections.abc import Mapping, Sequence
from typing import Any

from focalgeo.report.selection import MAP_TITLES, UNCALIBRATED, Column, Row, fit
from focalgeo.report.words import (
    LEAST_EXAMPLES,
    after_words,
    comparison,
    difference,
    difference_words,
    map_words,
    metric_row,
    with_interval,
)

SPLIT_WORDS = {
    "test": "On the test examples, on which nothing was fitted.",
    "cross_fit": (
        "There was no test file: every example is measured with maps that were fitted without its fold. The T and γ of"
        " this table are those of all examples together, which calibrator.json holds."
    ),
}


def chosen_columns(rows: Sequence[Row], criterion: str) -> list[Column]:
    """Return no map, plain and focal temperature scaling by one criterion, those of them that were fitted."""
    names = ("temperature_scaling", "focal_temperature_scaling")
    fitted = [Column(name, criterion) for name in names]
    return [UNCALIBRATED, *(column for column in fitted if fit(rows, column, "temperature") is not None)]


def chosen_column(choice: Mapping[str, Any]) -> Column:
    """Return the column of the map that was chosen."""
    name = choice.get("map")
    return Column(name, choice.get("criterion")) if name in MAP_TITLES and name != "uncalibrated" else UNCALIBRATED


def choice_words(rows: Sequence[Row], choice: Mapping[str, Any], split: str, criterion: str) -> list[str]:
    """Return the opening sentences: which map to use, and what the paired differences say of it."""
    column = chosen_column(choice)
    focal, temperature = (Column(name, criterion) for name in ("focal_temperature_scaling", "temperature_scaling"))
    if column == UNCALIBRATED:
        sentences = ["Leave the outputs as they are: held-out parts of val do not show that a map makes them better."]
    else:
        sentences = [f"Use {map_words(rows, column)}."]
    sentences += [*_against_none(rows, temperature if column == UNCALIBRATED else column, split)]
    row = difference(rows, focal, "temperature_scaling", split)
    sentences += comparison(rows, focal, split)
    if row is not None and fit(rows, focal, "calibration_gamma") != 0 and row["n"] >= LEAST_EXAMPLES:
        beats = "beats" if row["high"] < 0 else "does not beat"
        sentences.append(f"So focal temperature scaling {beats} plain temperature scaling beyond noise.")
    return sentences


def _against_none(rows: Sequence[Row], column: Column, split: str) -> list[str]:
    before, row = metric_row(rows, UNCALIBRATED, "ece", split), difference(rows, column, "uncalibrated", split)
    if before is None:
        return []
    text = (
        f"The expected calibration error is {with_interval(before)} as given; after {after_words(rows, column, split)}"
    )
    if row is None or row["n"] < LEAST_EXAMPLES:
        return [f"{text}."]
    if row["high"] < 0:
        finding = "better beyond noise"
    elif row["low"] > 0:
        finding = "worse beyond noise"
    else:
        finding = "not told apart from no map"
    return [f"{text} (difference {difference_words(row)}: {finding})."]


def group_words(rows: Sequence[Row], column: Column, split: str) -> str:
    """Return which group is worst calibrated, with its interval; "" without groups."""
    found = groups(rows, column, split)
    if not found:
        return ""
    worst = found[0]
    many = f"the largest of {len(found)} groups, so part of it may be chance" if len(found) > 1 else "the only group"
    name = "as given" if column == UNCALIBRATED else f"after {MAP_TITLES[column.map].lower()}"
    count = f"{worst['group_n']:,} examples"
    return f"Worst calibrated {name} is group “{worst['group']}”: ECE {with_interval(worst)} from {count}; {many}."


def groups(rows: Sequence[Row], column: Column, split: str) -> list[Row]:
    """Return the rows of the groups' ECE, the largest first."""
    where = {**column.where, "name": "group_ece", "split": split}
    found = [row for row in rows if all(row.get(key) == value for key, value in where.items())]
    return sorted(found, key=lambda row: -row["value"])
