"""Figures from rows: each function returns one matplotlib Figure, without pyplot and its global state."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from focalgeo.report.formats import plain, significant
from focalgeo.report.selection import Column, Row, latest_by, measured, measured_title
from focalgeo.report.style import COLOURS, MAP_COLOURS, loss_colour, styled

_AXES = {"reliability": ("accuracy", "confidence"), "class1_reliability": ("share", "probability of class 1")}


def reliability_figure(
    rows: Sequence[Row], column: Column, *, split: str = "test", name: str = "reliability"
) -> Figure:
    """Draw accuracy per bin of confidence, the gap between them, Wilson 95% intervals, and examples per bin beneath.

    With name "class1_reliability" the bins are of the probability of class 1, and its share stands for accuracy.
    """
    bins = latest_by(rows, {**column.where, "name": name, "split": split}, "bin")
    true, predicted = _AXES[name]
    with styled():
        figure = Figure(figsize=(4.1, 4.7))
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3.4, 1])
        draw_reliability(top, bins, COLOURS[MAP_COLOURS[column.map]], true)
        _draw_counts(bottom, bins, COLOURS[MAP_COLOURS[column.map]])
        bottom.set_xlabel(predicted)
        legend = {"fontsize": 8, "handlelength": 1.5, "columnspacing": 1.2, "borderaxespad": 0.2}
        figure.legend(*top.get_legend_handles_labels(), loc="outside upper center", ncols=2, **legend)
    return figure


def _values(rows: Sequence[Row], key: str) -> np.ndarray:
    return np.array([row[key] for row in rows], float)


def draw_reliability(axes: Any, bins: Sequence[Row], colour: str, true: str) -> None:
    """Draw bins of confidence: what came true in each, its interval, and the gap to the mean confidence."""
    lower, upper, accuracy, confidence = (_values(bins, key) for key in ("lower", "upper", "value", "confidence"))
    centre, width = (lower + upper) / 2, upper - lower
    axes.bar(centre, accuracy, 0.92 * width, color=colour, alpha=0.5, linewidth=0, label=true)
    floor, gap = np.minimum(accuracy, confidence), np.abs(accuracy - confidence)
    style = {"facecolor": "none", "edgecolor": COLOURS["muted"], "hatch": "////", "linewidth": 0, "alpha": 0.7}
    axes.bar(centre, gap, 0.92 * width, bottom=floor, label="gap to confidence", **style)
    ends = (centre - 0.46 * width, centre + 0.46 * width)
    axes.hlines(confidence, *ends, color=COLOURS["ink"], linewidth=1.2, label="mean confidence")
    reach = np.maximum([accuracy - _values(bins, "low"), _values(bins, "high") - accuracy], 0)
    style = {"fmt": "none", "ecolor": COLOURS["ink"], "elinewidth": 1.8, "zorder": 3}
    drawn = axes.errorbar(centre, accuracy, reach, label=f"95% interval of {true}", **style)
    for lines in drawn[2]:
        lines.set_path_effects([patheffects.withStroke(linewidth=4, foreground=COLOURS["paper"])])
    axes.plot([0, 1], [0, 1], color=COLOURS["muted"], linewidth=1, dashes=(4, 3))
    axes.set(xlim=(0, 1), ylim=(0, 1.02), ylabel=true)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _draw_counts(axes: Any, bins: Sequence[Row], colour: str) -> None:
    centre, width = (
        (_values(bins, "lower") + _values(bins, "upper")) / 2,
        _values(bins, "upper") - _values(bins, "lower"),
    )
    counts = _values(bins, "n")
    axes.bar(centre, counts, 0.92 * width, color=colour, alpha=0.55, linewidth=0)
    axes.set_yscale("log")
    axes.set(ylim=(0.6, 6 * max(counts, default=1)), ylabel="examples")
    axes.set_yticks(_decades(max(counts, default=1)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for x, count in zip(centre, counts, strict=True):
        text = f"{count:.0f}" if count < 1000 else f"{count / 1000:.1f}k" if count < 9950 else f"{count / 1000:.0f}k"
        axes.text(x, 1.15 * count, text, ha="center", va="bottom", fontsize=6.5, color=COLOURS["muted"])


def _decades(most: float) -> list[int]:
    """Powers of ten up to `most`, three at the most: a low axis has room for no more."""
    powers = range(int(np.log10(most)) + 1)
    return [10**power for power in powers[:: 1 + (len(powers) - 1) // 3]]


def estimate_figure(rows: Sequence[Row], name: str) -> Figure:
    """Draw "lambda_max" with its residual, or "trace" with its 95% interval, for each loss on one axis."""
    present = measured(rows, name)
    with styled():
        figure = Figure(figsize=(4.3, 1.05 + 0.5 * len(present)))
        axes = figure.subplots()
        for level, row in enumerate(reversed(present)):
            _draw_estimate(axes, level, row, COLOURS[loss_colour(row["loss"])])
        axes.set_yticks(range(len(present)), [measured_title(row) for row in reversed(present)])
        axes.set(
            ylim=(-0.6, len(present) - 0.4),
            xlabel={"lambda_max": "largest eigenvalue (± residual)"}.get(name, "trace (95% interval)"),
        )
        axes.tick_params(axis="y", length=0, labelsize=9, labelcolor=COLOURS["ink"])
        axes.grid(visible=False, axis="y")
        _include_zero(axes)
    return figure


def bounds(row: Row) -> tuple[float, float]:
    """Return the ends of an estimate's error bar: its interval where it has one, else value -+ residual."""
    half = float(row.get("residual", 0.0))
    return float(row.get("low", row["value"] - half)), float(row.get("high", row["value"] + half))


def _draw_estimate(axes: Any, level: int, row: Row, colour: str) -> None:
    low, high = bounds(row)
    axes.hlines(level, low, high, color=colour, linewidth=2.4)
    axes.plot([low, high], [level, level], "|", color=colour, markersize=10, markeredgewidth=1.6)
    axes.plot(row["value"], level, "o", color=colour, markersize=7)
    axes.annotate(
        significant(row["value"]), (row["value"], level), (0, 8), textcoords="offset points", ha="center", fontsize=8.5
    )


def _include_zero(axes: Any) -> None:
    low, high = axes.get_xlim()
    pad = 0.06 * (max(high, 0) - min(low, 0))
    axes.set_xlim(min(low, 0.0) - (pad if low < 0 else 0), max(high, 0.0) + pad)
    axes.axvline(0, color=COLOURS["muted"], linewidth=1)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(round(value, 10)) if value else "0"))
