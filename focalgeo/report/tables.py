"""Rows laid out as tables of text, ready for the page."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from focalgeo.report.figures import bounds
from focalgeo.report.formats import interval, percent, plain, points, significant
from focalgeo.report.selection import (
    COLUMNS,
    MAP_TITLES,
    Column,
    Row,
    fit,
    has_interval,
    matching,
    measured,
    measured_title,
)
from focalgeo.report.words import difference, metric_row


class Cell(NamedTuple):
    """A value and, in smaller type, its interval; `best` marks the lowest value of a row."""

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


_METRICS = (
    ("accuracy", "Accuracy", "higher is better", 100.0, 2),
    ("ece", "ECE", "equal-width bins", 100.0, 2),
    ("adaptive_ece", "Adaptive ECE", "equal-mass bins", 100.0, 2),
    ("nll", "NLL", "nats", 1.0, 4),
    ("brier", "Brier score", "", 1.0, 4),
)
METHOD_TITLES = {"hutchinson": "Hutchinson", "hutch++": "Hutch++", "xtrace": "XTrace"}
_NOTHING = Cell("–")


def metric_table(rows: Sequence[Row], split: str) -> Table | None:
    """Return metrics by map on one split, with the fitted T and gamma on top; None where there are no such rows."""
    columns = [column for column in COLUMNS if matching(rows, {**column.where, "split": split, "name": "ece"})]
    if not columns:
        return None
    heads = [(MAP_TITLES[c.map], f"fitted by {c.criterion.upper()}" if c.criterion else "as trained") for c in columns]
    lines = [_metric_line(rows, columns, split, metric) for metric in _METRICS]
    lines.insert(2, _difference_line(rows, columns, split))
    return Table(heads, _fit_lines(rows, columns) + [line for line in lines if line is not None])


def _difference_line(rows: Sequence[Row], columns: Sequence[Column], split: str) -> Line | None:
    found = [difference(rows, column, "temperature_scaling", split) for column in columns]
    cells = [_NOTHING if row is None else Cell(points(row["value"]), _bracket(row, 100.0, 2)) for row in found]
    return Line("ECE difference", "focal minus plain, percentage points", cells) if any(found) else None


def _fit_lines(rows: Sequence[Row], columns: Sequence[Column]) -> list[Line]:
    temperatures = [fit(rows, column, "temperature") for column in columns]
    gammas = [fit(rows, c, "calibration_gamma") if c.map == "focal_temperature_scaling" else None for c in columns]
    named = (("Temperature T", "fitted on validation", temperatures), ("Calibration γ", "fitted on validation", gammas))
    return [
        Line(title, note, [_NOTHING if v is None else Cell(plain(v)) for v in values])
        for title, note, values in named
        if any(v is not None for v in values)
    ]


def _metric_line(rows: Sequence[Row], columns: Sequence[Column], split: str, metric: tuple) -> Line | None:
    name, title, note, scale, digits = metric
    found = [metric_row(rows, column, name, split) for column in columns]
    if not any(found):
        return None
    texts = ["" if row is None else f"{scale * row['value']:.{digits}f}" for row in found]
    numbers = [float(text) for text in texts if text]
    lowest = min(numbers) if name != "accuracy" and len(set(numbers)) > 1 else None  # what prints alike is alike
    cells = [
        _NOTHING if row is None else _metric_cell(row, float(text) == lowest, scale, digits)
        for row, text in zip(found, texts, strict=True)
    ]
    return Line(title, note, cells)


def _metric_cell(row: Row, best: Any, scale: float, digits: int) -> Cell:
    text = percent(row["value"], digits) if scale == 100 else f"{row['value']:.{digits}f}"
    return Cell(text, _bracket(row, scale, digits), best)


def _bracket(row: Row, scale: float, digits: int) -> str:
    return interval(row["low"], row["high"], scale=scale, digits=digits) if has_interval(row) else ""


def curvature_table(rows: Sequence[Row]) -> Table | None:
    """Return largest eigenvalue and trace of each loss with error, effort and examples; None without such rows."""
    lines = []
    for name, title in (("lambda_max", "Largest eigenvalue"), ("trace", "Trace")):
        lines += [Line(title, measured_title(row), _curvature_cells(row)) for row in measured(rows, name)]
    heads = [("Value", ""), ("Error", ""), ("Effort", ""), ("Examples", "")]
    return Table(heads, lines) if lines else None


def _curvature_cells(row: Row) -> list[Cell]:
    low, high = bounds(row)
    if row["name"] == "trace":
        error = Cell(f"± {significant(row['stderr'], 2)}", "standard error") if "stderr" in row else _NOTHING
        value = Cell(
            significant(row["value"]), f"[{significant(low)},\u00a0{significant(high)}]" if "low" in row else ""
        )
        method = METHOD_TITLES.get(row.get("method"), row.get("method"))
        products = f"Hessian products ({method})" if method else "Hessian products"
        effort = Cell(f"{row['probes']:,}", products) if "probes" in row else _NOTHING
    else:
        error = Cell(f"± {significant(row['residual'], 2)}", "residual") if "residual" in row else _NOTHING
        value = Cell(significant(row["value"]), "" if row.get("converged", True) else "not converged")
        effort = Cell(f"{row['products']:,}", "Hessian products") if "products" in row else _NOTHING
    return [value, error, effort, Cell(f"{row['n']:,}" if "n" in row else "–")]


def _leaves(tree: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(tree, Mapping) and (tree or not prefix):
        return [pair for key, value in tree.items() for pair in _leaves(value, f"{prefix}.{key}".strip("."))]
    return [(prefix, tree)]


def settings(tree: Any) -> list[tuple[str, str]]:
    """Return a nested dict as dotted names and values, in the order in which it was written."""
    return [(name, _text(value)) for name, value in _leaves(tree)]


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        more = f" … ({len(value)} in all)" if len(value) > 12 else ""
        return ", ".join(str(item) for item in value[:12]) + more or "none"
    return "none" if value is None or value == {} else str(value)


def config_settings(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the config's settings; a size left to its default is the size that the data set had, from the manifest."""
    data = manifest.get("data", {})
    sizes = {f"data.{split}_size": data[split] for split in ("train", "val", "test") if split in data}
    unset = {name for name, value in _leaves(manifest.get("config", {})) if value is None}
    shown = {name: f"{sizes[name]} (default)" if name in sizes else "default" for name in unset}
    return [(name, shown.get(name, value)) for name, value in settings(manifest.get("config", {}))]


def phases(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the wall time of each phase, of all members and rounds, in the order of a job, and the total."""
    found = [row for row in rows if row["name"] == "seconds"]
    last = {tuple((key, row[key]) for key in row if key not in ("value", "step")): row for row in found}
    seconds = {phase: 0.0 for phase in dict.fromkeys(row["phase"] for row in found)}
    for row in last.values():
        seconds[row["phase"]] += row["value"]
    order = [name for name in ("prepare", "compile", "train", "fit", "evaluate") if name in seconds]
    total = {"total": sum(seconds.values())} if len(seconds) > 1 else {}
    named = [*order, *(name for name in seconds if name not in order)]
    return [(name, f"{value:.1f} s") for name, value in ({n: seconds[n] for n in named} | total).items()]
