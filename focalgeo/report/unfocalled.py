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
    if row["high"] < 0:
        return [text, "The loss itself caused that much of the miscalibration; what is left has other causes."]
    if row["low"] > 0:
        reason = "training has moved the outputs the other way by more than the loss did"
        return [text, f"Undoing the loss makes calibration worse here: {reason}."]
    return [text, "These examples do not show that the loss itself caused miscalibration."]
