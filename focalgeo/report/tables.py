"""Rows laid out as tables of text: for the page, and for a terminal."""

import reprlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from focalgeo.report.selection import (
    UNCALIBRATED,
    Column,
    Manifest,
    columns_of,
    fits,
    has_interval,
    latest,
    method_title,
    metric,
    metric_entries,
    parameter_title,
    setting,
)
from focalgeo.report.style import fixed, interval, percent, plain, short
from focalgeo.rows import Difference, Metric, Row, Seconds, Title, select


class Cell(NamedTuple):
    """A value and, in smaller type, its interval; `best` marks the best value of a line."""

    text: str
    note: str = ""
    best: bool = False


class Line(NamedTuple):
    """A row of a table: its heading, the unit or direction beneath, and its cells."""

    title: str
    note: str
    cells: list[Cell]


class Table(NamedTuple):
    """Headings (title, note) of the columns after the first, and lines."""

    heads: list[tuple[str, str]]
    lines: list[Line]


NOTHING = Cell("–")
PRINTED = ("accuracy", "nll", "ece")  # in a terminal, of all metrics
_PHASES = ("prepare", "compile", "train", "fit", "evaluate")  # in the order of a job


def metric_table(rows: Sequence[Row], manifest: Manifest, split: str) -> Table | None:
    """Return metrics by method and criterion on one split, fitted numbers on top; None where there are no such rows.

    A metric's differences between methods stand beneath it.
    """
    columns = columns_of(rows, manifest, split)
    if not columns:
        return None
    lines = _fit_lines(rows, columns)
    for name, entry in metric_entries(manifest).items():
        lines += _metric_lines(rows, columns, name, entry, split)
        lines += _difference_lines(rows, manifest, columns, name, entry, split)
    return Table([_head(manifest, column) for column in columns], lines)


def _head(manifest: Manifest, column: Column) -> tuple[str, str]:
    note = "as trained" if column.method == UNCALIBRATED else "nothing fitted"
    note = f"fitted by {column.criterion.upper()}" if column.criterion else note
    return method_title(manifest, column.method), note


def _fit_lines(rows: Sequence[Row], columns: Sequence[Column]) -> list[Line]:
    """A line for each fitted number, those that most methods have first."""
    fitted = [fits(rows, column) for column in columns]
    names = dict.fromkeys(name for each in fitted for name in each)
    lines = [
        Line(
            parameter_title(name),
            "fitted on validation",
            [Cell(plain(f[name])) if name in f else NOTHING for f in fitted],
        )
        for name in names
    ]
    return sorted(lines, key=lambda line: line.cells.count(NOTHING))


def _metric_lines(rows: Sequence[Row], columns: Sequence[Column], name: str, entry: Title, split: str) -> list[Line]:
    found = [metric(rows, column, name, split) for column in columns]
    if not any(found):
        return []
    shown = {index: round(entry.scale * row.value, entry.digits) for index, row in enumerate(found) if row is not None}
    best = {"low": min, "high": max}[entry.best](shown.values())  # what prints alike is alike
    alike = len(set(shown.values())) == 1
    cells = [
        NOTHING if row is None else _metric_cell(row, entry, best=not alike and shown[index] == best)
        for index, row in enumerate(found)
    ]
    return [Line(entry.title, entry.note or entry.unit, cells)]


def _metric_cell(row: Metric, entry: Title, *, best: bool) -> Cell:
    text = fixed(entry.scale * row.value, entry.digits) + ("%" if entry.unit == "%" else "")
    return Cell(text, _bracket(row, entry), best)


def _bracket(row: Metric | Difference, entry: Title) -> str:
    return interval(row.low, row.high, scale=entry.scale, digits=entry.digits) if has_interval(row) else ""


def _difference_lines(
    rows: Sequence[Row], manifest: Manifest, columns: Sequence[Column], name: str, entry: Title, split: str
) -> list[Line]:
    """A line for each fitted method that others are compared with."""
    found = select(rows, Difference, name=f"{name}_difference", split=split)
    unit = "percentage points" if entry.unit == "%" else entry.unit
    lines = []
    for against in dict.fromkeys(row.against for row in found if row.against != UNCALIBRATED):
        own = [latest(found, Difference, against=against, **column._asdict()) for column in columns]
        cells = [NOTHING if row is None else _difference_cell(row, entry) for row in own]
        note = ", ".join(filter(None, (f"less {method_title(manifest, against).lower()}", unit)))
        lines.append(Line(f"{entry.title} difference", note, cells))
    return lines


def _difference_cell(row: Difference, entry: Title) -> Cell:
    return Cell(fixed(entry.scale * row.value, entry.digits), _bracket(row, entry))


def share_cell(row: Metric | None) -> Cell:
    """Return a share as a percentage, with its interval beneath."""
    if row is None:
        return NOTHING
    return Cell(percent(row.value), interval(row.low, row.high, scale=100) if has_interval(row) else "")


def results_text(rows: Sequence[Row], manifest: Manifest, split: str) -> str:
    """Return the main metrics of each method by each criterion as plain text, a line for each."""
    entries = metric_entries(manifest)
    names = [name for name in PRINTED if name in entries]
    where = {"cross_fit": "on val, cross-fitted"}.get(split, f"on {split}")
    lines = [f"{where:<34}" + "".join(f" {_label(entries[name]):>8}" for name in names)]
    for column in columns_of(rows, manifest, split):
        by = f" by {column.criterion.upper()}" if column.criterion else ""
        found = [metric(rows, column, name, split) for name in names]
        cells = "".join(f" {'–' if row is None else format(row.value, '.4f'):>8}" for row in found)
        lines.append(f"{method_title(manifest, column.method).lower() + by:<34}{cells}")
    return "\n".join(lines)


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
    return [(name, _text(value)) for name, value in leaves(tree)]


def _text(value: Any) -> str:
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
    return short(shlex.join(_text(word) for word in manifest.get("command", [])[:1000]), 10_000)


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
    """Return the wall time of each phase, of all members and extensions, in the order of a job, and the total."""
    found = select(rows, Seconds)
    last = {(row.phase, row.extension, row.tags._replace(step=None)): row for row in found}
    seconds = {phase: 0.0 for phase in dict.fromkeys(row.phase for row in found)}
    for row in last.values():
        seconds[row.phase] += row.value
    total = {"total": sum(seconds.values())} if len(seconds) > 1 else {}
    named = [*(name for name in _PHASES if name in seconds), *(name for name in seconds if name not in _PHASES)]
    return [(name, f"{value:.1f} s") for name, value in ({n: seconds[n] for n in named} | total).items()]
