"""Figures of what training does to single examples: means by outcome, weight and gradient norms, reliability."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from focalgeo.report.figures import draw_reliability
from focalgeo.report.formats import plain, power_of_ten
from focalgeo.report.panels import Panel
from focalgeo.report.selection import Row, latest_by, matching
from focalgeo.report.style import COLOURS, styled

BY_OUTCOME = {
    "nll": ("NLL", "mean NLL (nats)"),
    "entropy": ("Entropy", "mean entropy (nats)"),
    "true_class_probability": ("True class's probability", "mean p of the true class"),
}
OUTCOMES = {"correct": "blue", "wrong": "orange"}
HISTOGRAM = "gradient_norm_histogram"
SECTION = "diagnostics"
RELIABILITY = "diagnostics_reliability"
FEW = 20  # epochs, up to which each is marked
_LINESTYLES = ("-", "--", ":")
_LEGEND = {"fontsize": 8, "handlelength": 2.2, "columnspacing": 1.2, "borderaxespad": 0.2}
_AS_TRAINED = {"name": "reliability", "map": None}
_EPOCHS_SHOWN = ("grey", "blue", "orange")


def diagnostic_panels(rows: Sequence[Row]) -> Iterator[Panel]:
    """The figures of `evaluation.diagnosis_rows` over a run's epochs, as far as there are rows for them."""
    rows = [row for row in rows if "epoch" in row]
    for name, (title, label) in BY_OUTCOME.items():
        found = [row for row in matching(rows, {"name": name}) if row.get("outcome") in OUTCOMES]
        if found:
            yield Panel(SECTION, f"{SECTION}_{name}", title, outcome_figure(found, label))
    found = matching(rows, {"name": "weight_norm"})
    if found:
        yield Panel(SECTION, f"{SECTION}_weight_norm", "Norm of the last layer's weights", weight_figure(found))
    for split in _splits(rows, HISTOGRAM)[:1]:
        figure = histogram_figure(matching(rows, {"name": HISTOGRAM, "split": split}))
        yield Panel(SECTION, f"{SECTION}_gradient_norm", f"Gradients of single examples, {split}", figure)
    measured = [row for row in matching(rows, _AS_TRAINED) if "share" in row]
    for split in _splits(measured, "reliability"):
        own = matching(measured, {"split": split})
        last = max(row["epoch"] for row in own)
        title = f"Reliability on {split}, epoch {plain(last)}"
        figure = share_figure(latest_by(own, {"epoch": last}, "bin"))
        yield Panel(RELIABILITY, f"{RELIABILITY}_{split}", title, figure)


def _splits(rows: Sequence[Row], name: str) -> list[str]:
    return list(dict.fromkeys(row["split"] for row in matching(rows, {"name": name})))


def outcome_figure(rows: Sequence[Row], label: str) -> Figure:
    """Draw a mean over the examples predicted right and over those predicted wrong against the epoch, on each split."""
    splits, marker = list(dict.fromkeys(row["split"] for row in rows)), epoch_marker(rows)
    with styled():
        figure, axes = _against_epochs(label)
        for outcome, colour in OUTCOMES.items():
            for split, linestyle in zip(splits, _LINESTYLES, strict=False):
                line = latest_by(rows, {"outcome": outcome, "split": split}, "epoch")
                _draw(
                    axes, line, marker=marker, color=COLOURS[colour], linestyle=linestyle, label=f"{outcome}, {split}"
                )
        axes.set_xlim(left=0)
        _scale(axes, [row["value"] for row in rows], rows[0]["name"])
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, **_LEGEND)
    return figure


def weight_figure(rows: Sequence[Row]) -> Figure:
    """Draw the Frobenius norm of the last layer's kernel against the epoch."""
    with styled():
        figure, axes = _against_epochs("‖W‖, Frobenius norm")
        _draw(
            axes, latest_by(rows, {}, "epoch"), marker=epoch_marker(rows), color=COLOURS["ink"], linestyle="-", label=""
        )
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.06 * max(row["value"] for row in rows))
    return figure


def _against_epochs(label: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(4.1, 3.2))
    axes = figure.subplots()
    axes.set(xlabel="epoch", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure, axes


def _draw(axes: Any, line: Sequence[Row], **style: Any) -> None:
    if line:
        epochs, values = ([row[key] for row in line] for key in ("epoch", "value"))
        axes.plot(epochs, values, markersize=2.5, **style)


def epoch_marker(rows: Sequence[Row]) -> str | None:
    """Return the mark of a single epoch; None where there are too many to tell apart."""
    return "o" if len({row["epoch"] for row in rows}) <= FEW else None


def _scale(axes: Any, values: Sequence[float], name: str) -> None:
    """From 0 to 1 for probabilities, a logarithmic axis for what lies more than a decade apart, from 0 else."""
    if name == "true_class_probability":
        axes.set_ylim(0, 1.02)
    elif min(values) > 0 and max(values) > 10 * min(values):
        axes.set_yscale("log")
        subs = (1, 2, 5) if max(values) < 100 * min(values) else (1,)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=min(0, *values))


def histogram_figure(rows: Sequence[Row]) -> Figure:
    """Draw the share of examples per bin of gradient norm at the first, a middle and the last epoch measured."""
    measured = sorted({row["epoch"] for row in rows})
    middle = min(measured, key=lambda epoch: abs(epoch - (measured[0] * measured[-1]) ** 0.5))
    shown = sorted({measured[0], middle, measured[-1]})
    with styled():
        figure = Figure(figsize=(4.1, 3.2))
        axes = figure.subplots()
        axes.set_xscale("log")
        for epoch, colour in zip(shown, _EPOCHS_SHOWN[-len(shown) :], strict=True):
            _draw_histogram(axes, latest_by(rows, {"epoch": epoch}, "bin"), COLOURS[colour], f"epoch {plain(epoch)}")
        axes.set(xlabel="norm of the last layer's gradient", ylabel="share of examples")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.xaxis.set_major_locator(LogLocator(numticks=7))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))
        axes.xaxis.set_minor_locator(FixedLocator([]))
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=3, **_LEGEND)
    return figure


def _draw_histogram(axes: Any, bins: Sequence[Row], colour: str, label: str) -> None:
    """Bins that are empty have no row; the first of all bins begins at 0 and is drawn a quarter of a decade wide."""
    edges, values = [], []
    for row in bins:
        lower = row["lower"] or row["upper"] / 10**0.25
        if edges and not np.isclose(lower, edges[-1], rtol=1e-6, atol=0):
            edges.append(lower)
            values.append(0.0)
        edges += [row["upper"]] if edges else [lower, row["upper"]]
        values.append(row["value"])
    axes.stairs(values, edges, color=colour, linewidth=1.4, label=label)
    axes.stairs(values, edges, color=colour, alpha=0.15, fill=True, linewidth=0)


def share_figure(bins: Sequence[Row]) -> Figure:
    """Draw accuracy per bin of confidence beside it, and beneath the share of all examples that fall into each bin."""
    with styled():
        figure = Figure(figsize=(4.1, 4.7))
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3.4, 1.2])
        draw_reliability(top, bins, COLOURS["grey"], "accuracy")
        centre, width, share = (np.array(each, float) for each in zip(*map(_bar, bins), strict=True))
        least = min(share.min(), 0.01)
        bottom.bar(centre, share, 0.92 * width, color=COLOURS["grey"], alpha=0.55, linewidth=0)
        bottom.set_yscale("log")
        bottom.set(xlabel="confidence", ylabel="share", ylim=(0.5 * least, 1.6))
        bottom.yaxis.set_major_locator(FixedLocator(_decades(least)))
        bottom.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}%"))
        bottom.minorticks_off()
        bottom.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        figure.legend(*top.get_legend_handles_labels(), loc="outside upper center", ncols=2, **_LEGEND)
    return figure


def _bar(row: Row) -> tuple[float, float, float]:
    return (row["lower"] + row["upper"]) / 2, row["upper"] - row["lower"], row["share"]


def _decades(least: float) -> list[float]:
    """100% and powers of ten below it down to the smallest share, five at the most."""
    powers = range(int(np.floor(np.log10(least))), 1)
    return [10.0**power for power in powers[:: -(1 + (len(powers) - 1) // 4)]]
