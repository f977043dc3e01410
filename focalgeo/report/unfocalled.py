"""The section on what the training loss itself did: the map of its own gamma alone, with nothing fitted."""

from collections.abc import Iterator, Sequence

from focalgeo.report.figures import reliability_figure
from focalgeo.report.formats import plain
from focalgeo.report.panels import Panel
from focalgeo.report.selection import MAP_TITLES, UNCALIBRATED, Column, Row, matching
from focalgeo.report.words import difference, difference_words, metric_row, with_interval

UNFOCALLED = Column("unfocalled", None)


def unfocalled_panels(rows: Sequence[Row], split: str) -> Iterator[Panel]:
    """Yield the reliability diagrams before and after; none without such rows."""
    for column in (UNCALIBRATED, UNFOCALLED) if matching(rows, {**UNFOCALLED.where, "split": split}) else ():
        figure = reliability_figure(rows, column, split=split)
        yield Panel("unfocalled", f"unfocalled_{column.map}", MAP_TITLES[column.map], figure)


def unfocalled_words(rows: Sequence[Row], gamma: float, split: str) -> list[str]:
    """Return how much of the miscalibration the focal loss itself caused, as the map of its own gamma undoes it."""
    before, after = (metric_row(rows, column, "ece", split) for column in (UNCALIBRATED, UNFOCALLED))
    row = difference(rows, UNFOCALLED, "uncalibrated", split)
    if before is None or after is None or row is None:
        return []
    value = f"γ\u00a0=\u00a0{plain(gamma)}"
    change = f"from {with_interval(before)} to {with_interval(after)}: {difference_words(row)}"
    text = (
        f"The model was trained with focal loss, {value}. The calibration map with that γ and T\u00a0=\u00a01, with"
        f" nothing fitted, takes the ECE {change}."
    )
    sides = [mean_gap(rows, column, split) for column in (UNCALIBRATED, UNFOCALLED)]
    flipped = "" if sides[0] * sides[1] >= 0 else f", and turns it from {_side(sides[0])} to {_side(sides[1])}"
    if row["high"] < 0:
        return [
            text,
            f"Undoing the loss makes it better calibrated{flipped}; what is left is not of that map's making.",
        ]
    if row["low"] > 0:
        return [
            text,
            f"Undoing the loss makes calibration worse here{flipped}: the rest of training has moved the outputs more.",
        ]
    return [text, "These examples do not show that the loss itself caused miscalibration."]


def mean_gap(rows: Sequence[Row], column: Column, split: str) -> float:
    """Return mean confidence less accuracy by the reliability rows, weighted by examples: above 0 is overconfident."""
    bins = matching(rows, {**column.where, "name": "reliability", "split": split})
    total = sum(row["n"] for row in bins)
    return sum(row["n"] * (row["confidence"] - row["value"]) for row in bins) / total if total else 0.0


def _side(gap: float) -> str:
    return "overconfident" if gap > 0 else "underconfident"
