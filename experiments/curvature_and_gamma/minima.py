"""The test for an inner minimum of ECE over the trace: by seed of one network, and over all networks at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.curvature_and_gamma.statistics import Runs, gammas_of, has_log
from experiments.intervals import NOT, SHOWS, UNKNOWN, UNTOLD, interval, is_known
from experiments.writing import Interval

RESAMPLES = 2000


class InnerMinimum(NamedTuple):
    """ECE = a + b u + c u^2 over u = log trace, scaled to 0..1 over the runs of a seed; c and the vertex over seeds.

    Where a run's trace is not above 0, u is the trace itself, for all runs.
    """

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
    measure = _measure([runs], trace)
    seeds = sorted({run["seed"] for run in runs})
    fits = [found for seed in seeds if (found := _by_seed(runs, seed, trace, error, measure))]
    curvature = interval([c for c, _, _ in fits])
    vertex = interval([at for c, at, _ in fits if c > 0])
    return InnerMinimum(curvature, vertex, sum(inside for *_, inside in fits), len(fits), _verdict(curvature, vertex))


def _measure(runs: Sequence[Runs], trace: str) -> Callable[[Any], Any]:
    return np.log if all(has_log(own, trace) for own in runs) else np.asarray


def _by_seed(
    runs: Runs, seed: int, trace: str, error: str, measure: Callable[[Any], Any]
) -> tuple[float, float, bool] | None:
    own = sorted((run[trace], run[error]) for run in runs if run["seed"] == seed and trace in run)
    if len(own) < 4:
        return None
    traces, errors = np.array(own).T
    c, b, _ = np.polyfit(_scaled(measure(traces)), errors, 2)
    return float(c), float(-b / (2 * c)), 0 < int(errors.argmin()) < len(own) - 1


def _scaled(values: np.ndarray) -> np.ndarray:
    return (values - values.min()) / max(float(np.ptp(values)), 1e-12)


def _verdict(curvature: Interval, vertex: Interval) -> str:
    if not is_known(curvature):
        return UNTOLD
    if curvature.high < 0 or vertex.high < 0 or vertex.low > 1:
        return NOT
    return SHOWS if curvature.low > 0 and vertex.low > 0 and vertex.high < 1 else UNTOLD


class SharedMinimum(NamedTuple):
    """One parabola for the runs of all networks; c and vertex with intervals over resampled seeds of each network."""

    curvature: Interval  # c, in ECE
    vertex: Interval  # of u; without bounds where some resamples have no minimum
    share: float  # of resamples with c > 0 and a vertex within 0..1
    inside: int  # networks (or 1, of all together) whose least mean ECE by gamma is at neither end of the mean traces
    groups: int  # networks, or 1
    verdict: str


def shared_minimum(runs: Mapping[str, Runs], trace: str, *, within: bool, error: str = "ece") -> SharedMinimum:
    """Whether ECE has a minimum inside the range of the trace, by one parabola over the runs of all networks.

    within: each network has its own constant, and u = log trace is scaled to 0..1 over its own range; else there is one
    constant and one range. Where a trace is not above 0, u is the trace itself: of that network, or of all. It shows
    where 97.5% of the resamples or more have c > 0 and a vertex within 0..1, and the least mean ECE lies inside for
    most groups; it does not where 2.5% or less have; else it cannot be told. Resamples draw the seeds of each network
    anew, all gammas of a seed together; the networks stay.

    Source: Lind & Mehlum, Oxford Bulletin of Economics and Statistics 72, 2010: a U needs a fall at the low end and a
    rise at the high one.
    """
    full = {
        name: _points(own, trace, error, _measure([own] if within else list(runs.values()), trace))
        for name, own in runs.items()
    }
    full = {name: points for name, points in full.items() if points}
    least = [_least_inside(points) for points in _groups(full, within=within)]
    if len(full) < 2 or min(len(points) for points in full.values()) < 2:
        return SharedMinimum(UNKNOWN, UNKNOWN, float("nan"), sum(least), len(least), UNTOLD)
    generator = np.random.default_rng(0)
    drawn = np.array([_fit(_resampled(full, generator), within=within) for _ in range(RESAMPLES)])
    share = float(np.mean((drawn[:, 0] > 0) & (drawn[:, 1] > 0) & (drawn[:, 1] < 1)))
    verdict = NOT if share <= 0.025 else SHOWS if share >= 0.975 and 2 * sum(least) > len(least) else UNTOLD
    curvature, vertex = (
        Interval(value, *np.quantile(column, [0.025, 0.975]).tolist())
        for value, column in zip(_fit(full, within=within), drawn.T, strict=True)
    )
    vertex = vertex if (drawn[:, 0] > 0).all() else Interval(vertex.mean, float("-inf"), float("inf"))
    return SharedMinimum(curvature, vertex, share, sum(least), len(least), verdict)


Points = dict[int, np.ndarray]  # seed -> [gammas, 2], u and ECE


def _points(runs: Runs, trace: str, error: str, measure: Callable[[Any], Any]) -> Points:
    gammas = gammas_of(runs)
    found = {}
    for seed in sorted({run["seed"] for run in runs}):
        own = {run["gamma"]: run for run in runs if run["seed"] == seed and trace in run}
        if set(own) == set(gammas):
            found[seed] = np.array([[measure(own[gamma][trace]), own[gamma][error]] for gamma in gammas])
    return found


def _resampled(full: Mapping[str, Points], generator: np.random.Generator) -> dict[str, Points]:
    return {
        name: dict(enumerate([list(points.values())[i] for i in generator.integers(0, len(points), len(points))]))
        for name, points in full.items()
    }


def _fit(full: Mapping[str, Points], *, within: bool) -> tuple[float, float]:
    """The pair c, -b / 2c of ECE = a + b u + c u^2, with one a for each network where `within`."""
    stacked = [np.concatenate(list(points.values())) for points in full.values()]
    group = np.repeat(np.arange(len(stacked)), [len(points) for points in stacked])
    values, errors = np.concatenate(stacked).T
    u = np.concatenate([_scaled(points[:, 0]) for points in stacked]) if within else _scaled(values)
    constants = np.eye(len(stacked))[group] if within else np.ones((len(u), 1))
    c, b, *_ = np.linalg.lstsq(np.column_stack([u * u, u, constants]), errors)[0]
    return float(c), float(-b / (2 * c))


def _groups(full: Mapping[str, Points], *, within: bool) -> list[np.ndarray]:
    """Mean u and ECE by gamma: of each network, or of all networks in one."""
    means = [np.mean(list(points.values()), axis=0) for points in full.values()]
    return means if within or not means else [np.concatenate(means)]


def _least_inside(points: np.ndarray) -> bool:
    at = points[points[:, 1].argmin(), 0]
    return bool(points[:, 0].min() < at < points[:, 0].max())
