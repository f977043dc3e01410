"""One look for all pages: colours, figures as text that is the same each time, numbers, and five shapes.

Every figure is built of a course with its errors, a ribbon, bars over bins, a histogram, and intervals. Each draws
arrays into `ax`, in colours that are names of `COLOURS` or matplotlib's own, within `styled()`.
"""

import hashlib
import io
import math
import re
import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, PercentFormatter
from numpy.typing import ArrayLike

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
    "brown": "#8c5a3c",
    "teal": "#00828c",
    "violet": "#6f55b5",
    "slate": "#3f5f8f",
}
METHOD_COLOURS = tuple(COLOURS)[5:]  # grey: as trained
LIGHT = "#fdfdfd"  # marks on a heat map: light on dark in either theme
LINESTYLES = ("-", "--", ":", "-.")
NARROW, WIDE = 3.4, 4.8  # inches, of which a page shows three or two in a row as large as they are drawn
FONT = "'DejaVu Sans', sans-serif"  # as an SVG names it; on the page it becomes the page's own

_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": COLOURS["muted"],
    "axes.facecolor": "none",
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.labelcolor": COLOURS["ink"],
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.facecolor": COLOURS["paper"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "grid.color": COLOURS["rule"],
    "legend.fontsize": 9,
    "legend.handlelength": 2.8,
    "legend.frameon": False,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",  # text stays text: it can be selected, read aloud and follows the page's font and theme
    "text.color": COLOURS["ink"],
    "text.parse_math": False,  # a $ in a name is a dollar
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
}
# a legend that names all members of a long sweep would be taller than its figure: then every second or third is named
_MOST_ENTRIES, _LETTERS_PER_INCH = 24, 5.5  # of a legend; of an entry of which two stand beside each other
_LINE_OF_NAME = 28  # letters of a name beside an axis, of which a long one takes two lines
_MOST_MARKS = 60  # of a course, up to which each of its points is marked
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LARGE = 1e12  # from which a number is shown with a power of ten
_HIDDEN = {"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"}  # control characters, halves of pairs, turns of direction, new lines
_JOINERS = "\u200c\u200d"  # which scripts and emoji need


def loss_colour(loss: str | None) -> str:
    """Return the colour of a loss, or of an outcome: one of cross-entropy and what is right, another of the others."""
    return {"cross_entropy": "blue", "correct": "blue", None: "ink"}.get(loss, "orange")


def styled() -> Any:
    """Return a context, or decorator, in which matplotlib draws in the report's style, whatever the user's own is."""
    return matplotlib.style.context(["default", _STYLE])


def to_svg(figure: Figure, name: str = "focalgeo") -> str:
    """Return the figure as SVG text, the same bytes for the same figure and name: no date, no version, no random ids.

    Two figures of different names share no id that anything refers to, so that one page can hold both.
    """
    buffer = io.StringIO()
    # without a salt matplotlib's ids are random, and the page would differ each time it is made
    with styled(), matplotlib.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of glyphs that no font has, and names too long for the layout
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return printable(buffer.getvalue(), but="\n")


def printable(text: str, but: str = "") -> str:
    """Return a text in which each character that has no shape of its own is an escape, as in a Python text."""
    seen = set(text) - {*_JOINERS, *but}
    hidden = (letter for letter in seen if unicodedata.category(letter) in _HIDDEN)
    return text.translate({ord(letter): letter.encode("unicode_escape").decode() for letter in hidden})


def short(text: str, most: int = 64) -> str:
    """Return a text in printable characters, `most` at the most; two texts that differ do so when they are cut too."""
    line = printable(text[: most + 1])
    if len(line) <= most:
        return line
    return f"{line[: most - 10]}… {hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"


def significant(value: float, digits: int = 4) -> str:
    """Return `value` with `digits` significant digits, never in e-notation: 1,234, 0.01235, −3.2 × 10⁻⁷."""
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    if value == 0:
        return "0"
    if -4 <= int(power) < 7:
        return f"{value:,.{max(digits - 1 - int(power), 0)}f}".replace("-", "−")
    return f"{mantissa.replace('-', '−')} × 10{str(int(power)).translate(_SUPERSCRIPTS)}"


def rounded(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits and without needless zeros: 1.695, 0.8."""
    return _trimmed(significant(value, digits))


def _trimmed(text: str) -> str:
    return re.sub(r"(\.\d*?[1-9])0+\b|\.0+\b", r"\1", text)


def probability(value: float) -> str:
    """Return a number with three decimals, or as many as leave two digits of what is missing to 1, up to six."""
    return _trimmed(fixed(value, max(3, 1 - math.floor(math.log10(max(1 - value, 1e-5))))))


def fixed(value: float, digits: int) -> str:
    """Return a number with `digits` decimals: 1,234.50."""
    if abs(value) >= _LARGE:
        return significant(value)
    return f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", "−")  # 0.0 for a negative zero


def interval(low: float, high: float, digits: int) -> str:
    """Return an interval in brackets that no line break splits: [1.20, 3.40]."""
    return f"[{fixed(low, digits)},\u00a0{fixed(high, digits)}]"


def ends(low: float, high: float, *, steps: int = 5) -> str:
    """Return an interval in brackets, with as many decimals as make its width so many steps of the last."""
    digits = next((digits for digits in range(7) if (high - low) * 10**digits >= steps), 7)
    return interval(low, high, digits)


def new_axes(width: float = NARROW, height: float = 2.8) -> Axes:
    """Return the axes of a new figure of so many inches, without pyplot and its global state."""
    return Figure(figsize=(width, height)).subplots()


def colour_of(name: Any) -> Any:
    """Return a colour by its name in COLOURS, or matplotlib's own as it is."""
    return COLOURS.get(str(name), name)


def bands(ax: Axes, x: ArrayLike, y: ArrayLike, *ends: ArrayLike, colour: Any, **look: str) -> None:
    """Draw y against x in a look, points marked where few, and between ends (low, high) a bar at each x."""
    colour, marker = colour_of(colour), "o" if len(x) <= _MOST_MARKS else None
    ax.plot(x, y, color=colour, marker=marker, **look)
    if ends:
        ax.vlines(x, *ends, color=colour, linewidth=2.4, alpha=0.55)


def ribbon(
    ax: Axes, x: ArrayLike, y: ArrayLike, low: ArrayLike, high: ArrayLike, *, colour: Any, label: str | None = None
) -> None:
    """Draw y against x as a line, and what lies between low and high shaded."""
    ax.fill_between(x, low, high, color=colour_of(colour), alpha=0.2, linewidth=0)
    ax.plot(x, y, color=colour_of(colour), label=label)


def bars(ax: Axes, lower: ArrayLike, upper: ArrayLike, heights: ArrayLike, *ends: ArrayLike, colour: str) -> None:
    """Draw a bar over each bin from `lower` to `upper`, and a line between ends (low, high)."""
    ax.bar(lower, heights, 0.92 * (upper - lower), align="edge", color=colour_of(colour), alpha=0.5)
    if ends:
        ax.vlines((lower + upper) / 2, *ends, color=COLOURS["ink"], linewidth=1.8, zorder=3)


def histogram(
    ax: Axes,
    lower: ArrayLike,
    upper: ArrayLike,
    heights: ArrayLike,
    errors: ArrayLike | None = None,
    *,
    colour: str,
    label: str,
) -> None:
    """Draw the outline of a histogram, whose bins that are missing are empty, and one error above and below a band."""
    colour = colour_of(colour)
    ax.hist(
        lower, np.unique([lower, upper]), weights=heights, histtype="step", color=colour, linewidth=1.4, label=label
    )
    low, high = (0, heights) if errors is None else (heights - errors, 2 * errors)
    ax.bar(lower, high, upper - lower, low, align="edge", color=colour, alpha=0.2, linewidth=0)


class Mark(NamedTuple):
    """A number on its interval, in a colour; a mark that is not filled is hollow."""

    value: float
    low: float
    high: float
    colour: str
    filled: bool = True


def intervals(
    lines: Mapping[str, Sequence[Mark]],
    label: str,
    *,
    scale: float = 1.0,
    reach: float = math.inf,
    key: Iterable[tuple[str, str, bool]] = (),
) -> Axes | None:
    """Draw marks, times `scale`, on horizontal intervals, those of one title beneath each other, and a line at 0.

    Each title without marks is left out; None of none. key: of the legend, (title, colour, whether filled). An
    interval beyond `reach` is an arrow there.
    """
    lines = {title: marks for title, marks in lines.items() if marks}
    if not lines:
        return None
    ax = new_axes(WIDE, 1.05 + 0.2 * len(lines) + 0.15 * sum(map(len, lines.values())))
    for place, marks in enumerate(lines.values()):
        for height, mark in zip(np.linspace(place - 0.4, place + 0.4, len(marks) + 2)[1:-1], marks, strict=True):
            colour = colour_of(mark.colour)
            value, marker = mark.value, "o"
            if max(-mark.low, mark.high) > reach:
                value, marker = math.copysign(reach, value), ">" if value > 0 else "<"
            else:
                ax.hlines(height, scale * mark.low, scale * mark.high, color=colour, linewidth=2)
            inside = colour if mark.filled else COLOURS["paper"]
            ax.plot(scale * value, height, marker, color=colour, markerfacecolor=inside)
    for title, colour, filled in key:
        inside = COLOURS[colour if filled else "paper"]
        ax.plot([], [], "o-", color=COLOURS[colour], markerfacecolor=inside, label=title)
    ax.axvline(0, color=COLOURS["ink"], linewidth=1)
    names = [textwrap.fill(title, max(_LINE_OF_NAME, 6 + len(title) // 2)) for title in lines]
    ax.set_yticks(range(len(lines)), names)
    values = (f"{title} {rounded(scale * marks[0].value, 3)}" for title, marks in lines.items())
    ax.set(xlabel=label, ylim=(len(lines) - 0.5, -0.5), label="; ".join(values))
    ax.grid(visible=False, axis="y")
    legend(ax)
    return ax


def legend(ax: Axes, *, title: str = "", loc: str = "outside upper left") -> None:
    """Write the legend of the axes above them, or right of them where it has a title, with entries evenly spread.

    Axes that have no text instead of the figure, for a reader who cannot see it, get one: where each line begins and
    ends.
    """
    loc = "outside right upper" if title else loc
    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    every = -(-len(handles) // _MOST_ENTRIES)
    columns = 1 if title or max(map(len, labels)) > _LETTERS_PER_INCH * ax.figure.get_figwidth() else 2
    ax.figure.legend(handles[::every], labels[::every], loc=loc, ncols=columns, title=title)
    if not ax.get_label():
        ends = (
            f"{name} from {rounded(y[0], 3)} to {rounded(y[-1], 3)}"
            for line, name in zip(handles, labels, strict=True)
            if isinstance(line, Line2D) and (y := line.get_ydata(orig=False)[np.isfinite(line.get_ydata())]).size
        )
        ax.set_label("; ".join(ends))


def percentages(ax: Axes, *names: str) -> None:
    """Write the fractions along axes "x" or "y" as percentages."""
    for name in names:
        getattr(ax, f"{name}axis").set_major_formatter(PercentFormatter(1))


def logarithmic_ticks(ax: Axes, axis: str, *, few: float = 100.0) -> None:
    """Make axis "x" or "y" logarithmic, with a few ticks whatever its length; of `few` times, powers of ten alone."""
    ax.set(**{f"{axis}scale": "log"})
    ax.autoscale(axis=axis)
    ticks = getattr(ax, f"{axis}axis")
    low, high = ticks.get_view_interval()
    # powers of ten alone over two decades or more, 2 and 5 between them over less, and every digit over a short span
    subdivisions = (1,) if high >= few * low else (1, 2, 5) if high >= 5 * low else range(1, 10)
    ticks.set_major_locator(LogLocator(subs=subdivisions))
    ticks.set_major_formatter(lambda value, _: rounded(value))
    ticks.set_minor_formatter("")
