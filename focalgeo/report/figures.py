"""The figures of a run and of a calibration, drawn from rows; a notebook draws what the page draws.

Each draws into `ax`, or into a new figure of the page's size, and returns the axes; `.figure` is what `to_svg` takes.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from matplotlib.transforms import blended_transform_factory
from msgspec.structs import replace

from focalgeo.report import style
from focalgeo.report.selection import (
    AS_TRAINED,
    ECE,
    FOCAL,
    HELD_OUT,
    NLL,
    PLAIN,
    Column,
    Run,
    batches_of_row,
    criterion_title,
    in_training,
    is_better,
    is_worse,
    latest_by,
    loss_title,
    measured,
    measured_title,
    signed,
    splits_of,
)
from focalgeo.report.style import (
    COLOURS,
    LIGHT,
    LINESTYLES,
    loss_colour,
    plain,
    power_of_ten,
    significant,
    styled,
)
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

MOST_MARKS = 60  # of a course, up to which each of its points is marked
MOST_CLASSES = 12  # of the figure of classes, the farthest off first
ESTIMATES = {"lambda_max": (Eigenvalue, "largest eigenvalue (± residual)"), "trace": (Trace, "trace (95% interval)")}
_TRUE = {"reliability": ("accuracy", "confidence"), "class1_reliability": ("share", "probability of class 1")}
_LABELS = {"loss": "loss (nats, logarithmic)", "learning_rate": "learning rate"}
MEANS = {
    "nll": "mean NLL (nats)",
    "entropy": "mean entropy (nats)",
    "true_class_probability": "mean p of the true class",
}
_EPOCH_COLOURS = ("grey", "blue", "orange")  # of the first, a middle and the last epoch
_HALVES = (0, 0.5, 1)
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
    lower, upper, share, confidence, low, high = values_of(bins, "lower", "upper", "value", "confidence", "low", "high")
    true, predicted = _TRUE[bins[0].name]
    top, beneath = ax, None
    if ax is None:
        figure = Figure(figsize=(3.2, 3.4) if small else (4.1, 4.7))
        top, beneath = figure.subplots(2, 1, sharex=True, height_ratios=[3.4, 1])
    look = {"ax": top, "label": true, "error_label": f"95% interval of {true}"}
    style.bars(lower, upper, share, low, high, colour=colour, **look)
    look = {"ax": top, "label": "gap to confidence", "kind": "hatched", "bottom": np.minimum(share, confidence)}
    style.bars(lower, upper, np.abs(share - confidence), colour="muted", **look)
    inset = 0.04 * (upper - lower)
    ends = (lower + inset, upper - inset)
    top.hlines(confidence, *ends, color=COLOURS["ink"], linewidth=1.2, label="mean confidence", zorder=2)
    top.plot([0, 1], [0, 1], color=COLOURS["muted"], linewidth=1, dashes=(4, 3))
    top.set(xlim=(0, 1), ylim=(0, 1.02), ylabel=true)
    style.number_ticks(top.yaxis, scale=100, unit="%")
    if beneath is not None:
        (counts,) = values_of(bins, sizes)
        style.bars(lower, upper, counts, ax=beneath, colour=colour)
        least = 1 if sizes == "n" else min(0.01, *counts)
        beneath.set(xlabel=predicted, ylabel={"n": "examples"}.get(sizes, sizes), yscale="log")
        beneath.set_ylim(0.6 * least, max(6 * max(counts), 1.6) if sizes == "n" else 1.6)
        beneath.yaxis.set_major_locator(LogLocator(numticks=4))
        beneath.minorticks_off()
        style.number_ticks(beneath.yaxis, **({} if sizes == "n" else {"scale": 100, "unit": "%"}))
        style.number_ticks(beneath.xaxis, scale=100, unit="%")
    if small:
        top.set(xticks=_HALVES, yticks=_HALVES)
    elif beneath is not None:
        style.legend(top, loc="outside upper center")
        for x, count in zip((lower + upper) / 2, counts, strict=True) if sizes == "n" else ():
            text = (
                f"{count:.0f}" if count < 1000 else f"{count / 1000:.1f}k" if count < 9950 else f"{count / 1000:.0f}k"
            )
            beneath.text(x, 1.15 * count, text, ha="center", va="bottom", fontsize=6.5, color=COLOURS["muted"])
    return top


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
    present = measured(rows, kind, name)
    (values,), ends = values_of(present, "value"), np.array([bounds(row) for row in present]).T
    look = {"titles": [measured_title(row) for row in present], "colours": [loss_colour(row.loss) for row in present]}
    ax = style.intervals(values, *ends, size=7, ax=ax, **look)
    for level, value in enumerate(values):
        text = {"textcoords": "offset points", "ha": "center", "fontsize": 8.5}
        ax.annotate(significant(value), (value, -level), (0, 8), **text)
    ax.set_xlabel(label)
    style.number_ticks(ax.xaxis, 5)
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
    ax = ax or style.new_axes(*((4.6, 3.4) if beside else ()))
    for title, (rows, colour, linestyle) in lines.items():
        rows = latest_by(rows, across)
        ends = np.array([bounds(row) for row in rows if isinstance(row, Eigenvalue | Trace)]).T
        look = {"label": title, "colour": colour, "linestyle": linestyle, "error": "bars"}
        style.bands(*values_of(rows, across, "value"), *ends, marker=marks(rows), ax=ax, **look)
    _label_steps(ax, across)
    values = [row.value for rows, *_ in lines.values() for row in rows]
    ax.set_ylabel(label)
    ax.set_ylim(min(0, *values), 1.06 * max(values) or 1.0)
    if len(lines) > 1:
        where = {"columns": 1, "loc": "outside right upper", "title": beside} if beside else {}
        style.legend(ax, **where)
    return ax


@styled()
def curvature_course(rows: Sequence[Row], name: str, *, ax: Axes | None = None) -> Axes:
    """Draw "lambda_max" or "trace" with its error against the step, a line for each loss and split."""
    kind, label = ESTIMATES[name]
    rows, lines = in_training(select(rows, kind, name=name)), {}
    styles = dict(zip(splits_of(rows), LINESTYLES, strict=False))
    for row in rows:
        own = select(rows, kind, loss=row.loss, split=row.split)
        lines[measured_title(row)] = (own, loss_colour(row.loss), styles.get(row.split, "-"))
    return courses(lines, "step", label, ax=ax)


def marks(rows: Sequence[Row]) -> str | None:
    """Return the mark of each point; None where there are too many to tell apart."""
    return "o" if len(rows) <= MOST_MARKS else None


def _label_steps(ax: Axes, what: str = "step") -> None:
    ax.set_xlabel(what)
    ax.set_xlim(left=0)
    style.number_ticks(ax.xaxis, 5, whole=True)


@styled()
def course(rows: Sequence[Row], name: str, *, ax: Axes | None = None) -> Axes | None:
    """Draw "loss", "accuracy" or "learning_rate" against the step, for training batches and validation; None of none.

    Rows of a hundred steps or more stand faint behind their moving mean.
    """
    train, val = (latest_by(select(rows, Scalar, name=name, split=split), "step") for split in ("train", "val"))
    if not train and not val:
        return None
    ax, values = ax or style.new_axes(), [row.value for row in (*train, *val)]
    batches, width = batches_of_row(train), len(train) // 50 * 2 + 1
    smooth = len(train) >= 100 and name != "learning_rate"
    label = f"training, {f'mean of {batches} batches' if batches > 1 else 'single batches'}"
    steps, means = values_of(train, "step", "value")
    if train:
        style.bands(steps, means, label=label, marker=marks(train), faint=smooth, ax=ax)
    if smooth:
        means = [np.convolve(numbers, np.full(width, 1 / width), mode="valid") for numbers in (steps, means)]
        style.bands(*means, label=f"moving mean of {width} such rows", ax=ax)
    if val:
        style.bands(*values_of(val, "step", "value"), colour="orange", marker=marks(val), label="validation", ax=ax)
    _label_steps(ax)
    ax.set_ylabel(_LABELS.get(name, name))
    if name == "accuracy":
        style.number_ticks(ax.yaxis, scale=100, unit="%")
    elif name == "learning_rate":
        ax.set_ylim(0, 1.1 * max(values) or 1.0)
        style.number_ticks(ax.yaxis)
    elif min(values) > 0:  # no logarithm else
        style.logarithmic_ticks(ax, "y", values)
    else:
        ax.set_ylabel("loss (nats)")
    if name != "learning_rate":
        style.legend(ax)
    return ax


@styled()
def outcomes(rows: Sequence[Row], name: str, *, ax: Axes | None = None) -> Axes | None:
    """Draw a mean over the examples predicted right and over those predicted wrong by epoch and split; None of none."""
    rows = [row for row in select(rows, Diagnostic, name=name) if row.outcome and row.split]
    if not rows:
        return None
    lines = {
        f"{outcome}, {split}": (select(rows, Diagnostic, outcome=outcome, split=split), colour, linestyle)
        for outcome, colour in zip(OUTCOMES, ("blue", "orange"), strict=True)
        for split, linestyle in zip(splits_of(rows), LINESTYLES, strict=False)
    }
    ax, (values,) = courses(lines, "epoch", MEANS[name], ax=ax), values_of(rows, "value")
    if name == "true_class_probability":
        ax.set_ylim(0, 1.02)
    elif min(values) > 0 and max(values) > 10 * min(values):
        style.logarithmic_ticks(ax, "y", values)
        ax.autoscale(axis="y")
    return ax


def _outline(rows: Sequence[Row], ax: Axes, colour: str, label: str) -> None:
    """A histogram of rows of bins; bins that are empty have no row."""
    bins = latest_by(rows, "bin")
    lower, upper, shares = values_of(bins, "lower", "upper", "value")
    errors = [getattr(row, "stderr", math.nan) for row in bins]
    ends = (np.maximum(shares - errors, 0), shares + errors) if isinstance(bins[0], DensityBin) else ()
    style.bars(lower, upper, shares, *ends, ax=ax, colour=colour, label=label, kind="outline")


@styled()
def gradient_norms(rows: Sequence[Row], split: str, *, ax: Axes | None = None) -> Axes:
    """Draw the share of examples per bin of gradient norm at the first, a middle and the last epoch measured."""
    rows, ax = select(rows, HistogramBin, name="gradient_norm_histogram", split=split), ax or style.new_axes()
    epochs = sorted({row.epoch for row in rows})
    middle = min(epochs, key=lambda epoch: abs(epoch - (epochs[0] * epochs[-1]) ** 0.5))
    drawn = sorted({epochs[0], middle, epochs[-1]})
    for epoch, colour in zip(drawn, _EPOCH_COLOURS[-len(drawn) :], strict=True):
        # The first of all bins begins at 0, which has no logarithm.
        bins = [replace(row, lower=row.lower or row.upper / 2) for row in rows if row.epoch == epoch]
        _outline(bins, ax, colour, f"epoch {plain(epoch)}")
    style.logarithmic_ticks(ax, "x", (1, 10), power_of_ten)
    style.number_ticks(ax.yaxis, scale=100, unit="%")
    ax.set(xlabel="norm of the last layer's gradient", ylabel="share of examples")
    ax.set_ylim(bottom=0)
    style.legend(ax, columns=3)
    return ax


@styled()
def density(rows: Sequence[Row], split: str, *, ax: Axes | None = None) -> Axes:
    """Draw the share of eigenvalues per bin for each loss, with one standard error, both axes logarithmic beyond 0."""
    rows, ax = select(rows, DensityBin, split=split), ax or style.new_axes(6.4, 3.3)
    largest = max(max(abs(row.lower), abs(row.upper)) for row in rows)
    ax.set_xscale("asinh", linear_width=DENSITY_LINEAR_WIDTH * largest)
    for loss in dict.fromkeys(row.loss for row in rows):
        _outline(select(rows, DensityBin, loss=loss), ax, loss_colour(loss), loss_title(loss))
    met = [row.value for row in rows if row.value > 1e-7] or [1.0]  # rounding alone makes shares below that
    style.logarithmic_ticks(ax, "y", met, power_of_ten)
    ax.set(xlabel="eigenvalue", ylabel="share of eigenvalues", ylim=(0.4 * min(met), min(2.5 * max(met), 1.6)))
    low, high = ax.get_xlim()
    powers = 10.0 ** (np.floor(np.log10(largest)) - np.arange(3))  # on both sides, from the linear part outwards
    ticks = [tick for tick in (*-powers, 0.0, *powers) if low <= tick <= high]
    style.fixed_ticks(ax.xaxis, ticks, lambda value: significant(value, 1))
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
    if not (np.isfinite(surface) & (surface > 0)).any():
        return None
    best = temperatures[np.argmin(surface, axis=1)]
    near = temperatures >= best.min() / 4
    label, show = ("ECE on validation", lambda value: f"{100 * value:.2g}%")
    if criterion == "nll":
        label, show = "NLL on validation (nats)", lambda value: significant(value, 2)
    ax = style.surface(temperatures[near], gammas, surface[:, near], label=label, show=show, ax=ax)
    dots = {"markersize": 3.2, "markeredgecolor": COLOURS["ink"], "markeredgewidth": 0.5, "color": LIGHT}
    ax.plot(best, np.arange(len(gammas)), "o", label="best T of each γ", **dots)
    run = Run(rows, {})
    for method, title, colour, marker, size in (  # a star in a circle
        (PLAIN, "temperature", "blue", "o", 14),
        (FOCAL, "focal temperature", "orange", "*", 12),
    ):
        fitted = run.fits(Column(method, criterion))
        if "temperature" in fitted:  # perhaps between the rows of gammas
            level = np.interp(fitted.get("calibration_gamma", 0.0), gammas, np.arange(len(gammas)))
            look = {"markersize": size, "markeredgecolor": LIGHT, "markeredgewidth": 1.3, "linestyle": "none"}
            ax.plot(fitted["temperature"], level, marker, color=COLOURS[colour], label=f"{title} scaling", **look)
    ax.set(xlabel="temperature T", ylabel="calibration γ (0: temperature scaling)")
    style.legend(ax, loc="outside lower center")
    return ax


def reference(run: Run, split: str, criterion: str) -> Column | None:
    """Return the column that others are held against: temperature scaling, or else the plainest fitted method."""
    columns = [column for column in run.column_of_each(split, criterion=criterion) if column.criterion]
    return next((column for column in columns if column.method == PLAIN), next(iter(columns), None))


def difference_rows(run: Run, split: str, criterion: str, name: str) -> dict[str, list[Difference | None]]:
    """Return title -> difference of a metric to the `reference` on `split`, and on held-out parts of val.

    Only fits that have a difference of NLL or ECE on `split` have a title.
    """
    against, titles = reference(run, split, criterion), {}
    shown = run.column_of_each(split, criterion=criterion)
    for column in run.columns(split) if against else ():
        pairs = {metric: run.difference(metric, split, column, against) for metric in ("nll", "ece")}
        if column != against and any(pairs.values()):
            is_other = column.criterion not in (None, criterion) and column not in shown
            by = f", by {criterion_title(column.criterion)}" if is_other else ""
            held_out = None if split == HELD_OUT else run.difference(name, HELD_OUT, column, against)
            titles[run.method_title(column.method) + by] = [pairs[name], held_out]
    return titles


@styled()
def differences(run: Run, split: str = "test", *, criterion: str = "nll") -> Axes | None:
    """Draw NLL and ECE of each method less temperature scaling's with 95% intervals; None without such rows.

    Filled marks are of `split`, hollow ones of held-out parts of val. A row far beyond the others is an arrow.
    """
    found = {name: difference_rows(run, split, criterion, name) for name in ("nll", "ece")}
    if not found["nll"]:
        return None
    figure = Figure(figsize=(4.3, 1.1 + 0.48 * len(found["nll"])))
    both = figure.subplots(1, 2, sharey=True)
    for ax, (name, rows) in zip(both, found.items(), strict=True):
        title = {**{"nll": NLL, "ece": ECE}, **run.metrics}[name]
        draw_differences(list(rows.values()), title, ax=ax)
    where = blended_transform_factory(both[0].transAxes, both[0].transData)
    box = {"facecolor": COLOURS["paper"], "edgecolor": "none", "pad": 1}
    look = {"fontsize": 8.5, "va": "center", "fontweight": "bold", "clip_on": False, "in_layout": False, "zorder": 5}
    for level, title in enumerate(found["nll"]):  # above its row, over both panels: the numbers keep the width
        both[1].text(0, 0.36 - level, title, transform=where, bbox=box, **look)
    both[0].set_ylim(0.7 - len(found["nll"]), 0.5)
    return both[0]


def draw_differences(rows: Sequence[Sequence[Difference | None]], title: Title, *, ax: Axes) -> Axes:
    """Draw rows of differences, two a line: green leaves out 0 on the better side, orange on the worse."""
    ends = [max(abs(row.low), abs(row.high)) for pair in rows for row in pair if row and (row.low or row.high)] or [1.0]
    limit = _FAR * statistics.median_low(ends)
    reach = 1.12 * max((end for end in ends if end <= limit), default=0.0) or 1e-6
    for level, pair in enumerate(rows):
        for row, height, size in zip(pair, (0.06, -0.2), (6, 4.5), strict=True):
            if row is None:
                continue
            name = "green" if is_better(row, title.best) else "orange" if is_worse(row, title.best) else "grey"
            if max(abs(row.low), abs(row.high)) > reach:
                side = math.copysign(1, row.value)
                text = f"{signed(row, title)} ▶" if side > 0 else f"◀ {signed(row, title)}"
                look = {"ha": "right" if side > 0 else "left", "va": "center", "fontsize": 8}
                ax.text(0.99 * side * reach, height - level, text, color=COLOURS[name], **look)
            else:
                ends, look = ([row.low], [row.high]), {"filled": size == 6, "size": size, "colours": name}
                style.intervals([row.value], *ends, levels=[height - level], ax=ax, **look)
    unit = {"%": "percentage points"}.get(title.unit, title.unit)
    ax.set(xlim=(-reach, reach), xlabel=", ".join(filter(None, (title.title, unit))))
    better = "← better" if title.best == "low" else "better →"
    ax.set_title(better, fontsize=8.5, fontweight="normal", color=COLOURS["muted"])
    ax.xaxis.set_major_locator(MaxNLocator(4, symmetric=True))
    style.number_ticks(ax.xaxis, scale=title.scale)
    ax.tick_params(axis="y", left=False, labelleft=False)
    ax.spines["left"].set_visible(False)
    return ax


def errors_off(row: Metric) -> float:
    """Return how many standard errors a gap is from 0; 0 where its interval has no width."""
    return 2 * _Z95 * abs(row.value) / (row.high - row.low) if row.high > row.low else 0.0


def class_gaps(run: Run, split: str, chosen: Column, criterion: str) -> dict[Column, dict[str, Metric]]:
    """Return the rows "class_gap" by class: as given, by the plainest fitted method, and by the chosen one."""
    columns = dict.fromkeys(filter(None, (AS_TRAINED, reference(run, split, criterion), chosen)))
    rows = [row for row in select(run.rows, Metric, name="class_gap", split=split) if row.low is not None]
    gaps = {column: {row.group: row for row in select(rows, Metric, **column._asdict())} for column in columns}
    return {column: own for column, own in gaps.items() if own}


@styled()
def class_differences(run: Run, gaps: Mapping[Column, Mapping[str, Metric]], *, ax: Axes | None = None) -> Axes:
    """Draw each class's mean probability less its share with 95% intervals, the farthest off in standard errors first.

    A mark is filled where all classes counted as chances (Bonferroni) leave it off 0.
    """
    far = {
        name: max(errors_off(own[name]) for own in gaps.values() if name in own)
        for own in gaps.values()
        for name in own
    }
    threshold = NormalDist().inv_cdf(1 - 0.025 / len(far))
    classes = sorted(far, key=lambda name: -far[name])[:MOST_CLASSES]
    ax = ax or style.new_axes(4.3, 1.3 + (0.12 + 0.14 * len(gaps)) * len(classes))
    for number, (column, rows) in enumerate(gaps.items()):
        height = 0.39 - 0.78 / len(gaps) * (number + 0.5)
        line = {height - place: rows[name] for place, name in enumerate(classes) if name in rows}
        style.intervals(
            *values_of(list(line.values()), "value", "low", "high"),
            levels=list(line),
            colours=run.method_colour(column.method),
            filled=[errors_off(row) > threshold for row in line.values()],
            size=4.5,
            label=run.fitted_title(column),
            ax=ax,
        )
    ax.set_yticks([-place for place in range(len(classes))], [f"class {name}" for name in classes])
    ax.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
    ax.set(ylim=(0.55 - len(classes), 0.55), xlabel="mean probability less share, percentage points")
    style.number_ticks(ax.xaxis, 5, scale=100)
    style.legend(ax, columns=1)
    return ax
