"""The figures of a run and of a calibration, drawn from rows; a notebook draws what the page draws.

Each makes a figure of the page's size and returns its axes; `.figure` is what `to_svg` takes.
"""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from msgspec.structs import replace

from focalgeo.report.selection import (
    AS_TRAINED,
    FOCAL,
    HELD_OUT,
    PLAIN,
    Column,
    Curvature,
    Rows,
    Run,
    criterion_title,
    grouped,
    in_training,
    latest_by,
    loss_title,
    measured,
    measured_title,
    splits_of,
)
from focalgeo.report.style import (
    COLOURS,
    LIGHT,
    LINESTYLES,
    NARROW,
    WIDE,
    Mark,
    bands,
    bars,
    histogram,
    intervals,
    legend,
    logarithmic_ticks,
    loss_colour,
    new_axes,
    percentages,
    ribbon,
    rounded,
    styled,
)
from focalgeo.rows import (
    DENSITY_LINEAR_WIDTH,
    Z95,
    DensityBin,
    Diagnostic,
    Eigenvalue,
    HistogramBin,
    Metric,
    ReliabilityBin,
    Scalar,
    Title,
    Trace,
    select,
    wilson,
)

MOST_CLASSES = 12  # of the figure of classes, the farthest off first
ESTIMATES = {"lambda_max": "largest eigenvalue (± residual)", "trace": "trace (95% interval)"}
_TRUE = {"reliability": ("accuracy", "confidence"), "class1_reliability": ("share", "probability of class 1")}
COURSES = {  # title and label
    "loss": ("Loss", "loss (nats)"),
    "accuracy": ("Accuracy", "accuracy"),
    "learning_rate": ("Learning rate", "learning rate"),
}
MEANS = {
    "nll": ("NLL", "mean NLL (nats)"),
    "entropy": ("Entropy", "mean entropy (nats)"),
    "true_class_probability": ("True class's probability", "mean p of the true class"),
    "weight_norm": ("Norm of the last layer's weights", "‖W‖, Frobenius norm"),
}
_EPOCH_COLOURS = ("grey", "blue", "orange")  # of the first, a middle and the last epoch
_FAR = 6.0  # times the median reach: a difference farther out is an arrow, so that the others keep their detail
_LEAST_SHARE = 1e-7  # of eigenvalues: rounding alone makes shares below that


def _values_of(rows, *fields):
    """Return an array of each of these fields of the rows."""
    return [np.array([getattr(row, field) for row in rows], float) for field in fields]


def bins_of(
    rows: Rows, column: Column = AS_TRAINED, *, split: str = "test", name: str = "reliability"
) -> list[ReliabilityBin]:
    """Return the bins of a method after training; "class1_reliability" are of the probability of class 1."""
    return latest_by(select(rows, ReliabilityBin, name=name, split=split, epoch=None, **column._asdict()), "bin")


def reliability(rows: Rows, column: Column = AS_TRAINED, *, colour: str = "grey") -> Axes:
    """Draw the reliability diagram of a method on test after training: `diagram` of its bins."""
    return diagram(bins_of(rows, column), colour=colour)


@styled()
def diagram(bins: Sequence[ReliabilityBin], *, colour: str = "grey") -> Axes:
    """Draw what share came true in each bin, its Wilson 95% interval, and hatched the gap to its mean confidence.

    The examples per bin stand beneath.
    """
    fields = "n", "lower", "upper", "value", "confidence", "low", "high"
    counts, lower, upper, share, confidence, *ends = _values_of(bins, *fields)
    true, predicted = _TRUE[bins[0].name]
    ax, beneath = Figure(figsize=(NARROW, 3.6)).subplots(2, 1, sharex=True, height_ratios=[3.4, 1])
    bars(beneath, lower, upper, counts, colour=colour)
    logarithmic_ticks(beneath, "y", few=10)
    # half of the fewest (of weights 0), so that a bin of one example has a bar on the logarithmic axis
    beneath.set(xlabel=predicted, ylabel="examples", ylim=(max(counts.min(), 1) / 2, None))
    bars(ax, lower, upper, share, *ends, colour=colour)
    ax.bar(
        lower,
        share - confidence,
        upper - lower,
        confidence,
        align="edge",
        facecolor="none",
        edgecolor=COLOURS["muted"],
        hatch="////",
        linewidth=0,
        alpha=0.7,
    )
    ax.hlines(confidence, lower, upper, color=COLOURS["ink"], linewidth=1.2)
    ax.plot([0, 1], [0, 1], "--", color=COLOURS["muted"])
    means = f"mean {predicted} {confidence @ counts / sum(counts):.1%}, {true} {share @ counts / sum(counts):.1%}"
    ax.set(xlim=(0, 1), ylim=(0, 1.02), ylabel=true, label=means)
    percentages(ax, "x", "y")
    return ax


@styled()
def risk_coverage(run: Run, curves: Mapping[Column, Rows]) -> Axes | None:
    """Draw the share of errors among the surest share of the examples, with Wilson's 95% intervals; None without."""
    if not all(curves.values()):
        return None
    ax = new_axes(WIDE, 3.4)
    for column, rows in curves.items():
        error, low, high, share = _values_of(rows, "value", "low", "high", "group")
        ribbon(ax, share, error, low, high, colour=run.method_colour(column), label=run.fitted_title(column))
    ax.set(xlim=(0, 1), ylim=(0, None), xlabel="share of test that is answered", ylabel="errors among the answers")
    percentages(ax, "x", "y")
    legend(ax)
    return ax


@styled()
def net_benefit(run: Run, curves: Mapping[tuple[str, Column], Rows]) -> Axes:
    """Draw the net benefit of each column against the threshold, with 95% intervals, beside acting on all and none.

    curves: by the rows' name and column; those of acting on all come last.
    """
    ax, (*of_columns, (_, of_all)) = new_axes(), curves.items()
    for (_, column), rows in of_columns:
        *of_curve, at = _values_of(rows, "value", "low", "high", "group")
        ribbon(ax, at, *of_curve, colour=run.method_colour(column), label=run.fitted_title(column))
    ax.plot(*_values_of(of_all, "group", "value"), "--", color=COLOURS["muted"], label="act on all")
    ax.axhline(0, color=COLOURS["muted"], linestyle=":", label="act on none")
    top = max([1e-6, *(row.value for rows in curves.values() for row in rows)])
    ax.set(xlim=(0, 1), ylim=(-0.2 * top, 1.2 * top), xlabel="threshold of P(1)", ylabel="net benefit")
    percentages(ax, "x")
    legend(ax)
    return ax


def pooled(bins: Sequence[ReliabilityBin]) -> ReliabilityBin:
    """Return one bin of several runs as one, with Wilson's 95% interval of its accuracy."""
    counts, *shares = _values_of(bins, "n", "value", "confidence")
    n, (value, confidence) = int(counts.sum()), np.average(shares, 1, counts)
    low, high = map(float, wilson(value * n, n))
    return replace(bins[0], value=value, confidence=confidence, n=n, low=low, high=high)


def _bounds(row):
    """Return the ends of an estimate's error bar: a trace's interval, an eigenvalue -+ its residual."""
    return (row.low, row.high) if isinstance(row, Trace) else (row.value - row.residual, row.value + row.residual)


@styled()
def estimates(rows: Rows, name: str) -> Axes | None:
    """Draw "lambda_max" with its residual, or "trace" with its 95% interval, for each loss; None of none."""
    lines = {}
    for row in measured(rows, name):
        low, high = _bounds(row)
        lines[measured_title(row)] = [Mark(row.value, low, high, loss_colour(row.loss))]
    return intervals(lines, ESTIMATES[name])


@styled()
def courses(lines: Mapping[str, tuple[Rows, Any, str]], across: str, label: str, *, beside: str = "") -> Axes | None:
    """Draw rows' values with their errors against "step" or "epoch", a line for each title -> (rows, colour, style).

    beside: the title of a legend to the right of the axes. Lines without rows are left out; None without any.
    """
    lines = {title: line for title, line in lines.items() if line[0]}
    if not lines:
        return None
    ax = new_axes(*((WIDE, 3.4) if beside else ()))
    for title, (rows, colour, linestyle) in lines.items():
        rows = latest_by(rows, across)
        ends = zip(*[_bounds(row) for row in rows if isinstance(row, Eigenvalue | Trace)], strict=True)
        bands(ax, *_values_of(rows, across, "value"), *ends, colour=colour, label=title, linestyle=linestyle)
    ax.set(xlabel=across, ylabel=label, xlim=(0, None), ylim=(min(0, ax.dataLim.y0), None))
    ax.locator_params("x", nbins=5, integer=True)
    legend(ax, title=beside)
    return ax


def curvature_course(rows: Rows, name: str) -> Axes | None:
    """Draw "lambda_max" or "trace" with its error against the step, a line for each loss and split; None of none."""
    return _by_split(in_training(select(rows, Curvature, name=name)), "loss", "step", ESTIMATES[name])


def course(rows: Rows, name: str) -> Axes | None:
    """Draw "loss", "accuracy" or "learning_rate" against the step, for training batches and validation; None of none.

    Rows of a hundred steps or more stand faint behind their moving mean.
    """
    train, val = (latest_by(select(rows, Scalar, name=name, split=split), "step") for split in ("train", "val"))
    lines = {"training": (train, "blue", "-"), "validation": (val, "orange", "-")}
    width = len(train) // 50 * 2 + 1  # odd, so that each mean has a row in its middle
    if len(train) >= 100 and name != "learning_rate":
        values = np.convolve(*_values_of(train, "value"), np.full(width, 1 / width), mode="valid").tolist()
        smooth = [replace(row, value=value) for row, value in zip(train[width // 2 :], values, strict=False)]
        lines["training"] = train, (COLOURS["blue"], 0.35), "-"
        lines[f"moving mean of {width} rows"] = smooth, "blue", "-"
    ax = courses(lines, "step", COURSES[name][1])
    if ax and name == "accuracy":
        ax.autoscale(axis="y")
        percentages(ax, "y")
    elif ax and name == "loss" and ax.dataLim.y0 > 0:  # no logarithm else
        logarithmic_ticks(ax, "y")
    return ax


def means(rows: Rows, name: str) -> Axes | None:
    """Draw a diagnostic by epoch, for examples predicted right and those predicted wrong, by split; None of none."""
    ax = _by_split(select(rows, Diagnostic, name=name), "outcome", "epoch", MEANS[name][1])
    if ax and name in ("nll", "entropy") and 0 < 10 * ax.dataLim.y0 < ax.dataLim.y1:
        logarithmic_ticks(ax, "y")
    return ax


def _by_split(rows, field, across, label):
    """Draw a line for each value of a field and each split."""
    styles, lines = dict(zip(splits_of(rows), itertools.cycle(LINESTYLES))), {}
    for row in rows:
        value = getattr(row, field)
        title = ", ".join(filter(None, (value and loss_title(value), row.split)))
        lines.setdefault(title, ([], loss_colour(value), styles.get(row.split, "-")))[0].append(row)
    return courses(lines, across, label)


@styled()
def gradient_norms(rows: Rows, split: str) -> Axes:
    """Draw the share of examples per bin of gradient norm at the first, a middle and the last epoch measured."""
    rows, ax = select(rows, HistogramBin, name="gradient_norm_histogram", split=split), new_axes()
    epochs = grouped(rows, "epoch")
    for place, colour in zip(sorted({0, len(epochs) // 2, len(epochs) - 1}), _EPOCH_COLOURS, strict=False):
        lower, upper, shares = _values_of(latest_by(epochs[place], "bin"), "lower", "upper", "value")
        # the first of all bins begins at 0, which has no logarithm
        lower = np.where(lower, lower, upper / 2)
        histogram(ax, lower, upper, shares, colour=colour, label=f"epoch {rounded(epochs[place][0].epoch)}")
    logarithmic_ticks(ax, "x")
    percentages(ax, "y")
    ax.set(xlabel="norm of the last layer's gradient", ylabel="share of examples")
    legend(ax)
    return ax


@styled()
def density(rows: Rows, split: str) -> Axes:
    """Draw the share of eigenvalues per bin for each loss, with one standard error, both axes logarithmic beyond 0."""
    rows = [row for row in select(rows, DensityBin, split=split) if row.value > _LEAST_SHARE]
    ax = new_axes(WIDE, 3.3)
    for loss in dict.fromkeys(row.loss for row in rows):
        bins = latest_by(select(rows, DensityBin, loss=loss), "bin")
        numbers = _values_of(bins, "lower", "upper", "value", "stderr")
        histogram(ax, *numbers, colour=loss_colour(loss), label=loss_title(loss))
    logarithmic_ticks(ax, "y")
    lower, upper, shares = _values_of(rows, "lower", "upper", "value")
    ax.set_xscale("asinh", linear_width=DENSITY_LINEAR_WIDTH * np.abs([lower, upper]).max())
    ax.xaxis.set_major_formatter(lambda value, _: rounded(value))
    ax.set(xlabel="eigenvalue", ylabel="share of eigenvalues", ylim=(min(shares) / 2, 2))
    ax.set_label(f"eigenvalues from {rounded(min(lower), 3)} to {rounded(max(upper), 3)}")
    legend(ax)
    return ax


@styled()
def search_surface(run: Run, search: Mapping[str, np.ndarray], title: Title) -> Axes | None:
    """Draw a criterion, ECE or NLL, on validation over (gamma, T) as a heat map that marks both fitted optima.

    T and colour are logarithmic. The axis starts at a quarter of the smallest
    best T, to leave room for the valley. None where all of the surface is 0: it has no logarithm.
    """
    criterion = title.title.lower()
    gammas, temperatures, surface = (np.asarray(search[name], float) for name in ("gammas", "temperatures", criterion))
    best = temperatures[surface.argmin(1)]
    near = temperatures >= best.min() / 4
    surface = np.where(np.isfinite(surface), title.scale * surface, np.nan)[:, near]
    if not (surface > 0).any():
        return None
    ax = new_axes(WIDE, 4.6)
    mesh = ax.pcolormesh(temperatures[near], gammas, surface, norm=LogNorm(clip=True), rasterized=True)
    label, ticks = f"{title.title} on validation, {title.unit}", np.geomspace(*mesh.get_clim(), 5)
    ax.figure.colorbar(mesh, ax=ax, label=label, ticks=ticks, format="%.2g").minorticks_off()
    ax.plot(best, gammas, ".", color=LIGHT, markersize=7, markeredgecolor=COLOURS["ink"], label="best T of each γ")
    for method, marker, size in ((PLAIN, "o", 14), (FOCAL, "*", 12)):  # a star in a circle
        column = Column(method, criterion)
        if fitted := run.fits(column):
            ax.plot(
                fitted["temperature"],
                fitted.get("calibration_gamma", 0.0),
                marker,
                markersize=size,
                color=COLOURS[run.method_colour(column)],
                markeredgecolor=LIGHT,
                label=run.method_title(column).lower(),
            )
    logarithmic_ticks(ax, "x")
    least = np.nanmin(surface, 1).argmin()
    ax.set(xlabel="temperature T", ylabel="calibration γ (0: temperature scaling)")
    ax.set_label(f"least at γ = {rounded(gammas[least])}, T = {rounded(best[least])}")
    ax.grid(visible=False)
    legend(ax, loc="outside lower center")
    return ax


def reference(run: Run) -> Column | None:
    """Return the column that others are held against: temperature scaling, or else the simplest fitted method."""
    columns = (column for column in run.column_of_each() if column.criterion)
    return min(columns, key=lambda column: column.method != PLAIN, default=None)


@styled()
def differences(run: Run, metric: Title) -> Axes | None:
    """Draw NLL or ECE of each method minus temperature scaling's with 95% intervals; None without such rows.

    Filled marks are of the split that the page is about, hollow ones of held-out parts of val. A row far beyond the
    others is an arrow.
    """
    against, competing, lines = reference(run), run.column_of_each(), {}
    for column in run.columns() if against else ():
        is_other = column.criterion and column not in competing
        title = run.method_title(column) + (f", by {criterion_title(column.criterion)}" if is_other else "")
        lines[title] = [
            Mark(row.value, row.low, row.high, run.method_colour(column), part == run.measured_on)
            for part in dict.fromkeys((run.measured_on, HELD_OUT))
            if (row := run.difference(metric.title.lower(), part, column, against))
        ]
    marks = list(itertools.chain(*lines.values()))
    ends = [max(-mark.low, mark.high) for mark in marks] or [0.0]
    key = [(f"on {run.measured_on}", "grey", True), ("held out of val", "grey", False)]
    ax = intervals(
        lines,
        f"{metric.title}, {metric.unit.replace('%', 'percentage points')}",
        scale=metric.scale,
        reach=_FAR * statistics.median(ends) or math.inf,
        key=key if len({mark.filled for mark in marks}) == 2 else (),
    )
    if ax:
        ax.set_title("← better", loc="left")
    return ax


def _errors_off(row):
    """Return how many standard errors a gap is from 0; 0 where its interval has no width."""
    return 2 * Z95 * abs(row.value) / (row.high - row.low) if row.high > row.low else 0.0


def class_gaps(run: Run) -> dict[str, dict[Column, Metric]]:
    """Return each class's rows "class_gap": uncalibrated, by the simplest fitted method, and by the chosen one."""
    gaps = defaultdict(dict)
    for column in filter(None, (AS_TRAINED, reference(run), run.chosen)):
        for row in run.select(Metric, column, name="class_gap", split=run.measured_on):
            gaps[row.group][column] = row
    return gaps


@styled()
def class_differences(run: Run, gaps: Mapping[str, Mapping[Column, Metric]]) -> Axes:
    """Draw each class's mean probability minus its share with 95% intervals, the farthest off in standard errors first.

    A mark is filled where it differs from 0 with Bonferroni's correction for all classes.
    """
    threshold, columns = NormalDist().inv_cdf(1 - 0.025 / len(gaps)), dict.fromkeys(itertools.chain(*gaps.values()))
    classes = sorted(gaps, key=lambda name: max(map(_errors_off, gaps[name].values())), reverse=True)[:MOST_CLASSES]
    lines = {
        f"class {name}": [
            Mark(row.value, row.low, row.high, run.method_colour(column), _errors_off(row) > threshold)
            for column, row in gaps[name].items()
        ]
        for name in classes
    }
    key = [(run.fitted_title(column), run.method_colour(column), True) for column in columns]
    return intervals(lines, "mean probability minus share, percentage points", scale=100, key=key)


@styled()
def eces_of_tests(eces: Mapping[str, Sequence[Metric]], titles: Iterable[str], colour: str) -> Axes:
    """Draw the ECEs of each test by these titles: as given in grey, by a fit on val, and by its own, hollow."""
    marks = ("grey", True), (colour, True), (colour, False)
    lines = {
        name: [Mark(row.value, row.low, row.high, *mark) for row, mark in zip(rows, marks, strict=True)]
        for name, rows in eces.items()
    }
    key = [(title, *mark) for title, mark in zip(titles, marks, strict=True)]
    return intervals(lines, "ECE, %", scale=100, key=key)
