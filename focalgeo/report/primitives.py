"""The four shapes of which every figure is built: a course with its band, bars over bins, intervals, a surface.

Each draws arrays into `ax`, or into new axes where none are given, and returns the axes. Colours are names of
`style.COLOURS` or matplotlib's own. Call them within `style.styled()`, or from a function that it decorates.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from focalgeo.report.style import COLOURS, plain

_MOST_ENTRIES, _LETTERS_OF_TWO = 24, 30  # of a legend; of an entry of which two stand beside each other
_SUBDIVISIONS = ((100, (1,)), (5, (1, 2, 5)), (0, range(1, 10)))  # of a decade, on axes over more than this ratio


def new_axes(width: float = 4.1, height: float = 3.2) -> Axes:
    """Return the axes of a new figure of so many inches, without pyplot and its global state."""
    return Figure(figsize=(width, height)).subplots()


def _colour(name: Any) -> Any:
    return COLOURS.get(name, name) if isinstance(name, str) else name


def bands(
    x: Sequence[float],
    y: Sequence[float],
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
    *,
    ax: Axes | None = None,
    colour: Any = "blue",
    label: str | None = None,
    linestyle: str = "-",
    marker: str | None = None,
    error: str = "band",
    faint: bool = False,
) -> Axes:
    """Draw y against x, and from `low` to `high` a band, or with error="bars" a bar at each x.

    marker: of a course of few points. faint: for raw numbers that lie under a smoothed course.
    """
    ax, colour = ax or new_axes(), _colour(colour)
    alpha, width = (0.35, 0.9) if faint else (1, 1.6)
    style = {"color": colour, "linestyle": linestyle, "marker": marker, "markersize": 3 if error == "band" else 4}
    ax.plot(x, y, label=label, alpha=alpha, linewidth=width, **style)
    if low is not None and error == "band":
        ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    elif low is not None:
        ax.vlines(x, low, high, color=colour, linewidth=2.4, alpha=0.55)
    return ax


def bars(
    lower: Sequence[float],
    upper: Sequence[float],
    heights: Sequence[float],
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
    *,
    ax: Axes | None = None,
    colour: Any = "blue",
    label: str | None = None,
    error_label: str | None = None,
    bottom: Sequence[float] | float = 0,
    kind: str = "filled",
) -> Axes:
    """Draw a bar over each bin from `lower` to `upper`, and from `low` to `high` its interval.

    kind: "filled"; "hatched", for a difference that stands on `bottom`; "outline", for a histogram, whose bins that
    are missing are empty and whose interval is a band.
    """
    ax, colour = ax or new_axes(), _colour(colour)
    lower, upper, heights = (np.asarray(values, float) for values in (lower, upper, heights))
    if kind == "outline":
        edges = np.unique(np.append(lower, upper))
        places = np.searchsorted(edges, lower)

        def spread(values: Sequence[float]) -> np.ndarray:
            filled = np.zeros(len(edges) - 1)
            filled[places] = values
            return filled

        ax.stairs(spread(heights), edges, color=colour, linewidth=1.4, label=label)
        ends = (np.append(spread(end), 0) for end in ((0 * heights, heights) if low is None else (low, high)))
        ax.fill_between(edges, *ends, step="post", color=colour, alpha=0.2, linewidth=0)
        return ax
    centre, width = (lower + upper) / 2, 0.92 * (upper - lower)
    style = {"color": colour, "alpha": 0.5}
    if kind == "hatched":
        style = {"facecolor": "none", "edgecolor": colour, "hatch": "////", "alpha": 0.7}
    ax.bar(centre, heights, width, bottom=bottom, linewidth=0, label=label, **style)
    if low is not None:
        lines = ax.vlines(centre, low, high, color=COLOURS["ink"], linewidth=1.8, zorder=3, label=error_label)
        lines.set_path_effects([patheffects.withStroke(linewidth=4, foreground=COLOURS["paper"])])
    return ax


def intervals(
    values: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    *,
    levels: Sequence[float] | None = None,
    titles: Sequence[str] = (),
    ax: Axes | None = None,
    colours: Any = "blue",
    filled: bool | Sequence[bool] = True,
    size: float = 6.0,
    label: str | None = None,
) -> Axes:
    """Draw estimates as points on horizontal intervals, the first at the top, and a line at 0.

    levels: their heights where several share the axes; else from 0 downwards, one a row, with `titles` on the left.
    colours and filled: of all or of each; a mark that is not filled is hollow.
    """
    count = len(values)
    ax = ax or new_axes(4.3, 1.05 + 0.5 * count)
    places = -np.arange(count) if levels is None else levels
    colours = [_colour(name) for name in ([colours] * count if isinstance(colours, str) else colours)]
    filled = [filled] * count if isinstance(filled, bool) else filled
    ax.hlines(places, low, high, color=colours, linewidth=size / 3)
    for value, place, colour, full in zip(values, places, colours, filled, strict=True):
        ax.plot(value, place, "o", color=colour, markersize=size, markerfacecolor=colour if full else COLOURS["paper"])
    if label is not None:
        ax.plot([], [], "o-", color=colours[0], markersize=size, label=label)
    if titles:
        ax.set_yticks(places, titles)
        ax.tick_params(axis="y", length=0, labelsize=9, labelcolor=COLOURS["ink"])
        ax.set_ylim(min(places) - 0.6, max(places) + 0.6)
    if not any(line.get_gid() == "zero" for line in ax.lines):
        ax.axvline(0, color=COLOURS["ink"], linewidth=1, gid="zero")
    ax.grid(visible=False, axis="y")
    return ax


def surface(
    across: Sequence[float],
    up: Sequence[Any],
    values: np.ndarray,
    *,
    ax: Axes | None = None,
    label: str = "",
    show: Callable[[float], str] = plain,
) -> Axes:
    """Draw values [up, across] as colours over a logarithmic axis and evenly spaced categories, with a colour bar.

    Colours are logarithmic; what is 0 or below, or not finite, has that of the nearest value that has a logarithm.
    """
    ax = ax or new_axes(4.1, 4.3)
    across, values = np.asarray(across, float), np.asarray(values, float)
    usable = values[np.isfinite(values) & (values > 0)]
    norm = LogNorm(usable.min(), usable.max())
    edges = np.concatenate([across[:1], np.sqrt(across[1:] * across[:-1]), across[-1:]])
    filled = np.clip(values, norm.vmin, norm.vmax)
    mesh = ax.pcolormesh(edges, np.arange(len(up) + 1) - 0.5, filled, norm=norm, cmap="viridis", rasterized=True)
    ax.grid(visible=False)
    ax.set(xscale="log", xlim=(across[0], across[-1]))
    ticks = [tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if across[0] <= tick <= across[-1]]
    ax.set_xticks(ticks, map(plain, ticks))
    ax.minorticks_off()
    every = -(-len(up) // 16)
    ax.set_yticks(range(0, len(up), every), [name if isinstance(name, str) else plain(name) for name in up[::every]])
    bar = ax.figure.colorbar(mesh, ax=ax, pad=0.02, aspect=28, label=label)
    ticks = np.geomspace(norm.vmin, norm.vmax, 5)
    bar.set_ticks(ticks, labels=map(show, ticks))
    bar.minorticks_off()
    bar.outline.set_visible(False)
    return ax


def legend(ax: Axes, *, columns: int = 2, title: str | None = None, loc: str = "outside upper left") -> None:
    """Write the legend of the axes beside them, with as many entries as it has room for, evenly spread."""
    handles, labels = ax.get_legend_handles_labels()
    every = max(-(-len(handles) // _MOST_ENTRIES), 1)
    columns = 1 if max(map(len, labels), default=0) > _LETTERS_OF_TWO else columns
    ax.figure.legend(handles[::every], labels[::every], loc=loc, ncols=columns, title=title)


def number_ticks(
    axis: Any, most: int | None = None, *, scale: float = 1.0, unit: str = "", whole: bool = False
) -> None:
    """Write the numbers of a linear axis, times `scale`, without needless zeros, at so many ticks at the most."""
    if most:
        axis.set_major_locator(MaxNLocator(most, integer=whole))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{plain(round(scale * value, 10))}{unit}"))


def logarithmic_ticks(ax: Axes, axis: str, values: Sequence[float], show: Callable[[float], str] | None = None) -> None:
    """Make axis "x" or "y" logarithmic, with a few ticks whatever its length; with `show`, at powers of ten alone."""
    ax.set(**{f"{axis}scale": "log"})
    ticks, ratio = getattr(ax, f"{axis}axis"), max(values) / min(values)
    subdivisions = next(parts for least, parts in _SUBDIVISIONS if ratio >= least)
    ticks.set_major_locator(LogLocator(numticks=6) if show else LogLocator(subs=subdivisions))
    ticks.set_major_formatter(FuncFormatter(lambda value, _: (show or plain)(value)))
    ticks.set_minor_formatter(NullFormatter())


def fixed_ticks(axis: Any, ticks: Sequence[float], show: Callable[[float], str]) -> None:
    """Write these ticks alone."""
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(FixedLocator([]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
