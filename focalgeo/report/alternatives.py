"""Texts that stand for a figure where it is not seen: its axes and the numbers that it draws, read from the figure."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import QuadMesh
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import StepPatch
from matplotlib.ticker import FixedLocator

from focalgeo.report.style import plain, rounded

_MOST_LINES, _MOST_BARS, _FEW_POINTS, _MOST_LETTERS = 8, 20, 8, 900


def figure_text(title: str, figure: Figure) -> str:
    """Return the title and the figure's label, or without one the courses of lines and the bars of all its axes."""
    own = str(figure.get_label())  # of a figure that says its numbers itself
    parts = [own] if own else [text for axes in figure.axes if (text := _axes_text(axes))]
    text = ". ".join([title, *parts])
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"


def _axes_text(axes: Axes) -> str:
    drawn = [*_bars(axes), *_histograms(axes), *_lines(axes), *_surfaces(axes)]
    across, up = axes.get_xlabel(), axes.get_ylabel()
    heading = f"{up or axes.get_title(loc='left') or 'values'}{f' against {across}' if across else ''}"
    return f"{heading}: {'; '.join(drawn)}" if drawn else ""


def _lines(axes: Axes) -> Iterator[str]:
    for label, line in _labelled_lines(axes)[:_MOST_LINES]:
        x, y = (np.asarray(values, float) for values in line.get_data())
        finite = np.isfinite(x) & np.isfinite(y)
        points = [
            f"{_name(axes.yaxis, b)} at {_name(axes.xaxis, a)}" for a, b in zip(x[finite], y[finite], strict=True)
        ]
        if points:
            yield f"{label} {_course(points, y[finite])}".strip()


def _labelled_lines(axes: Axes) -> list[tuple[str, Line2D]]:
    """Lines of the legend, those with error bars among them; where there is none, the only line."""
    bars = [(str(each.get_label()), each[0]) for each in axes.containers if isinstance(each, ErrorbarContainer)]
    lines = [(str(line.get_label()), line) for line in axes.get_lines()]
    named = [(label, line) for label, line in [*bars, *lines] if line is not None and not label.startswith("_")]
    return named or [("", line) for _, line in lines if len(lines) == 1]


def _course(points: Sequence[str], heights: np.ndarray) -> str:
    """A few points one by one; of many the ends, the least and the most."""
    if len(points) <= _FEW_POINTS:
        return ", ".join(points)
    extremes = (("least", int(np.argmin(heights))), ("most", int(np.argmax(heights))))
    inner = [f"{word} {points[i]}" for word, i in extremes if 0 < i < len(points) - 1]
    return ", ".join([f"from {points[0]} to {points[-1]}", *inner])


def _bars(axes: Axes) -> Iterator[str]:
    for container in axes.containers:
        if isinstance(container, BarContainer) and not str(container.get_label()).startswith("_"):
            shown = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in container]
            shown = [pair for pair in shown if all(map(math.isfinite, pair))]
            texts = [f"{_number(height)} at {_number(x)}" for x, height in shown[:_MOST_BARS]]
            if texts:
                yield f"{container.get_label()} {_listed(texts, len(shown))}"


def _histograms(axes: Axes) -> Iterator[str]:
    """The highest steps of each outline of a histogram: a bin's height and where it lies."""
    for patch in axes.patches:
        if isinstance(patch, StepPatch) and not str(patch.get_label()).startswith("_"):
            heights, edges, _ = patch.get_data()
            order = [i for i in np.argsort(-heights, kind="stable") if np.isfinite(heights[i])][:_FEW_POINTS]
            steps = [f"{_number(heights[i])} from {_number(edges[i])} to {_number(edges[i + 1])}" for i in order]
            if steps:
                yield f"{patch.get_label()} highest {', '.join(steps)}"


def _listed(texts: Sequence[str], count: int) -> str:
    return ", ".join(texts) + (f" and {count - len(texts)} more" if count > len(texts) else "")


def _surfaces(axes: Axes) -> Iterator[str]:
    for mesh in axes.collections:
        values = np.ma.masked_invalid(mesh.get_array()) if isinstance(mesh, QuadMesh) else None
        if values is not None and values.count():
            yield f"colours from {_number(values.min())} to {_number(values.max())}"


def _name(axis: Axis, value: float) -> str:
    """A value on an axis: of one that has names in the place of numbers, the nearest name."""
    if not isinstance(axis.get_major_locator(), FixedLocator):
        return _number(value)
    ticks = np.asarray(axis.get_majorticklocs())
    names = axis.get_major_formatter().format_ticks(ticks)
    if names == [plain(tick) for tick in ticks]:
        return _number(value)
    return names[int(np.argmin(np.abs(ticks - value)))]


def _number(value: Any) -> str:
    return rounded(float(value), 3)
