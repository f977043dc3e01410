"""Slopes over gamma and changes from gamma 0, by seed with intervals over seeds."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.intervals import interval, paired
from experiments.writing import Interval

Runs = Sequence[dict[str, Any]]


def by_seed(runs: Runs, gamma: float, name: str) -> dict[int, float]:
    """Seed -> number of the runs at a gamma that have it."""
    return {run["seed"]: run[name] for run in runs if run["gamma"] == gamma and name in run}


def gammas_of(runs: Runs) -> list[float]:
    """The gammas that have runs, ascending."""
    return sorted({run["gamma"] for run in runs})


def has_log(runs: Runs, name: str) -> bool:
    """Whether the number is above 0 in all runs that have it. A trace may be below 0 away from a minimum."""
    return all(run[name] > 0 for run in runs if name in run)


def slope(runs: Runs, name: str) -> Interval:
    """The least-squares slope over gamma, by seed: of the logarithm where all runs have one, else of the number.

    Of a logarithm -0.1 is a fall of 10% for each unit of gamma.
    """
    measure = np.log if has_log(runs, name) else np.asarray
    slopes = []
    for seed in sorted({run["seed"] for run in runs}):
        own = [(run["gamma"], run[name]) for run in runs if run["seed"] == seed and name in run]
        if len(own) > 2:
            gammas, values = np.array(own).T
            slopes.append(float(np.polyfit(gammas, measure(values), 1)[0]))
    return interval(slopes)


def change(runs: Runs, gamma: float, name: str) -> Interval:
    """The change of a number from gamma 0 to `gamma`, paired by seed.

    As a share, exp of the mean of log ratios, less 1, where all runs have a logarithm; else the mean of differences.
    """
    one, none = (by_seed(runs, at, name) for at in (gamma, 0.0))
    if not has_log(runs, name):
        return paired(one, none)
    one, none = ({seed: float(np.log(value)) for seed, value in own.items()} for own in (one, none))
    return Interval(*(float(np.expm1(end)) for end in paired(one, none)))
