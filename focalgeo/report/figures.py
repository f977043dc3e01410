"""Figures of the measurements after training: reliability, the search of gamma and T, the spectrum of the Hessian.

Each function takes rows and returns one matplotlib Figure, without pyplot and its global state.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter
from msgspec.structs import replace

from focalgeo.report.selection import (
    FOCAL,
    PLAIN,
    Column,
    fits,
    latest_by,
    loss_title,
    measured,
    measured_title,
)
from focalgeo.report.style import COLOURS, LEGEND, LIGHT, loss_colour, plain, power_of_ten, significant, styled
from focalgeo.rows import DENSITY_LINEAR_WIDTH, DensityBin, Eigenvalue, ReliabilityBin, Row, Trace, select

_HALVES = (0, 0.5, 1)
MOST_BARS = 200  # of one reliability diagram; more bins are drawn together
_AXES = {"reliability": ("accuracy", "confidence"), "class1_reliability": ("share", "probability of class 1")}
ESTIMATES = {"lambda_max": (Eigenvalue, "largest eigenvalue (± residual)"), "trace": (Trace, "trace (95% interval)")}


def reliability_figure(
    rows: Sequence[Row], column: Column, *, colour: str = "grey", split: str = "test", name: str = "reliability"
) -> Figure:
    """Draw accuracy per bin of confidence, the gap between them, Wilson 95% intervals, and examples per bin beneath.

    With name "class1_reliability" the bins are of the probability of class 1, and its share replaces accuracy.
    """
    with styled():
        figure = Figure(figsize=(4.1, 4.7))
        top, bottom = _draw_diagram(figure, rows, column, colour, split, name)
        _write_counts(bottom)
        figure.legend(*top.get_legend_handles_labels(), loc="outside upper center", ncols=2, **LEGEND)
    return figure


def small_reliability_figure(
    rows: Sequence[Row], column: Column, *, colour: str = "grey", split: str = "test", name: str = "reliability"
) -> Figure:
    """Draw what `reliability_figure` does, smaller, without its legend and numbers, for many side by side."""
    with styled():
        figure = Figure(figsize=(3.2, 3.4))
        top, bottom = _draw_diagram(figure, rows, column, colour, split, name)
        top.set_yticks(_HALVES)
        bottom.set_xticks(_HALVES)
    return figure


def _draw_diagram(figure: Figure, rows: Sequence[Row], column: Column, colour: str, split: str, name: str) -> tuple:
    bins = latest_by(select(rows, ReliabilityBin, name=name, split=split, epoch=None, **column._asdict()), "bin")
    true, predicted = _AXES[name]
    together = -(-len(bins) // MOST_BARS)
    if together > 1:
        bins, predicted = pooled(bins, together), f"{predicted} (a bar: {together} bins)"
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3.4, 1])
    draw_reliability(top, bins, COLOURS[colour], true)
    _draw_counts(bottom, bins, COLOURS[colour])
    bottom.set_xlabel(predicted)
    return top, bottom


def pooled(bins: Sequence[ReliabilityBin], together: int) -> list[ReliabilityBin]:
    """Return neighbouring bins as one, so many at a time, with Wilson's 95% interval of their accuracy."""
    found = []
    for begin in range(0, len(bins), together):
        own = bins[begin : begin + together]
        counts = _values(own, "n")
        value, confidence = (float(np.average(_values(own, each), weights=counts)) for each in ("value", "confidence"))
        n = float(counts.sum())
        centre, shrink = value + 1.96**2 / (2 * n), 1 + 1.96**2 / n
        half = 1.96 * np.sqrt(max(value * (1 - value), 0) / n + 1.96**2 / (4 * n * n))
        ends = {"low": (centre - half) / shrink, "high": (centre + half) / shrink, "upper": own[-1].upper}
        share = None if own[0].share is None else sum(row.share or 0 for row in own)
        found.append(replace(own[0], value=value, confidence=confidence, n=int(n), share=share, **ends))
    return found


def _values(rows: Sequence[Any], field: str) -> np.ndarray:
    return np.array([getattr(row, field) for row in rows], float)


def draw_reliability(axes: Any, bins: Sequence[ReliabilityBin], colour: str, true: str) -> None:
    """Draw bins of confidence: the share that came true in each, its interval, and the gap to the mean confidence."""
    lower, upper, accuracy, confidence = (_values(bins, each) for each in ("lower", "upper", "value", "confidence"))
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


def _draw_counts(axes: Any, bins: Sequence[ReliabilityBin], colour: str) -> None:
    lower, upper, counts = (_values(bins, each) for each in ("lower", "upper", "n"))
    centre, width = (lower + upper) / 2, upper - lower
    axes.bar(centre, counts, 0.92 * width, color=colour, alpha=0.55, linewidth=0)
    axes.set_yscale("log")
    axes.set(ylim=(0.6, 6 * max(counts, default=1)), ylabel="examples")
    axes.set_yticks(_decades(max(counts, default=1)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _write_counts(axes: Any) -> None:
    for bar in axes.patches:
        x, count = bar.get_x() + bar.get_width() / 2, bar.get_height()
        text = f"{count:.0f}" if count < 1000 else f"{count / 1000:.1f}k" if count < 9950 else f"{count / 1000:.0f}k"
        axes.text(x, 1.15 * count, text, ha="center", va="bottom", fontsize=6.5, color=COLOURS["muted"])


def _decades(most: float) -> list[int]:
    """Powers of ten up to `most`, three at the most: a low axis has room for no more."""
    powers = range(int(np.log10(most)) + 1)
    return [10**power for power in powers[:: 1 + (len(powers) - 1) // 3]]


def estimate_figure(rows: Sequence[Row], name: str) -> Figure:
    """Draw "lambda_max" with its residual, or "trace" with its 95% interval, for each loss on one axis."""
    kind, label = ESTIMATES[name]
    present = measured(rows, kind, name)
    with styled():
        figure = Figure(figsize=(4.3, 1.05 + 0.5 * len(present)))
        axes = figure.subplots()
        for level, row in enumerate(reversed(present)):
            _draw_estimate(axes, level, row, COLOURS[loss_colour(row.loss)])
        axes.set_yticks(range(len(present)), [measured_title(row) for row in reversed(present)])
        axes.set(ylim=(-0.6, len(present) - 0.4), xlabel=label)
        axes.tick_params(axis="y", length=0, labelsize=9, labelcolor=COLOURS["ink"])
        axes.grid(visible=False, axis="y")
        _include_zero(axes)
    words = ((measured_title(row), significant(row.value), *map(significant, bounds(row))) for row in present)
    figure.set_label("; ".join(f"{title} {value}, bar from {low} to {high}" for title, value, low, high in words))
    return figure


def bounds(row: Eigenvalue | Trace) -> tuple[float, float]:
    """Return the ends of an estimate's error bar: a trace's interval, an eigenvalue -+ its residual."""
    if isinstance(row, Trace):
        return float(row.low), float(row.high)
    return row.value - row.residual, row.value + row.residual


def _draw_estimate(axes: Any, level: int, row: Eigenvalue | Trace, colour: str) -> None:
    low, high = bounds(row)
    axes.hlines(level, low, high, color=colour, linewidth=2.4)
    axes.plot([low, high], [level, level], "|", color=colour, markersize=10, markeredgewidth=1.6)
    axes.plot(row.value, level, "o", color=colour, markersize=7)
    text = {"textcoords": "offset points", "ha": "center", "fontsize": 8.5}
    axes.annotate(significant(row.value), (row.value, level), (0, 8), **text)


def _include_zero(axes: Any) -> None:
    low, high = axes.get_xlim()
    pad = 0.06 * (max(high, 0) - min(low, 0))
    axes.set_xlim(min(low, 0.0) - (pad if low < 0 else 0), max(high, 0.0) + pad)
    axes.axvline(0, color=COLOURS["muted"], linewidth=1)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(round(value, 10)) if value else "0"))


def surface_figure(rows: Sequence[Row], search: Mapping[str, np.ndarray], criterion: str) -> Figure:
    """Draw the criterion ("ece" or "nll") on validation over (gamma, T) as a heat map that marks both fitted optima.

    Gammas are categories, evenly spaced; T and colour are logarithmic. The axis starts at a quarter of the smallest
    best T, to leave room for the valley.
    """
    gammas, temperatures = np.asarray(search["gammas"], float), np.asarray(search["temperatures"], float)
    surface = np.asarray(search[criterion], float)
    best = temperatures[np.argmin(surface, axis=1)]
    shown = temperatures >= best.min() / 4
    with styled():
        figure = Figure(figsize=(4.1, 4.3))
        axes = figure.subplots()
        mesh = _draw_surface(axes, gammas, temperatures[shown], surface[:, shown])
        dots = {"markersize": 3.2, "markeredgecolor": COLOURS["ink"], "markeredgewidth": 0.5, "color": LIGHT}
        axes.plot(best, np.arange(len(gammas)), "o", label="best T of each γ", **dots)
        _mark_fits(axes, rows, gammas, criterion)
        bar = figure.colorbar(mesh, ax=axes, pad=0.02, aspect=28)
        _format_colour_bar(bar, criterion)
        _draw_legend(figure, axes)
    return figure


def _draw_legend(figure: Figure, axes: Any) -> None:
    handles = axes.get_legend_handles_labels()
    legend = figure.legend(*handles, loc="outside lower center", ncols=2, fontsize=8, columnspacing=1.4)
    for mark in legend.legend_handles[1:]:
        mark.set_markeredgecolor(mark.get_markerfacecolor())  # a light edge on light paper only shrinks the mark


def _edges(values: np.ndarray) -> np.ndarray:
    middle = np.sqrt(values[1:] * values[:-1])
    return np.concatenate([values[:1], middle, values[-1:]])


def _draw_surface(axes: Any, gammas: np.ndarray, temperatures: np.ndarray, surface: np.ndarray) -> Any:
    finite = surface[np.isfinite(surface) & (surface > 0)]
    norm = LogNorm(finite.min(), finite.max())
    rows = np.arange(len(gammas) + 1) - 0.5
    shown = np.clip(surface, norm.vmin, norm.vmax)  # an ECE of 0 has no logarithm, and an NLL may be infinite
    mesh = axes.pcolormesh(_edges(temperatures), rows, shown, norm=norm, cmap="viridis", rasterized=True)
    axes.grid(visible=False)
    axes.set_xscale("log")
    axes.set(
        xlabel="temperature T",
        ylabel="calibration γ (0: temperature scaling)",
        xlim=(temperatures[0], temperatures[-1]),
    )
    every = -(-len(gammas) // 16)
    axes.set_yticks(np.arange(len(gammas))[::every], [plain(gamma) for gamma in gammas[::every]])
    ticks = [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if temperatures[0] <= t <= temperatures[-1]]
    axes.set_xticks(ticks, [plain(t) for t in ticks])
    axes.minorticks_off()
    return mesh


def _mark_fits(axes: Any, rows: Sequence[Row], gammas: np.ndarray, criterion: str) -> None:
    """Mark the fits of focal temperature scaling, perhaps between rows, and of temperature scaling, the row γ = 0."""
    marks = (
        (PLAIN, "temperature", "blue", "o", 14),
        (FOCAL, "focal temperature", "orange", "*", 12),
    )  # a star in a circle
    for method, title, colour, marker, size in marks:
        fitted = fits(rows, Column(method, criterion))
        if "temperature" in fitted:
            level = float(np.interp(fitted.get("calibration_gamma", 0.0), gammas, np.arange(len(gammas))))
            style = {"markersize": size, "markeredgecolor": LIGHT, "markeredgewidth": 1.3, "linestyle": "none"}
            axes.plot(fitted["temperature"], level, marker, color=COLOURS[colour], label=f"{title} scaling", **style)


def _format_colour_bar(bar: Any, criterion: str) -> None:
    bar.set_label("ECE on validation" if criterion == "ece" else "NLL on validation (nats)")
    low, high = bar.norm.vmin, bar.norm.vmax
    ticks = np.geomspace(low, high, 5)
    show = (lambda value: f"{100 * value:.2g}%") if criterion == "ece" else (lambda value: significant(value, 2))
    bar.set_ticks(ticks, labels=[show(tick) for tick in ticks])
    bar.minorticks_off()
    bar.outline.set_visible(False)


def density_splits(rows: Sequence[Row]) -> list[str]:
    """Return the splits that have rows "spectral_density", in the order written."""
    return list(dict.fromkeys(row.split for row in select(rows, DensityBin)))


def density_figure(rows: Sequence[Row], split: str) -> Figure:
    """Draw the share of eigenvalues per bin for each loss, with one standard error, both axes logarithmic beyond 0."""
    found = select(rows, DensityBin, split=split)
    bins = {row.loss: latest_by(select(found, DensityBin, loss=row.loss), "bin") for row in found}
    with styled():
        figure = Figure(figsize=(6.4, 3.3))
        axes = figure.subplots()
        largest = max(max(abs(row.lower), abs(row.upper)) for row in found)
        axes.set_xscale("asinh", linear_width=DENSITY_LINEAR_WIDTH * largest)
        axes.set_yscale("log")
        for loss, own in bins.items():
            _draw_density(axes, own, COLOURS[loss_colour(loss)], loss_title(loss))
        axes.set_ylim(*_span([row.value for row in found]))
        axes.set(xlabel="eigenvalue", ylabel="share of eigenvalues")
        _mark_powers(axes, largest)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, fontsize=8)
    return figure


def _draw_density(axes: Any, bins: Sequence[DensityBin], colour: str, label: str) -> None:
    edges = np.array([bins[0].lower, *(row.upper for row in bins)], float)
    value, error = _values(bins, "value"), _values(bins, "stderr")
    axes.stairs(value, edges, color=colour, linewidth=1.4, label=label)
    low, high = (np.append(ends, ends[-1]) for ends in (np.maximum(value - error, 0), value + error))
    axes.fill_between(edges, low, high, step="post", color=colour, alpha=0.2, linewidth=0)


def _span(values: Sequence[float]) -> tuple[float, float]:
    """From below the smallest share that is met to above the largest; rounding alone makes shares below 1e-7."""
    met = [value for value in values if value > 1e-7] or [1.0]
    return 0.4 * min(met), min(2.5 * max(met), 1.6)


def _mark_powers(axes: Any, largest: float) -> None:
    """Ticks at 0 and at powers of ten on both sides, from the linear part outwards."""
    low, high = axes.get_xlim()
    top = int(np.floor(np.log10(largest)))
    powers = [10.0**power for power in range(top - 2, top + 1)]
    ticks = [0.0, *powers, *(-power for power in powers)]
    axes.xaxis.set_major_locator(FixedLocator(sorted(tick for tick in ticks if low <= tick <= high)))
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: significant(value, 1)))
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
