"""The axes of a sweep: a quantity at each value, and its mean over seeds with an interval."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from focalgeo.report.selection import Manifest, setting
from focalgeo.report.style import plain
from focalgeo.rows import Row, select
from focalgeo.types import Estimate

AXIS_TITLES = {
    "run": "run",
    "gamma": "γ of the training loss",
    "trace_penalty": "weight λ of the trace penalty",
    "learning_rate": "learning rate",
    "seed": "seed",
}
_SYMBOLS = {"gamma": "γ", "trace_penalty": "λ", "learning_rate": "learning rate", "seed": "seed", "run": "run"}


class Sweep(NamedTuple):
    """The axis along which figures run, its values, and the combinations of the other axes but the seed."""

    axis: str
    values: list[Any]
    others: list[str]
    lines: list[tuple]
    seeds: list[int]


class Quantity(NamedTuple):
    """A quantity as the rows that hold it: their kind, and the values of their fields."""

    kind: type
    fields: Mapping[str, Any]


def is_sweep(manifest: Manifest) -> bool:
    """Whether the workdir holds a sweep, or several runs side by side."""
    return bool(_axes(manifest))


def _axes(manifest: Manifest) -> dict[str, list]:
    swept = {name: setting(manifest, f"sweep.{name}") for name in AXIS_TITLES}
    axes = {name: list(dict.fromkeys(values)) for name, values in swept.items() if values}
    runs = list(dict.fromkeys(manifest.get("runs", ())))
    return ({"run": runs} if len(runs) > 1 else {}) | axes


def sweep_of(manifest: Manifest, rows: Sequence[Row]) -> Sweep:
    """Return the sweep of a manifest, with the seeds that its rows have."""
    axes = _axes(manifest)
    moving = [name for name in axes if name not in ("seed", "run")] or [name for name in axes if name != "seed"]
    axis = moving[0] if moving else "seed"
    others = [name for name in axes if name not in (axis, "seed")]
    lines = {tuple(getattr(each, name) for name in others) for each in rows}
    values = axes[axis] if axis == "run" else sorted(axes[axis])
    seeds = sorted({each.seed for each in rows if each.seed is not None})
    return Sweep(axis, values, others, sorted(line for line in lines if None not in line), seeds)


def value_text(sweep: Sweep, value: Any) -> str:
    """Return a value of the axis as the text of a tick or a heading."""
    return value if isinstance(value, str) else plain(value) if value else "0"


def axis_symbol(sweep: Sweep) -> str:
    """Return the axis in short: γ, λ."""
    return _SYMBOLS[sweep.axis]


def line_title(sweep: Sweep, line: tuple) -> str:
    """Return a line's values on the other axes, by which lines differ: "λ = 0.01"; "" where there is one line."""
    parts = zip(sweep.others, line, strict=True)
    return ", ".join(value if name == "run" else f"{_SYMBOLS[name]} = {plain(value)}" for name, value in parts)


def axis_values(row: Row) -> tuple[tuple[str, Any], ...]:
    """Return (name, value) of each axis on which a row has a value; together they name its member."""
    values = ((name, getattr(row, name)) for name in AXIS_TITLES)
    return tuple((name, value) for name, value in values if value is not None)


def by_member(rows: Sequence[Row], sweep: Sweep, quantity: Quantity) -> dict[tuple[tuple, Any], dict[int, float]]:
    """Return (line, value) -> seed -> the quantity after training, of all members at once; the last row counts."""
    found: dict[tuple[tuple, Any], dict[int, float]] = {}
    for row in select(rows, quantity.kind, **{"epoch": None, **quantity.fields}):
        if row.seed is not None:
            found.setdefault(point_of(row, sweep), {})[row.seed] = row.value
    return found


def point_of(row: Row, sweep: Sweep) -> tuple[tuple, Any]:
    """Return the line of a row's member and its value on the axis."""
    return tuple(getattr(row, name) for name in sweep.others), getattr(row, sweep.axis)


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
