"""One look for all pages: colours, figures as text that is the same each time, and numbers as they are printed."""

import hashlib
import io
import math
import unicodedata
import warnings
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
