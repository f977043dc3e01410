"""Calibration rows: metrics, differences and reliability of log-probabilities and labels, each number with its error.

No number depends on the method that the log-probabilities are from; only differences in accuracy are left out where
neither method can change the class. All metrics of all methods, and all differences between
methods, come from the same resamples of the examples.
"""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from focalgeo import calibration
from focalgeo.calibration.binning import weights
from focalgeo.calibration.intervals import compared, estimated, resampled
from focalgeo.calibration.methods import Calibrated, Fitted
from focalgeo.calibration.metrics import METRICS, MetricEntry
from focalgeo.rows import LEAST_EXAMPLES, Difference, Fit, Metric, ReliabilityBin, Row, finite
from focalgeo.types import Array, Estimate, PyTree

CLASS1_METRICS = {"class1_ece": MetricEntry(calibration.binary_ece, "Class-1 ECE", binned=True, largest=1.0)}
GROUP_METRICS = ("ece", "accuracy")

_MOST_NUMBERS = 2**25  # log-probabilities that one program holds: what is beyond that is measured by another call of it


class Sample(NamedTuple):
    """Examples of one split with their log-probabilities by one method or more, and how they are measured."""

    split: str
    labels: Array  # int [examples]
    calibrated: Sequence[Calibrated]  # simplest method first; log_probs [examples, classes] each
    key: Array  # PRNG key of the resamples
    num_bins: int  # of binned metrics and of reliability bins
    num_resamples: int  # of the bootstrap, 2 or more


class Measured(NamedTuple):
    """Metrics of several methods on the same examples and on the same resamples of them, in host memory."""

    values: dict[str, Array]  # by name, [methods], or [methods, groups]
    draws: dict[str, Array]  # [methods, resamples], or [methods, resamples, groups]
    bins: calibration.Reliability | None  # [methods, bins]


def calibration_rows(
    sample: Sample, pairs: Sequence[tuple[int, int]] = (), *, measured: Measured | None = None
) -> list[Row]:
    """Rows of every metric of METRICS with its 95% interval, and of every reliability bin that holds an example.

    The interval is the bootstrap's, or Wilson's for a share, cut where the metric's range ends. `pairs`, such as
    `comparisons` names, have rows of their differences as well: see `difference_rows`. One program is compiled for each
    shape of the log-probabilities and number of methods. `measured`: of `measure_members`, else it is measured here.

    Raises:
        RunError: a number is not finite.
    """
    if measured is None:
        ((_, measured),) = measure_members([sample])
    rows = _metric_rows(sample, measured, METRICS) + _all_reliability_rows(sample, measured, "reliability")
    return rows + _difference_rows(sample, measured, pairs)


def measure_members(samples: Iterable[Sample]) -> Iterator[tuple[Sample, Measured]]:
    """Each sample with what `calibration_rows` says of it; members that follow one another are measured together.

    Those that have the same methods are measured in one program, as many as memory holds. On the CPU each has a call of
    its own, on as many threads as there are cores: one program of 35 members, 6 methods and 359 x 10 numbers takes 1.2
    to 3 times as long there as 35 calls, and so a member's numbers are to the bit those that it has alone.

    Args:
        samples: Of the same examples, one for each member, with its own log-probabilities and key. They are taken as
            they are measured, so that an iterator need not hold all log-probabilities at once.
    """
    waiting: list[Sample] = []
    for sample in samples:
        if waiting and not (_alike(waiting[0], sample) and len(waiting) < _members_at_once(sample)):
            yield from _measured_together(waiting)
            waiting = []
        waiting.append(sample)
    if waiting:
        yield from _measured_together(waiting)


def _alike(sample: Sample, other: Sample) -> bool:
    first, second = ([(each.method.name, each.criterion) for each in own.calibrated] for own in (sample, other))
    return first == second


def _members_at_once(sample: Sample) -> int:
    most = _MOST_NUMBERS // max(1, len(sample.calibrated) * np.size(sample.calibrated[0].log_probs))
    return min(most, os.cpu_count() or 1) if _on_cpu() else most


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def _measured_together(samples: Sequence[Sample]) -> Iterator[tuple[Sample, Measured]]:
    statistic = _every_metric(tuple(METRICS.items()), samples[0].num_bins)
    if len(samples) == 1 or not _on_cpu():
        return zip(samples, measure(samples, statistic), strict=True)
    with ThreadPoolExecutor(len(samples)) as pool:
        return zip(samples, list(pool.map(lambda sample: measure([sample], statistic)[0], samples)), strict=True)


def difference_rows(
    sample: Sample, pairs: Sequence[tuple[int, int]], *, metrics: Sequence[str] = ("accuracy", "ece", "nll")
) -> list[Difference]:
    """Rows of the metrics with one method less those with another, with paired 95% intervals and p-values.

    Both methods of a pair are measured on the same resamples, so the interval is that of the difference itself; whether
    two intervals of single methods overlap says little about it. Accuracy has a row only where one of the two may
    change the predicted class.

    Args:
        sample: The examples and methods.
        pairs: (method, against), positions in sample.calibrated.
        metrics: Names in METRICS.
    """
    chosen = tuple((name, METRICS[name]) for name in metrics)
    (measured,) = measure([sample], _every_metric(chosen, sample.num_bins))
    return _difference_rows(sample, measured, pairs)


def class1_rows(sample: Sample) -> list[Row]:
    """Rows of two-class problems: ECE and reliability bins of the probability of class 1, whatever is predicted."""
    (measured,) = measure([sample], _class1(sample.num_bins))
    return _metric_rows(sample, measured, CLASS1_METRICS) + _all_reliability_rows(
        sample, measured, "class1_reliability"
    )


def group_rows(sample: Sample, group: np.ndarray) -> list[Metric]:
    """Rows "group_ece" and "group_accuracy" of every group of LEAST_EXAMPLES examples or more; n is the group's.

    group [examples] names each example's group. All examples are resampled together, so that a group's size varies.
    """
    sizes = dict(zip(*np.unique(group, return_counts=True), strict=True))
    names = [name for name, size in sizes.items() if size >= LEAST_EXAMPLES]
    if not names:
        return []
    inside = np.stack([group == name for name in names]).astype(np.float32)
    (measured,) = measure([sample], _Statistic(_of_groups(inside, sample.num_bins), None))
    rows = []
    for number, name in enumerate(names):
        of_group = jax.tree.map(lambda leaf: leaf[..., number], measured)  # noqa: B023
        entries = {metric: METRICS[metric]._replace(share=False) for metric in GROUP_METRICS}
        for row in _metric_rows(sample, of_group, entries):
            rows.append(row._replace(name=f"group_{row.name}", group=str(name), n=int(sizes[name])))
    return rows


def fit_rows(fitted: Sequence[Fitted], *, n: int, split: str = "val") -> list[Fit]:
    """Rows of the fitted numbers of each method; n: the examples of the split on which they were fitted.

    A number's row is named as it is in the method's params, but "gamma", which is "calibration_gamma": a row's tag
    gamma is the training's.
    """
    rows = []
    for each in fitted:
        for name, value in each.params.items() if each.criterion else ():
            if np.ndim(value) == 0 and name != "converged":
                shown = "calibration_gamma" if name == "gamma" else name
                rows.append(finite(Fit(shown, float(value), n, split, each.method.name, each.criterion)))
    return rows


def reliability_rows(
    bins: calibration.Reliability,
    *,
    split: str,
    name: str = "reliability",
    method: str | None = None,
    criterion: str | None = None,
    total: int | None = None,
) -> list[ReliabilityBin]:
    """Rows of the bins that hold examples: accuracy with Wilson's 95% interval, and their share of `total` examples."""
    bins, (low, high) = jax.device_get((bins, _bin_intervals(bins)))
    rows = []
    for index in np.flatnonzero(bins.count):
        edges, count = (bins.lower[index], bins.upper[index]), bins.count[index]
        interval = bins.accuracy[index], low[index], high[index]
        share = None if total is None else count / total
        row = ReliabilityBin(
            name, *interval, int(index), *edges, bins.confidence[index], int(count), split, method, criterion, share
        )
        rows.append(finite(row))
    return rows


def comparisons(calibrated: Sequence[Calibrated], *, criterion: str | None = None) -> list[tuple[int, int]]:
    """Pairs (method, against) of positions in `calibrated`, which holds methods simplest first.

    Every fitted method against each earlier one that was fitted by the same criterion, and every method against the
    first for which nothing is fitted. With `criterion` also the `calibration.candidates` among each other.
    """
    plainest = next((index for index, each in enumerate(calibrated) if each.criterion is None), None)
    compete = [] if criterion is None else calibration.candidates(calibrated, criterion)
    pairs = []
    for later, each in enumerate(calibrated):
        for earlier, other in enumerate(calibrated):
            alike = each.criterion is not None and other.criterion == each.criterion
            compared = earlier < later and (alike or (later in compete and earlier in compete))
            if compared or (earlier == plainest and later != plainest):
                pairs.append((later, earlier))
    return pairs


class _Statistic(NamedTuple):
    metrics: Callable[..., dict[str, Array]]  # metrics(log_probs, labels, mask=None) -> scalars or [groups] by name
    bins: Callable[[Array, Array], calibration.Reliability] | None


@functools.lru_cache(maxsize=64)  # the same function object for the same arguments: jit compiles anew for each object
def _every_metric(entries: tuple[tuple[str, MetricEntry], ...], num_bins: int) -> _Statistic:
    metrics = partial(_metrics, entries=dict(entries), num_bins=num_bins)
    return _Statistic(metrics, lambda log_probs, labels: calibration.reliability(log_probs, labels, num_bins=num_bins))


@functools.lru_cache(maxsize=64)
def _class1(num_bins: int) -> _Statistic:
    metrics = partial(_metrics, entries=CLASS1_METRICS, num_bins=num_bins)
    return _Statistic(metrics, partial(calibration.binary_reliability, num_bins=num_bins))


def _of_groups(inside: np.ndarray, num_bins: int) -> Callable[..., dict[str, Array]]:
    """Metrics [groups] as one function, compiled once for all groups of any size: inside [groups, examples]."""
    entries = {name: METRICS[name] for name in GROUP_METRICS}

    def metrics(log_probs: Array, labels: Array, mask: Array | None = None) -> dict[str, Array]:
        weight = weights(mask, log_probs[:, 0])
        of_group = lambda chosen: _metrics(log_probs, labels, weight * chosen, entries=entries, num_bins=num_bins)  # noqa: E731
        return jax.lax.map(of_group, jnp.asarray(inside))

    return metrics


def _metrics(
    log_probs: Array, labels: Array, mask: Array | None = None, *, entries: Mapping[str, MetricEntry], num_bins: int
) -> dict[str, Array]:
    settings = {name: {"num_bins": num_bins} if entry.binned else {} for name, entry in entries.items()}
    return {name: entry.function(log_probs, labels, mask=mask, **settings[name]) for name, entry in entries.items()}


def measure(samples: Sequence[Sample], statistic: _Statistic) -> list[Measured]:
    """Measure samples of the same examples and methods in one program.

    In several calls of it, of fewer methods each, where the log-probabilities are many.
    """
    labels, num_resamples = samples[0].labels, samples[0].num_resamples
    log_probs = [[each.log_probs for each in sample.calibrated] for sample in samples]
    keys = jnp.stack([sample.key for sample in samples])
    at_once = max(1, _MOST_NUMBERS // max(1, len(samples) * np.size(log_probs[0][0])))
    parts = []
    for begin in range(0, len(log_probs[0]), at_once):
        part = jnp.stack([jnp.stack(own[begin : begin + at_once]) for own in log_probs])
        parts.append(_measured(statistic, part, labels, keys, num_resamples=num_resamples))
    found = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *jax.device_get(parts))
    return [jax.tree.map(lambda leaf: leaf[member], found) for member in range(len(samples))]  # noqa: B023


@partial(jax.jit, static_argnames=("statistic", "num_resamples"))
def _measured(
    statistic: _Statistic,
    log_probs: Float[Array, "members methods examples classes"],
    labels: Int[Array, " examples"],
    keys: Array,
    *,
    num_resamples: int,
) -> Measured:
    """Metrics, resamples and bins of all methods of some members on one split, leaves [members, methods, ...].

    Apart, each part would be compiled anew. The resamples do not depend on the method, so they are made once for all of
    a member's: of 6 methods on 10,000 x 10 with 1,000 resamples this takes 0.7 of the time of 6 programs, and the
    differences cost nothing more. keys: one for each member.
    """

    def of_method(key: Array, log_probs: Array) -> Measured:
        metrics = partial(statistic.metrics, log_probs, labels)
        draws = resampled(metrics, labels.shape[0], key, num_resamples)
        bins = None if statistic.bins is None else statistic.bins(log_probs, labels)
        return Measured(metrics(), draws, bins)

    of_member = jax.vmap(of_method, in_axes=(None, 0))
    return jax.vmap(of_member)(keys, log_probs)


@partial(jax.jit, static_argnames="num_examples")
def _estimates(values: PyTree, draws: PyTree, *, num_examples: int) -> dict[str, Estimate]:
    each = jax.vmap(partial(estimated, num_examples=num_examples))
    return {name: each(values[name], draws[name]) for name in values}


@partial(jax.jit, static_argnames="num_examples")
def _compared(
    values: PyTree, draws: PyTree, first: Array, second: Array, *, num_examples: int
) -> dict[str, calibration.PairedDifference]:
    values, draws = (jax.tree.map(lambda leaf: leaf[first] - leaf[second], tree) for tree in (values, draws))
    each = jax.vmap(partial(compared, num_examples=num_examples))
    return {name: each(values[name], draws[name]) for name in values}


@jax.jit
def _bin_intervals(bins: calibration.Reliability) -> tuple[Array, Array]:
    return calibration.wilson_interval(bins.accuracy * bins.count, bins.count)


def _metric_rows(sample: Sample, measured: Measured, entries: Mapping[str, MetricEntry]) -> list[Metric]:
    found = jax.device_get(_estimates(measured.values, measured.draws, num_examples=len(sample.labels)))
    rows = []
    for index, each in enumerate(sample.calibrated):
        for name, entry in entries.items():
            value, low, high, n = (getattr(found[name], field)[index] for field in ("value", "low", "high", "n"))
            if entry.share:
                low, high = jax.device_get(calibration.wilson_interval(value * n, n))
            row = finite(Metric(name, value, low, high, int(n), sample.split, each.method.name, each.criterion))
            rows.append(row._replace(low=max(row.low, 0.0), high=min(row.high, entry.largest)))
    return rows


def _all_reliability_rows(sample: Sample, measured: Measured, name: str) -> list[ReliabilityBin]:
    rows = []
    for index, each in enumerate(sample.calibrated):
        bins = jax.tree.map(lambda leaf: leaf[index], measured.bins)  # noqa: B023
        rows += reliability_rows(bins, name=name, split=sample.split, method=each.method.name, criterion=each.criterion)
    return rows


def _difference_rows(sample: Sample, measured: Measured, pairs: Sequence[tuple[int, int]]) -> list[Difference]:
    if not pairs:
        return []
    first, second = np.transpose(pairs)
    n = len(sample.labels)
    found = jax.device_get(_compared(measured.values, measured.draws, first, second, num_examples=n))
    rows = []
    for number, (index, against) in enumerate(pairs):
        each, other = sample.calibrated[index], sample.calibrated[against]
        for name in METRICS:
            if name not in found or (name == "accuracy" and each.method.keeps_class and other.method.keeps_class):
                continue
            fields = ("difference", "low", "high", "p_value")
            numbers = (getattr(found[name], field)[number] for field in fields)
            against_criterion = None if other.criterion == each.criterion else other.criterion
            names = each.method.name, other.method.name, each.criterion, against_criterion
            rows.append(finite(Difference(f"{name}_difference", *numbers, n, sample.split, *names)))
    return rows
