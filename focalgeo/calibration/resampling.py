"""Resampled metrics: of several methods, and of several members of a sweep, on the same resamples of the examples."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from focalgeo.calibration.binning import Reliability, reliability, weights
from focalgeo.calibration.ece_variants import binary_ece, binary_reliability
from focalgeo.calibration.fitted import Calibrated
from focalgeo.calibration.intervals import RESAMPLES_AT_ONCE, resample
from focalgeo.calibration.metrics import METRICS, MetricEntry, metric_entries, metrics_of
from focalgeo.checks import check_key
from focalgeo.types import DEFAULT_METRICS, Array, InputError

CLASS1_METRICS = {"class1_ece": MetricEntry(binary_ece, "Class-1 ECE", binned=True, largest=1.0)}
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
    bins: Reliability | None  # [methods, bins]


class Statistic(NamedTuple):
    """Functions of log-probabilities and labels that are measured together."""

    metrics: Callable[..., dict[str, Array]]  # metrics(log_probs, labels, mask=None) -> scalars or [groups] by name
    bins: Callable[[Array, Array], Reliability] | None


def measure_members(
    samples: Iterable[Sample], metrics: Sequence[str] = DEFAULT_METRICS
) -> Iterator[tuple[Sample, Measured]]:
    """Each sample with what `calibration_rows` says of it; members that follow one another are measured together.

    Those that have the same methods are measured in one program, as many as memory holds. On the CPU each has a call of
    its own, on as many threads as there are cores: one program of 35 members, 6 methods and 359 x 10 numbers takes 1.2
    to 3 times as long there as 35 calls, and so a member's numbers are to the bit those that it has alone.

    Args:
        samples: Of the same examples, one for each member, with its own log-probabilities and key. They are taken as
            they are measured, so that an iterator need not hold all log-probabilities at once.
        metrics: Names in METRICS.

    Raises:
        InputError: as `check_sample`.
    """
    waiting: list[Sample] = []
    for sample in samples:
        check_sample(sample)
        if waiting and not (_alike(waiting[0], sample) and len(waiting) < _members_at_once(sample)):
            yield from _all_measured(waiting, metrics)
            waiting = []
        waiting.append(sample)
    if waiting:
        yield from _all_measured(waiting, metrics)


def check_sample(sample: Sample) -> None:
    """Refuse a sample of no method or no example, or one whose log-probabilities do not fit its labels.

    Raises:
        InputError: naming the field.
    """
    check_key(sample.key)
    if not sample.calibrated:
        raise InputError("calibrated holds no method: give log_probs of one or more")
    count = np.size(sample.labels)
    for each in sample.calibrated:
        shape = np.shape(each.log_probs)
        if len(shape) != 2 or count == 0 or shape[0] != count or shape[1] < 2:
            raise InputError(
                f"log_probs of {each.method.name} have shape {list(shape)}, labels {list(np.shape(sample.labels))}: "
                "give [examples, classes] and [examples], of one example or more and 2 classes or more"
            )


def _alike(sample: Sample, other: Sample) -> bool:
    first, second = ([(each.method.name, each.criterion) for each in own.calibrated] for own in (sample, other))
    return first == second


def _members_at_once(sample: Sample) -> int:
    most = _MOST_NUMBERS // max(1, len(sample.calibrated) * np.size(sample.calibrated[0].log_probs))
    return min(most, os.cpu_count() or 1) if _on_cpu() else most


def _on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def _all_measured(samples: Sequence[Sample], metrics: Sequence[str]) -> Iterator[tuple[Sample, Measured]]:
    statistic = every_metric(tuple(metric_entries(metrics).items()), samples[0].num_bins)
    if len(samples) == 1 or not _on_cpu():
        return zip(samples, measure(samples, statistic), strict=True)
    with ThreadPoolExecutor(len(samples)) as pool:
        return zip(samples, list(pool.map(lambda sample: measure([sample], statistic)[0], samples)), strict=True)


def measure(samples: Sequence[Sample], statistic: Statistic) -> list[Measured]:
    """Measure samples of the same examples and methods in one program.

    In several calls of it, of fewer methods each, where the log-probabilities are many, and of one each on the CPU.

    Raises:
        InputError: as `check_sample`.
    """
    for sample in samples:
        check_sample(sample)
    labels, num_resamples = jnp.asarray(samples[0].labels), samples[0].num_resamples
    log_probs = [[each.log_probs for each in sample.calibrated] for sample in samples]
    keys = jnp.stack([jax.random.split(sample.key, num_resamples) for sample in samples])
    most = max(RESAMPLES_AT_ONCE, _MOST_NUMBERS // (len(samples) * labels.size))
    parts = []
    for first in range(0, num_resamples, most):
        counts = _counts(keys[:, first : first + most], num_examples=labels.size)
        parts.append(_by_method(statistic, log_probs, labels, counts))
    draws = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=2), *(part.draws for part in parts))
    found = parts[0]._replace(draws=draws)
    return [jax.tree.map(lambda leaf: leaf[member], found) for member in range(len(samples))]  # noqa: B023


@partial(jax.jit, static_argnames="num_examples")
def _counts(keys: Array, *, num_examples: int) -> Float[Array, "members resamples examples"]:
    """The counts of `resample` for each key; drawn once, they serve every method."""
    draw = partial(resample, num_examples=num_examples)
    return jax.vmap(partial(jax.lax.map, draw, batch_size=RESAMPLES_AT_ONCE))(keys)


def _by_method(
    statistic: Statistic,
    log_probs: Sequence[Sequence[Array]],
    labels: Int[Array, " examples"],
    counts: Float[Array, "members resamples examples"],
) -> Measured:
    """Metrics, resamples and bins of all methods of some members, leaves [members, methods, ...], in host memory.

    On the CPU of one at a time: one program serves any number of methods, and together they are no faster.
    """
    if _on_cpu():
        each = [[_measured(statistic, lp, labels, own) for lp in of] for of, own in zip(log_probs, counts, strict=True)]
        stacked = [jax.tree.map(lambda *leaves: np.stack(leaves), *of_member) for of_member in jax.device_get(each)]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *stacked)
    most = max(1, _MOST_NUMBERS // (len(log_probs) * np.size(log_probs[0][0])))
    parts = []
    for begin in range(0, len(log_probs[0]), most):
        part = jnp.stack([jnp.stack(own[begin : begin + most]) for own in log_probs])
        parts.append(_measured_together(statistic, part, labels, counts))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *jax.device_get(parts))


@partial(jax.jit, static_argnames="statistic")
def _measured(
    statistic: Statistic,
    log_probs: Float[Array, "examples classes"],
    labels: Int[Array, " examples"],
    counts: Float[Array, "resamples examples"],
) -> Measured:
    """Metrics, resamples and bins of one method. Apart, each part would be compiled anew."""
    metrics = partial(statistic.metrics, log_probs, labels)
    draws = jax.lax.map(lambda mask: metrics(mask=mask), counts, batch_size=RESAMPLES_AT_ONCE)
    return Measured(metrics(), draws, None if statistic.bins is None else statistic.bins(log_probs, labels))


@partial(jax.jit, static_argnames="statistic")
def _measured_together(statistic: Statistic, log_probs: Array, labels: Array, counts: Array) -> Measured:
    """`_measured` of log_probs [members, methods, examples, classes] and counts [members, resamples, examples]."""
    of_method = lambda log_probs, counts: _measured(statistic, log_probs, labels, counts)  # noqa: E731
    return jax.vmap(jax.vmap(of_method, in_axes=(0, None)))(log_probs, counts)


@functools.lru_cache(maxsize=64)  # the same function object for the same arguments: jit compiles anew for each object
def every_metric(entries: tuple[tuple[str, MetricEntry], ...], num_bins: int) -> Statistic:
    """The metrics of these entries by name, and reliability bins."""
    metrics = partial(metrics_of, entries=dict(entries), num_bins=num_bins)
    return Statistic(metrics, lambda log_probs, labels: reliability(log_probs, labels, num_bins=num_bins))


@functools.lru_cache(maxsize=64)
def class1_metrics(num_bins: int) -> Statistic:
    """ECE and reliability bins of the probability of class 1."""
    metrics = partial(metrics_of, entries=CLASS1_METRICS, num_bins=num_bins)
    return Statistic(metrics, partial(binary_reliability, num_bins=num_bins))


def group_metrics(inside: np.ndarray, num_bins: int) -> Callable[..., dict[str, Array]]:
    """Metrics [groups] as one function, compiled once for all groups of any size: inside [groups, examples]."""
    entries = {name: METRICS[name] for name in GROUP_METRICS}

    def metrics(log_probs: Array, labels: Array, mask: Array | None = None) -> dict[str, Array]:
        weight = weights(mask, log_probs[:, 0])
        of_group = lambda chosen: metrics_of(log_probs, labels, weight * chosen, entries=entries, num_bins=num_bins)  # noqa: E731
        return jax.lax.map(of_group, jnp.asarray(inside))

    return metrics
