"""Rows laid out as tables of text: for the page, and for a terminal."""

import csv
import io
import reprlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from focalgeo.report.selection import (
    AS_TRAINED,
    CRITERION,
    Column,
    Manifest,
    column_of_each,
    columns_of,
    criterion_title,
    difference,
    differences,
    fitted_title,
    has_interval,
    is_better,
    method_title,
    metric,
    metric_entries,
    setting,
)
from focalgeo.report.style import fixed, interval, percent, short
from focalgeo.report.words import fitted_values
from focalgeo.rows import Metric, Row, Seconds, Title, select


class Cell(NamedTuple):
    """A value and, in smaller type, its interval; `best` marks the best value of a line.

    numbers: what the text says, for the table's CSV, in the text's unit but unrounded: a value alone, or a value and
    the ends of its interval.
    """

    text: str
    note: str = ""
    best: bool = False
    numbers: tuple[float, ...] = ()


class Line(NamedTuple):
    """A row of a table: its heading, what stands in small type beneath, its cells, and a word that marks it."""

    title: str
    note: str
    cells: list[Cell]
    mark: str = ""


class Table(NamedTuple):
    """Headings (title, note) of the columns after the first, and lines."""

    heads: list[tuple[str, str]]
    lines: list[Line]


NOTHING = Cell("–")
PRINTED = ("accuracy", "nll", "ece")  # in a terminal, of all metrics
_PHASES = ("prepare", "compile", "train", "fit", "evaluate")  # in the order of a job


def metric_table(
    rows: Sequence[Row], manifest: Manifest, split: str, *, criterion: str = CRITERION, chosen: Column | None = None
) -> Table | None:
    """Return a line for each fit of each method on one split, and a column for each metric; None without such rows.

    Bold is a value that is better beyond noise than that of every other method by `criterion`, and of no line worse.
    """
    columns = columns_of(rows, manifest, split)
    entries = _shown_metrics(rows, manifest, split)
    if not columns or not entries:
        return None
    competing = column_of_each(rows, manifest, split, criterion=criterion)
    cells = [_metric_cells(rows, columns, competing, name, entry, split) for name, entry in entries.items()]
    lines = [
        Line(method_title(manifest, column.method), _fit_note(rows, manifest, column), list(own), _mark(column, chosen))
        for column, own in zip(columns, zip(*cells, strict=True), strict=True)
    ]
    return Table([(entry.title, entry.note or entry.unit) for entry in entries.values()], lines)


def _shown_metrics(rows: Sequence[Row], manifest: Manifest, split: str) -> dict[str, Title]:
    """The metrics that were asked for, NLL and Brier score, as far as there are rows."""
    asked = setting(manifest, "evaluation.metrics")
    names = {row.name for row in select(rows, Metric, split=split, group=None)}
    if isinstance(asked, list | tuple) and asked:
        names &= {"nll", "brier", *(name for name in asked if isinstance(name, str))}
    return {name: entry for name, entry in metric_entries(manifest).items() if name in names}


def _mark(column: Column, chosen: Column | None) -> str:
    return "chosen" if column == chosen else ""


def _fit_note(rows: Sequence[Row], manifest: Manifest, column: Column) -> str:
    """By what a method was fitted, and the numbers found."""
    if column.criterion:
        by = f"by {criterion_title(column.criterion)}"
    elif column.method in manifest.get("methods", {}) or column == AS_TRAINED:
        by = "as trained" if column == AS_TRAINED else "nothing fitted"
    else:
        by = "from elsewhere"
    plainer = fitted_title(rows, manifest, column)
    same = [f"that is {plainer.lower()}"] if plainer != method_title(manifest, column.method) else []
    return ", ".join([by, *fitted_values(rows, column), *same])


def _metric_cells(
    rows: Sequence[Row], columns: Sequence[Column], competing: Sequence[Column], name: str, entry: Title, split: str
) -> list[Cell]:
    found = {column: metric(rows, column, name, split) for column in columns}
    found = {column: row for column, row in found.items() if row is not None}
    values = {column: row.value if entry.best == "low" else -row.value for column, row in found.items()}
    best = min(values, key=values.get, default=None)
    rivals = [column for column in competing if column in found and column != best]
    pairs = differences(rows, name, split)
    is_finding = bool(rivals) and all(is_better(difference(pairs, best, each), entry.best) for each in rivals)
    return [
        metric_cell(found[column], entry, best=is_finding and column == best) if column in found else NOTHING
        for column in columns
    ]


def metric_cell(row: Metric, entry: Title, *, best: bool) -> Cell:
    """Return a metric in its unit, with its interval beneath."""
    text = fixed(entry.scale * row.value, entry.digits) + ("%" if entry.unit == "%" else "")
    bracket = interval(row.low, row.high, scale=entry.scale, digits=entry.digits) if has_interval(row) else ""
    return Cell(text, bracket, best, _numbers(row, entry.scale))


def _numbers(row: Metric, scale: float) -> tuple[float, ...]:
    own = (row.value, row.low, row.high) if has_interval(row) else (row.value,)
    return tuple(scale * number for number in own)


def share_cell(row: Metric | None) -> Cell:
    """Return a share as a percentage, with its interval beneath."""
    if row is None:
        return NOTHING
    bracket = interval(row.low, row.high, scale=100) if has_interval(row) else ""
    return Cell(percent(row.value), bracket, numbers=_numbers(row, 100))


def csv_address(table: Table, corner: str) -> str:
    """Return a table as the address of a CSV file that holds it, for a link of a page."""
    return f"data:text/csv;charset=utf-8,{quote(as_csv(table, corner))}"


def as_csv(table: Table, corner: str) -> str:
    """Return a table as CSV: numbers to ten digits, percentages without their sign, an interval's ends in columns.

    A name that begins as a formula of a spreadsheet does gets an apostrophe before it.
    """
    columns = [[line.cells[i] for line in table.lines] for i in range(len(table.heads))]
    parts = [_csv_column(title, cells) for (title, _), cells in zip(table.heads, columns, strict=True)]
    heads = [corner, "", *(head for own, _ in parts for head in own)]
    lines = [
        [_harmless(line.title), _harmless(line.note), *(text for _, rows in parts for text in rows[i])]
        for i, line in enumerate(table.lines)
    ]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([heads, *lines])
    return text.getvalue()


def _csv_column(title: str, cells: Sequence[Cell]) -> tuple[list[str], list[list[str]]]:
    """Headings and, line by line, texts: the number or text, the ends of intervals, what else stands beneath."""
    unit = ", %" if any(cell.text.endswith("%") for cell in cells) and not title.endswith("%") else ""
    heads, lines = [f"{title}{unit}"], [[_first(cell)] for cell in cells]
    if any(len(cell.numbers) == 3 for cell in cells):
        heads += [f"{title}, low", f"{title}, high"]
        lines = [[*line, *_ends(cell)] for line, cell in zip(lines, cells, strict=True)]
    if any(cell.note and len(cell.numbers) < 3 for cell in cells):
        heads.append(f"{title}, note")
        notes = ["" if len(cell.numbers) == 3 else _harmless(cell.note) for cell in cells]
        lines = [[*line, note] for line, note in zip(lines, notes, strict=True)]
    return heads, lines


def _first(cell: Cell) -> str:
    if cell.numbers:
        return f"{cell.numbers[0]:.10g}"
    return "" if cell == NOTHING else _harmless(cell.text)


def _ends(cell: Cell) -> list[str]:
    return [f"{end:.10g}" for end in cell.numbers[1:]] or ["", ""]


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def results_text(rows: Sequence[Row], manifest: Manifest, split: str) -> str:
    """Return the main metrics of each method by each criterion as plain text, a line for each."""
    entries = metric_entries(manifest)
    names = [name for name in PRINTED if name in entries]
    where = {"cross_fit": "on val, cross-fitted"}.get(split, f"on {split}")
    columns = columns_of(rows, manifest, split)
    titles = [_title_by(rows, manifest, column) for column in columns]
    width = max(map(len, [*titles, " " * 33])) + 1
    lines = [f"{where:<{width}}" + "".join(f" {_label(entries[name]):>8}" for name in names)]
    for column, title in zip(columns, titles, strict=True):
        found = [metric(rows, column, name, split) for name in names]
        cells = "".join(f" {'–' if row is None else format(row.value, '.4f'):>8}" for row in found)
        lines.append(f"{title:<{width}}{cells}")
    return "\n".join(lines)


def _title_by(rows: Sequence[Row], manifest: Manifest, column: Column) -> str:
    by = f" by {criterion_title(column.criterion)}" if column.criterion else ""
    return method_title(manifest, column.method).lower() + by


def _label(entry: Title) -> str:
    return entry.title if entry.title.isupper() else entry.title.lower()


_DEEPEST = 12  # objects inside each other that are told apart; a config has three
_MOST_SETTINGS = 500  # a config has about a hundred
_ITEM = reprlib.Repr()  # lists inside lists, as Python writes them, up to a depth and a length
_ITEM.maxlevel, _ITEM.maxlist, _ITEM.maxtuple, _ITEM.maxdict, _ITEM.maxlong, _ITEM.maxstring = 4, 50, 50, 50, 40, 200


def leaves(tree: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the dotted names and values of a nested dict, in the order in which it was written."""
    if isinstance(tree, Mapping) and (tree or not prefix) and depth < _DEEPEST:
        for key, value in tree.items():
            yield from leaves(value, f"{prefix}.{key}".strip("."), depth + 1)
    else:
        yield prefix, tree


def settings(tree: Any) -> list[tuple[str, str]]:
    """Return a nested dict as dotted names and values, in the order in which it was written."""
    return [(name, setting_text(value)) for name, value in leaves(tree)]


def setting_text(value: Any) -> str:
    """Return a config's value as a page shows it; of a long list the first twelve."""
    if isinstance(value, list | tuple):
        more = f" … ({len(value)} in all)" if len(value) > 12 else ""
        return ", ".join(_item(item) for item in value[:12]) + more or "none"
    return "none" if value is None or value == {} else _item(value)


def _item(value: Any) -> str:
    return value if isinstance(value, str) else _ITEM.repr(value) if isinstance(value, list | dict) else str(value)


def _shown_settings(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Settings as a page has room for them."""
    shown = [(short(name, 100), short(value, 1000)) for name, value in pairs[:_MOST_SETTINGS]]
    return shown + ([("…", f"{len(pairs):,} in all: see manifest.json")] if len(pairs) > _MOST_SETTINGS else [])


def command_words(manifest: Manifest) -> str:
    """Return the command that made a workdir, to be typed again."""
    return short(shlex.join(setting_text(word) for word in manifest.get("command", [])[:1000]), 10_000)


def manifest_settings(manifest: Manifest, *names: str) -> list[tuple[str, str]]:
    """Return names and values of these entries of the manifest, as far as it has them."""
    return _shown_settings(settings({name: manifest[name] for name in names if name in manifest}))


def config_settings(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the config's settings; of one left to its default the value it came to, where the manifest has that."""
    data = manifest.get("data", {})
    sizes = {f"data.{split}_size": data[split] for split in ("train", "val", "test") if split in data}
    unset = {name for name, value in leaves(manifest.get("config", {})) if value is None}
    shown = {name: f"{sizes[name]} (default)" if name in sizes else "default" for name in unset}
    shown |= {} if setting(manifest, "evaluation.methods") else {"evaluation.methods": "all"}
    return _shown_settings([(name, shown.get(name, value)) for name, value in settings(manifest.get("config", {}))])


def phases(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the wall time of each phase, of all members, in the order of a job, and the total."""
    found = select(rows, Seconds)
    last = {(row.phase, row.gamma, row.trace_penalty, row.learning_rate, row.seed, row.run): row for row in found}
    seconds = {phase: 0.0 for phase in dict.fromkeys(row.phase for row in found)}
    for row in last.values():
        seconds[row.phase] += row.value
    total = {"total": sum(seconds.values())} if len(seconds) > 1 else {}
    named = [*(name for name in _PHASES if name in seconds), *(name for name in seconds if name not in _PHASES)]
    return [(name, f"{value:.1f} s") for name, value in ({n: seconds[n] for n in named} | total).items()]
