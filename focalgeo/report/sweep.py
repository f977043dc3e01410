"""A sweep: quantities at each value of an axis, their means over seeds with intervals, and the page along that axis."""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.axes import Axes
from msgspec.structs import replace

from focalgeo.report import row_figures, sections, style
from focalgeo.report.calibration import PRINTED
from focalgeo.report.sections import NOTHING, Cell, Line, Panel, Section, Table, joined, say
from focalgeo.report.selection import (
    AS_TRAINED,
    BY_NLL,
    FOCAL,
    PLAIN,
    UNCALIBRATED,
    Column,
    Rows,
    Run,
    grouped,
    loss_title,
    measured,
    splits_of,
    symbols_of,
)
from focalgeo.rows import (
    TITLES,
    Diagnostic,
    Eigenvalue,
    Fit,
    Metric,
    ReliabilityBin,
    Row,
    Scalar,
    Sharpness,
    Trace,
    select,
)
from focalgeo.types import Estimate

AXES = {  # title and symbol
    "gamma": ("γ of the training loss", "γ"),
    "trace_penalty": ("weight λ of the trace penalty", "λ"),
    "trace_target": ("target of the trace", "target"),
    "learning_rate": ("learning rate", "learning rate"),
    "weight_decay": ("weight decay", "weight decay"),
    "seed": ("seed", "seed"),
}
_FITTED = {"calibration_gamma": "Calibration γ", "temperature": "Temperature T"}
_OF_CROSS_ENTROPY = {"name": "trace", "loss": "cross_entropy"}
_CHOOSING = (("nll", AS_TRAINED), ("nll", BY_NLL), ("ece", AS_TRAINED), ("ece", BY_NLL), ("accuracy", AS_TRAINED))
_VISIBLE = (0.3, 0.85)  # of the colour map: its ends vanish on a dark page or on a light one


class Sweep(NamedTuple):
    """The axis along which figures run, and lines: the combinations of the other axes but the seed."""

    axis: str
    values: dict[str, tuple[float, ...]]  # and the colour of each
    lines: dict[str, str]  # "λ = 0.01", "" where there is one line; and the line style of each
    seeds: list[int]  # that have results
    rows: Mapping[tuple[str, str], list[Row]]  # of the members (line, value)

    @property
    def heads(self) -> list[str]:
        """The values with the axis in short: "γ = 2"."""
        return [f"{AXES[self.axis][1]} = {value}" for value in self.values]

    def numbers(self, kind: Any, **fields: Any) -> np.ndarray:
        """Return a quantity after training [lines, values, seeds], NaN where it has no row; the last row counts."""
        numbers = []
        for member in itertools.product(self.lines, self.values):
            values = {row.seed: row.value for row in select(self.rows[member], kind, epoch=None, **fields)}
            numbers += [values.get(seed, math.nan) for seed in self.seeds]
        return np.reshape(numbers, (len(self.lines), len(self.values), len(self.seeds)))

    def metric(self, name: str, column: Column = AS_TRAINED, split: str = "test") -> np.ndarray:
        """Return the `numbers` of a metric."""
        return self.numbers(Metric, name=name, split=split, group=None, **column._asdict())


class Quantity(NamedTuple):
    """A line of the table, and what of it a figure shows."""

    title: str
    numbers: np.ndarray  # [lines, values, seeds]
    figure: tuple[str, ...] | None  # its section, file, heading and label, that several quantities may share
    legend: str
    colour: str
    scale: float = 1.0


def axes_of(run: Run) -> dict[str, list]:
    """Return the swept axes of a run's config with their values."""
    return {name: list(dict.fromkeys(values)) for name in AXES if (values := run.setting(f"sweep.{name}"))}


def sweep_of(run: Run) -> Sweep:
    """Return the sweep of a run, with the lines and seeds that its rows have."""
    axes, rows = axes_of(run), defaultdict(list)
    axis, *others = [name for name in axes if name != "seed"] or ["seed"]
    for row in run.rows:
        values = {name: getattr(row, name) for name in axes}
        if None not in values.values():
            line = ", ".join(f"{AXES[name][1]} = {values[name]:g}" for name in others)
            rows[line, f"{values[axis]:g}"].append(row)
    values = [f"{value:g}" for value in sorted(axes[axis])]
    shades = map(tuple, colormaps["viridis"](np.linspace(*_VISIBLE, len(values))))
    return Sweep(
        axis,
        values=dict(zip(values, shades, strict=True)),
        lines=dict(zip(dict.fromkeys(line for line, _ in rows), itertools.cycle(style.LINESTYLES), strict=False)),
        seeds=sorted({row.seed for row in select(run.rows, Metric)} - {None}),
        rows=rows,
    )


def headline(run: Run) -> Markup:
    """Return the sentence on which values are swept."""
    return say("sweep_of", sweep=sweep_of(run))


def member_text(row: Row) -> str:
    """Return the values of a row's run on all axes, which name it: "gamma 2.0, seed 1"."""
    return ", ".join(f"{name} {getattr(row, name)}" for name in AXES if getattr(row, name) is not None)


def mean(seeds: np.ndarray) -> Estimate:
    """Return the mean over seeds with its 95% interval by Student's t; NaN of none, without interval of one.

    The interval is that of a bootstrap over seeds, whose standard error is s / sqrt(n) times sqrt((n - 1) / n), made
    wide enough for few seeds. Of a difference it is paired: runs of one seed share weights and batches.
    """
    values = seeds[np.isfinite(seeds)].tolist()
    n = len(values)
    if n < 2:
        return Estimate(values[0] if n else math.nan, math.nan, math.nan, math.nan, n)
    return Estimate.by_student(statistics.fmean(values), statistics.stdev(values) / math.sqrt(n), n)


@style.styled()
def along_axis(sweep: Sweep, quantities: Sequence[Quantity]) -> Axes:
    """Draw quantities of one figure against the axis: mean, interval, every seed."""
    ax = style.new_axes()
    for quantity in quantities:
        for (line, linestyle), numbers in zip(sweep.lines.items(), quantity.numbers, strict=True):
            value, _, low, high, _ = np.transpose([mean(seeds) for seeds in numbers])
            style.bands(
                ax,
                range(len(value)),
                value,
                low,
                high,
                colour=quantity.colour,
                label=joined(quantity.legend, line),
                linestyle=linestyle,
            )
            ax.plot(numbers, "_", color=style.COLOURS[quantity.colour], alpha=0.45, markersize=7)
    ax.set_xticks(range(len(sweep.values)), sweep.values)
    ax.set(xlim=(-0.4, len(sweep.values) - 0.6), xlabel=AXES[sweep.axis][0], ylabel=quantity.figure[3])
    if quantity.scale == 100:
        style.percentages(ax.yaxis)
    ax.grid(visible=False, axis="x")
    if len(quantities) * len(sweep.lines) > 1:
        style.legend(ax)
    return ax


@style.styled()
def scatter(sweep: Sweep, split: str) -> Axes:
    """Draw ECE against cross-entropy's trace on a split, a point for each member and seed, a colour for each value."""
    trace, ece = sweep.numbers(Trace, split=split, **_OF_CROSS_ENTROPY), sweep.metric("ece")
    ax, known = style.new_axes(4.6, 3.4), np.isfinite(trace + ece)
    for place, (value, shade) in enumerate(sweep.values.items()):
        if known[:, place].any():
            ax.scatter(trace[:, place], ece[:, place], color=shade, s=26, label=value)
    ax.set(xlabel=f"trace of cross-entropy's Hessian on {split}", ylabel="ECE on test, as trained")
    if known.any() and trace[known].min() > 0:
        style.logarithmic_ticks(ax, "x")
    style.percentages(ax.yaxis)
    style.legend(ax, title=AXES[sweep.axis][1])
    return ax


def by_epoch(sweep: Sweep, name: str, **fields: Any) -> Axes | None:
    """Draw the mean over seeds of a diagnostic against the epoch, a line for each member; None of none."""
    lines = {}
    for (line, linestyle), (value, shade) in itertools.product(sweep.lines.items(), sweep.values.items()):
        means = [
            replace(rows[0], value=statistics.fmean(row.value for row in rows))
            for rows in grouped(select(sweep.rows[line, value], Diagnostic, name=name, **fields), "epoch")
        ]
        lines[joined(value, line)] = means, shade, linestyle
    return row_figures.courses(lines, "epoch", row_figures.MEANS[name][1], beside=AXES[sweep.axis][1])


def _reliability(sweep: Sweep) -> list[Section]:
    """Small reliability diagrams, as trained, of each line and value, all seeds' examples together."""
    fields = {"name": "reliability", "method": UNCALIBRATED, "split": "test"}
    return [
        Section(
            line,
            figures=[
                Panel(
                    f"sweep_reliability_{number}_{place}",
                    f"{AXES[sweep.axis][1]} {value}",
                    row_figures.diagram([row_figures.pooled(rows) for rows in bins]),
                )
                for place, value in enumerate(sweep.values)
                if (bins := grouped(select(sweep.rows[line, value], ReliabilityBin, **fields), "bin"))
            ],
            layout="small",
        )
        for number, line in enumerate(sweep.lines)
    ]


def quantities(run: Run, sweep: Sweep) -> list[Quantity]:
    """Return metrics, ECE and NLL after each method, fitted numbers and curvature, as far as there are rows."""
    metrics, fits = run.metrics, _own_fits(run)
    after = {UNCALIBRATED: "as trained", PLAIN: "after T", FOCAL: "after γ and T"}

    def of_metric(name: str, column: Column = AS_TRAINED) -> Quantity:
        title, is_alone, figure = metrics[name], column == AS_TRAINED and name != "ece", None
        words = "" if is_alone else after.get(column.method) or f"after {run.method_title(column).lower()}"
        if name == "ece" or (name in PRINTED and is_alone):
            figure = "Calibration", f"sweep_{name}", f"{title.title} on test", joined(title.title, title.unit)
        line, numbers = joined(f"{title.title} {words}".strip(), title.unit), sweep.metric(name, column)
        return Quantity(line, numbers, figure, words, run.method_colour(column), title.scale)

    lines = [of_metric(name) for name in PRINTED]
    fitted = [column for column in run.column_of_each() if column != AS_TRAINED]
    lines += [of_metric(name, column) for name in ("ece", "nll") for column in fitted]
    for column, name, symbol in fits:
        method, colour = run.method_title(column).lower(), run.method_colour(column)
        is_alone = [name for _, name, _ in fits].count(name) == 1
        heading = f"Best {symbol} of {method}" if is_alone else f"Best {symbol}"
        figure = "Calibration", f"sweep_{name}", heading, _FITTED.get(name, name.replace("_", " ").capitalize())
        line = joined(f"Best {symbol}", method if column.method != PLAIN else "")
        lines.append(Quantity(line, sweep.numbers(Fit, name=name, **column._asdict()), figure, method, colour))
    lines += [of_metric(name) for name in metrics if name not in PRINTED]
    for row in sorted(measured(run.rows, Trace, "trace"), key=lambda row: row.loss != "cross_entropy"):
        for name, (title, *_) in TITLES.items():
            numbers = sweep.numbers(Eigenvalue | Trace | Sharpness, name=name, loss=row.loss, split=row.split)
            symbol, loss = "λmax" if name == "lambda_max" else title, loss_title(row.loss)
            figure = "Curvature", f"sweep_{name}_{row.split}", f"{title} on {row.split}", title.lower()
            lines.append(Quantity(joined(symbol, loss, row.split), numbers, figure, loss, style.loss_colour(row.loss)))
    return [line for line in lines if np.isfinite(line.numbers).any()]


def _own_fits(run):
    """Method, name and symbol of the fitted numbers that are not those of a plainer one, as a first stage has them."""
    fits = {}
    for column in run.column_of_each():
        for name, symbol in symbols_of(run.fits(column)).items():
            rows = select(run.rows, Fit, name=name, **column._asdict())
            fits.setdefault((name, *(row.value for row in rows)), (column, name, symbol))
    return list(fits.values())


def sweep_tables(sweep: Sweep, quantities: Iterable[Quantity], *, differences: bool = True) -> list[Table]:
    """Return means over seeds with 95% intervals at each value; beneath, the paired difference to the first value."""
    tables = []
    for place, title in enumerate(sweep.lines):
        lines = []
        for quantity in quantities:
            numbers = quantity.scale * quantity.numbers[place]
            lines.append(Line(quantity.title, "", [_cell(mean(seeds)) for seeds in numbers]))
            less = list(map(mean, numbers[1:] - numbers[0]))
            if differences and any(value.n > 1 for value in less):
                cells = (_cell(value, 3, is_difference=True) for value in less)
                lines.append(Line("", f"less at {sweep.heads[0]}, paired", [Cell(""), *cells]))
        tables.append(Table(title or "Mean over seeds", [(head, "") for head in sweep.heads], lines))
    return tables


def _cell(estimate: Estimate, digits: int = 4, steps: int = 5, *, is_difference: bool = False) -> Cell:
    """A mean with its interval beneath, whose decimals make so many steps of its width."""
    value, _, low, high, n = estimate
    if n <= is_difference:
        return Cell("") if is_difference else NOTHING
    text = f"{'+' if is_difference and value > 0 else ''}{style.significant(value, digits)}"
    if not is_difference and not low < high:  # one seed, or the same number in all
        return Cell(text, value=value)
    return Cell(text, style.ends(low, high, steps=steps), is_difference and not low <= 0 <= high, value, low, high)


def choices(run: Run, sweep: Sweep) -> tuple[Table, Markup]:
    """Return what NLL, ECE and accuracy on val would choose among all values and lines, and what that costs on test.

    Also a sentence on the choice by NLL after temperature scaling, else by the first there is. Values that lack a seed
    which others have, as where a run has stopped, are not candidates.
    """
    metrics, lines, sentence = run.metrics, [], Markup()
    members = [joined(line, head) for line, head in itertools.product(sweep.lines, sweep.heads)]
    for name, column in _CHOOSING if sweep.seeds else ():
        title, numbers = metrics[name], [sweep.metric(name, column, split) for split in ("val", "test")]
        numbers = title.scale * np.reshape(numbers, (2, len(members), -1))
        whole = np.isfinite(numbers).all((0, 2))
        left_out = np.isfinite(numbers[0]).any(1).sum() - whole.sum()
        if whole.sum() < 2:
            continue
        numbers, names, n = numbers[:, whole], np.array(members)[whole], len(sweep.seeds)
        loss = numbers if title.best == "low" else -numbers
        chosen, best = loss.mean(2).argmin(1)
        note = f"by {(loss[0].argmin(0) == chosen).sum()} of {n} seeds alone" if n > 1 else ""
        means = map(_cell, map(mean, numbers[:, chosen]))
        # How much worse the chosen is on test than the best, paired over seeds.
        cost = _cell(mean(loss[1, chosen] - loss[1, best]), 2, 50)
        after = "as trained" if column == AS_TRAINED else f"after {run.method_title(column).lower()}"
        by = f"{title.title} {after}"
        lines.append(Line(joined(by, title.unit), "", [Cell(names[chosen], note), *means, Cell(names[best]), cost]))
        if not sentence or (name, column) == ("nll", BY_NLL):
            sentence = say(
                "choice",
                by=by,
                value=names[chosen],
                best=names[best],
                cost=cost,
                unit=title.unit,
                seeds=n,
                left_out=left_out,
            )
    heads = [(head, "") for head in ("Chosen on val", "On val", "On test", "Best on test", "Cost on test")]
    return Table("Chosen by", heads, lines), sentence


def signs_of_failure(run: Run, sweep: Sweep, lines: Sequence[Quantity]) -> Markup:
    """Return a paragraph for each: ECE and curvature that part, members that stay at chance, members that stopped."""
    chance = [(member_text(row), row) for row in run.at_chance()]
    stopped = [f"{member_text(row)} at step {row.value}" for row in select(run.rows, Scalar, name="stopped")]
    numbers = _shares_stopped(sweep) if stopped else ({}, 1.0)
    signs = [*_partings(run, sweep, lines), say("chance", members=chance), say("stopped", members=stopped, of=numbers)]
    return Markup().join(signs)


def _partings(run, sweep, lines):
    """Yield a sentence where ECE rises though the Hessian is flatter, or falls though it is sharper.

    By differences to the first value, paired over seeds, whose intervals leave out 0; of the values that show it the
    farthest is named.
    """
    split, ece = splits_of(select(run.rows, Trace))[:1], "ECE"
    files = [f"sweep_{name}_{where}" for name in ("lambda_max", "trace") for where in split]
    measures = {ece: run.metrics["ece"].scale * sweep.metric("ece")}
    measures |= {line.title: line.numbers for line in lines if line.figure and line.figure[1] in files}
    for (number, line), rises in itertools.product(enumerate(sweep.lines), (True, False)):
        signs = {}
        for place, head in enumerate(sweep.heads[1:], start=1):
            less = {title: mean(numbers[number, place] - numbers[number, 0]) for title, numbers in measures.items()}
            up = [title for title, estimate in less.items() if estimate.low > 0]
            down = [title for title, estimate in less.items() if estimate.high < 0]
            same, against = (up, down) if rises else (down, up)
            if ece in same and against:
                signs[head] = {title: _cell(less[title], 3, is_difference=True) for title in (ece, *against)}
        if signs:
            yield say("parting", line=line, rises=rises, signs=signs, sweep=sweep)


def _shares_stopped(sweep):
    """Return head -> members stopped, members, Wilson's interval in %; and Fisher's p of the first and last value."""
    from scipy.stats import binomtest, fisher_exact  # slow to import, and most sweeps need none of it

    shares = {}
    for head, value in zip(sweep.heads, sweep.values, strict=True):
        rows = [row for line in sweep.lines for row in sweep.rows[line, value]]
        stopped = {member_text(row) for row in select(rows, Scalar, name="stopped")}
        accuracies = select(rows, Metric, name="accuracy", split="test", method=UNCALIBRATED)
        members = stopped | {member_text(row) for row in accuracies}
        if members:
            share = binomtest(len(stopped), len(members)).proportion_ci(method="wilson")
            shares[head] = len(stopped), len(members), style.interval(100 * share.low, 100 * share.high, 0)
    ends = [(stopped, total - stopped) for stopped, total, _ in shares.values()]
    return shares, fisher_exact([ends[0], ends[-1]]).pvalue if len(ends) > 1 else 1.0


def write_sweep(path: Path, run: Run, search: Any = None) -> Path:
    """Write the page of a sweep: curves along its axis with intervals over seeds, and tables of them."""
    sweep = sweep_of(run)
    lines, (chosen, sentence) = quantities(run, sweep), choices(run, sweep)
    fits = defaultdict(list)
    for column, _, symbol in _own_fits(run):
        fits[run.method_title(column)].append(symbol)
    flatness = [
        Panel(f"sweep_trace_and_ece_{split}", f"Flatness on {split} and calibration", scatter(sweep, split))
        for split in splits_of(select(run.rows, Trace, **_OF_CROSS_ENTROPY))
    ]
    wrong = {"name": "true_class_probability", "outcome": "wrong"}
    courses = [
        Panel(f"sweep_wrong_{split}", f"Examples predicted wrong, {split}", by_epoch(sweep, split=split, **wrong))
        for split in splits_of(select(run.rows, Diagnostic, **wrong))
    ]
    courses.append(Panel("sweep_weight_norm", row_figures.MEANS["weight_norm"][0], by_epoch(sweep, "weight_norm")))
    parts = [
        Section("Signs of failure", signs_of_failure(run, sweep, lines)),
        Section(
            "Calibration",
            figures=_panels(sweep, lines, "Calibration"),
            notes=say("sweep_calibration", fits=fits, run=run),
        ),
        Section(
            "Curvature",
            figures=_panels(sweep, lines, "Curvature") + flatness,
            notes=say("sweep_curvature", run=run),
        ),
        Section("While training", figures=courses, notes=say("sweep_diagnostics")),
        Section(
            f"All numbers, and differences to those at {sweep.heads[0]}",
            tables=sweep_tables(sweep, lines),
            notes=say("sweep_numbers"),
        ),
        Section("Which would be chosen on val?", tables=[chosen], notes=say("choices")),
        Section(
            "When it says 80%, is it right 80% of the time?", parts=_reliability(sweep), notes=say("sweep_reliability")
        ),
        sections.record(run, "The sweep", members=True),
    ]
    loss = loss_title(style.short(run.setting("loss.name") or "runs"))
    title = f"{run.data_title or 'A sweep'}: {loss} along {AXES[sweep.axis][1]}"
    return sections.write_page(
        path,
        title,
        parts,
        verdict=say(
            "sweep",
            choice=sentence,
            members=len({member_text(row) for row in select(run.rows, Metric, method=UNCALIBRATED)}),
            axis=AXES[sweep.axis][0],
            sweep=sweep,
        ),
    )


def _panels(sweep, quantities, section):
    """The figures of a section, ECE first."""
    shared = dict.fromkeys(line.figure for line in quantities if line.figure and line.figure[0] == section)
    return [
        Panel(*figure[1:3], along_axis(sweep, [line for line in quantities if line.figure == figure]))
        for figure in sorted(shared, key=lambda figure: figure[1] != "sweep_ece")
    ]


def sweep_text(rows: Rows, manifest: Mapping[str, Any]) -> str:
    """Return the numbers that figures draw as plain text, and beneath, what would be chosen on val."""
    run = Run(rows, manifest)
    sweep = sweep_of(run)
    lines = [line for line in quantities(run, sweep) if line.figure]
    tables = map(sections.as_text, sweep_tables(sweep, lines, differences=False))
    return "\n\n".join(filter(None, [*tables, choices(run, sweep)[1].unescape()]))
