"""Calibration rows: metrics, differences and reliability of log-probabilities and labels, each number with its error.

No number depends on the method that the log-probabilities are from; only differences in accuracy are left out where
neither method can change the class. All metrics of all methods, and all differences between
methods, come from the same resamples of the examples.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import numpy as np
from msgspec.structs import replace

from focalgeo.calibration.binning import Reliability
from focalgeo.calibration.crossfit import candidates
from focalgeo.calibration.fitted import Calibrated, Fitted
from focalgeo.calibration.intervals import (
    Z95,
    PairedDifference,
    compared,
    estimated,
    rounded_difference,
    wilson_interval,
)
from focalgeo.calibration.metrics import METRICS, MetricEntry, metric_entries
from focalgeo.calibration.resampling import (
    CLASS1_METRICS,
    GROUP_METRICS,
    Measured,
    Sample,
    Statistic,
    class1_metrics,
    every_metric,
    group_metrics,
    measure,
    measure_members,
)
from focalgeo.rows import LEAST_EXAMPLES, Difference, Fit, Metric, ReliabilityBin, Row, finite
from focalgeo.types import DEFAULT_METRICS, Array


def calibration_rows(
    sample: Sample,
    pairs: Sequence[tuple[int, int]] = (),
    metrics: Sequence[str] = DEFAULT_METRICS,
    *,
    measured: Measured | None = None,
) -> list[Row]:
    """Rows of these metrics of METRICS with 95% intervals, and of every reliability bin that holds an example.

    The interval is the bootstrap's, or Wilson's for a share, cut where the metric's range ends. `pairs`, such as
    `comparisons` names, have rows of their differences as well: see `difference_rows`. One program is compiled for each
    shape of the log-probabilities and number of methods. `measured`: of `measure_members` with the same metrics, else
    it is measured here. A metric that has no meaning on these examples has no row: the accuracy of no confident
    example, the AUROC where all are right.

    Raises:
        InputError: a metric that is not in METRICS.
        RunError: a number is not finite.
    """
    if measured is None:
        ((_, measured),) = measure_members([sample], metrics)
    entries = metric_entries(metrics)
    rows = _metric_rows(sample, measured, entries) + _all_reliability_rows(sample, measured, "reliability")
    return rows + _difference_rows(sample, measured, pairs)


def difference_rows(
    sample: Sample, pairs: Sequence[tuple[int, int]], *, metrics: Sequence[str] = ("accuracy", "nll", "brier", "ece")
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
    chosen = tuple(metric_entries(metrics).items())
    (measured,) = measure([sample], every_metric(chosen, sample.num_bins))
    return _difference_rows(sample, measured, pairs)


def class1_rows(sample: Sample) -> list[Row]:
    """Rows of two-class problems: ECE and reliability bins of the probability of class 1, whatever is predicted."""
    (measured,) = measure([sample], class1_metrics(sample.num_bins))
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
    (measured,) = measure([sample], Statistic(group_metrics(inside, sample.num_bins), None))
    rows = []
    for number, name in enumerate(names):
        of_group = jax.tree.map(lambda leaf: leaf[..., number], measured)  # noqa: B023
        entries = {metric: METRICS[metric]._replace(share=False) for metric in GROUP_METRICS}
        for row in _metric_rows(sample, of_group, entries):
            rows.append(replace(row, name=f"group_{row.name}", group=str(name), n=int(sizes[name])))
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


def class_gap_rows(sample: Sample) -> list[Metric]:
    """Rows "class_gap" of each class k: the mean of p_k less the share of examples of class k; group is the class.

    Above 0 the class is given too much probability. The interval is the normal one of the mean of p_k - [y = k]: of
    many classes 1 in 20 leaves out 0 by chance.
    """
    rows = []
    for each in sample.calibrated:
        gaps = np.exp(np.asarray(each.log_probs, np.float64))
        gaps[np.arange(len(gaps)), np.asarray(sample.labels)] -= 1
        value, half = gaps.mean(axis=0), Z95 * gaps.std(axis=0, ddof=1) / np.sqrt(len(gaps))
        rows += [
            finite(Metric("class_gap", *numbers, len(gaps), sample.split, each.method.name, each.criterion, str(k)))
            for k, numbers in enumerate(zip(value, value - half, value + half, strict=True))
        ]
    return rows


def reliability_rows(
    bins: Reliability,
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


def comparisons(calibrated: Sequence[Calibrated], criterion: str) -> list[tuple[int, int]]:
    """Pairs (method, against) of positions in `calibrated`, which holds methods plainest first.

    Every method against the first for which nothing is fitted, against the first of the `candidates` by `criterion`,
    and against each earlier one fitted by the same criterion; the candidates, and those for which nothing is fitted,
    against each earlier candidate.
    """
    plainest = next((index for index, each in enumerate(calibrated) if each.criterion is None), None)
    compete = candidates(calibrated, criterion)
    pairs = []
    for later, each in enumerate(calibrated):
        for earlier, other in enumerate(calibrated):
            alike = each.criterion is not None and other.criterion == each.criterion
            competes = earlier in compete and (later in compete or each.criterion is None)
            compared = earlier < later and (alike or competes)
            if later not in (plainest, earlier) and (compared or earlier in (plainest, *compete[:1])):
                pairs.append((later, earlier))
    return pairs


_estimated = jax.jit(estimated, static_argnames="num_examples")


@partial(jax.jit, static_argnames="num_examples")
def _compared(first: tuple[Array, Array], second: tuple[Array, Array], *, num_examples: int) -> PairedDifference:
    """The difference of a metric's value and draws by two methods."""
    less = partial(rounded_difference, num_terms=num_examples)
    return compared(*map(less, first, second), num_examples=num_examples)


_share_interval = jax.jit(wilson_interval)  # else each of its operations is compiled by itself


@jax.jit
def _bin_intervals(bins: Reliability) -> tuple[Array, Array]:
    return wilson_interval(bins.accuracy * bins.count, bins.count)


def _metric_rows(sample: Sample, measured: Measured, entries: Mapping[str, MetricEntry]) -> list[Metric]:
    own, size = _by_method(measured), len(sample.labels)
    found = [{name: _estimated(*each[name], num_examples=size) for name in entries} for each in own]
    rows = []
    for each, estimates in zip(sample.calibrated, jax.device_get(found), strict=True):
        for name, entry in entries.items():
            value, _, low, high, n = estimates[name]
            if entry.may_lack and _is_undefined(value, low, each.log_probs):
                continue
            if entry.share:
                n = n if entry.among is None else jax.device_get(entry.among(each.log_probs, sample.labels))
                low, high = jax.device_get(_share_interval(value * n, n))
            row = finite(Metric(name, value, low, high, int(n), sample.split, each.method.name, each.criterion))
            rows.append(replace(row, low=max(row.low, 0.0), high=min(row.high, entry.largest)))
    return rows


def _by_method(measured: Measured) -> list[dict[str, tuple[Array, Array]]]:
    """Value and draws of each metric, by method."""
    both = {name: list(zip(measured.values[name], measured.draws[name], strict=True)) for name in measured.values}
    return [dict(zip(both, of_method, strict=True)) for of_method in zip(*both.values(), strict=True)]


def _is_undefined(value: Array, low: Array, log_probs: Array) -> bool:
    """Whether a metric has no meaning on these examples, or its interval none; predictions of NaN are a fault."""
    return bool(np.isnan(value + low)) and not np.isnan(np.asarray(log_probs)).any()


def _all_reliability_rows(sample: Sample, measured: Measured, name: str) -> list[ReliabilityBin]:
    rows = []
    for index, each in enumerate(sample.calibrated):
        bins = jax.tree.map(lambda leaf: leaf[index], measured.bins)  # noqa: B023
        rows += reliability_rows(bins, name=name, split=sample.split, method=each.method.name, criterion=each.criterion)
    return rows


def _difference_rows(sample: Sample, measured: Measured, pairs: Sequence[tuple[int, int]]) -> list[Difference]:
    own, n = _by_method(measured), len(sample.labels)
    names = [name for name in METRICS if name in measured.values]
    found = [{name: _compared(own[a][name], own[b][name], num_examples=n) for name in names} for a, b in pairs]
    rows = []
    for pair, differences in zip(pairs, jax.device_get(found), strict=True):
        each, other = (sample.calibrated[index] for index in pair)
        for name in names:
            if name == "accuracy" and each.method.keeps_class and other.method.keeps_class:
                continue
            value, _, *numbers, _ = differences[name]
            lacks = METRICS[name].may_lack
            if lacks and any(_is_undefined(value, numbers[0], of.log_probs) for of in (each, other)):
                continue
            against_criterion = None if other.criterion == each.criterion else other.criterion
            methods = each.method.name, other.method.name, each.criterion, against_criterion
            rows.append(finite(Difference(f"{name}_difference", value, *numbers, n, sample.split, *methods)))
    return rows
