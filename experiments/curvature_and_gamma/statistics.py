"""Slopes over gamma and the test for an inner minimum, both by seed with intervals over seeds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.intervals import NOT, SHOWS, UNTOLD, interval
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


class InnerMinimum(NamedTuple):
    """ECE = a + b u + c u^2 over u = log trace, scaled to 0..1 over the runs of a seed; c and the vertex over seeds."""

    curvature: Interval  # c, in ECE
    vertex: Interval  # of u where c > 0
    inside: int  # seeds whose least ECE is at neither end of the trace
    seeds: int
    verdict: str


def inner_minimum(runs: Runs, trace: str = "trace CE val", error: str = "ece") -> InnerMinimum:
    """Whether ECE has a minimum inside the range of the trace, by a parabola for each seed.

    It shows where the interval of c lies above 0 and that of the vertex within 0..1; it does not where that of c lies
    below 0 or that of the vertex outside; else it cannot be told.
    """
    fits = [found for seed in sorted({run["seed"] for run in runs}) if (found := _parabola(runs, seed, trace, error))]
    curvature = interval([c for c, _, _ in fits])
    vertex = interval([at for c, at, _ in fits if c > 0])
    return InnerMinimum(curvature, vertex, sum(inside for *_, inside in fits), len(fits), _verdict(curvature, vertex))


def _parabola(runs: Runs, seed: int, trace: str, error: str) -> tuple[float, float, bool] | None:
    own = sorted((run[trace], run[error]) for run in runs if run["seed"] == seed and run.get(trace, 0) > 0)
    if len(own) < 4:
        return None
    logs, errors = np.log([value for value, _ in own]), np.array([value for _, value in own])
    scaled = (logs - logs[0]) / (logs[-1] - logs[0])
    c, b, _ = np.polyfit(scaled, errors, 2)
    return float(c), float(-b / (2 * c)), 0 < int(errors.argmin()) < len(own) - 1


def _verdict(curvature: Interval, vertex: Interval) -> str:
    if not np.isfinite(curvature.low + curvature.high):
        return UNTOLD
    if curvature.high < 0 or vertex.high < 0 or vertex.low > 1:
        return NOT
    return SHOWS if curvature.low > 0 and vertex.low > 0 and vertex.high < 1 else UNTOLD
