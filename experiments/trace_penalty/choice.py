"""The learning rate chosen on val for each weight of the penalty, and what a number does along the weights."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.curvature_rows import CHANCE
from experiments.intervals import clipped, interval, is_known
from experiments.trace_penalty.weights import CRITERION, TASKS
from experiments.writing import Interval

Run = dict[str, Any]
Runs = Sequence[Run]
Cells = dict[float, dict[int, Run]]  # penalty -> seed -> run


def by_task(runs: Runs) -> dict[str, Runs]:
    """The runs of each task, in the order of TASKS."""
    found = {task: [run for run in runs if run["task"] == task] for task in TASKS}
    return {task: own for task, own in found.items() if own}


def learned(run: Run) -> bool:
    """Whether the run came to its end and is not at chance: of one that is, ECE and trace say nothing."""
    return run["accuracy"] is not None and run["accuracy"] >= CHANCE


def criterion(runs: Runs, form: str, penalty: float) -> dict[float, float]:
    """Rate -> mean NLL on val over the seeds that every rate has; infinite where a run stopped."""
    cell = [run for run in runs if (run["form"], run["penalty"]) == (form if penalty else "none", penalty)]
    by_rate: dict[float, dict[int, float]] = {}
    for run in sorted(cell, key=lambda run: run["rate"]):
        by_rate.setdefault(run["rate"], {})[run["seed"]] = np.inf if run[CRITERION] is None else run[CRITERION]
    shared = set.intersection(*map(set, by_rate.values())) if by_rate else set()
    return {rate: float(np.mean([own[seed] for seed in shared])) for rate, own in by_rate.items()} if shared else {}


def chosen_rate(runs: Runs, form: str, penalty: float) -> float | None:
    """The learning rate of least mean NLL on val; None where no rate has all its runs."""
    means = {rate: mean for rate, mean in criterion(runs, form, penalty).items() if np.isfinite(mean)}
    return min(means, key=means.__getitem__) if means else None


def at_chosen(runs: Runs, form: str) -> Cells:
    """The runs at the rate chosen for each penalty; penalty 0 is the same for all forms."""
    penalties = sorted({run["penalty"] for run in runs})
    cells = {penalty: _at(runs, form, penalty, chosen_rate(runs, form, penalty)) for penalty in penalties}
    return {penalty: cell for penalty, cell in cells.items() if cell}


def at_rate(runs: Runs, form: str, rate: float) -> Cells:
    """The runs of each penalty at the same rate."""
    return {penalty: _at(runs, form, penalty, rate) for penalty in sorted({run["penalty"] for run in runs})}


def _at(runs: Runs, form: str, penalty: float, rate: float | None) -> dict[int, Run]:
    key = (form if penalty else "none", penalty, rate)
    return {run["seed"]: run for run in runs if (run["form"], run["penalty"], run["rate"]) == key}


def column(cell: dict[int, Run], name: str) -> dict[int, float]:
    """Seed -> number, of the runs that learned."""
    return {seed: run[name] for seed, run in cell.items() if learned(run)}


def complete(cells: Cells) -> list[int]:
    """The seeds that learned with every penalty."""
    return sorted(set.intersection(*(set(column(cell, "accuracy")) for cell in cells.values()))) if cells else []


def slope(cells: Cells, name: str) -> Interval:
    """Rank correlation of the number with the penalty, by seed, over complete seeds: -1 falls throughout.

    Few ranks of few seeds are often all alike, and the t interval then has no width: where a permutation test does not
    reject, at 5%, that each seed's numbers stand in random order, the interval is extended to 0.
    """
    found = []
    for seed in complete(cells) if len(cells) > 2 else []:
        ranks = np.argsort(np.argsort([cell[seed][name] for cell in cells.values()]))
        found.append(float(np.corrcoef(np.arange(len(ranks)), ranks)[0, 1]))
    along = clipped(interval(found), -1.0, 1.0)
    if not is_known(along) or _by_chance(abs(along.mean), len(cells), len(found)) < 0.05:
        return along
    return along._replace(low=min(along.low, 0.0), high=max(along.high, 0.0))


@functools.cache
def _by_chance(mean: float, count: int, seeds: int, draws: int = 20_000) -> float:
    """How often the mean rank correlation of so many random orders is at least that far from 0."""
    rng = np.random.default_rng(0)
    orders = rng.permuted(np.broadcast_to(np.arange(count), (draws, seeds, count)), axis=-1)
    centred = np.arange(count) - (count - 1) / 2
    means = (orders @ centred).mean(-1) / (centred @ centred)
    return float((np.abs(means) >= mean - 1e-9).mean())
