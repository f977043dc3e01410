"""What the figures of questions are drawn with: panels, intervals, logarithmic axes, one legend."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from experiments.numbers import Interval

BLUE, RED, GREEN = "#0072b2", "#d55e00", "#009e73"
COLOURS = (BLUE, RED, GREEN, "#000000", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = "os^DvP*X<>hp"
STYLES = ("-", "--", ":", "-.")
plt.rcParams |= {"axes.grid": True, "axes.axisbelow": True, "grid.color": "0.9", "axes.titlesize": 10, "font.size": 9}
plt.rcParams |= {"legend.fontsize": 9, "legend.frameon": False}


def panels(rows: int, columns: int, width: float, height: float, **shared: Any) -> tuple[Figure, np.ndarray]:
    """A figure of so many panels [rows, columns]; 7.5 inches are the 720 pixels at which it is shown."""
    return plt.subplots(rows, columns, squeeze=False, figsize=(width, height), layout="constrained", **shared)


def row(items: Iterable[Any], width: float, height: float, **shared: Any) -> tuple[Figure, list[tuple[Axes, Any]]]:
    """A figure of a panel for each item, side by side, and the pairs of panel and item."""
    items = list(items)
    figure, axes = panels(1, len(items), width, height, **shared)
    return figure, list(zip(axes[0], items, strict=True))


def look(place: int) -> dict[str, Any]:
    """Colour and marker of a group, by its place among all."""
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}


def intervals(
    axis: Axes, at: Iterable[float], values: Iterable[Interval], *, along: str = "y", scale: float = 1.0, **style: Any
) -> None:
    """Means, times a scale, with the bars of their intervals against `at`; a bar that is unknown is left out."""
    means, lows, highs = scale * np.array([*values], float).reshape(-1, 3).T
    bars = np.array([means - lows, highs - means])
    bars = np.where(np.isfinite(bars), bars, 0)
    points = (list(at), means) if along == "y" else (means, list(at))
    axis.errorbar(*points, **{f"{along}err": bars}, **({"capsize": 2, "markersize": 4, "linewidth": 1.2} | style))


def lines(axis: Axes, groups: Mapping[str, Mapping[float, Interval]], **style: Any) -> None:
    """Label -> place -> interval, each label with its look."""
    for number, (label, values) in enumerate(groups.items()):
        intervals(axis, values, values.values(), **(look(number) | {"label": label} | style))


def faint(axis: Axes, ends: Sequence[float], paths: Iterable[Sequence[float]], colour: str, **style: Any) -> None:
    """Each path thin and faint, evenly from end to end, and their mean, which has the style."""
    paths = np.array(list(paths))
    at = np.linspace(*ends, paths.shape[1])
    axis.plot(at, paths.T, color=colour, alpha=0.2, linewidth=0.7)
    axis.plot(at, paths.mean(0), color=colour, **style)


def logarithmic(axis: Axes, *names: str) -> None:
    """Logarithmic x, y or both, with plain numbers: 1, 2 and 5 of each decade, or where that is few, even steps."""
    for name in names:
        axis.set(**{f"{name}scale": "log"})
        line = getattr(axis, f"{name}axis")
        line.set_major_locator(LogLocator(subs=(1, 2, 5)))
        line.set_major_formatter("{x:g}")
        line.set_minor_locator(NullLocator())


def legend(figure: Figure, where: str = "lower center", columns: int = 4, title: str | None = None) -> Figure:
    """The figure with one legend outside its panels, of all their labels."""
    named = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if "center" in where:  # as many beside each other as there is room for
        columns = min(columns, int(figure.get_figwidth() / (0.6 + 0.075 * max(map(len, named)))) or 1)
    figure.legend(named.values(), named, loc=f"outside {where}", ncols=columns, title=title)
    return figure
