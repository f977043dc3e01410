"""One look for all figures, and figures as text that is the same each time."""

import io
import re
from typing import Any

import matplotlib.style
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
}
MAP_COLOURS = {
    "uncalibrated": "grey",
    "temperature_scaling": "blue",
    "focal_temperature_scaling": "orange",
    "unfocalled": "orange",
}
LIGHT = "#fdfdfd"  # marks on a heat map: light on dark in either theme

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
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
}


def loss_colour(loss: str) -> str:
    """Return the name of a loss's colour: cross-entropy has one, the loss trained with the other."""
    return "blue" if loss == "cross_entropy" else "orange"


def styled() -> Any:
    """Return a context in which matplotlib draws in the report's style, whatever the user's own settings are."""
    return matplotlib.style.context(["default", _STYLE])


def to_svg(figure: Figure) -> str:
    """Return the figure as SVG text, the same bytes for the same figure: no date, no version, no random ids."""
    buffer = io.StringIO()
    with styled():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return re.sub(r"[ \t]+\n", "\n", buffer.getvalue())
