"""Figures of training: loss, accuracy and learning rate against the step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from focalgeo.report.figures import bounds
from focalgeo.report.formats import plain
from focalgeo.report.selection import Row, batches_of_row, latest_by, measured_title
from focalgeo.report.style import COLOURS, loss_colour, styled

_LABELS = {"loss": "loss (nats, logarithmic)", "learning_rate": "learning rate"}
_CURVATURE_LABELS = {"lambda_max": "largest eigenvalue (± residual)", "trace": "trace (95% interval)"}


def curve_figure(rows: Sequence[Row], name: str) -> Figure:
    """Draw "loss", "accuracy" or "learning_rate" against the step from 0, for training batches and validation."""
    found = {split: latest_by(rows, {"name": name, "split": split, "map": None}, "step") for split in ("train", "val")}
    with styled():
        figure = Figure(figsize=(4.1, 3.2))
        axes = figure.subplots()
        _draw_training(axes, found["train"], name)
        _draw_validation(axes, found["val"])
        axes.set(xlabel="step", ylabel=_LABELS.get(name, name))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        _format_values(axes, name, [row["value"] for part in found.values() for row in part])
        if name != "learning_rate":
            legend = {"fontsize": 8, "handlelength": 1.5, "columnspacing": 1.2, "borderaxespad": 0.2}
            figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, **legend)
    return figure


def curvature_curve_figure(rows: Sequence[Row], name: str) -> Figure:
    """Draw "lambda_max" or "trace" with its error against the step, a line for each loss and split."""
    found = [row for row in rows if row.get("name") == name and "loss" in row and "step" in row]
    places = list(dict.fromkeys((row["loss"], row["split"]) for row in found))
    splits = list(dict.fromkeys(split for _, split in places))
    with styled():
        figure = Figure(figsize=(4.1, 3.2))
        axes = figure.subplots()
        for loss, split in places:
            line = latest_by(found, {"loss": loss, "split": split}, "step")
            steps, values = (np.array([row[key] for row in line], float) for key in ("step", "value"))
            reach = np.abs(np.array([bounds(row) for row in line]).T - values)
            style = {"linestyle": ("-", "--", ":")[splits.index(split)], "marker": "o", "markersize": 2.5}
            axes.errorbar(
                steps, values, reach, color=COLOURS[loss_colour(loss)], label=measured_title(line[0]), **style
            )
        axes.set(xlabel="step", ylabel=_CURVATURE_LABELS[name])
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=min(0, *(row["value"] for row in found)))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        legend = {"fontsize": 8, "handlelength": 2.2, "columnspacing": 1.2, "borderaxespad": 0.2}
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, **legend)
    return figure


def _draw_training(axes: Any, rows: Sequence[Row], name: str) -> None:
    if not rows:
        return
    steps, values = (np.array([row[key] for row in rows], float) for key in ("step", "value"))
    style = {"color": COLOURS["blue"], "marker": "o" if len(rows) <= 60 else None, "markersize": 2.5}
    if name == "learning_rate":
        axes.plot(steps, values, **style)
        return
    batches = batches_of_row(rows)
    label = "training, " + (f"mean of {batches} batches" if batches > 1 else "single batches")
    if len(rows) < 100:
        axes.plot(steps, values, label=label, **style)
        return
    width = len(rows) // 50 * 2 + 1
    axes.plot(steps, values, color=COLOURS["blue"], alpha=0.35, linewidth=0.9, label=label)
    steps, values = (np.convolve(v, np.full(width, 1 / width), mode="valid") for v in (steps, values))
    axes.plot(steps, values, color=COLOURS["blue"], label=f"moving mean of {width} such rows")


def _draw_validation(axes: Any, rows: Sequence[Row]) -> None:
    if rows:
        steps, values = ([row[key] for row in rows] for key in ("step", "value"))
        marker = "o" if len(rows) <= 60 else None
        axes.plot(steps, values, color=COLOURS["orange"], marker=marker, markersize=2.5, label="validation")


def _format_values(axes: Any, name: str, values: Sequence[float]) -> None:
    if name == "accuracy":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}%"))
    elif name == "learning_rate":
        axes.set_ylim(0, 1.1 * max(values) or 1.0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(round(value, 12)) if value else "0"))
    elif min(values) > 0:  # no logarithm else
        axes.set_yscale("log")
        subs = (1, 2, 5) if max(values) < 100 * min(values) else (1,)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylabel("loss (nats)")
