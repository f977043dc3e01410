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


def slope(runs: Runs, name: str) -> Interval:
    """The least-squares slope of log(number) over gamma, by seed; -0.1 is a fall of 10% for each unit of gamma.

    A seed with a number that is not above 0 has no logarithm and is left out.
    """
    slopes = []
    for seed in sorted({run["seed"] for run in runs}):
        own = [(run["gamma"], run[name]) for run in runs if run["seed"] == seed and name in run]
        if len(own) > 2 and min(value for _, value in own) > 0:
            gammas, values = np.array(own).T
            slopes.append(float(np.polyfit(gammas, np.log(values), 1)[0]))
    return interval(slopes)


def change(runs: Runs, gamma: float, name: str) -> Interval:
    """The change of a number from gamma 0 to `gamma` as a share, paired by seed: the mean of log ratios, less 1 as exp.

    A seed with a number that is not above 0 is left out.
    """
    one, none = (
        {seed: float(np.log(value)) for seed, value in by_seed(runs, at, name).items() if value > 0}
        for at in (gamma, 0.0)
    )
    return Interval(*(float(np.expm1(end)) for end in paired(one, none)))
