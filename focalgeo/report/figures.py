"""The figures of a run and of a calibration, drawn from rows; a notebook draws what the page draws.

Each draws into `ax`, or into a new figure of the page's size, and returns the axes; `.figure` is what `to_svg` takes.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from msgspec.structs import replace

from focalgeo.report import selection, style
from focalgeo.report.selection import (
    AS_TRAINED,
    FOCAL,
    HELD_OUT,
    PLAIN,
    Column,
    Run,
    is_better,
    is_worse,
    latest_by,
    splits_of,
)
from focalgeo.report.style import COLOURS, LINESTYLES, loss_colour, new_axes, plain, styled
from focalgeo.rows import (
    DENSITY_LINEAR_WIDTH,
    OUTCOMES,
    DensityBin,
    Diagnostic,
    Difference,
    Eigenvalue,
    HistogramBin,
    Metric,
    ReliabilityBin,
    Row,
    Scalar,
    Title,
    Trace,
    select,
)

MOST_CLASSES = 12  # of the figure of classes, the farthest off first
ESTIMATES = {"lambda_max": (Eigenvalue, "largest eigenvalue (± residual)"), "trace": (Trace, "trace (95% interval)")}
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
}
_EPOCH_COLOURS = ("grey", "blue", "orange")  # of the first, a middle and the last epoch
_FAR = 6.0  # times the median reach: a difference farther out is an arrow, so that the others keep their detail
_Z95 = NormalDist().inv_cdf(0.975)


def values_of(rows: Sequence[Row], *fields: str) -> list[np.ndarray]:
    """Return an array of each of these fields of the rows."""
    return [np.array([getattr(row, field) for row in rows], float) for field in fields]


def bins_of(
    rows: Sequence[Row], column: Column = AS_TRAINED, *, split: str = "test", name: str = "reliability"
) -> list[ReliabilityBin]:
    """Return the bins of a method after training; "class1_reliability" are of the probability of class 1."""
    return latest_by(select(rows, ReliabilityBin, name=name, split=split, epoch=None, **column._asdict()), "bin")


def reliability(
    rows: Sequence[Row],
    column: Column = AS_TRAINED,
    *,
    split: str = "test",
    colour: str = "grey",
    ax: Axes | None = None,
) -> Axes:
    """Draw the reliability diagram of a method after training: `diagram` of its bins."""
    return diagram(bins_of(rows, column, split=split), colour=colour, ax=ax)


@styled()
def diagram(
    bins: Sequence[ReliabilityBin],
    *,
    colour: str = "grey",
    small: bool = False,
    sizes: str = "n",
    ax: Axes | None = None,
) -> Axes:
    """Draw what share came true in each bin, its Wilson 95% interval, and the gap to the bin's mean confidence.

    Without `ax`, the examples per bin stand beneath, or with sizes="share" their share of all. small: without legend,
    for many side by side.
    """
    lower, upper, share, confidence, *ends = values_of(bins, "lower", "upper", "value", "confidence", "low", "high")
    true, predicted = _TRUE[bins[0].name]
    if ax is None:
        figure = Figure(figsize=(3.2, 3.4) if small else (4.1, 4.7))
        ax, beneath = figure.subplots(2, 1, sharex=True, height_ratios=[3.4, 1])
        (counts,) = values_of(bins, sizes)
        style.bars(beneath, (lower, upper), counts, colour=colour)
        style.logarithmic_ticks(beneath, "y")
        beneath.set(xlabel=predicted, ylabel={"n": "examples"}.get(sizes, sizes), ylim=(counts.min() / 2, None))
    style.bars(ax, (lower, upper), share, *ends, colour=colour, label=true)
    look = {"facecolor": "none", "edgecolor": COLOURS["muted"], "hatch": "////", "linewidth": 0, "alpha": 0.7}
    ax.bar(lower, share - confidence, upper - lower, confidence, align="edge", label="gap to confidence", **look)
    ax.hlines(confidence, lower, upper, color=COLOURS["ink"], linewidth=1.2, label="mean confidence")
    ax.plot([0, 1], [0, 1], color=COLOURS["muted"], linewidth=1, linestyle="--")
    ax.set(xlim=(0, 1), ylim=(0, 1.02), ylabel=true)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1))
    if len(ax.figure.axes) == 2 and not small:
        style.legend(ax, loc="outside upper center")
    return ax


def pooled(bins: Sequence[ReliabilityBin]) -> ReliabilityBin:
    """Return one bin of several runs as one, with Wilson's 95% interval of its accuracy."""
    counts, *shares = values_of(bins, "n", "value", "confidence")
    n, (value, confidence) = counts.sum(), (float(np.average(means, weights=counts)) for means in shares)
    centre, shrink = value + _Z95**2 / (2 * n), 1 + _Z95**2 / n
    half = _Z95 * math.sqrt(max(value * (1 - value), 0) / n + _Z95**2 / (4 * n * n))
    ends = {"low": (centre - half) / shrink, "high": (centre + half) / shrink}
    return replace(bins[0], value=value, confidence=confidence, n=int(n), **ends)


def bounds(row: Eigenvalue | Trace) -> tuple[float, float]:
    """Return the ends of an estimate's error bar: a trace's interval, an eigenvalue -+ its residual."""
    return (row.low, row.high) if isinstance(row, Trace) else (row.value - row.residual, row.value + row.residual)


@styled()
def estimates(rows: Sequence[Row], name: str, *, ax: Axes | None = None) -> Axes:
    """Draw "lambda_max" with its residual, or "trace" with its 95% interval, for each loss on one axis."""
    kind, label = ESTIMATES[name]
    rows = selection.measured(rows, kind, name)
    ax, places = ax or new_axes(4.3, 1.05 + 0.5 * len(rows)), -np.arange(len(rows))
    for place, row in zip(places, rows, strict=True):
        style.intervals(ax, place, row.value, *bounds(row), colour=loss_colour(row.loss))
    style.zero_line(ax)
    ax.set_yticks(places, map(selection.measured_title, rows))
    ax.set(xlabel=label, ylim=(0.4 - len(rows), 0.6))
    return ax


@styled()
def courses(
    lines: Mapping[str, tuple[Sequence[Row], Any, str]],
    across: str,
    label: str,
    *,
    ax: Axes | None = None,
    beside: str = "",
) -> Axes:
    """Draw rows' values with their errors against "step" or "epoch", a line for each title -> (rows, colour, style).

    beside: the title of a legend to the right of the axes.
    """
    ax = ax or new_axes(*((4.6, 3.4) if beside else ()))
    for title, (rows, colour, linestyle) in lines.items():
        rows = latest_by(rows, across)
        ends = zip(*[bounds(row) for row in rows if isinstance(row, Eigenvalue | Trace)], strict=True)
        look = {"label": title, "colour": colour, "linestyle": linestyle}
        style.bands(ax, *values_of(rows, across, "value"), *ends, **look)
    ax.set(xlabel=across, ylabel=label, xlim=(0, None), ylim=(min(0, ax.dataLim.y0), None))
    ax.locator_params("x", nbins=5, integer=True)
    if len(lines) > 1:
        where = {"columns": 1, "loc": "outside right upper", "title": beside} if beside else {}
        style.legend(ax, **where)
    return ax


def curvature_course(rows: Sequence[Row], name: str, *, ax: Axes | None = None) -> Axes:
    """Draw "lambda_max" or "trace" with its error against the step, a line for each loss and split."""
    kind, label = ESTIMATES[name]
    rows = selection.in_training(select(rows, kind, name=name))
    styles = dict(zip(splits_of(rows), itertools.cycle(LINESTYLES)))
    lines = {
        f"{selection.loss_title(loss)}, {split}": (
            select(rows, kind, loss=loss, split=split),
            loss_colour(loss),
            styles[split],
        )
        for loss, split in dict.fromkeys((row.loss, row.split) for row in rows)
    }
    return courses(lines, "step", label, ax=ax)


def course(rows: Sequence[Row], name: str, *, ax: Axes | None = None) -> Axes | None:
    """Draw "loss", "accuracy" or "learning_rate" against the step, for training batches and validation; None of none.

    Rows of a hundred steps or more stand faint behind their moving mean.
    """
    train, val = (latest_by(select(rows, Scalar, name=name, split=split), "step") for split in ("train", "val"))
    batches, width = selection.batches_of_row(train), len(train) // 50 * 2 + 1
    smooth = len(train) >= 100 and name != "learning_rate"
    title = f"training, {f'mean of {batches} batches' if batches > 1 else 'single batches'}"
    lines = {title: (train, (COLOURS["blue"], 0.35) if smooth else "blue", "-")}
    if smooth:
        means = np.convolve(*values_of(train, "value"), np.full(width, 1 / width), mode="valid").tolist()
        rows = [replace(row, value=mean) for row, mean in zip(train[width // 2 :], means, strict=False)]
        lines[f"moving mean of {width} such rows"] = rows, "blue", "-"
    lines = {title: line for title, line in (lines | {"validation": (val, "orange", "-")}).items() if line[0]}
    if not lines:
        return None
    ax = courses(lines, "step", COURSES[name][1], ax=ax)
    if name == "accuracy":
        ax.yaxis.set_major_formatter(PercentFormatter(1))
    elif name == "loss" and ax.dataLim.y0 > 0:  # no logarithm else
        style.logarithmic_ticks(ax, "y")
    return ax


def outcomes(rows: Sequence[Row], name: str, *, ax: Axes | None = None) -> Axes | None:
    """Draw a mean over the examples predicted right and over those predicted wrong by epoch and split; None of none."""
    rows = [row for row in select(rows, Diagnostic, name=name) if row.outcome and row.split]
    lines = {
        f"{outcome}, {split}": (select(rows, Diagnostic, outcome=outcome, split=split), colour, linestyle)
        for outcome, colour in zip(OUTCOMES, ("blue", "orange"), strict=True)
        for split, linestyle in zip(splits_of(rows), LINESTYLES, strict=False)
    }
    if not rows:
        return None
    ax = courses(lines, "epoch", MEANS[name][1], ax=ax)
    if name != "true_class_probability" and 0 < 10 * ax.dataLim.y0 < ax.dataLim.y1:
        style.logarithmic_ticks(ax, "y")
    return ax


@styled()
def gradient_norms(rows: Sequence[Row], split: str, *, ax: Axes | None = None) -> Axes:
    """Draw the share of examples per bin of gradient norm at the first, a middle and the last epoch measured."""
    rows, ax = select(rows, HistogramBin, name="gradient_norm_histogram", split=split), ax or new_axes()
    epochs = sorted({row.epoch for row in rows})
    drawn = dict.fromkeys([epochs[0], epochs[len(epochs) // 2], epochs[-1]])
    for epoch, colour in zip(drawn, _EPOCH_COLOURS[-len(drawn) :], strict=True):
        lower, upper, shares = values_of(
            latest_by(select(rows, HistogramBin, epoch=epoch), "bin"), "lower", "upper", "value"
        )
        lower = np.where(lower, lower, upper / 2)  # the first of all bins begins at 0, which has no logarithm
        style.histogram(ax, (lower, upper), shares, colour=colour, label=f"epoch {plain(epoch)}")
    style.logarithmic_ticks(ax, "x")
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.set(xlabel="norm of the last layer's gradient", ylabel="share of examples")
    style.legend(ax, columns=3)
    return ax


@styled()
def density(rows: Sequence[Row], split: str, *, ax: Axes | None = None) -> Axes:
    """Draw the share of eigenvalues per bin for each loss, with one standard error, both axes logarithmic beyond 0."""
    rows, ax = select(rows, DensityBin, split=split), ax or new_axes(6.4, 3.3)
    for loss in dict.fromkeys(row.loss for row in rows):
        bins = latest_by(select(rows, DensityBin, loss=loss), "bin")
        lower, upper, *shares = values_of(bins, "lower", "upper", "value", "stderr")
        style.histogram(ax, (lower, upper), *shares, colour=loss_colour(loss), label=selection.loss_title(loss))
    style.logarithmic_ticks(ax, "y")
    largest = np.abs(values_of(rows, "lower", "upper")).max()
    ax.set_xscale("asinh", linear_width=DENSITY_LINEAR_WIDTH * largest)
    ax.xaxis.set_major_formatter(lambda value, _: plain(value))
    least = min([row.value for row in rows if row.value > 1e-7], default=1.0)  # rounding alone makes shares below that
    ax.set(xlabel="eigenvalue", ylabel="share of eigenvalues", ylim=(0.4 * least, 1.6))
    style.legend(ax)
    return ax


@styled()
def search_surface(
    rows: Sequence[Row], search: Mapping[str, np.ndarray], criterion: str, *, ax: Axes | None = None
) -> Axes | None:
    """Draw the criterion ("ece" or "nll") on validation over (gamma, T) as a heat map that marks both fitted optima.

    Gammas are categories, evenly spaced; T and colour are logarithmic. The axis starts at a quarter of the smallest
    best T, to leave room for the valley. None where all of the surface is 0: it has no logarithm.
    """
    gammas, temperatures, surface = (np.asarray(search[name], float) for name in ("gammas", "temperatures", criterion))
    best, places = temperatures[surface.argmin(1)], np.arange(len(gammas))
    near = temperatures >= best.min() / 4
    label, scale = ("ECE on validation, %", 100) if criterion == "ece" else ("NLL on validation, nats", 1)
    surface = scale * surface[:, near]
    usable = surface[np.isfinite(surface) & (surface > 0)]
    if not usable.size:
        return None
    ax, norm = ax or new_axes(4.1, 4.3), LogNorm(usable.min(), usable.max())
    mesh = ax.pcolormesh(temperatures[near], places, surface.clip(norm.vmin, norm.vmax), norm=norm, rasterized=True)
    ticks = np.geomspace(norm.vmin, norm.vmax, 5)
    ax.figure.colorbar(mesh, ax=ax, label=label, ticks=ticks, format="%.2g").minorticks_off()
    ax.plot(best, places, ".", color=style.LIGHT, label="best T of each γ")
    run = Run(rows, {})
    for method, marker, size in ((PLAIN, "o", 14), (FOCAL, "*", 12)):  # a star in a circle
        fitted = run.fits(Column(method, criterion))
        if "temperature" in fitted:  # perhaps between the rows of gammas
            level = np.interp(fitted.get("calibration_gamma", 0.0), gammas, places)
            look = {"color": COLOURS[run.method_colour(method)], "markeredgecolor": style.LIGHT, "linestyle": "none"}
            label = run.method_title(method).lower()
            ax.plot(fitted["temperature"], level, marker, markersize=size, label=label, **look)
    style.logarithmic_ticks(ax, "x")
    every = -(-len(gammas) // 16)
    ax.set_yticks(places[::every], map(plain, gammas[::every]))
    ax.set(xlabel="temperature T", ylabel="calibration γ (0: temperature scaling)")
    ax.grid(visible=False)
    style.legend(ax, loc="outside lower center")
    return ax


def reference(run: Run, split: str, criterion: str) -> Column | None:
    """Return the column that others are held against: temperature scaling, or else the plainest fitted method."""
    columns = [column for column in run.column_of_each(split, criterion=criterion) if column.criterion]
    return next((column for column in columns if column.method == PLAIN), next(iter(columns), None))


@styled()
def differences(run: Run, split: str = "test", *, criterion: str = "nll") -> Axes | None:
    """Draw NLL and ECE of each method less temperature scaling's with 95% intervals; None without such rows.

    Filled marks are of `split`, hollow ones of held-out parts of val. Green leaves out 0 on the better side, orange on
    the worse. A row far beyond the others is an arrow.
    """
    against, titles = reference(run, split, criterion), {}
    competing = run.column_of_each(split, criterion=criterion)
    for column in run.columns(split) if against else ():
        if column != against and any(run.difference(name, split, column, against) for name in ("nll", "ece")):
            is_other = column.criterion not in (None, criterion) and column not in competing
            by = f", by {selection.criterion_title(column.criterion)}" if is_other else ""
            titles[run.method_title(column.method) + by] = column
    if not titles:
        return None
    both = Figure(figsize=(4.3, 1.1 + 0.48 * len(titles))).subplots(1, 2, sharey=True)
    for ax, name, title in zip(both, ("nll", "ece"), (selection.NLL, selection.ECE), strict=True):
        title = run.metrics.get(name, title)
        rows = {
            height - level: row
            for level, column in enumerate(titles.values())
            for height, part in ((0.06, split), *([] if split == HELD_OUT else [(-0.2, HELD_OUT)]))
            if (row := run.difference(name, part, column, against))
        }
        _draw_differences(ax, rows, title)
    where = {"xycoords": (both[0].transAxes, both[0].transData), "annotation_clip": False, "in_layout": False}
    look = {"va": "center", "fontweight": "bold", "backgroundcolor": COLOURS["paper"]}
    for level, text in enumerate(titles):  # above its row, over both panels: the numbers keep the width
        both[1].annotate(text, (0, 0.36 - level), **where, **look)
    both[0].set_ylim(0.7 - len(titles), 0.5)
    return both[0]


def _draw_differences(ax: Axes, rows: Mapping[float, Difference], title: Title) -> None:
    """Differences in the unit of the metric, by their heights."""
    ends = sorted(max(-row.low, row.high) for row in rows.values() if row.low or row.high) or [1.0]
    reach = 1.12 * max(end for end in ends if end <= _FAR * ends[(len(ends) - 1) // 2])
    for place, row in rows.items():
        colour = "green" if is_better(row, title.best) else "orange" if is_worse(row, title.best) else "grey"
        if max(-row.low, row.high) <= reach:
            numbers = (title.scale * number for number in (row.value, row.low, row.high))
            style.intervals(ax, place, *numbers, colour=colour, filled=row.split != HELD_OUT)
        else:
            text = selection.signed(row, title)
            x, text, side = (0.98, f"{text} ▶", "right") if row.value > 0 else (0.02, f"◀ {text}", "left")
            ax.text(x, place, text, ha=side, va="center", color=COLOURS[colour], transform=ax.get_yaxis_transform())
    style.zero_line(ax)
    reach *= title.scale
    unit = {"%": "percentage points"}.get(title.unit, title.unit)
    ax.set(xlim=(-reach, reach), xlabel=", ".join(filter(None, (title.title, unit))))
    ax.set_title("← better" if title.best == "low" else "better →", fontweight="normal", color=COLOURS["muted"])
    ax.locator_params("x", nbins=4)
    ax.yaxis.set_visible(False)
    ax.spines.left.set_visible(False)


def errors_off(row: Metric) -> float:
    """Return how many standard errors a gap is from 0; 0 where its interval has no width."""
    return 2 * _Z95 * abs(row.value) / (row.high - row.low) if row.high > row.low else 0.0


def class_gaps(run: Run, split: str, chosen: Column, criterion: str) -> dict[Column, dict[str, Metric]]:
    """Return the rows "class_gap" by class: as given, by the plainest fitted method, and by the chosen one."""
    columns = dict.fromkeys(filter(None, (AS_TRAINED, reference(run, split, criterion), chosen)))
    rows = [row for row in select(run.rows, Metric, name="class_gap", split=split) if row.low is not None]
    gaps = {column: {row.group: row for row in select(rows, Metric, **column._asdict())} for column in columns}
    return {column: rows for column, rows in gaps.items() if rows}


@styled()
def class_differences(run: Run, gaps: Mapping[Column, Mapping[str, Metric]], *, ax: Axes | None = None) -> Axes:
    """Draw each class's mean probability less its share with 95% intervals, the farthest off in standard errors first.

    A mark is filled where all classes counted as chances (Bonferroni) leave it off 0.
    """
    far: dict[str, float] = {}
    for rows in gaps.values():
        far |= {name: max(errors_off(row), far.get(name, 0.0)) for name, row in rows.items()}
    threshold = NormalDist().inv_cdf(1 - 0.025 / len(far))
    classes = sorted(far, key=far.get, reverse=True)[:MOST_CLASSES]
    ax = ax or new_axes(4.3, 1.3 + (0.12 + 0.14 * len(gaps)) * len(classes))
    for number, (column, rows) in enumerate(gaps.items()):
        height = 0.39 - 0.78 / len(gaps) * (number + 0.5)
        line = {height - place: rows[name] for place, name in enumerate(classes) if name in rows}
        look = {"colour": run.method_colour(column.method), "label": run.fitted_title(column)}
        numbers = (100 * values for values in values_of(list(line.values()), "value", "low", "high"))
        style.intervals(ax, list(line), *numbers, filled=[errors_off(row) > threshold for row in line.values()], **look)
    style.zero_line(ax)
    ax.set_yticks(-np.arange(len(classes)), [f"class {name}" for name in classes])
    ax.set(ylim=(0.55 - len(classes), 0.55), xlabel="mean probability less share, percentage points")
    style.legend(ax, columns=1)
    return ax
