"""The page of a sweep: curves along its axis with intervals over seeds, and a table with paired differences."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from focalgeo.report.axes import (
    AXIS_TITLES,
    Quantity,
    Sweep,
    axis_symbol,
    axis_values,
    by_member,
    line_title,
    mean,
    paired,
    sweep_of,
    value_text,
)
from focalgeo.report.choice_on_val import choice_table, choice_words
from focalgeo.report.panels import Panel, template
from focalgeo.report.selection import (
    AS_TRAINED,
    CRITERION,
    FOCAL,
    PLAIN,
    UNCALIBRATED,
    Column,
    Manifest,
    as_number,
    column_of_each,
    final,
    fits,
    loss_title,
    measured,
    method_colour,
    method_title,
    metric_entries,
    parameter_title,
    setting,
    symbols_of,
)
from focalgeo.report.style import ends, loss_colour, short, significant
from focalgeo.report.sweep_figures import (
    axis_figure,
    diagnostic_sweep_panels,
    diagrams,
    reliability_grid,
    scatter_figure,
)
from focalgeo.report.tables import (
    NOTHING,
    PRINTED,
    Cell,
    Line,
    Table,
    command_words,
    config_settings,
    manifest_settings,
    phases,
)
from focalgeo.report.words import data_title
from focalgeo.rows import TITLES, Eigenvalue, Fit, Metric, Row, Scalar, Title, Trace, select
from focalgeo.types import Estimate

MOST_LINES = 12  # that figures show
TERMINAL_WIDTH = 80  # of a terminal's table
HEAD_WIDTH = 14  # of its heads, which go on in further lines
MOST_PRINTED = 3  # methods in a terminal's table; of more, temperature scaling and the focal map alone
_CURVATURE = {
    "lambda_max": (Eigenvalue, "λmax"),  # in tables
    "trace": (Trace, TITLES["trace"].title),
    "scale_free_trace": (Trace, TITLES["scale_free_trace"].title),
}


class Shown(NamedTuple):
    """A line of the table: title, scale and quantity, and whether it is printed in a terminal too."""

    title: str
    scale: float
    quantity: Quantity
    printed: bool


def _metric(name: str, column: Column) -> Quantity:
    return Quantity(Metric, {"name": name, "split": "test", "group": None, **column._asdict()})


def _as_trained(name: str, entry: Title, *, printed: bool) -> Shown:
    title = f"{entry.title} as trained" if name == "ece" else entry.title
    return Shown(", ".join(filter(None, (title, entry.unit))), entry.scale, _metric(name, AS_TRAINED), printed)


def _fitted_columns(rows: Sequence[Row], manifest: Manifest) -> list[Column]:
    return [each for each in column_of_each(rows, manifest, criterion=CRITERION) if each != AS_TRAINED]


def _after(manifest: Manifest, column: Column) -> str:
    short = {PLAIN: "T", FOCAL: "γ and T"}.get(column.method, method_title(manifest, column.method).lower())
    return f"after {short}"


def quantities(rows: Sequence[Row], manifest: Manifest) -> list[Shown]:
    """Return the lines of the table, as far as there are rows: metrics, ECE after each method, fits, curvature."""
    entries, columns = metric_entries(manifest), _fitted_columns(rows, manifest)
    found = [_as_trained(name, entries[name], printed=True) for name in PRINTED if name in entries]
    for column in columns:
        printed = column.method in (PLAIN, FOCAL) or len(columns) <= MOST_PRINTED
        found.append(Shown(f"ECE {_after(manifest, column)}, %", 100.0, _metric("ece", column), printed=printed))
    for column in columns if "nll" in entries else ():
        found.append(Shown(f"NLL {_after(manifest, column)}, nats", 1.0, _metric("nll", column), printed=False))
    for column, names in _own_fits(rows, columns).items():
        of = "" if column.method == PLAIN else f", {method_title(manifest, column.method).lower()}"
        for name, symbol in symbols_of(names).items():
            quantity = Quantity(Fit, {"name": name, **column._asdict()})
            found.append(Shown(f"Best {symbol}{of}", 1.0, quantity, printed=not of))
    found += [_as_trained(name, entry, printed=False) for name, entry in entries.items() if name not in PRINTED]
    for loss, split in _measured(rows):
        for name, (kind, title) in _CURVATURE.items():
            quantity = Quantity(kind, {"name": name, "loss": loss, "split": split})
            shown = f"{title}, {loss_title(loss)}, {split}"
            found.append(Shown(shown, 1.0, quantity, printed=name != "scale_free_trace"))
    return [each for each in found if select(rows, each.quantity.kind, **each.quantity.fields)]


def _own_fits(rows: Sequence[Row], columns: Sequence[Column]) -> dict[Column, list[str]]:
    """The fitted numbers of each method that are not those of a plainer one, as its fit's first stage has them."""
    known: set[tuple] = set()
    found: dict[Column, list[str]] = {}
    for column in columns:
        for name in fits(rows, column):
            values = (name, *(row.value for row in select(rows, Fit, name=name, **column._asdict())))
            if values not in known:
                found.setdefault(column, []).append(name)
            known.add(values)
    return found


def _measured(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """(loss, split) of every trace, cross-entropy first."""
    found = [(row.loss, row.split) for row in measured(rows, Trace, "trace")]
    return sorted(found, key=lambda each: each[0] != "cross_entropy")


def sweep_table(rows: Sequence[Row], manifest: Manifest, sweep: Sweep, line: tuple) -> Table:
    """Return means over seeds with 95% intervals at each value; beneath, the paired difference to the first value."""
    lines = []
    for shown in quantities(rows, manifest):
        members = by_member(rows, sweep, shown.quantity)
        found = [members.get((line, value), {}) for value in sweep.values]
        scaled = [{seed: shown.scale * value for seed, value in each.items()} for each in found]
        lines.append(Line(shown.title, "", [_cell(mean(list(each.values()))) for each in scaled]))
        differences = [None, *(paired(each, scaled[0]) for each in scaled[1:])]
        if any(each is not None and each.low is not None for each in differences):
            lines.append(Line("", f"less {_at_first(sweep)}, paired", [_difference(each) for each in differences]))
    heads = [(f"{axis_symbol(sweep)} = {value_text(sweep, value)}", "") for value in sweep.values]
    return Table(heads, lines)


def _at_first(sweep: Sweep) -> str:
    return f"at {axis_symbol(sweep)} = {value_text(sweep, sweep.values[0])}"


def _cell(each: Estimate | None) -> Cell:
    if each is None:
        return NOTHING
    if each.low is None or each.low == each.high:  # one seed, or the same number in all
        return Cell(significant(each.value), numbers=(each.value,))
    return Cell(significant(each.value), ends(each.low, each.high), numbers=(each.value, each.low, each.high))


def _difference(each: Estimate | None) -> Cell:
    if each is None or each.low is None:
        return Cell("")
    sign = "+" if each.value > 0 else ""
    text, within = f"{sign}{significant(each.value, 3)}", ends(each.low, each.high)
    return Cell(text, within, best=each.low > 0 or each.high < 0, numbers=(each.value, each.low, each.high))


def sweep_panels(rows: Sequence[Row], manifest: Manifest) -> Iterator[Panel]:
    """Yield the figures of a sweep, as far as there are rows for them."""
    sweep, after_training = _drawn(sweep_of(manifest, rows)), final(rows)
    yield from _calibration_panels(after_training, manifest, sweep)
    yield from _curvature_panels(after_training, sweep)
    yield from diagnostic_sweep_panels(rows, sweep)
    for number, line in enumerate(sweep.lines):
        title = line_title(sweep, line) or "All values"
        yield Panel("reliability", f"sweep_reliability_{number}", title, reliability_grid(after_training, sweep, line))


def _drawn(sweep: Sweep) -> Sweep:
    """The lines of a sweep that figures have room for."""
    return sweep._replace(lines=sweep.lines[:MOST_LINES])


def left_out_words(sweep: Sweep) -> str:
    """Return the sentence on what figures have no room for; "" where they show everything."""
    lines, room = len(sweep.lines), diagrams(_drawn(sweep))
    words = [f"Figures show the first {MOST_LINES} of {lines} combinations."] if lines > MOST_LINES else []
    words += [f"Reliability is drawn at the first {room} values."] if len(sweep.values) > room else []
    return " ".join(words)


def _calibration_panels(rows: Sequence[Row], manifest: Manifest, sweep: Sweep) -> Iterator[Panel]:
    columns = _fitted_columns(rows, manifest)
    drawn = {"as trained": ("grey", _metric("ece", AS_TRAINED))}
    drawn |= {_after(manifest, each): (method_colour(manifest, each.method), _metric("ece", each)) for each in columns}
    yield Panel("calibration", "sweep_ece", "ECE on test", axis_figure(rows, sweep, drawn, "ECE", percent=True))
    for name, title, percent in (("accuracy", "Accuracy on test", True), ("nll", "NLL on test", False)):
        drawn = {"": ("grey", _metric(name, AS_TRAINED))}
        label = "accuracy" if percent else "NLL (nats)"
        yield Panel("calibration", f"sweep_{name}", title, axis_figure(rows, sweep, drawn, label, percent=percent))
    fitted: dict[str, list[Column]] = {}
    for column, names in _own_fits(rows, columns).items():
        for name in names:
            fitted.setdefault(name, []).append(column)
    for name, having in sorted(fitted.items(), key=lambda each: -len(each[1])):
        drawn = {
            method_title(manifest, each.method).lower(): (
                method_colour(manifest, each.method),
                Quantity(Fit, {"name": name, **each._asdict()}),
            )
            for each in having
        }
        of = f" of {next(iter(drawn))}" if len(drawn) == 1 else ""
        figure = axis_figure(rows, sweep, drawn, parameter_title(name))
        yield Panel("calibration", f"sweep_{name}", f"Best {symbols_of([name])[name]}{of}", figure)


def _curvature_panels(rows: Sequence[Row], sweep: Sweep) -> Iterator[Panel]:
    found = _measured(rows)
    for split in dict.fromkeys(split for _, split in found):
        losses = [loss for loss, where in found if where == split]
        for name, (kind, _) in _CURVATURE.items():
            title = TITLES[name].title
            drawn = {
                loss_title(loss): (loss_colour(loss), Quantity(kind, {"name": name, "loss": loss, "split": split}))
                for loss in losses
            }
            figure = axis_figure(rows, sweep, drawn, title.lower())
            yield Panel("curvature", f"sweep_{name}_{split}", f"{title} on {split}", figure)
        trace = Quantity(Trace, {"name": "trace", "loss": "cross_entropy", "split": split})
        figure = scatter_figure(rows, sweep, trace, _metric("ece", AS_TRAINED))
        yield Panel("curvature", f"sweep_trace_and_ece_{split}", f"Flatness on {split} and calibration", figure)


def stopped_words(rows: Sequence[Row]) -> str:
    """Return the sentence on members that stopped early, with their steps; "" if none did."""
    found = select(rows, Scalar, name="stopped")
    if not found:
        return ""
    names = [
        ", ".join(f"{name} {value}" for name, value in axis_values(row)) + f" at step {row.value}" for row in found
    ]
    return f"Members whose loss was not finite stopped there and have no results: {'; '.join(names)}."


def fitted_words(rows: Sequence[Row], manifest: Manifest) -> str:
    """Return the sentence on the numbers of each method and how they were fitted; "" without any."""
    parts = []
    for column, names in _own_fits(rows, _fitted_columns(rows, manifest)).items():
        symbols = list(symbols_of(names).values())
        title = method_title(manifest, column.method)
        one = "one number, " if len(symbols) == 1 else ""
        parts += [f"{title.lower() if parts else title} has {one}{' and '.join(symbols)}"] if symbols else []
    return (
        f"{'; '.join(parts)}. Methods are fitted on val by {CRITERION.upper()}, for each run by itself."
        if parts
        else ""
    )


def render_sweep(rows: Sequence[Row], manifest: Manifest, sections: Mapping[str, Any]) -> str:
    """Return the page of a sweep."""
    sweep = sweep_of(manifest, rows)
    measured_rows = final(rows)
    members = len({axis_values(row) for row in select(measured_rows, Metric, method=UNCALIBRATED)})
    tables = [
        (line_title(sweep, line) or "Mean over seeds", sweep_table(measured_rows, manifest, sweep, line))
        for line in sweep.lines
    ]
    loss = loss_title(short(str(setting(manifest, "loss.name") or "runs")))
    return template("sweep.html").render(
        title=f"{data_title(manifest, 'A sweep')}: {loss} along {axis_symbol(sweep)}",
        members=members,
        left_out=left_out_words(sweep),
        seeds=len(sweep.seeds),
        values=", ".join(value_text(sweep, value) for value in sweep.values),
        axis=AXIS_TITLES[sweep.axis],
        stopped=stopped_words(rows),
        first=_at_first(sweep),
        tables=tables,
        choices=choice_table(measured_rows, manifest, sweep),
        choice_words=choice_words(measured_rows, manifest, sweep),
        sections=sections,
        fitted=fitted_words(measured_rows, manifest),
        examples=as_number(setting(manifest, "curvature.examples")),
        config=config_settings(manifest),
        about=manifest_settings(manifest, "data", "parameters", "created", "git"),
        seconds=phases(rows),
        machine=manifest_settings(manifest, "platform", "devices", "versions"),
        command=command_words(manifest),
    )


def sweep_text(rows: Sequence[Row], manifest: Manifest) -> str:
    """Return the table's main numbers as plain text, one line for each value of the axis, means over seeds.

    What is wider than a terminal goes on in a further table below. Beneath, what would be chosen on val.
    """
    sweep, rows = sweep_of(manifest, rows), final(rows)
    first = _first_column(sweep)
    columns = [_printed_column(each, rows, sweep) for each in quantities(rows, manifest) if each.printed]
    tables = [_side_by_side([first, *part]) for part in _in_parts(columns, TERMINAL_WIDTH - first.width)]
    return "\n\n".join(filter(None, [*tables, choice_words(rows, manifest, sweep)]))


class Printed(NamedTuple):
    """A column of a terminal's table: the lines of its head, and a cell for each of `_printed_lines`."""

    head: list[str]
    cells: list[str]

    @property
    def width(self) -> int:
        """As wide as the widest of them, with two spaces before it."""
        return 2 + max(map(len, [*self.head, *self.cells]))


def _printed_lines(sweep: Sweep) -> list[tuple[tuple, Any]]:
    """(line, value of the axis) of each printed line; None for the value where the line's title stands."""
    return [(line, at) for line in sweep.lines for at in ([None] if line else []) + list(sweep.values)]


def _first_column(sweep: Sweep) -> Printed:
    """The values of the axis, under the title of their line where there are several."""
    names = [line_title(sweep, line) if at is None else value_text(sweep, at) for line, at in _printed_lines(sweep)]
    return Printed([axis_symbol(sweep)], names)


def _printed_column(shown: Shown, rows: Sequence[Row], sweep: Sweep) -> Printed:
    members, cells = by_member(rows, sweep, shown.quantity), []
    for line, at in _printed_lines(sweep):
        found = mean(list(members.get((line, at), {}).values()))
        text = "–" if found is None else significant(shown.scale * found.value)
        cells.append("" if at is None else text)
    return Printed(textwrap.wrap(shown.title, HEAD_WIDTH, break_on_hyphens=False), cells)


def _in_parts(columns: Sequence[Printed], width: int) -> list[list[Printed]]:
    """The columns in as few tables as are no wider than that, in order; one at least."""
    parts: list[list[Printed]] = [[]]
    for column in columns:
        if parts[-1] and sum(each.width for each in [*parts[-1], column]) > width:
            parts.append([])
        parts[-1].append(column)
    return parts


def _side_by_side(columns: Sequence[Printed]) -> str:
    height = max(len(column.head) for column in columns)
    texts = [[""] * (height - len(column.head)) + column.head + column.cells for column in columns]
    padded = [[text.rjust(column.width) for text in own] for own, column in zip(texts, columns, strict=True)]
    return "\n".join("".join(line).rstrip() for line in zip(*padded, strict=True))
