"""Figures of a sweep: quantities along its axis with intervals over seeds, and reliability in small multiples."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from focalgeo.report.axes import (
    AXIS_TITLES,
    Quantity,
    Sweep,
    axis_symbol,
    by_member,
    line_title,
    mean,
    point_of,
    value_text,
)
from focalgeo.report.curves import epoch_marker
from focalgeo.report.panels import Panel
from focalgeo.report.selection import UNCALIBRATED, in_training
from focalgeo.report.style import COLOURS, LEGEND, LINESTYLES, plain, styled
from focalgeo.rows import Diagnostic, ReliabilityBin, Row, select
from focalgeo.types import Estimate

_MOST_DIAGRAMS = 96  # of reliability, of all lines together
_MOST_TICKS = 24  # on the axis, and entries of a legend
_WIDEST_OF_TWO = 26  # letters of a legend's entry of which two stand beside each other
_VISIBLE = (0.3, 0.85)  # of the colour map: its ends vanish on a dark page or on a light one


def axis_figure(
    rows: Sequence[Row],
    sweep: Sweep,
    quantities: Mapping[str, tuple[str, Quantity]],
    ylabel: str,
    *,
    percent: bool = False,
) -> Figure:
    """Draw each quantity (label -> (colour, quantity)) against the axis: mean, interval, every seed."""
    with styled():
        figure = Figure(figsize=(4.1, 3.2))
        axes = figure.subplots()
        for label, (colour, quantity) in quantities.items():
            members = by_member(rows, sweep, quantity)
            for number, line in enumerate(sweep.lines):
                found = [list(members.get((line, value), {}).values()) for value in sweep.values]
                shown = ", ".join(part for part in (label, line_title(sweep, line)) if part)
                _draw_line(axes, found, COLOURS[colour], LINESTYLES[number % 4], shown)
        _label_axis(axes, sweep)
        axes.set_ylabel(ylabel)
        if percent:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}%"))
        else:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(round(value, 10)) if value else "0"))
        if len(quantities) * len(sweep.lines) > 1:
            handles, labels = _entries(axes)
            columns = 1 if max(map(len, labels), default=0) > _WIDEST_OF_TWO else 2
            figure.legend(handles, labels, loc="outside upper left", ncols=columns, **LEGEND)
    return figure


def _draw_line(axes: Any, found: Sequence[Sequence[float]], colour: str, linestyle: str, label: str) -> None:
    means = [mean(values) for values in found]
    present = [index for index, each in enumerate(means) if each is not None]
    if not present:
        return
    style = {"color": colour, "linestyle": linestyle, "marker": "o", "markersize": 4}
    axes.plot(present, [means[index].value for index in present], label=label, **style)
    for index in present:
        _draw_interval(axes, index, means[index], colour)
        axes.plot([index] * len(found[index]), found[index], "_", color=colour, alpha=0.45, markersize=7)


def _draw_interval(axes: Any, index: int, each: Estimate, colour: str) -> None:
    if each.low is not None:
        axes.vlines(index, each.low, each.high, color=colour, linewidth=2.4, alpha=0.55)


def _entries(axes: Any) -> tuple[list, list[str]]:
    """Handles and labels of a legend, as many as it has room for, evenly spread."""
    handles, labels = axes.get_legend_handles_labels()
    every = max(-(-len(handles) // _MOST_TICKS), 1)
    return handles[::every], labels[::every]


def _label_axis(axes: Any, sweep: Sweep) -> None:
    shown = range(0, len(sweep.values), -(-len(sweep.values) // _MOST_TICKS))
    axes.set_xticks(shown, [value_text(sweep, sweep.values[index]) for index in shown])
    axes.set_xlim(-0.4, len(sweep.values) - 0.6)
    axes.set_xlabel(AXIS_TITLES[sweep.axis])
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.grid(visible=False, axis="x")


def scatter_figure(rows: Sequence[Row], sweep: Sweep, across: Quantity, up: Quantity) -> Figure:
    """Draw one quantity against another, a point for each member, one colour for each value of the axis."""
    with styled():
        figure = Figure(figsize=(4.6, 3.4))
        axes = figure.subplots()
        shades = colormaps["viridis"](np.linspace(*_VISIBLE, len(sweep.values)))
        members = [by_member(rows, sweep, each) for each in (across, up)]
        for value, shade in zip(sweep.values, shades, strict=True):
            pairs = []
            for line in sweep.lines:
                x, y = (each.get((line, value), {}) for each in members)
                pairs += [(x[seed], y[seed]) for seed in x if seed in y]
            if pairs:
                axes.scatter(*zip(*pairs, strict=True), color=shade, s=26, label=value_text(sweep, value))
        axes.set(
            xlabel=f"trace of cross-entropy's Hessian on {across.fields['split']}", ylabel="ECE on test, as trained"
        )
        _label_traces(axes)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}%"))
        figure.legend(*_entries(axes), loc="outside right upper", title=_short(sweep), **LEGEND)
    return figure


def _label_traces(axes: Any) -> None:
    """A logarithmic axis of traces where all of them have a logarithm, with a few ticks whatever its length."""
    points = np.concatenate([each.get_offsets()[:, 0] for each in axes.collections] or [np.ones(1)])
    if points.min() <= 0:
        return
    axes.set_xscale("log")
    ratio = points.max() / points.min()
    subs = (1,) if ratio > 50 else (1, 2, 5) if ratio > 5 else range(1, 10)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _short(sweep: Sweep) -> str:
    return AXIS_TITLES[sweep.axis].partition(" of ")[0]


def diagrams(sweep: Sweep) -> int:
    """Return the number of reliability diagrams that each line has room for."""
    return max(min(_MOST_DIAGRAMS // max(len(sweep.lines), 1), 24), 4)


def reliability_grid(rows: Sequence[Row], sweep: Sweep, line: tuple) -> Figure:
    """Draw small reliability diagrams, as trained, for each value of the axis, all seeds' examples together."""
    sweep = sweep._replace(values=sweep.values[: diagrams(sweep)])
    columns = min(len(sweep.values), 4)
    bins: dict[tuple, list[ReliabilityBin]] = {}
    for row in select(rows, ReliabilityBin, name="reliability", method=UNCALIBRATED, split="test"):
        bins.setdefault(point_of(row, sweep), []).append(row)
    lines = -(-len(sweep.values) // columns)
    with styled():
        figure = Figure(figsize=(2.05 * columns, 2.15 * lines))
        grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        for axes in grid.flat[len(sweep.values) :]:
            axes.set_visible(False)
        for axes, value in zip(grid.flat, sweep.values, strict=False):
            _draw_small(axes, _pooled(bins.get((line, value), [])))
            axes.set_title(f"{_short(sweep)} {value_text(sweep, value)}", fontsize=9)
        for axes in grid.flat[max(len(sweep.values) - columns, 0) : len(sweep.values)]:
            axes.tick_params(labelbottom=True)  # also where nothing stands beneath
        for axes in grid[:, 0]:
            axes.set_ylabel("accuracy")
        figure.supxlabel("confidence", fontsize=9)
    return figure


def _pooled(bins: Sequence[ReliabilityBin]) -> list[tuple[float, float, float, float]]:
    """(lower, upper, accuracy, confidence) of each bin, over all rows weighted by their examples."""
    pooled, by_bin = [], {}
    for row in bins:
        by_bin.setdefault(row.bin, []).append(row)
    for number in sorted(by_bin):
        found = by_bin[number]
        counts = [row.n for row in found]
        accuracy = float(np.average([row.value for row in found], weights=counts))
        confidence = float(np.average([row.confidence for row in found], weights=counts))
        pooled.append((found[0].lower, found[0].upper, accuracy, confidence))
    return pooled


def _draw_small(axes: Any, bins: Sequence[tuple]) -> None:
    for lower, upper, accuracy, confidence in bins:
        centre, width = (lower + upper) / 2, 0.92 * (upper - lower)
        axes.bar(centre, accuracy, width, color=COLOURS["grey"], alpha=0.5, linewidth=0)
        axes.hlines(confidence, centre - width / 2, centre + width / 2, color=COLOURS["ink"], linewidth=1)
    axes.plot([0, 1], [0, 1], color=COLOURS["muted"], linewidth=0.8, dashes=(4, 3))
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator([0, 0.5, 1]))
        axis.set_major_formatter(PercentFormatter(1, decimals=0))


def diagnostic_sweep_panels(rows: Sequence[Row], sweep: Sweep) -> Iterator[Panel]:
    """Yield the true class's probability on examples predicted wrong, and the norm of the last layer's weights."""
    rows = select(in_training(rows), Diagnostic)
    wrong = [row for row in select(rows, Diagnostic, name="true_class_probability", outcome="wrong") if row.split]
    for split in dict.fromkeys(row.split for row in wrong):
        figure = epochs_figure(select(wrong, Diagnostic, split=split), sweep, "mean p of the true class")
        yield Panel("diagnostics", f"sweep_wrong_{split}", f"Examples predicted wrong, {split}", figure)
    norms = select(rows, Diagnostic, name="weight_norm")
    if norms:
        figure = epochs_figure(norms, sweep, "‖W‖, Frobenius norm")
        yield Panel("diagnostics", "sweep_weight_norm", "Norm of the last layer's weights", figure)


def epochs_figure(rows: Sequence[Diagnostic], sweep: Sweep, label: str) -> Figure:
    """Draw the mean over seeds of one quantity's rows against the epoch, a line for each member of the sweep."""
    shades = colormaps["viridis"](np.linspace(*_VISIBLE, len(sweep.values)))
    marker = epoch_marker(rows)
    members: dict[tuple, list[Diagnostic]] = {}
    for row in rows:
        members.setdefault(point_of(row, sweep), []).append(row)
    with styled():
        figure = Figure(figsize=(4.6, 3.4))
        axes = figure.subplots()
        for number, line in enumerate(sweep.lines):
            for value, shade in zip(sweep.values, shades, strict=True):
                found = _means(members.get((line, value), []))
                shown = ", ".join(part for part in (value_text(sweep, value), line_title(sweep, line)) if part)
                style = {"marker": marker, "markersize": 2.5, "color": shade, "linestyle": LINESTYLES[number % 4]}
                if found:
                    axes.plot(list(found), list(found.values()), label=shown, **style)
        axes.set(xlabel="epoch", ylabel=label, ylim=(0, max(1.06 * max(row.value for row in rows), 0) or 1.0))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        figure.legend(*_entries(axes), loc="outside right upper", title=axis_symbol(sweep), **LEGEND)
    return figure


def _means(rows: Sequence[Diagnostic]) -> dict[float, float]:
    """Epoch -> the mean over seeds; the last row of a seed and epoch counts."""
    by_epoch: dict[float, dict[Any, float]] = {}
    for row in rows:
        by_epoch.setdefault(row.epoch, {})[row.seed] = row.value
    return {epoch: statistics.fmean(by_epoch[epoch].values()) for epoch in sorted(by_epoch)}
