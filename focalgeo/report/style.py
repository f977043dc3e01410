"""One look for all pages: colours, figures as text that is the same each time, and numbers as they are printed."""

import contextlib
import hashlib
import io
import math
import re
import unicodedata
import warnings
from collections.abc import Iterator
from typing import Any

import matplotlib.style
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

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
LEGEND = {"fontsize": 8, "handlelength": 2.2, "columnspacing": 1.2, "borderaxespad": 0.2}

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
    "font.size": 9.0,
    "grid.color": COLOURS["rule"],
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": COLOURS["ink"],
    "lines.linewidth": 1.6,
    "savefig.facecolor": "auto",
    "svg.fonttype": "none",  # text stays text: it can be selected, read aloud and follows the page's font and theme
    "svg.hashsalt": "focalgeo",
    "text.color": COLOURS["ink"],
    "text.parse_math": False,  # a $ in a name is a dollar
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
}
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MINUS = str.maketrans("-", "−")
_LARGE = 1e12  # from which a number is shown with a power of ten
_HIDDEN = {"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"}  # control characters, halves of pairs, turns of direction, new lines
_JOINERS = "\u200c\u200d"  # which scripts and emoji need


def loss_colour(loss: str) -> str:
    """Return the name of a loss's colour: cross-entropy has one, the loss trained with the other."""
    return "blue" if loss == "cross_entropy" else "orange"


def styled() -> Any:
    """Return a context in which matplotlib draws in the report's style, whatever the user's own settings are."""
    return matplotlib.style.context(["default", _STYLE])


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Keep matplotlib's warnings from a person's screen: of glyphs that no font has, of names and values too large."""
    with warnings.catch_warnings():
        for category in (UserWarning, RuntimeWarning):
            warnings.simplefilter("ignore", category)
        yield


def to_svg(figure: Figure) -> str:
    """Return the figure as SVG text, the same bytes for the same figure: no date, no version, no random ids."""
    buffer = io.StringIO()
    with styled(), drawing():
        canvas, dpi = FigureCanvasSVG(figure), figure.dpi
        if engine := figure.get_layout_engine():
            engine.execute(figure)  # measures letters on that canvas, which changes the dpi
            figure.set_layout_engine("none")
            figure.dpi = dpi
        # savefig would draw all of it once for the layout before it draws it.
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return re.sub(r"[ \t]+\n", "\n", buffer.getvalue())


def printable(text: str) -> str:
    """Return a text in which each character that has no shape of its own is an escape, as in a Python text."""
    if text.isprintable():
        return text
    return "".join(_escaped(each) if unicodedata.category(each) in _HIDDEN else each for each in text)


def _escaped(character: str) -> str:
    return character if character in _JOINERS else character.encode("unicode_escape").decode()


def short(text: str, most: int = 64) -> str:
    """Return a text in printable characters, `most` at the most; two texts that differ do so when they are cut too."""
    if len(text) <= most and text.isprintable():
        return text
    shown = printable(text[: most + 1])
    if len(text) <= most and len(shown) <= most:
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
    return f"{100 * value:.{digits}f}%" if abs(value) < _LARGE else f"{significant(100 * value)}%"


def points(value: float, digits: int = 2) -> str:
    """Return a difference of fractions in percentage points: -0.0123 -> −1.23."""
    return fixed(100 * value, digits)


def interval(low: float, high: float, *, scale: float = 1.0, digits: int = 2) -> str:
    """Return an interval in brackets that no line break splits, each end times `scale`: [1.20, 3.40]."""
    return f"[{fixed(scale * low, digits)},\u00a0{fixed(scale * high, digits)}]"


def ends(low: float, high: float, *, steps: int = 5) -> str:
    """Return an interval in brackets, with as many decimals as make its width so many steps of the last."""
    digits = next((digits for digits in range(7) if (high - low) * 10**digits >= steps), 7)
    return interval(low, high, digits=digits)
