"""Curvature and calibration of one run of a sweep, by name, from its rows."""

from collections.abc import Iterator, Sequence
from typing import Any

from focalgeo.rows import AttributionPart, Eigenvalue, Fit, Metric, Scalar, Trace, select

CHANCE = 0.2  # accuracy below which a run of ten classes has learned nothing
PARTS = ("gauss_newton", "residual", "rank_one", "scale_only")


def train_accuracy(rows: list) -> float:
    """The accuracy of the training steps of the last rows, those that end in the last epoch.

    A row is of config.log_every steps, so that of few steps an epoch more than one epoch counts.
    """
    steps = list(select(rows, Scalar, name="accuracy", split="train"))
    last = max(row.epoch for row in steps) - 1
    own = [row for row in steps if row.epoch > last + 1e-6]
    return sum(row.value * row.n for row in own) / sum(row.n for row in own)


def numbers(rows: list) -> Iterator[tuple[str, float]]:
    """Name -> number after training: "trace CE val", "trace own train", "ece", "ece after T", "temperature", ...

    CE is the Hessian of cross-entropy, own that of the trained loss where it is another.
    """
    rows = [row for row in rows if row.epoch is None]
    for row in select(rows, Metric, split="test", method="uncalibrated"):
        yield row.name, row.value
    for row in select(rows, Metric, split="test", method="temperature_scaling", criterion="nll"):
        yield f"{row.name} after T", row.value
    for row in select(rows, Fit, method="temperature_scaling", criterion="nll"):
        yield row.name, row.value
    for kind in (Eigenvalue, Trace):
        for row in select(rows, kind):
            yield f"{row.name} {_surface(row)} {row.split}", row.value
    for row in select(rows, AttributionPart, of="trace"):
        if row.part in PARTS:
            yield f"trace, {row.part} {_surface(row)} {row.split}", row.value


def _surface(row: Eigenvalue | Trace | AttributionPart) -> str:
    return "CE" if row.loss == "cross_entropy" else "own"


def with_own(run: dict[str, Any]) -> dict[str, Any]:
    """The run with numbers of the trained loss also where that is cross-entropy, with a penalty or without.

    A penalty is no part of "own": MMCE and both trace penalties have cross-entropy's numbers there.
    """
    return {name.replace(" CE ", " own "): number for name, number in run.items() if " CE " in name} | run


def with_sums(run: dict[str, Any]) -> dict[str, Any]:
    """The run with each trace by other random vectors too: "trace by parts CE val", Gauss-Newton and residual."""
    parts = {name.partition(", gauss_newton ")[2]: run[name] for name in run if ", gauss_newton " in name}
    return run | {f"trace by parts {where}": own + run[f"trace, residual {where}"] for where, own in parts.items()}


def trained(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs that have learned something: curvature and calibration of the others say nothing of a loss."""
    return [run for run in runs if run["accuracy"] >= CHANCE]
