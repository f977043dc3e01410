"""The figure of the distribution of eigenvalues: every loss's histogram on one axis."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from focalgeo.report.formats import significant
from focalgeo.report.selection import Row, latest_by, loss_title, matching
from focalgeo.report.style import COLOURS, loss_colour, styled

_LINEAR_WIDTH = 1e-3  # of the largest edge, as the bins are even


def density_splits(rows: Sequence[Row]) -> list[str]:
    """Return the splits that have rows "spectral_density", in the order written."""
    return list(dict.fromkeys(row["split"] for row in matching(rows, {"name": "spectral_density"})))


def density_figure(rows: Sequence[Row], split: str) -> Figure:
    """Draw the share of eigenvalues per bin for each loss, with one standard error, both axes logarithmic beyond 0."""
    found = matching(rows, {"name": "spectral_density", "split": split})
    losses = list(dict.fromkeys(row["loss"] for row in found))
    bins = {loss: latest_by(found, {"loss": loss}, "bin") for loss in losses}
    with styled():
        figure = Figure(figsize=(6.4, 3.3))
        axes = figure.subplots()
        largest = max(max(abs(row["lower"]), abs(row["upper"])) for row in found)
        axes.set_xscale("asinh", linear_width=_LINEAR_WIDTH * largest)
        axes.set_yscale("log")
        for loss in losses:
            _draw(axes, bins[loss], COLOURS[loss_colour(loss)], loss_title(loss))
        axes.set_ylim(*_span([row["value"] for row in found]))
        axes.set(xlabel="eigenvalue", ylabel="share of eigenvalues")
        _mark(axes, largest)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, fontsize=8)
    return figure


def _draw(axes: Any, bins: Sequence[Row], colour: str, label: str) -> None:
    edges = np.array([bins[0]["lower"], *(row["upper"] for row in bins)], float)
    value, error = (np.array([row[key] for row in bins], float) for key in ("value", "stderr"))
    axes.stairs(value, edges, color=colour, linewidth=1.4, label=label)
    low, high = (np.append(ends, ends[-1]) for ends in (np.maximum(value - error, 0), value + error))
    axes.fill_between(edges, low, high, step="post", color=colour, alpha=0.2, linewidth=0)


def _span(values: Sequence[float]) -> tuple[float, float]:
    """From below the smallest share that is met to above the largest; rounding alone makes shares below 1e-7."""
    met = [value for value in values if value > 1e-7] or [1.0]
    return 0.4 * min(met), min(2.5 * max(met), 1.6)


def _mark(axes: Any, largest: float) -> None:
    """Ticks at 0 and at powers of ten on both sides, from the linear part outwards."""
    low, high = axes.get_xlim()
    powers = [
        10.0**power for power in range(int(np.floor(np.log10(largest))) - 2, int(np.floor(np.log10(largest))) + 1)
    ]
    ticks = [0.0, *powers, *(-power for power in powers)]
    axes.xaxis.set_major_locator(FixedLocator(sorted(tick for tick in ticks if low <= tick <= high)))
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: significant(value, 1)))
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_minor_formatter(NullFormatter())
