"""Figures of what training does to single examples along a sweep: one line for each value of its axis."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from focalgeo.report.diagnostics import epoch_marker
from focalgeo.report.members import Sweep, axis_symbol, line_title, value_text
from focalgeo.report.panels import Panel
from focalgeo.report.selection import Row, matching
from focalgeo.report.style import styled

_VISIBLE = (0.3, 0.85)  # of the colour map: its ends vanish on a dark page or on a light one
_LINESTYLES = ("-", "--", ":", "-.")


def diagnostic_sweep_panels(rows: Sequence[Row], sweep: Sweep) -> Iterator[Panel]:
    """The true class's probability of what is predicted wrong on each split, and the norm of the last layer's weights.

    As far as there are rows of `evaluation.diagnosis_rows` for them.
    """
    rows = [row for row in rows if "epoch" in row]
    wrong = matching(rows, {"name": "true_class_probability", "outcome": "wrong"})
    for split in dict.fromkeys(row["split"] for row in wrong):
        figure = epochs_figure(matching(wrong, {"split": split}), sweep, "mean p of the true class")
        yield Panel("diagnostics", f"sweep_wrong_{split}", f"Examples predicted wrong, {split}", figure)
    norms = matching(rows, {"name": "weight_norm"})
    if norms:
        figure = epochs_figure(norms, sweep, "‖W‖, Frobenius norm")
        yield Panel("diagnostics", "sweep_weight_norm", "Norm of the last layer's weights", figure)


def epochs_figure(rows: Sequence[Row], sweep: Sweep, label: str) -> Figure:
    """Draw the mean over seeds of one quantity's rows against the epoch, a line for each member of the sweep."""
    shades = colormaps["viridis"](np.linspace(*_VISIBLE, len(sweep.values)))
    marker = epoch_marker(rows)
    with styled():
        figure = Figure(figsize=(4.6, 3.4))
        axes = figure.subplots()
        for number, line in enumerate(sweep.lines):
            for value, shade in zip(sweep.values, shades, strict=True):
                place = {sweep.axis: value, **dict(zip(sweep.others, line, strict=True))}
                found = _means(matching(rows, place))
                shown = ", ".join(part for part in (value_text(sweep, value), line_title(sweep, line)) if part)
                _draw(axes, found, marker=marker, color=shade, linestyle=_LINESTYLES[number % 4], label=shown)
        axes.set(xlabel="epoch", ylabel=label, ylim=(0, 1.06 * max(row["value"] for row in rows) or 1.0))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        legend = {"fontsize": 8, "handlelength": 2.2, "borderaxespad": 0.2, "title": axis_symbol(sweep)}
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", **legend)
    return figure


def _means(rows: Sequence[Row]) -> dict[float, float]:
    """Epoch -> the mean over seeds; the last row of a seed and epoch counts."""
    latest = {(row["epoch"], row.get("seed")): row["value"] for row in rows}
    by_epoch: dict[float, list[float]] = {}
    for (epoch, _), value in sorted(latest.items(), key=lambda each: each[0][0]):
        by_epoch.setdefault(epoch, []).append(value)
    return {epoch: statistics.fmean(values) for epoch, values in by_epoch.items()}


def _draw(axes: Any, found: Mapping[float, float], **style: Any) -> None:
    if found:
        axes.plot(list(found), list(found.values()), markersize=2.5, **style)
