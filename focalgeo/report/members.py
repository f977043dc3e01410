"""A sweep's rows by member: which axes it has, a quantity at each value, and its mean over seeds with an interval."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scipy.special import stdtrit

from focalgeo.report.formats import plain
from focalgeo.report.selection import Row, matching, setting

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


class Mean(NamedTuple):
    """The mean over n seeds and its 95% interval by Student's t, None for one seed."""

    value: float
    low: float | None
    high: float | None
    n: int


def is_sweep(manifest: Mapping[str, Any]) -> bool:
    """Whether the workdir holds a sweep, or several runs laid over each other."""
    return bool(_axes(manifest))


def _axes(manifest: Mapping[str, Any]) -> dict[str, list]:
    swept = setting(manifest, "sweep") or {}
    axes = {name: list(swept[name]) for name in AXIS_TITLES if isinstance(swept.get(name), list) and swept[name]}
    return ({"run": manifest["runs"]} if len(manifest.get("runs", [])) > 1 else {}) | axes


def sweep_of(manifest: Mapping[str, Any], rows: Sequence[Row]) -> Sweep:
    """The sweep of a manifest, with the seeds that its rows have."""
    axes = _axes(manifest)
    seeds = sorted({row["seed"] for row in rows if "seed" in row})
    moving = [name for name in axes if name not in ("seed", "run")] or [name for name in axes if name != "seed"]
    axis = moving[0] if moving else "seed"
    others = [name for name in axes if name not in (axis, "seed")]
    lines = {tuple(row[name] for name in others) for row in rows if set(others) <= row.keys()}
    values = axes[axis] if axis == "run" else sorted(axes[axis])
    return Sweep(axis, values, others, sorted(lines), seeds)


def value_text(sweep: Sweep, value: Any) -> str:
    """A value of the axis as a tick or a heading has it."""
    return value if isinstance(value, str) else plain(value) if value else "0"


def axis_symbol(sweep: Sweep) -> str:
    """The axis in short: γ, λ."""
    return _SYMBOLS[sweep.axis]


def line_title(sweep: Sweep, line: tuple) -> str:
    """What tells a line from the others: "λ = 0.01"; "" where there is one."""
    parts = zip(sweep.others, line, strict=True)
    return ", ".join(value if name == "run" else f"{_SYMBOLS[name]} = {plain(value)}" for name, value in parts)


def by_seed(rows: Sequence[Row], sweep: Sweep, line: tuple, value: Any, where: Mapping[str, Any]) -> dict[int, float]:
    """Seed -> the quantity that `where` names, of the members at one value of the axis; the last row counts."""
    place = {sweep.axis: value, **dict(zip(sweep.others, line, strict=True))}
    return {row["seed"]: row["value"] for row in matching(rows, {"epoch": None, **where, **place}) if "seed" in row}


def mean(values: Sequence[float]) -> Mean | None:
    """The mean of a quantity over seeds; None of nothing.

    The interval is mean ± t s / sqrt(n): that of a bootstrap over seeds, whose standard error is s / sqrt(n) times
    sqrt((n - 1) / n), made wide enough for few seeds.
    """
    n = len(values)
    if n < 2:
        return Mean(values[0], None, None, 1) if n else None
    centre = statistics.fmean(values)
    half = float(stdtrit(n - 1, 0.975)) * statistics.stdev(values) / math.sqrt(n)
    return Mean(centre, centre - half, centre + half, n)


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Mean | None:
    """The mean over the seeds that both have of first less second: members of one seed share weights and batches."""
    return mean([first[seed] - second[seed] for seed in first if seed in second])
