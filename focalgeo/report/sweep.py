"""A sweep: quantities at each value of an axis, their means over seeds with intervals, and the page along that axis."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from msgspec.structs import replace

from focalgeo.report import figures, style
from focalgeo.report.calibration import PRINTED
from focalgeo.report.sections import (
    NOTHING,
    Cell,
    Line,
    Panel,
    Section,
    Table,
    as_text,
    joined,
    record,
    say,
    write_page,
)
from focalgeo.report.selection import (
    AS_TRAINED,
    CRITERION,
    FOCAL,
    PLAIN,
    UNCALIBRATED,
    Column,
    Run,
    in_training,
    loss_title,
    measured,
    parameter_title,
    splits_of,
    symbols_of,
)
from focalgeo.report.style import LINESTYLES, ends, loss_colour, plain, short, significant, styled
from focalgeo.rows import TITLES, Diagnostic, Eigenvalue, Fit, Metric, ReliabilityBin, Row, Scalar, Trace, select
from focalgeo.types import Estimate

AXES = {  # title and symbol
    "gamma": ("γ of the training loss", "γ"),
    "trace_penalty": ("weight λ of the trace penalty", "λ"),
    "learning_rate": ("learning rate", "learning rate"),
    "seed": ("seed", "seed"),
}
_CURVATURE = {"lambda_max": "λmax", "trace": "Trace", "scale_free_trace": "Scale-free trace"}
_LABELS = {"accuracy": "accuracy", "nll": "NLL (nats)"}
_BY_NLL = Column(PLAIN, CRITERION)
_CHOOSING = (("nll", AS_TRAINED), ("nll", _BY_NLL), ("ece", AS_TRAINED), ("ece", _BY_NLL), ("accuracy", AS_TRAINED))
_MOST_LINES, _MOST_DIAGRAMS, _MOST_TICKS = 12, 96, 24  # that figures show
_VISIBLE = (0.3, 0.85)  # of the colour map: its ends vanish on a dark page or on a light one

Member = tuple[tuple, Any]  # the line of a run, and its value on the axis: runs of one differ in their seed alone


class Sweep(NamedTuple):
    """The axis along which figures run, its values, and the combinations of the other axes but the seed."""

    axis: str
    values: list[Any]
    others: list[str]
    lines: list[tuple]

    @property
    def symbol(self) -> str:
        """The axis in short: γ, λ."""
        return AXES[self.axis][1]

    @property
    def texts(self) -> list[str]:
        """The values as texts of ticks and headings."""
        return [plain(value) for value in self.values]

    def line_title(self, line: tuple) -> str:
        """Return a line's values on the other axes, by which lines differ: "λ = 0.01"; "" where there is one line."""
        return ", ".join(f"{AXES[name][1]} = {plain(value)}" for name, value in zip(self.others, line, strict=True))

    def member(self, row: Row) -> Member:
        """Return the line of a row's run and its value on the axis."""
        return tuple(getattr(row, name) for name in self.others), getattr(row, self.axis)

    def in_words(self, member: Member) -> str:
        """Return a member in words: "λ = 0.01, γ = 2"."""
        return joined(self.line_title(member[0]), f"{self.symbol} = {plain(member[1])}")


class Figure(NamedTuple):
    """A figure along the axis, that several quantities may share."""

    name: str
    title: str
    label: str
    unit: str = ""


class Quantity(NamedTuple):
    """A line of the table: its title, the rows that hold it, and how it is shown."""

    title: str
    kind: type
    fields: Mapping[str, Any]
    scale: float = 1.0
    figure: Figure | None = None
    label: str = ""  # in the figure's legend
    colour: str = "grey"

    def by_member(self, rows: Sequence[Row], sweep: Sweep) -> dict[Member, dict[int, float]]:
        """Return member -> seed -> the quantity after training; the last row counts."""
        values: dict[Member, dict[int, float]] = {}
        for row in select(rows, self.kind, **{"epoch": None, **self.fields}):
            if row.seed is not None:
                values.setdefault(sweep.member(row), {})[row.seed] = row.value
        return values


def axes_of(run: Run) -> dict[str, list]:
    """Return the swept axes of a run's config with their values."""
    swept = {name: run.setting(f"sweep.{name}") for name in AXES}
    return {name: list(dict.fromkeys(values)) for name, values in swept.items() if values}


def sweep_of(run: Run) -> Sweep:
    """Return the sweep of a run, with the lines that its rows have."""
    axes = axes_of(run)
    axis = next((name for name in axes if name != "seed"), "seed")
    others = [name for name in axes if name not in (axis, "seed")]
    lines = {tuple(getattr(row, name) for name in others) for row in run.rows}
    return Sweep(axis, sorted(axes[axis]), others, sorted(line for line in lines if None not in line))


def headline(run: Run) -> Markup:
    """Return the sentence on which values are swept."""
    sweep = sweep_of(run)
    return say("sweep_of", axis=sweep.axis.replace("_", " "), values=sweep.texts)


def axis_values(row: Row) -> tuple[tuple[str, Any], ...]:
    """Return (name, value) of each axis on which a row has a value; together they name its member."""
    return tuple((name, getattr(row, name)) for name in AXES if getattr(row, name) is not None)


def mean(values: Sequence[float]) -> Estimate | None:
    """Return the mean of a quantity over seeds with its 95% interval by Student's t; None without values.

    The interval, None for one seed, is that of a bootstrap over seeds, whose standard error is s / sqrt(n) times
    sqrt((n - 1) / n), made wide enough for few seeds.
    """
    n = len(values)
    if n < 2:
        return Estimate(values[0], None, None, None, 1) if n else None
    return Estimate.by_student(statistics.fmean(values), statistics.stdev(values) / math.sqrt(n), n)


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Estimate | None:
    """Return the mean of first less second over the seeds of both; runs of one seed share weights and batches."""
    return mean([first[seed] - second[seed] for seed in first if seed in second])


@styled()
def along_axis(rows: Sequence[Row], sweep: Sweep, quantities: Sequence[Quantity], *, ax: Axes | None = None) -> Axes:
    """Draw quantities of one figure against the axis: mean, interval, every seed."""
    ax, (_, _, label, unit) = ax or style.new_axes(), quantities[0].figure
    for quantity in quantities:
        members = quantity.by_member(rows, sweep)
        for line, linestyle in zip(sweep.lines, LINESTYLES * len(sweep.lines), strict=False):
            seeds = [list(members.get((line, value), {}).values()) for value in sweep.values]
            places = [place for place, values in enumerate(seeds) if values]
            means = [mean(seeds[place]) for place in places]
            low, high = ([np.nan if m.low is None else m[end] for m in means] for end in (2, 3))
            look = {"colour": quantity.colour, "linestyle": linestyle}
            title = joined(quantity.label, sweep.line_title(line))
            style.bands(ax, places, [m.value for m in means], low, high, label=title, **look)
            look = {"color": ax.lines[-1].get_color(), "alpha": 0.45, "markersize": 7}
            for place in places:
                ax.plot([place] * len(seeds[place]), seeds[place], "_", **look)
    every = -(-len(sweep.values) // _MOST_TICKS)
    ax.set_xticks(range(0, len(sweep.values), every), sweep.texts[::every])
    ax.set(xlim=(-0.4, len(sweep.values) - 0.6), xlabel=AXES[sweep.axis][0], ylabel=label)
    if unit:
        ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.grid(visible=False, axis="x")
    if len(quantities) * len(sweep.lines) > 1:
        style.legend(ax)
    return ax


def _shades(sweep: Sweep) -> dict[Any, tuple]:
    shades = colormaps["viridis"](np.linspace(*_VISIBLE, len(sweep.values)))
    return dict(zip(sweep.values, map(tuple, shades), strict=True))


@styled()
def scatter(rows: Sequence[Row], sweep: Sweep, across: Quantity, up: Quantity, *, ax: Axes | None = None) -> Axes:
    """Draw a share against a trace, a point for each member and seed, one colour for each value of the axis."""
    ax, drawn = ax or style.new_axes(4.6, 3.4), []
    x, y = (quantity.by_member(rows, sweep) for quantity in (across, up))
    for value, shade in _shades(sweep).items():
        members = [(line, value) for line in sweep.lines if (line, value) in x and (line, value) in y]
        points = [(x[member][seed], y[member][seed]) for member in members for seed in x[member] if seed in y[member]]
        if points:
            ax.scatter(*zip(*points, strict=True), color=shade, s=26, label=plain(value))
        drawn += [point[0] for point in points]
    ax.set(xlabel=f"trace of cross-entropy's Hessian on {across.fields['split']}", ylabel="ECE on test, as trained")
    if drawn and min(drawn) > 0:
        style.logarithmic_ticks(ax, "x")
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    style.legend(ax, columns=1, loc="outside right upper", title=AXES[sweep.axis][0].partition(" of ")[0])
    return ax


def by_epoch(rows: Sequence[Diagnostic], sweep: Sweep, label: str, *, ax: Axes | None = None) -> Axes:
    """Draw the mean over seeds of one quantity's rows against the epoch, a line for each member of the sweep."""
    members: dict[Member, dict[float, dict[int, Row]]] = {}
    for row in rows:
        members.setdefault(sweep.member(row), {}).setdefault(row.epoch, {})[row.seed] = row
    lines, styles, shades = {}, dict(zip(sweep.lines, LINESTYLES * len(sweep.lines), strict=False)), _shades(sweep)
    for line, value in ((line, value) for line in sweep.lines for value in sweep.values):
        means = [
            replace(row, value=statistics.fmean(other.value for other in seeds.values()))
            for seeds in members.get((line, value), {}).values()
            for row in list(seeds.values())[:1]
        ]
        if means:
            lines[joined(plain(value), sweep.line_title(line))] = means, shades[value], styles[line]
    return figures.courses(lines, "epoch", label, beside=sweep.symbol, ax=ax)


def most_diagrams(sweep: Sweep) -> int:
    """Return the number of reliability diagrams that each line has room for."""
    return max(min(_MOST_DIAGRAMS // max(min(len(sweep.lines), _MOST_LINES), 1), 24), 4)


def _diagrams(rows: Sequence[Row], sweep: Sweep, line: tuple) -> list[Panel]:
    """Small reliability diagrams, as trained, at each value of the axis, all seeds' examples together."""
    bins: dict[Member, dict[int, list[ReliabilityBin]]] = {}
    for row in select(rows, ReliabilityBin, name="reliability", method=UNCALIBRATED, split="test"):
        bins.setdefault(sweep.member(row), {}).setdefault(row.bin, []).append(row)
    drawn = [value for value in sweep.values if (line, value) in bins][: most_diagrams(sweep)]
    number, title = sweep.lines.index(line), AXES[sweep.axis][0].partition(" of ")[0]
    return [
        Panel(
            f"sweep_reliability_{number}_{sweep.values.index(value)}",
            f"{title} {plain(value)}",
            figures.diagram([figures.pooled(own) for _, own in sorted(bins[line, value].items())], small=True),
        )
        for value in drawn
    ]


def _metric(name: str, column: Column, split: str = "test") -> dict[str, Any]:
    return {"name": name, "split": split, "group": None, **column._asdict()}


def quantities(run: Run) -> list[Quantity]:
    """Return the quantities of a sweep, as far as there are rows: metrics, ECE after each method, fits, curvature."""
    titles, fits, columns = run.metrics, _own_fits(run), [c for c in run.column_of_each() if c != AS_TRAINED]
    after = {AS_TRAINED: "as trained", Column(PLAIN, CRITERION): "after T", Column(FOCAL, CRITERION): "after γ and T"}

    def of_metric(name: str, column: Column = AS_TRAINED) -> Quantity:
        title = titles[name]
        words = after.get(column) or f"after {run.method_title(column.method).lower()}"
        words = "" if column == AS_TRAINED and name != "ece" else words
        drawn = name == "ece" or (name in PRINTED and column == AS_TRAINED)
        label, unit = _LABELS.get(name, title.title), title.unit if title.unit == "%" else ""
        figure = Figure(f"sweep_{name}", f"{title.title} on test", label, unit) if drawn else None
        line, colour = joined(f"{title.title} {words}".strip(), title.unit), run.method_colour(column.method)
        return Quantity(line, Metric, _metric(name, column), title.scale, figure, words, colour)

    lines = [of_metric(name) for name in PRINTED if name in titles]
    lines += [of_metric(name, column) for name in ("ece", "nll") if name in titles for column in columns]
    for column, names in fits.items():
        method, colour = run.method_title(column.method).lower(), run.method_colour(column.method)
        for name, symbol in symbols_of(names).items():
            is_alone = sum(name in others for others in fits.values()) == 1
            figure = Figure(
                f"sweep_{name}", f"Best {symbol}{f' of {method}' if is_alone else ''}", parameter_title(name)
            )
            line, fields = joined(f"Best {symbol}", method if column.method != PLAIN else ""), {"name": name}
            lines.append(Quantity(line, Fit, fields | column._asdict(), 1.0, figure, method, colour))
    lines += [of_metric(name) for name in titles if name not in PRINTED]
    traces = [(row.loss, row.split) for row in measured(run.rows, Trace, "trace")]
    for loss, split in sorted(traces, key=lambda pair: pair[0] != "cross_entropy"):
        for name, symbol in _CURVATURE.items():
            fields, kind = {"name": name, "loss": loss, "split": split}, Eigenvalue if name == "lambda_max" else Trace
            figure = Figure(f"sweep_{name}_{split}", f"{TITLES[name].title} on {split}", TITLES[name].title.lower())
            line, shown = joined(symbol, loss_title(loss), split), (loss_title(loss), loss_colour(loss))
            lines.append(Quantity(line, kind, fields, 1.0, figure, *shown))
    return [line for line in lines if select(run.rows, line.kind, **line.fields)]


def _own_fits(run: Run) -> dict[Column, list[str]]:
    """The fitted numbers of each method that are not those of a plainer one, as its fit's first stage has them."""
    known: set[tuple] = set()
    fitted: dict[Column, list[str]] = {}
    for column in run.column_of_each():
        for name in run.fits(column):
            values = (name, *(row.value for row in select(run.rows, Fit, name=name, **column._asdict())))
            if values not in known:
                fitted.setdefault(column, []).append(name)
            known.add(values)
    return fitted


def sweep_table(run: Run, sweep: Sweep, line: tuple, lines: Sequence[Quantity], *, differences: bool = True) -> Table:
    """Return means over seeds with 95% intervals at each value; beneath, the paired difference to the first value."""
    shown = []
    for quantity in lines:
        members = quantity.by_member(run.rows, sweep)
        seeds = [
            {seed: quantity.scale * value for seed, value in members.get((line, at), {}).items()} for at in sweep.values
        ]
        shown.append(Line(quantity.title, "", [_cell(mean(list(values.values()))) for values in seeds]))
        less = [paired(values, seeds[0]) for values in seeds[1:]]
        if differences and any(value and value.low is not None for value in less):
            cells = [Cell(""), *map(_difference_cell, less)]
            shown.append(Line("", f"less at {sweep.symbol} = {sweep.texts[0]}, paired", cells))
    heads = [(f"{sweep.symbol} = {text}", "") for text in sweep.texts]
    return Table(sweep.line_title(line) or "Mean over seeds", heads, shown)


def _cell(value: Estimate | None, *, scale: float = 1.0, digits: int = 4, steps: int = 5) -> Cell:
    """A mean with its interval beneath, whose decimals make so many steps of its width."""
    if value is None:
        return NOTHING
    cell = Cell(significant(scale * value.value, digits), value=scale * value.value)
    if value.low is None or value.low == value.high:  # one seed, or the same number in all
        return cell
    low, high = scale * value.low, scale * value.high
    return cell._replace(note=ends(low, high, steps=steps), low=low, high=high)


def _difference_cell(value: Estimate | None) -> Cell:
    if value is None or value.low is None:
        return Cell("")
    text = f"{'+' if value.value > 0 else ''}{significant(value.value, 3)}"
    numbers = {"value": value.value, "low": value.low, "high": value.high}
    return Cell(text, ends(value.low, value.high), value.low > 0 or value.high < 0, **numbers)


class Choice(NamedTuple):
    """The value with the best mean of a metric on val, and its cost on test: a line of a table."""

    by: str  # the metric, in words
    unit: str
    cells: list[Cell]  # what is chosen, its means on val and test, the best on test, the cost against that
    seeds: int
    left_out: int  # values that lack a seed which others have


def choices(run: Run, sweep: Sweep) -> list[Choice]:
    """The choices by NLL, ECE and accuracy on val among all values and lines of a sweep, as far as there are rows.

    Values that lack a seed which others have, as where a run has stopped, are not candidates, nor are runs without a
    value on an axis. A sweep over seeds alone has nothing to choose.
    """
    made = []
    for name, column in _CHOOSING if sweep.axis != "seed" else ():
        title, fields = run.metrics.get(name), [_metric(name, column, split) for split in ("val", "test")]
        val, test = (Quantity("", Metric, of).by_member(run.rows, sweep) for of in fields)
        val = {member: seeds for member, seeds in val.items() if None not in (*member[0], member[1])}
        every = sorted(set().union(*val.values()))
        whole = [member for member in val if set(val[member]) == set(test.get(member, ())) == set(every)]
        if title is None or len(whole) < 2:
            continue
        # of seed -> value, with the sign that makes less better
        signed = [
            {m: {seed: (1 if title.best == "low" else -1) * of[m][seed] for seed in every} for m in whole}
            for of in (val, test)
        ]
        chosen, best = (min(whole, key=lambda m: statistics.fmean(of[m].values())) for of in signed)
        votes = [min(whole, key=lambda m: signed[0][m][seed]) for seed in every].count(chosen)
        # How much worse the chosen is on test than the best, paired over seeds.
        cost = _cell(paired(signed[1][chosen], signed[1][best]), scale=title.scale, digits=2, steps=50)
        cells = [
            Cell(sweep.in_words(chosen), f"by {votes} of {len(every)} seeds alone" if len(every) > 1 else ""),
            *(_cell(mean(list(of[chosen].values())), scale=title.scale) for of in (val, test)),
            Cell(sweep.in_words(best)),
            Cell("0", value=0.0) if best == chosen else cost,
        ]
        after = "as trained" if column == AS_TRAINED else f"after {run.method_title(column.method).lower()}"
        made.append(Choice(f"{title.title} {after}", title.unit, cells, len(every), len(val) - len(whole)))
    return made


def choice_words(found: Sequence[Choice]) -> Markup:
    """A sentence on the choice by NLL after temperature scaling, else by the first there is; "" without any."""
    if not found:
        return Markup()
    choice = next((choice for choice in found if choice.by.startswith("NLL after")), found[0])
    chosen, _, _, best, cost = choice.cells
    costs = "" if chosen.text == best.text else " ".join(filter(None, (cost.text, choice.unit, cost.note)))
    numbers = {"value": chosen.text, "best": best.text, "cost": costs}
    return say("choice", by=choice.by, seeds=choice.seeds, left_out=choice.left_out, **numbers)


def write_sweep(path: Path, run: Run, search: Any = None) -> Path:
    """Write the page of a sweep: curves along its axis with intervals over seeds, and tables of them."""
    final, sweep = run.after_training(), sweep_of(run)
    drawn, lines, found = sweep._replace(lines=sweep.lines[:_MOST_LINES]), quantities(final), choices(final, sweep)
    methods = {run.method_title(column.method): symbols_of(names) for column, names in _own_fits(final).items()}
    fitted = [
        say("has_numbers", method=title.lower() if place else title, symbols=list(symbols.values()))
        for place, (title, symbols) in enumerate(methods.items())
    ]
    heads = ("Chosen on val", "On val", "On test", "Best on test", "Cost on test")
    costs = [Line(joined(choice.by, choice.unit), "", choice.cells) for choice in found]
    chosen = Table("Chosen by", [(head, "") for head in heads], costs) if costs else None
    grids = [
        Section(sweep.line_title(line), figures=_diagrams(final.rows, drawn, line), layout="small")
        for line in drawn.lines
    ]
    sections = [
        Section(
            "Calibration",
            figures=_panels(final.rows, drawn, [line for line in lines if line.kind in (Metric, Fit)]),
            notes=say("sweep_calibration", fitted=fitted, criterion=CRITERION.upper()),
        ),
        Section(
            "Curvature",
            figures=_panels(final.rows, drawn, [line for line in lines if line.kind in (Trace, Eigenvalue)])
            + _flatness(final.rows, drawn, lines),
            notes=say("sweep_curvature", examples=run.setting("curvature.examples")),
        ),
        Section("While training", figures=_epoch_panels(run.rows, drawn), notes=say("sweep_diagnostics")),
        Section(
            f"All numbers, and differences to those at {sweep.symbol} = {sweep.texts[0]}",
            tables=[sweep_table(final, sweep, line, lines) for line in sweep.lines],
            notes=say("sweep_numbers"),
        ),
        Section("Which would be chosen on val?", tables=[chosen], notes=say("choices")),
        Section("When it says 80%, is it right 80% of the time?", parts=grids, notes=say("sweep_reliability")),
        record(run, "The sweep", files="manifest.json and metrics.jsonl", folder="WORKDIR", members=True),
    ]
    lead = say(
        "sweep",
        choice=choice_words(found),
        members=len({axis_values(row) for row in select(final.rows, Metric, method=UNCALIBRATED)}),
        axis=AXES[sweep.axis][0],
        values=sweep.texts,
        seeds=len({row.seed for row in run.rows} - {None}),
        stopped=[
            f"{', '.join(f'{name} {value}' for name, value in axis_values(row))} at step {row.value}"
            for row in select(run.rows, Scalar, name="stopped")
        ],
        lines=len(sweep.lines),
        most_lines=_MOST_LINES,
        most_values=most_diagrams(sweep),
    )
    loss = loss_title(short(run.setting("loss.name") or "runs"))
    return write_page(path, f"{run.data_title or 'A sweep'}: {loss} along {sweep.symbol}", sections, verdict=lead)


def _panels(rows: Sequence[Row], sweep: Sweep, lines: Sequence[Quantity]) -> list[Panel]:
    """The figures of these quantities, ECE first."""
    shared: dict[Figure, list[Quantity]] = {}
    for line in sorted(lines, key=lambda line: line.fields["name"] != "ece"):
        if line.figure:
            shared.setdefault(line.figure, []).append(line)
    return [Panel(figure.name, figure.title, along_axis(rows, sweep, own)) for figure, own in shared.items()]


def _flatness(rows: Sequence[Row], sweep: Sweep, lines: Sequence[Quantity]) -> list[Panel]:
    """ECE against the trace of cross-entropy's Hessian on each split."""
    ece = Quantity("", Metric, _metric("ece", AS_TRAINED))
    traces = [line for line in lines if line.fields.items() >= {"name": "trace", "loss": "cross_entropy"}.items()]
    return [
        Panel(f"sweep_trace_and_ece_{split}", f"Flatness on {split} and calibration", scatter(rows, sweep, trace, ece))
        for trace in traces
        for split in [trace.fields["split"]]
    ]


def _epoch_panels(rows: Sequence[Row], sweep: Sweep) -> list[Panel]:
    """The true class's probability on examples predicted wrong, and the norm of the last layer's weights."""
    rows = select(in_training(rows), Diagnostic)
    wrong = select(rows, Diagnostic, name="true_class_probability", outcome="wrong")
    drawn = [
        (
            f"sweep_wrong_{s}",
            f"Examples predicted wrong, {s}",
            "mean p of the true class",
            select(wrong, Diagnostic, split=s),
        )
        for s in splits_of(wrong)
    ]
    norms = select(rows, Diagnostic, name="weight_norm")
    drawn.append(("sweep_weight_norm", "Norm of the last layer's weights", "‖W‖, Frobenius norm", norms))
    return [Panel(name, title, by_epoch(own, sweep, label)) for name, title, label, own in drawn if own]


def sweep_text(rows: Sequence[Row], manifest: Mapping[str, Any]) -> str:
    """Return the numbers that figures draw as plain text, and beneath, what would be chosen on val."""
    run = Run(rows, manifest).after_training()
    sweep = sweep_of(run)
    printed = [line for line in quantities(run) if line.figure]
    tables = [as_text(sweep_table(run, sweep, line, printed, differences=False)) for line in sweep.lines]
    return "\n\n".join(filter(None, [*tables, choice_words(choices(run, sweep)).unescape()]))
