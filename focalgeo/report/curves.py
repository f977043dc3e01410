"""Figures of training: curves against the step, and diagnostics of single examples against the epoch."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from focalgeo.report.figures import ESTIMATES, MOST_BARS, bounds, draw_reliability, pooled
from focalgeo.report.panels import Panel
from focalgeo.report.selection import batches_of_row, in_training, latest_by, measured_title
from focalgeo.report.style import COLOURS, LEGEND, LINESTYLES, loss_colour, plain, power_of_ten, styled
from focalgeo.rows import OUTCOMES, Diagnostic, HistogramBin, ReliabilityBin, Row, Scalar, select

_LABELS = {"loss": "loss (nats, logarithmic)", "learning_rate": "learning rate"}
_DIAGNOSTICS = {
    "nll": ("NLL", "mean NLL (nats)"),
    "entropy": ("Entropy", "mean entropy (nats)"),
    "true_class_probability": ("True class's probability", "mean p of the true class"),
}
_OUTCOME_COLOURS = dict(zip(OUTCOMES, ("blue", "orange"), strict=True))
_EPOCH_COLOURS = ("grey", "blue", "orange")  # of the first, a middle and the last epoch
FEW = 20  # epochs, up to which each is marked


def training_panels(rows: Sequence[Row]) -> Iterator[Panel]:
    """Yield loss, accuracy and learning rate, as far as there are rows for them."""
    for name, title in (("loss", "Loss"), ("accuracy", "Accuracy"), ("learning_rate", "Learning rate")):
        if any(len(each) for each in _curves(rows, name).values()):
            yield Panel("training", f"training_{name}", title, curve_figure(rows, name))


def _curves(rows: Sequence[Row], name: str) -> dict[str, list[Scalar]]:
    return {split: latest_by(select(rows, Scalar, name=name, split=split), "step") for split in ("train", "val")}


def curve_figure(rows: Sequence[Row], name: str) -> Figure:
    """Draw "loss", "accuracy" or "learning_rate" against the step from 0, for training batches and validation."""
    found = _curves(rows, name)
    with styled():
        figure = Figure(figsize=(4.1, 3.2))
        axes = figure.subplots()
        _draw_training(axes, found["train"], name)
        _draw_validation(axes, found["val"])
        axes.set_ylabel(_LABELS.get(name, name))
        _format_steps(axes)
        _format_values(axes, name, [row.value for part in found.values() for row in part])
        if name != "learning_rate":
            figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, **LEGEND)
    return figure


def _format_steps(axes: Any) -> None:
    axes.set_xlabel("step")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _points(rows: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([row.step for row in rows], float), np.array([row.value for row in rows], float)


def curvature_curve_figure(rows: Sequence[Row], name: str) -> Figure:
    """Draw "lambda_max" or "trace" with its error against the step, a line for each loss and split."""
    kind, label = ESTIMATES[name]
    found = [row for row in select(rows, kind, name=name) if row.step is not None]
    splits = list(dict.fromkeys(row.split for row in found))
    with styled():
        figure = Figure(figsize=(4.1, 3.2))
        axes = figure.subplots()
        for loss, split in dict.fromkeys((row.loss, row.split) for row in found):
            line = latest_by(select(found, kind, loss=loss, split=split), "step")
            steps, values = _points(line)
            reach = np.abs(np.array([bounds(row) for row in line]).T - values)
            style = {"linestyle": LINESTYLES[splits.index(split) % len(LINESTYLES)], "marker": "o", "markersize": 2.5}
            colour = COLOURS[loss_colour(loss)]
            axes.errorbar(steps, values, reach, color=colour, label=measured_title(line[0]), **style)
        _format_steps(axes)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=min(0, *(row.value for row in found)))
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, **LEGEND)
    return figure


def _draw_training(axes: Any, rows: Sequence[Row], name: str) -> None:
    if not rows:
        return
    steps, values = _points(rows)
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
        marker = "o" if len(rows) <= 60 else None
        axes.plot(*_points(rows), color=COLOURS["orange"], marker=marker, markersize=2.5, label="validation")


def _format_values(axes: Any, name: str, values: Sequence[float]) -> None:
    if name == "accuracy":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g}%"))
    elif name == "learning_rate":
        axes.set_ylim(0, max(1.1 * max(values), 0) or 1.0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(round(value, 12)) if value else "0"))
    elif min(values) > 0:  # no logarithm else
        _scale_by_logarithm(axes, values)
    else:
        axes.set_ylabel("loss (nats)")


def _scale_by_logarithm(axes: Any, values: Sequence[float]) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(values) < 100 * min(values) else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def diagnostic_panels(rows: Sequence[Row]) -> Iterator[Panel]:
    """Yield the figures of the diagnostics of single examples, as far as rows of epochs hold any."""
    rows = in_training(rows)
    for name, (title, label) in _DIAGNOSTICS.items():
        found = [row for row in select(rows, Diagnostic, name=name) if row.outcome in OUTCOMES and row.split]
        if found:
            yield Panel("diagnostics", f"diagnostics_{name}", title, outcome_figure(found, label))
    norms = select(rows, Diagnostic, name="weight_norm")
    if norms:
        figure = weight_figure(norms)
        yield Panel("diagnostics", "diagnostics_weight_norm", "Norm of the last layer's weights", figure)
    bins = select(rows, HistogramBin, name="gradient_norm_histogram")
    for split in _splits(bins)[:1]:
        figure = histogram_figure(select(bins, HistogramBin, split=split))
        yield Panel("diagnostics", "diagnostics_gradient_norm", f"Gradients of single examples, {split}", figure)
    reliability = [row for row in select(rows, ReliabilityBin, method=None) if row.share is not None and row.split]
    for split in _splits(reliability):
        own = select(reliability, ReliabilityBin, split=split)
        last = max(row.epoch for row in own)
        figure = share_figure(latest_by(select(own, ReliabilityBin, epoch=last), "bin"))
        title = f"Reliability on {split}, epoch {plain(last)}"
        yield Panel("diagnostics_reliability", f"diagnostics_reliability_{split}", title, figure)


def _splits(rows: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys(row.split for row in rows))


def outcome_figure(rows: Sequence[Row], label: str) -> Figure:
    """Draw a mean over the examples predicted right and over those predicted wrong against the epoch, on each split."""
    marker = epoch_marker(rows)
    with styled():
        figure, axes = _against_epochs(label)
        for outcome, colour in _OUTCOME_COLOURS.items():
            for split, linestyle in zip(_splits(rows), LINESTYLES, strict=False):
                line = select(rows, Diagnostic, outcome=outcome, split=split)
                style = {"color": COLOURS[colour], "linestyle": linestyle, "label": f"{outcome}, {split}"}
                _draw_epochs(axes, line, marker=marker, **style)
        axes.set_xlim(left=0)
        _scale(axes, [row.value for row in rows], rows[0].name)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, **LEGEND)
    return figure


def weight_figure(rows: Sequence[Row]) -> Figure:
    """Draw the Frobenius norm of the last layer's kernel against the epoch."""
    with styled():
        figure, axes = _against_epochs("‖W‖, Frobenius norm")
        _draw_epochs(axes, rows, marker=epoch_marker(rows), color=COLOURS["ink"])
        axes.set_xlim(left=0)
        axes.set_ylim(0, max(1.06 * max(row.value for row in rows), 0) or 1.0)
    return figure


def _against_epochs(label: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(4.1, 3.2))
    axes = figure.subplots()
    axes.set(xlabel="epoch", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure, axes


def _draw_epochs(axes: Any, rows: Sequence[Diagnostic], **style: Any) -> None:
    line = latest_by(rows, "epoch")
    if line:
        axes.plot([row.epoch for row in line], [row.value for row in line], markersize=2.5, **style)


def epoch_marker(rows: Sequence[Diagnostic]) -> str | None:
    """Return the mark of a single epoch; None where there are too many to tell apart."""
    return "o" if len({row.epoch for row in rows}) <= FEW else None


def _scale(axes: Any, values: Sequence[float], name: str) -> None:
    """From 0 to 1 for probabilities, a logarithmic axis for what lies more than a decade apart, from 0 else."""
    if name == "true_class_probability":
        axes.set_ylim(0, 1.02)
    elif min(values) > 0 and max(values) > 10 * min(values):
        _scale_by_logarithm(axes, values)
    else:
        axes.set_ylim(bottom=min(0, *values))


def histogram_figure(rows: Sequence[Row]) -> Figure:
    """Draw the share of examples per bin of gradient norm at the first, a middle and the last epoch measured."""
    measured = sorted({row.epoch for row in rows})
    middle = min(measured, key=lambda epoch: abs(epoch - measured[0] ** 0.5 * measured[-1] ** 0.5))
    shown = sorted({measured[0], middle, measured[-1]})
    with styled():
        figure = Figure(figsize=(4.1, 3.2))
        axes = figure.subplots()
        axes.set_xscale("log")
        for epoch, colour in zip(shown, _EPOCH_COLOURS[-len(shown) :], strict=True):
            bins = latest_by(select(rows, HistogramBin, epoch=epoch), "bin")
            _draw_histogram(axes, bins, COLOURS[colour], f"epoch {plain(epoch)}")
        axes.set(xlabel="norm of the last layer's gradient", ylabel="share of examples")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.xaxis.set_major_locator(LogLocator(numticks=7))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))
        axes.xaxis.set_minor_locator(FixedLocator([]))
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=3, **LEGEND)
    return figure


def _draw_histogram(axes: Any, bins: Sequence[HistogramBin], colour: str, label: str) -> None:
    """Bins that are empty have no row; the first of all bins begins at 0 and is drawn as wide as the narrowest."""
    ratio = min((row.upper / row.lower for row in bins if row.lower), default=10.0)
    edges, values = [], []
    for row in bins:
        lower = row.lower or row.upper / ratio
        if edges and not np.isclose(lower, edges[-1], rtol=1e-6, atol=0):
            edges.append(lower)
            values.append(0.0)
        edges += [row.upper] if edges else [lower, row.upper]
        values.append(row.value)
    axes.stairs(values, edges, color=colour, linewidth=1.4, label=label)
    axes.stairs(values, edges, color=colour, alpha=0.15, fill=True, linewidth=0)


def share_figure(bins: Sequence[ReliabilityBin]) -> Figure:
    """Draw accuracy per bin of confidence beside it, and beneath the share of all examples that fall into each bin."""
    bins = pooled(bins, -(-len(bins) // MOST_BARS)) if len(bins) > MOST_BARS else bins
    with styled():
        figure = Figure(figsize=(4.1, 4.7))
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3.4, 1.2])
        draw_reliability(top, bins, COLOURS["grey"], "accuracy")
        bars = [((row.lower + row.upper) / 2, row.upper - row.lower, row.share) for row in bins]
        centre, width, share = np.array(bars, float).T
        least = min(share.min(), 0.01)
        bottom.bar(centre, share, 0.92 * width, color=COLOURS["grey"], alpha=0.55, linewidth=0)
        bottom.set_yscale("log")
        bottom.set(xlabel="confidence", ylabel="share", ylim=(0.5 * least, 1.6))
        bottom.yaxis.set_major_locator(FixedLocator(_decades(least)))
        bottom.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}%"))
        bottom.minorticks_off()
        bottom.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        figure.legend(*top.get_legend_handles_labels(), loc="outside upper center", ncols=2, **LEGEND)
    return figure


def _decades(least: float) -> list[float]:
    """100% and powers of ten below it down to the smallest share, five at the most."""
    powers = range(int(np.floor(np.log10(least))), 1)
    return [10.0**power for power in powers[:: -(1 + (len(powers) - 1) // 4)]]
