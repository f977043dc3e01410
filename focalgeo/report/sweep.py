"""A sweep: quantities at each value of an axis, their means over seeds with intervals, and the page along that axis."""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib import colormaps
from msgspec.structs import replace

from focalgeo.report import calibration, row_figures, sections, style
from focalgeo.report.figures import seed_mean
from focalgeo.report.sections import NOTHING, Cell, Line, Panel, Section, Table, joined, say
from focalgeo.report.selection import (
    AS_TRAINED,
    BY_NLL,
    UNCALIBRATED,
    Column,
    Curvature,
    Rows,
    Run,
    grouped,
    latest_by,
    loss_title,
    measured,
    splits_of,
    symbols_of,
)
from focalgeo.rows import (
    TITLES,
    Diagnostic,
    Fit,
    Metric,
    ReliabilityBin,
    Row,
    Scalar,
    Trace,
    select,
    wilson,
)

AXES = {  # title and symbol
    "gamma": ("γ of the training loss", "γ"),
    "trace_penalty": ("weight λ of the trace penalty", "λ"),
    "trace_target": ("target of the trace", "target"),
    "learning_rate": ("learning rate", "learning rate"),
    "weight_decay": ("weight decay", "weight decay"),
    "seed": ("seed", "seed"),
}
_OF_CROSS_ENTROPY = {"name": "trace", "loss": "cross_entropy"}
_CHOOSING = (("nll", BY_NLL), ("nll", AS_TRAINED), ("ece", AS_TRAINED), ("ece", BY_NLL), ("accuracy", AS_TRAINED))
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
        seeds=sorted({row.seed for row in run.select(Metric)} - {None}),
        rows=rows,
    )


def headline(run: Run) -> Markup:
    """Return the sentence on which values are swept."""
    return say("sweep_of", sweep=sweep_of(run))


def _member_text(row):
    """Return the values of a row's run on all axes, which name it: "gamma 2.0, seed 1"."""
    return ", ".join(f"{name} {getattr(row, name)}" for name in AXES if getattr(row, name) is not None)


def members_of(rows: Rows, kind: type, **fields: Any) -> set[str]:
    """Return the names of the runs that have such a row."""
    return set(map(_member_text, select(rows, kind, **fields)))


@style.styled()
def _along_axis(sweep, quantities):
    """Draw quantities of one figure against the axis: mean, interval, every seed."""
    ax = style.new_axes()
    for quantity in quantities:
        for (line, linestyle), numbers in zip(sweep.lines.items(), quantity.numbers, strict=True):
            value, _, low, high, _ = np.transpose(list(map(seed_mean, numbers)))
            look = {"label": joined(quantity.legend, line), "linestyle": linestyle}
            style.bands(ax, range(len(value)), value, low, high, colour=quantity.colour, **look)
            ax.plot(numbers, "_", color=style.COLOURS[quantity.colour], alpha=0.45, markersize=7)
    ax.set_xticks(range(len(sweep.values)), sweep.values)
    ax.set(xlim=(-0.4, len(sweep.values) - 0.6), xlabel=AXES[sweep.axis][0], ylabel=quantity.figure[3])
    if quantity.scale == 100:
        style.percentages(ax, "y")
    ax.grid(visible=False, axis="x")
    style.legend(ax)
    return ax


@style.styled()
def _scatter(sweep, split):
    """Draw ECE against cross-entropy's trace on a split, a point for each member and seed, a colour for each value."""
    trace, ece = sweep.numbers(Trace, split=split, **_OF_CROSS_ENTROPY), sweep.metric("ece")
    ax, known = style.new_axes(style.WIDE, 3.4), np.isfinite(trace + ece)
    for place, (value, shade) in enumerate(sweep.values.items()):
        if known[:, place].any():
            ax.scatter(trace[:, place], ece[:, place], color=shade, s=26, label=value)
    ax.set(xlabel=f"trace of cross-entropy's Hessian on {split}", ylabel="ECE on test, as trained")
    if known.any() and trace[known].min() > 0:
        style.logarithmic_ticks(ax, "x")
    style.percentages(ax, "y")
    style.legend(ax, title=AXES[sweep.axis][1])
    return ax


def _by_epoch(sweep, name, **fields):
    """Draw the mean over seeds of a diagnostic against the epoch, a line for each member; None of none."""
    lines = {}
    for (line, linestyle), (value, shade) in itertools.product(sweep.lines.items(), sweep.values.items()):
        epochs = grouped(select(sweep.rows[line, value], Diagnostic, name=name, **fields), "epoch")
        means = [
            replace(rows[0], value=statistics.fmean(row.value for row in latest_by(rows, "seed"))) for rows in epochs
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
                    row_figures.diagram([row_figures.pooled(latest_by(rows, "seed")) for rows in bins]),
                )
                for place, value in enumerate(sweep.values)
                if (bins := grouped(select(sweep.rows[line, value], ReliabilityBin, **fields), "bin"))
            ],
        )
        for number, line in enumerate(sweep.lines)
    ]


def quantities(run: Run, sweep: Sweep) -> list[Quantity]:
    """Return metrics, ECE and NLL after each method, fitted numbers and curvature, as far as there are rows."""
    lines, columns = [], run.column_of_each()
    for (name, title), column in itertools.product(run.metrics.items(), columns):
        if column != AS_TRAINED and name not in ("ece", "nll"):
            continue
        words, figure = _after(run, column), None
        # those that a terminal shows as trained, and the ECE after each method, which are in one figure
        if name == "ece" or (column == AS_TRAINED and name in calibration.PRINTED):
            figure = "Calibration", f"sweep_{name}", f"{title.title} on test", joined(title.title, title.unit)
        line, numbers = joined(f"{title.title} {words}", title.unit), sweep.metric(name, column)
        lines.append(Quantity(line, numbers, figure, words, run.method_colour(column), title.scale))
    for column in columns:
        method = run.method_title(column).lower()
        for name, symbol in symbols_of(run.fits(column)).items():
            figure = "Calibration", f"sweep_{name}", f"Best {symbol}", name.replace("_", " ").capitalize()
            numbers = sweep.numbers(Fit, name=name, **column._asdict())
            lines.append(Quantity(f"Best {symbol}, {method}", numbers, figure, method, run.method_colour(column)))
    for row in sorted(measured(run.rows, "trace"), key=lambda row: row.loss != "cross_entropy"):
        loss, split = loss_title(row.loss), row.split
        for name, title in TITLES.items():
            numbers = sweep.numbers(Curvature, name=name, loss=row.loss, split=split)
            line = joined(title, loss, split)
            figure = "Curvature", f"sweep_{name}_{split}", f"{title} on {split}", title.lower()
            lines.append(Quantity(line, numbers, figure, loss, style.loss_colour(row.loss)))
    return [line for line in lines if np.isfinite(line.numbers).any()]


def _after(run, column):
    return "as trained" if column == AS_TRAINED else f"after {run.method_title(column).lower()}"


def _sweep_tables(sweep, quantities, *, differences=True):
    """Return means over seeds with 95% intervals at each value; beneath, the paired difference to the first value."""
    tables = []
    for place, title in enumerate(sweep.lines):
        lines = []
        for quantity in quantities:
            numbers = quantity.scale * quantity.numbers[place]
            lines.append(Line(quantity.title, "", list(map(_cell, numbers))))
            less = [_cell(seeds, 3, paired=True) for seeds in numbers - numbers[0]]
            if differences and set(less[1:]) - {NOTHING}:
                lines.append(Line("", f"less at {sweep.heads[0]}, paired", [NOTHING, *less[1:]]))
        tables.append(Table(title or "Mean over seeds", [(head, "") for head in sweep.heads], lines))
    return tables


def _cell(seeds, digits=4, steps=5, *, paired=False):
    """The mean over seeds with its interval beneath, whose decimals make so many steps of its width.

    Of paired differences with its sign, bold where the interval leaves out 0, and of one seed nothing.
    """
    value, _, low, high, n = seed_mean(seeds)
    if n <= paired:  # a difference of one seed has no error to be judged by
        return NOTHING
    text = ("+" if paired and value > 0 else "") + style.significant(value, digits)
    if not low < high:  # one seed, or the same number in all
        return Cell(text, "", paired and value != 0, value)
    return Cell(text, style.ends(low, high, steps=steps), paired and not low <= 0 <= high, value, low, high)


def _choices(run, sweep):
    """Return what NLL, ECE and accuracy on val would choose among all values and lines, and what that costs on test.

    Also a sentence on the choice by NLL after temperature scaling, else by the first there is. Values that lack a seed
    which others have, as where a run has stopped, are not candidates.
    """
    lines, sentence, n = [], Markup(), len(sweep.seeds)
    members = [joined(line, head) for line, head in itertools.product(sweep.lines, sweep.heads)]
    for name, column in _CHOOSING if n else ():
        title = run.metrics[name]
        numbers = [title.scale * sweep.metric(name, column, split) for split in ("val", "test")]
        numbers = np.reshape(numbers, (2, len(members), n))
        whole = np.isfinite(numbers).all((0, 2))
        left_out = np.isfinite(numbers[0]).any(1).sum() - whole.sum()
        if whole.sum() < 2:
            continue
        numbers, names = numbers[:, whole], np.array(members)[whole]
        # from here on less is better, of accuracy too
        loss = numbers if title.best == "low" else -numbers
        chosen, best = loss.mean(2).argmin(1)
        note = f"by {(loss[0].argmin(0) == chosen).sum()} of {n} seeds alone" if n > 1 else ""
        # How much worse the chosen is on test than the best, paired over seeds.
        cost = _cell(loss[1, chosen] - loss[1, best], 2, 50)
        cells = [Cell(names[chosen], note), *map(_cell, numbers[:, chosen]), Cell(names[best]), cost]
        by = f"{title.title} {_after(run, column)}"
        lines.append(Line(joined(by, title.unit), "", cells))
        if not sentence:
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
    chance = [(_member_text(row), row) for row in run.at_chance()]
    signs = [*_partings(run, sweep, lines), say("chance", members=chance)]
    stops = [f"{_member_text(row)} at step {row.value}" for row in run.select(Scalar, name="stopped")]
    if stops:
        from scipy.stats import fisher_exact  # slow to import, and most sweeps need none of it

        shares, ends = {}, []
        for head, value in zip(sweep.heads, sweep.values, strict=True):
            rows = [row for line in sweep.lines for row in sweep.rows[line, value]]
            stopped = members_of(rows, Scalar, name="stopped")
            members = stopped | members_of(rows, Metric, name="accuracy", split="test", method=UNCALIBRATED)
            if members:
                low, high = wilson(len(stopped), len(members))
                shares[head] = len(stopped), len(members), style.interval(100 * low, 100 * high, 0)
                ends.append((len(stopped), len(members - stopped)))
        p_value = fisher_exact([ends[0], ends[-1]]).pvalue if ends else 1.0
        signs.append(say("stopped", members=stops, of=(shares, p_value)))
    return Markup().join(signs)


def _partings(run, sweep, lines):
    """Yield a sentence where ECE rises though the Hessian is flatter, or falls though it is sharper.

    By differences to the first value, paired over seeds, whose intervals leave out 0; of the values that show it the
    farthest is named.
    """
    split = next(iter(splits_of(run.select(Trace))), "")
    files = [f"sweep_{name}_{split}" for name in row_figures.ESTIMATES]
    measures = {"ECE": run.metrics["ece"].scale * sweep.metric("ece")}
    measures |= {line.title: line.numbers for line in lines if line.figure and line.figure[1] in files}
    for (number, line), rises in itertools.product(enumerate(sweep.lines), (True, False)):
        signs = {}
        for place, head in enumerate(sweep.heads[1:], start=1):
            cells = {
                title: _cell(values[number, place] - values[number, 0], 3, paired=True)
                for title, values in measures.items()
            }
            rising = {title: cell.value > 0 for title, cell in cells.items() if cell.best}
            against = [title for title in rising if rising[title] != rises]
            if rising.get("ECE") == rises and against:
                signs[head] = {title: cells[title] for title in ("ECE", *against)}
        if signs:
            yield say("parting", line=line, rises=rises, signs=signs, sweep=sweep)


def write_sweep(path: Path, run: Run, search: Any = None) -> Path:
    """Write the page of a sweep: curves along its axis with intervals over seeds, and tables of them."""
    sweep = sweep_of(run)
    lines, (chosen, sentence) = quantities(run, sweep), _choices(run, sweep)
    fits = {
        run.method_title(of): list(symbols_of(run.fits(of)).values()) for of in run.column_of_each() if run.fits(of)
    }
    flatness = [
        Panel(f"sweep_trace_and_ece_{split}", f"Flatness on {split} and calibration", _scatter(sweep, split))
        for split in splits_of(run.select(Trace, **_OF_CROSS_ENTROPY))
    ]
    parts = [
        Section("Signs of failure", signs_of_failure(run, sweep, lines)),
        Section(
            "Calibration",
            figures=_panels(sweep, lines, "Calibration"),
            notes=say("sweep_calibration", fits=fits, run=run),
        ),
        Section(
            "Curvature", figures=_panels(sweep, lines, "Curvature") + flatness, notes=say("sweep_curvature", run=run)
        ),
        _training_section(run, sweep),
        Section(
            f"All numbers, and differences to those at {sweep.heads[0]}",
            tables=_sweep_tables(sweep, lines),
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
            members=len(members_of(run.rows, Metric, method=UNCALIBRATED)),
            axis=AXES[sweep.axis][0],
            sweep=sweep,
        ),
    )


def _training_section(run, sweep):
    wrong = {"name": "true_class_probability", "outcome": "wrong"}
    courses = [
        Panel(f"sweep_wrong_{split}", f"Examples predicted wrong, {split}", _by_epoch(sweep, split=split, **wrong))
        for split in splits_of(run.select(Diagnostic, **wrong))
    ]
    courses.append(Panel("sweep_weight_norm", row_figures.MEANS["weight_norm"][0], _by_epoch(sweep, "weight_norm")))
    return Section("While training", figures=courses, notes=say("sweep_diagnostics"))


def _panels(sweep, quantities, section):
    shared = dict.fromkeys(line.figure for line in quantities if line.figure and line.figure[0] == section)
    return [
        Panel(*figure[1:3], _along_axis(sweep, [line for line in quantities if line.figure == figure]))
        for figure in shared
    ]


def sweep_text(rows: Rows, manifest: Mapping[str, Any]) -> str:
    """Return the numbers that figures draw as plain text, and beneath, what would be chosen on val."""
    run = Run(rows, manifest)
    sweep = sweep_of(run)
    lines = [line for line in quantities(run, sweep) if line.figure]
    tables = map(sections.as_text, _sweep_tables(sweep, lines, differences=False))
    return "\n\n".join(filter(None, [*tables, _choices(run, sweep)[1].unescape()]))
