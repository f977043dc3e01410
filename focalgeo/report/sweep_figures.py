"""Figures of a sweep: quantities along its axis with intervals over seeds, and reliability in small multiples."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from focalgeo.report.formats import plain
from focalgeo.report.members import AXIS_TITLES, Mean, Sweep, by_seed, line_title, mean, value_text
from focalgeo.report.selection import Row, matching
from focalgeo.report.style import COLOURS, styled

_LINESTYLES = ("-", "--", ":", "-.")
_LEGEND = {"fontsize": 8, "handlelength": 2.2, "columnspacing": 1.2, "borderaxespad": 0.2}


def axis_figure(
    rows: Sequence[Row],
    sweep: Sweep,
    quantities: Mapping[str, tuple[str, Mapping[str, Any]]],
    ylabel: str,
    *,
    percent: bool = False,
) -> Figure:
    """Draw each quantity (label -> (colour, conditions on its rows)) against the axis: mean, interval, every seed."""
    with styled():
        figure = Figure(figsize=(4.1, 3.2))
        axes = figure.subplots()
        for label, (colour, where) in quantities.items():
            for number, line in enumerate(sweep.lines):
                found = [list(by_seed(rows, sweep, line, value, where).values()) for value in sweep.values]
                shown = ", ".join(part for part in (label, line_title(sweep, line)) if part)
                _draw_line(axes, found, COLOURS[colour], _LINESTYLES[number % 4], shown)
        _label_axis(axes, sweep)
        axes.set_ylabel(ylabel)
        if percent:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}%"))
        else:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(round(value, 10)) if value else "0"))
        if len(quantities) * len(sweep.lines) > 1:
            figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, **_LEGEND)
    return figure


def _draw_line(axes: Any, found: Sequence[Sequence[float]], colour: str, linestyle: str, label: str) -> None:
    means = [mean(values) for values in found]
    places = [place for place, each in enumerate(means) if each is not None]
    if not places:
        return
    style = {"color": colour, "linestyle": linestyle, "marker": "o", "markersize": 4}
    axes.plot(places, [means[place].value for place in places], label=label, **style)
    for place in places:
        _draw_interval(axes, place, means[place], colour)
        axes.plot([place] * len(found[place]), found[place], "_", color=colour, alpha=0.45, markersize=7)


def _draw_interval(axes: Any, place: float, each: Mean, colour: str) -> None:
    if each.low is not None:
        axes.vlines(place, each.low, each.high, color=colour, linewidth=2.4, alpha=0.55)


def _label_axis(axes: Any, sweep: Sweep) -> None:
    axes.set_xticks(range(len(sweep.values)), [value_text(sweep, value) for value in sweep.values])
    axes.set_xlim(-0.4, len(sweep.values) - 0.6)
    axes.set_xlabel(AXIS_TITLES[sweep.axis])
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.grid(visible=False, axis="x")


def scatter_figure(rows: Sequence[Row], sweep: Sweep, across: Mapping[str, Any], up: Mapping[str, Any]) -> Figure:
    """Draw one quantity against another, a point for each member, one colour for each value of the axis."""
    with styled():
        figure = Figure(figsize=(4.6, 3.4))
        axes = figure.subplots()
        shades = colormaps["viridis"](np.linspace(0.05, 0.92, len(sweep.values)))
        for value, shade in zip(sweep.values, shades, strict=True):
            pairs = []
            for line in sweep.lines:
                x, y = (by_seed(rows, sweep, line, value, where) for where in (across, up))
                pairs += [(x[seed], y[seed]) for seed in x if seed in y]
            if pairs:
                axes.scatter(*zip(*pairs, strict=True), color=shade, s=26, label=value_text(sweep, value))
        axes.set(xlabel=f"trace of cross-entropy's Hessian on {across['split']}", ylabel="ECE on test, as trained")
        _label_traces(axes)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}%"))
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", title=_short(sweep), **_LEGEND)
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


def reliability_grid(rows: Sequence[Row], sweep: Sweep, line: tuple) -> Figure:
    """Draw small reliability diagrams, as trained, for each value of the axis, all seeds' examples together."""
    columns = min(len(sweep.values), 4)
    lines = -(-len(sweep.values) // columns)
    with styled():
        figure = Figure(figsize=(2.05 * columns, 2.15 * lines))
        grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        for axes in grid.flat[len(sweep.values) :]:
            axes.set_visible(False)
        for axes, value in zip(grid.flat, sweep.values, strict=False):
            place = {sweep.axis: value, **dict(zip(sweep.others, line, strict=True))}
            where = {"name": "reliability", "map": "uncalibrated", "split": "test", **place}
            _draw_small(axes, _pooled(matching(rows, where)))
            axes.set_title(f"{_short(sweep)} {value_text(sweep, value)}", fontsize=9)
        for axes in grid.flat[max(len(sweep.values) - columns, 0) : len(sweep.values)]:
            axes.tick_params(labelbottom=True)  # also where nothing stands beneath
        for axes in grid[:, 0]:
            axes.set_ylabel("accuracy")
        figure.supxlabel("confidence", fontsize=9)
    return figure


def _pooled(bins: Sequence[Row]) -> list[tuple[float, float, float, float]]:
    """(lower, upper, accuracy, confidence) of each bin, over all rows weighted by their examples."""
    pooled = []
    for number in sorted({row["bin"] for row in bins}):
        found = [row for row in bins if row["bin"] == number]
        counts = [row["n"] for row in found]
        accuracy, confidence = (
            float(np.average([row[key] for row in found], weights=counts)) for key in ("value", "confidence")
        )
        pooled.append((found[0]["lower"], found[0]["upper"], accuracy, confidence))
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
