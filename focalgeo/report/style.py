"""One look for all pages: colours, figures as text that is the same each time, numbers, and four shapes.

Every figure is built of a course with its band, bars over bins, intervals, and a surface. Each draws arrays into `ax`,
or into new axes where none are given, and returns the axes. Colours are names of `COLOURS` or matplotlib's own. Call
them within `styled()`, or from a function that it decorates.
"""

import hashlib
import io
import math
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

# Okabe and Ito's palette, safe for colour-blind readers. On the page each colour becomes a CSS variable of its name.
COLOURS = {
    "ink": "#1c2530",
    "muted": "#5b6675",
    "rule": "#d9dee5",
    "paper": "#fffffe",
    "grey": "#78838f",
    "blue": "#0072b2",
    "orange": "#d55e00",
    "green": "#009e73",
    "purple": "#cc79a7",
    "gold": "#b58900",
    "sky": "#3aa0d8",
    "red": "#b5304f",
    "olive": "#7a8b2a",
}
METHOD_COLOURS = ("blue", "orange", "green", "purple", "gold", "sky", "red", "olive")  # of methods; grey: as trained
LIGHT = "#fdfdfd"  # marks on a heat map: light on dark in either theme
LINESTYLES = ("-", "--", ":", "-.")
FONT = "'DejaVu Sans', sans-serif"  # as an SVG names it; on the page it becomes the page's own

_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": COLOURS["muted"],
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": COLOURS["ink"],
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": COLOURS["ink"],
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.unicode_minus": True,
    "figure.constrained_layout.use": True,
    "figure.facecolor": COLOURS["paper"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "grid.color": COLOURS["rule"],
    "grid.linewidth": 0.6,
    "legend.borderaxespad": 0.2,
    "legend.columnspacing": 1.2,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.labelcolor": COLOURS["ink"],
    "lines.linewidth": 1.6,
    "savefig.facecolor": "auto",
    "svg.fonttype": "none",  # text stays text: it can be selected, read aloud and follows the page's font and theme
    "text.color": COLOURS["ink"],
    "text.parse_math": False,  # a $ in a name is a dollar
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
}
_MOST_ENTRIES, _LETTERS_OF_TWO = 24, 30  # of a legend; of an entry of which two stand beside each other
_SUBDIVISIONS = ((100, (1,)), (5, (1, 2, 5)), (0, range(1, 10)))  # of a decade, on axes over more than this ratio
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MINUS = str.maketrans("-", "−")
_LARGE = 1e12  # from which a number is shown with a power of ten
_HIDDEN = {"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"}  # control characters, halves of pairs, turns of direction, new lines
_JOINERS = "\u200c\u200d"  # which scripts and emoji need


def loss_colour(loss: str) -> str:
    """Return the name of a loss's colour: cross-entropy has one, the loss trained with the other."""
    return "blue" if loss == "cross_entropy" else "orange"


def styled() -> Any:
    """Return a context, or decorator, in which matplotlib draws in the report's style, whatever the user's own is."""
    return matplotlib.style.context(["default", _STYLE])


def to_svg(figure: Figure, name: str = "focalgeo") -> str:
    """Return the figure as SVG text, the same bytes for the same figure and name: no date, no version, no random ids.

    Two figures of different names share no id that anything refers to, so that one page can hold both.
    """
    buffer = io.StringIO()
    with styled(), matplotlib.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of glyphs that no font has, and names too long for the layout
        canvas, dpi = FigureCanvasSVG(figure), figure.dpi
        if engine := figure.get_layout_engine():
            engine.execute(figure)  # measures letters on that canvas, which changes the dpi
            figure.set_layout_engine("none")
            figure.dpi = dpi
        # savefig would draw all of it once for the layout before it draws it.
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return "\n".join(printable(line.rstrip(" \t")) for line in buffer.getvalue().split("\n"))


def printable(text: str) -> str:
    """Return a text in which each character that has no shape of its own is an escape, as in a Python text."""
    if text.isprintable():
        return text
    hidden = {letter for letter in text if unicodedata.category(letter) in _HIDDEN} - set(_JOINERS)
    return "".join(letter.encode("unicode_escape").decode() if letter in hidden else letter for letter in text)


def short(text: str, most: int = 64) -> str:
    """Return a text in printable characters, `most` at the most; two texts that differ do so when they are cut too."""
    shown = printable(text[: most + 1])
    if len(shown) <= most:
        return shown
    return f"{shown[: most - 10]}… {hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"


def significant(value: float, digits: int = 4) -> str:
    """Return `value` with `digits` significant digits, never in e-notation: 1,234, 0.01235, −3.2 × 10⁻⁷."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if -4 <= exponent < 7:
        return f"{value:,.{max(digits - 1 - exponent, 0)}f}".translate(_MINUS)
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa.translate(_MINUS)} × 10{str(int(power)).translate(_SUPERSCRIPTS)}"


def power_of_ten(value: float) -> str:
    """Return the power of ten nearest to a value above 0: 0.001 -> 10⁻³."""
    return f"10{str(round(math.log10(value))).translate(_SUPERSCRIPTS)}"


def plain(value: float) -> str:
    """Return a number without needless zeros: 0.05, 1, 3,000."""
    if 1e-4 <= abs(value) < _LARGE:
        return f"{value:,.6f}".rstrip("0").rstrip(".").translate(_MINUS)
    return significant(value, 2)


def rounded(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits and without needless zeros: 1.695, 0.8."""
    text = significant(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "×" not in text else text


def fixed(value: float, digits: int) -> str:
    """Return a number with `digits` decimals: 1,234.50."""
    if abs(value) >= _LARGE:
        return significant(value)
    return f"{round(value, digits) + 0.0:,.{digits}f}".translate(_MINUS)  # 0.0 for a negative zero


def percent(value: float, digits: int = 2) -> str:
    """Return a fraction as a percentage: 0.0123 -> 1.23%."""
    return f"{fixed(100 * value, digits)}%"


def interval(low: float, high: float, *, scale: float = 1.0, digits: int = 2) -> str:
    """Return an interval in brackets that no line break splits, each end times `scale`: [1.20, 3.40]."""
    return f"[{fixed(scale * low, digits)},\u00a0{fixed(scale * high, digits)}]"


def ends(low: float, high: float, *, steps: int = 5) -> str:
    """Return an interval in brackets, with as many decimals as make its width so many steps of the last."""
    digits = next((digits for digits in range(7) if (high - low) * 10**digits >= steps), 7)
    return interval(low, high, digits=digits)


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
