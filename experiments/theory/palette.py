"""Colours and axes of the theory figures, in the house style."""

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from focalgeo.report.style import COLOURS, styled

# Okabe and Ito's palette, ordered so that neighbours differ in lightness as well
CURVES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
INK, MUTED = COLOURS["ink"], COLOURS["muted"]


def new_figure(rows: int, columns: int, *, size: tuple[float, float]) -> tuple[Figure, Any]:
    """A figure of `size` inches with its axes; call inside `styled`."""
    return plt.subplots(rows, columns, figsize=size)


def save(figure: Figure, path: Any) -> None:
    """Write the figure as PNG and close it."""
    with styled():
        figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)
