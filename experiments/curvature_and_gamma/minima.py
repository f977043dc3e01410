"""The test for an inner minimum of ECE over the trace: by seed of one network, and over all networks at once."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments import numbers
from experiments.numbers import NOT, RESAMPLES, SHOWS, UNKNOWN, UNTOLD, Interval, has_log, interval


class Minimum(NamedTuple):
    """ECE = a + b u + c u^2 over u = log trace, scaled to 0..1; c and the vertex -b / 2c.

    Where a trace is not above 0, u is the trace itself.
    """

    curvature: Interval  # c, in ECE
    vertex: Interval  # of u, where c > 0
    inside: int  # seeds, or networks, whose least ECE is at neither end of the trace
    groups: int  # of how many
    verdict: str
    share: float = float("nan")  # of resamples with c > 0 and a vertex within 0..1


def inner_minimum(runs, trace: str) -> Minimum:
    """Whether ECE has a minimum inside the range of the trace, by a parabola for each seed of a network.

    It shows where the interval of c lies above 0 and that of the vertex within 0..1, and the least ECE lies inside for
    most seeds: a rise that grows steeper has such a parabola too. It does not where the interval of c lies below 0 or
    that of the vertex outside; else it is undecided.
    """
    seeds = [group for group in points(runs, trace, has_log(runs, trace)) if len(group) > 3]
    fits = [fit([group], within=False) for group in seeds]
    curvature, vertex = interval([c for c, _ in fits]), interval([at for c, at in fits if c > 0])
    verdict = numbers.joined([numbers.verdict(curvature, falls=False), numbers.inside(vertex, 0, 1)])
    least = sum(map(least_inside, seeds))
    verdict = UNTOLD if verdict == SHOWS and 2 * least <= len(seeds) else verdict
    return Minimum(curvature, vertex, least, len(seeds), verdict)


def shared_minimum(runs: Mapping[str, pd.DataFrame], trace: str, *, within: bool) -> Minimum:
    """Whether ECE has a minimum inside the range of the trace, by one parabola over the runs of all networks.

    within: each network has its own constant, and u = log trace is scaled to 0..1 over its own range; else there is one
    constant and one range. It shows where 97.5% of the resamples or more have c > 0 and a vertex within 0..1, and the
    least mean ECE lies inside for most groups; it does not where 2.5% or less have; else it is undecided. Resamples
    draw the seeds of each network anew, all gammas of a seed together; the networks stay.

    Source: Lind & Mehlum, Oxford Bulletin of Economics and Statistics 72, 2010: a U needs a fall at the low end and a
    rise at the high one.
    """
    logs = all(has_log(group, trace) for group in runs.values())
    full = [points(group, trace, has_log(group, trace) if within else logs) for group in runs.values()]
    full = [seeds for seeds in full if len(seeds) > 1]
    if len(full) < 2:
        return Minimum(UNKNOWN, UNKNOWN, 0, len(full), UNTOLD)
    means = [seeds.mean(0) for seeds in full]
    least = [least_inside(group) for group in (means if within else [np.concatenate(means)])]
    rng = np.random.default_rng(0)
    drawn = np.empty((RESAMPLES, 2))
    for place in range(RESAMPLES):
        groups = [seeds[rng.integers(0, len(seeds), len(seeds))].reshape(-1, 2) for seeds in full]
        drawn[place] = fit(groups, within=within)
    share = float(np.mean((drawn[:, 0] > 0) & (drawn[:, 1] > 0) & (drawn[:, 1] < 1)))
    verdict = NOT if share <= 0.025 else SHOWS if share >= 0.975 and 2 * sum(least) > len(least) else UNTOLD
    whole = fit([seeds.reshape(-1, 2) for seeds in full], within=within)
    ends = np.quantile(drawn, [0.025, 0.975], axis=0)
    if not (drawn[:, 0] > 0).all():  # some resamples have no minimum
        ends[:, 1] = -np.inf, np.inf
    curvature, vertex = (Interval(*map(float, three)) for three in np.vstack([whole, ends]).T)
    return Minimum(curvature, vertex, sum(least), len(least), verdict, share)


def points(runs, trace: str, log: bool) -> np.ndarray:
    """[seeds, gammas, 2]: u and ECE of the seeds that have all gammas."""
    tables = [runs.pivot(index="seed", columns="gamma", values=name) for name in (trace, "ece")]
    values = np.stack(tables, axis=-1)
    values = values[np.isfinite(values).all((1, 2))]
    values[..., 0] = np.log(values[..., 0]) if log else values[..., 0]
    return values


def fit(groups: list[np.ndarray], *, within: bool) -> tuple[float, float]:
    """The pair c, -b / 2c of ECE = a + b u + c u^2, groups of [points, 2] with one a and one range each or together."""
    tables = []
    for group in groups if within else [np.concatenate(groups)]:
        u = (group[:, 0] - group[:, 0].min()) / np.ptp(group[:, 0])
        table = np.column_stack([u * u, u, group[:, 1]])
        tables.append(table - table.mean(0))  # which takes the constant out
    table = np.concatenate(tables)
    c, b = np.linalg.lstsq(table[:, :2], table[:, 2])[0]
    return float(c), float(-b / (2 * c))


def least_inside(group: np.ndarray) -> bool:
    """Whether the least ECE of [points, 2] is at neither end of u."""
    at = group[group[:, 1].argmin(), 0]
    return bool(group[:, 0].min() < at < group[:, 0].max())
