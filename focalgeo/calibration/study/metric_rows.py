"""Calibration rows: metrics, differences and reliability of log-probabilities and labels, each number with its error.

No number depends on the method that the log-probabilities are from; only differences in accuracy are left out where
neither method can change the class. All metrics of all methods, and all differences between methods, come from the same
resamples of the examples.
"""

from collections.abc import Sequence
from itertools import chain, permutations
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
from msgspec.structs import replace
from scipy.sparse import csr_array
from scipy.special import stdtrit

from focalgeo.calibration import decisions
from focalgeo.calibration.methods import Calibrated, Fitted
from focalgeo.calibration.metrics import METRICS, binning, chance, metric_entries, resampling, two_classes
from focalgeo.calibration.study import measurement
from focalgeo.calibration.study.measurement import Sample
from focalgeo.rows import LEAST_EXAMPLES, Difference, Fit, Metric, ReliabilityBin, Row, finite
from focalgeo.types import DEFAULT_METRICS

_FLOOR_DRAWS = 400  # of labels: the mean is known to 2%
_MOST_GAPS = 10_000  # classes; of more the rows would be most of a file that nobody reads
# of an ECE: the rows of its floor, and the columns that hold the confidence
_FLOORS = {"ece": ("noise_floor", slice(None)), "class1_ece": ("class1_noise_floor", slice(1, 2))}
_OF_GROUPS = {name: METRICS[name]._replace(share=False) for name in ("ece", "accuracy")}


def calibration_rows(
    sample: Sample,
    pairs: Sequence[tuple[int, int]] = (),
    names: Sequence[str] = DEFAULT_METRICS,
) -> list[Row]:
    """Rows of these metrics of METRICS with 95% intervals, and of every reliability bin that holds an example.

    The interval is the bootstrap's, or Wilson's for a share, cut where the metric's range ends. Each of `pairs`
    (method, against), for example from `comparisons`, has rows of its differences. They are paired, measured on the
    same resamples: whether two single intervals overlap says little about a difference. Accuracy has a difference only
    where one of the two may change the predicted class. A metric without a meaning on these examples has no row:
    accuracy among confident examples where there are none, AUROC where all predictions are right. An ECE of independent
    examples has a row "noise_floor" beside it, whose low is 0 and whose high is the 95th percentile. One program is
    compiled for each shape of the log-probabilities.

    A number that is not finite is a RunError.

    Example:
        >>> fitted = calibration.fit("temperature_scaling", logits, labels)
        >>> sample = calibration.Sample("val", labels, [fitted.calibrated(logits)], key, 2, 100)
        >>> rows = calibration.calibration_rows(sample, names=["nll"])
        >>> [(row.name, round(row.value, 2), round(row.low, 2), round(row.high, 2)) for row in rows]
        [('nll', 0.81, 0.18, 1.31), ('reliability', 0.5, 0.15, 0.85)]
    """
    rows = _rows(sample, metric_entries(names), binning.reliability, "reliability", pairs)
    return rows + (_floor_rows(sample, "ece") if "ece" in names else [])


def class1_rows(sample: Sample) -> list[Row]:
    """Rows of two-class problems: CLASS1_METRICS and reliability bins of P(class 1), whatever is predicted.

    Beside them stand "class1_noise_floor", that of the ECE of P(1), and "events", how many examples are of class 1.
    """
    rows = _rows(sample, measurement.CLASS1_METRICS, two_classes.binary_reliability, "class1_reliability")
    return [*rows, *_floor_rows(sample, "class1_ece"), _events(sample, sample.labels == 1)]


def _floor_rows(sample, ece, inside=slice(None)):
    """Of independent examples the ECE that chance leaves."""
    rows, (name, columns) = [], _FLOORS[ece]
    for calibrated in sample.calibrated if sample.clusters is None else ():
        confidence = chance.confidence_of(np.asarray(calibrated.log_probs)[inside, columns])
        mean, high = chance.floor_of(confidence, num_bins=sample.num_bins, num_draws=_FLOOR_DRAWS)
        rows.append(Metric(name, mean, 0.0, high, len(confidence), **_tags(sample, calibrated)))
    return rows


def _events(sample, events, **group):
    return Metric("events", float(events.sum()), n=len(events), **group, **_tags(sample, sample.calibrated[0]))


def _rows(sample, entries, bins, name, pairs=()):
    measured = measurement.measure(sample, entries, bins=bins)
    rows = _metric_rows(sample, measured, entries)
    for calibrated, (*_, of_bins, draws) in zip(sample.calibrated, measured, strict=True):
        worth = None
        # with clusters a bin is worth as many independent examples as its own spread over resamples says
        if draws is not None:
            count = of_bins.count
            accuracy = np.where(count > 0, draws.accuracy, 0)  # NaN where a resample has no example of the bin
            stderr, variation = (np.nanstd(each, axis=0) for each in (accuracy, draws.count))
            inside = 1 / ((variation / np.maximum(count, 1)) ** 2 + 1 / sample.clusters.number)
            worth = worth_of(count, np.where(count > 0, of_bins.accuracy, 0), stderr, inside)
        rows += reliability_rows(of_bins, name=name, worth=worth, **_tags(sample, calibrated))
    return rows + _difference_rows(sample, measured, pairs)


def group_rows(sample: Sample, group: np.ndarray, names: Sequence[str] = ()) -> list[Metric]:
    """Rows "group_ece" and "group_accuracy" of every group of LEAST_EXAMPLES examples or more; n is the group's.

    group [examples] names each example's group. All examples are resampled together, so that a group's size varies.
    "macro_ece" and "macro_accuracy" are the means over these groups; of two classes there are those of "class1_ece".
    Beside an ECE of independent examples is its "group_noise_floor"; an ECE above it has an interval that does not
    begin at 0 for being near that of a calibrated model.
    With names of OF_CLASS_ONE the rows are of these metrics, and "events" of each group.
    """
    entries = {name: measurement.CLASS1_METRICS[name] for name in names} or _OF_GROUPS
    if not names and sample.calibrated[0].log_probs.shape[1] == 2:
        entries = entries | {"class1_ece": measurement.CLASS1_METRICS["class1_ece"]}
    groups, sizes = np.unique(group, return_counts=True)
    groups, sizes = groups[sizes >= LEAST_EXAMPLES], sizes[sizes >= LEAST_EXAMPLES]
    if not len(groups):
        return []
    inside = jnp.asarray(groups[:, None] == group, jnp.float32)
    measured = measurement.measure(sample, entries, inside=inside)
    means = jax.tree.map(lambda values: values.mean(axis=-1), measured)
    rows = [replace(row, name=f"macro_{row.name}") for row in _metric_rows(sample, means, entries)]
    if names:
        rows += [_events(sample, np.asarray(sample.labels)[group == name] == 1, group=str(name)) for name in groups]
    for index, (name, size) in enumerate(zip(groups, sizes, strict=True)):
        floors = {ece: _floor_rows(sample, ece, group == name) for ece in _FLOORS if ece in entries}
        of_group = _metric_rows(sample, jax.tree.map(itemgetter((..., index)), measured), entries, floors)
        of_group = chain(of_group, *floors.values())
        rows += [replace(row, name=f"group_{row.name}", group=str(name), n=int(size)) for row in of_group]
    return rows


def fit_rows(fitted: Sequence[Fitted], *, n: int, split: str = "val") -> list[Fit]:
    """Rows of the fitted numbers of each method; n: the examples of the split on which they were fitted.

    A row is named as its number in the method's params, except "gamma", which becomes "calibration_gamma": the tag
    gamma of a row is the training's. A mixture has rows for its shares, not for the numbers of its members.

    Example:
        >>> fits = [calibration.fit("temperature_scaling", logits, labels)]
        >>> [(row.name, row.method, round(row.value, 2), row.n) for row in calibration.fit_rows(fits, n=4)]
        [('temperature', 'temperature_scaling', 0.96, 4)]
    """
    titles = {"gamma": "calibration_gamma"}
    return [
        finite(Fit(titles.get(name, name), value, n, split, fit.method.name, fit.criterion))
        for fit in fitted
        for name, value in fit.params.items()
        if fit.criterion and np.ndim(value) == 0 and name != "converged" and "." not in name
    ]


def class_gap_rows(sample: Sample) -> list[Metric]:
    """Rows "class_gap" of each class k: the mean of p_k minus the share of examples of class k; group is the class.

    Above 0 the class is given too much probability. The interval is the normal one of the mean of p_k - [y = k], or
    Student's by clusters: of many classes 1 in 20 leaves out 0 by chance. A class without an example has none, nor has
    any of more than 10,000 classes.
    """
    rows, n = [], len(sample.labels)
    if sample.calibrated[0].log_probs.shape[1] > _MOST_GAPS:
        return []
    present = {*np.asarray(sample.labels).tolist()}
    for calibrated in sample.calibrated:
        with np.errstate(under="ignore"):
            gaps = np.exp(np.asarray(calibrated.log_probs))
        gaps[np.arange(n), np.asarray(sample.labels)] -= 1
        rows += [
            finite(Metric("class_gap", *numbers, n, group=str(k), **_tags(sample, calibrated)))
            for k, numbers in enumerate(_means(gaps, sample.clusters))
            if k in present
        ]
    return rows


def net_benefit_rows(sample: Sample, thresholds: Sequence[float]) -> list[Metric]:
    """Rows "net_benefit" of two classes at these thresholds and at 1%, 2%, ... 99%, which is its group.

    "net_benefit_of_all" is that of acting on every example; the intervals are those of `class_gap_rows`.
    """
    rows, n = [], len(sample.labels)
    at = np.union1d(np.arange(1, 100) / 100, thresholds)
    every = np.tile([-np.inf, 0.0], (n, 1))
    given = [("net_benefit", calibrated, calibrated.log_probs) for calibrated in sample.calibrated]
    for name, calibrated, log_probs in [*given, ("net_benefit_of_all", sample.calibrated[0], every)]:
        gains = _means(decisions.gains(log_probs, sample.labels, at), sample.clusters)
        rows += [
            finite(Metric(name, *numbers, n, group=f"{threshold:g}", **_tags(sample, calibrated)))
            for threshold, numbers in zip(at, gains, strict=True)
        ]
    return rows


def _means(table, clusters):
    """The mean of each column of a table [examples, columns] and the ends of its interval; the table is used up."""
    n = len(table)
    spread, quantile = resampling.student(clusters)
    counts = np.ones(n) if clusters is None else np.float64(clusters.counts)
    if clusters is None:
        spread = (n / max(n - 1, 1)) ** 0.5
    value = np.einsum("n,nk->k", counts, table, dtype=np.float64) / counts.sum()
    # in place: with many classes this table is the largest array there is
    table -= value
    if clusters is not None:
        table = csr_array((counts, (clusters.index, np.arange(n)))) @ table
    half = quantile * spread * np.sqrt(np.einsum("nk,nk->k", table, table, dtype=np.float64)) / counts.sum()
    return zip(value, value - half, value + half, strict=True)


def _tags(sample, calibrated):
    return {"split": sample.split, "method": calibrated.method.name, "criterion": calibrated.criterion}


def reliability_rows(
    bins: binning.Reliability,
    *,
    split: str,
    name: str = "reliability",
    method: str | None = None,
    criterion: str | None = None,
    total: int | None = None,
    worth: np.ndarray | None = None,
) -> list[ReliabilityBin]:
    """Rows of the bins that hold examples: accuracy with Wilson's 95% interval, and their share of `total` examples.

    `worth` [bins] are the independent examples that a bin is worth, where that is not their number.
    """
    n = bins.count if worth is None else worth
    ends = resampling.wilson_interval(np.where(n > 0, bins.accuracy, 0) * n, n)
    rows = []
    for index in np.flatnonzero(bins.count):
        count, confidence, accuracy, lower, upper, low, high = (column[index] for column in (*bins, *ends))
        numbers = accuracy, low, high, index, lower, upper, confidence, round(float(count))
        rows.append(finite(ReliabilityBin(name, *numbers, split, method, criterion, total and count / total)))
    return rows


def candidates(fits: Sequence[Fitted | Calibrated], criterion: str) -> list[int]:
    """Indices in `fits` of one fit of each fitted method: that by `criterion`, or else the first that there is.

    Example:
        >>> methods = {name: calibration.METHODS[name] for name in ("uncalibrated", "temperature_scaling")}
        >>> fits = calibration.fit_methods(methods, logits, labels, settings={"criteria": ("nll", "ece")})
        >>> [(fit.method.name, fit.criterion) for fit in fits]
        [('uncalibrated', None), ('temperature_scaling', 'nll'), ('temperature_scaling', 'ece')]
        >>> calibration.candidates(fits, "ece")
        [2]
    """
    positions = {}
    for index, fit in enumerate(fits):
        if fit.criterion is not None and (fit.method.name not in positions or fit.criterion == criterion):
            positions[fit.method.name] = index
    return sorted(positions.values())


def comparisons(calibrated: Sequence[Calibrated], criterion: str) -> list[tuple[int, int]]:
    """Pairs (method, against) of positions in `calibrated`, simplest method first: each against every earlier one.

    Each but the first is also compared with the first of the `candidates` by `criterion`.

    Example:
        >>> names = "uncalibrated", "temperature_scaling", "focal_temperature_scaling"
        >>> methods = {name: calibration.METHODS[name] for name in names}
        >>> fits = calibration.fit_methods(methods, logits, labels, settings={"criteria": ("nll",)})
        >>> calibration.comparisons(fits, "nll")
        [(1, 0), (2, 0), (2, 1)]
    """
    plainest = candidates(calibrated, criterion)[:1]
    pairs = permutations(range(len(calibrated)), 2)
    return [(method, against) for method, against in pairs if against < method or (method and against in plainest)]


def worth_of(n, share, stderr, clusters):
    """How many independent examples a share of n is worth, by its standard error over so many clusters.

    Source: Korn & Graubard, Survey Methodology 24 (1998), who so correct an interval of shares.
    """
    with np.errstate(all="ignore"):
        by_error = np.where(stderr > 0, share * (1 - share) / stderr**2, clusters)
        return np.minimum(n, by_error) * (resampling.Z95 / stdtrit(np.maximum(clusters - 1, 0.01), 0.975)) ** 2


def _metric_rows(sample, measured, entries, floors=None):
    rows = []
    for index, (calibrated, numbers) in enumerate(zip(sample.calibrated, measured, strict=True)):
        for name, entry in entries.items():
            of = numbers.values[name], numbers.draws[name]
            if _is_lacking(*of):
                if not entry.may_lack:
                    finite(Metric(name, np.nan, np.nan, np.nan, len(sample.labels), **_tags(sample, calibrated)))
                continue
            floor = floors[name][index].high if floors and floors.get(name) else np.inf
            value, stderr, low, high, n = resampling.estimated(
                *of, num_examples=len(sample.labels), clusters=sample.clusters, floor=floor
            )
            # a share of 0 or 1 has no spread over resamples, but is not known exactly: Wilson's interval says so
            if entry.share:
                n = n if entry.among is None else int(entry.among(calibrated.log_probs, sample.labels))
                worth = n
                if sample.clusters is not None:
                    most = n * max(sample.clusters.counts.mean(), 1)
                    worth = worth_of(most, value, stderr, sample.clusters.worth)
                low, high = resampling.wilson_interval(value * worth, worth)
            row = finite(Metric(name, value, low, high, n, **_tags(sample, calibrated)))
            rows.append(replace(row, low=max(row.low, entry.smallest), high=min(row.high, entry.largest)))
    return rows


def _is_lacking(value, draws):
    """Whether a metric has no meaning on the examples, or on all resamples but one."""
    return np.isnan(value) or np.isfinite(draws).sum() < 2


def _difference_rows(sample, measured, pairs):
    rows, n = [], len(sample.labels)
    for pair in pairs:
        method, other = (sample.calibrated[index] for index in pair)
        tags = {**_tags(sample, method), "against": other.method.name}
        if other.criterion != method.criterion:
            tags["against_criterion"] = other.criterion
        keeps_class = method.method.keeps_class and other.method.keeps_class
        for name in METRICS:
            if name not in measured[0].values or (name == "accuracy" and keeps_class):
                continue
            both = [(measured[index].values[name], measured[index].draws[name]) for index in pair]
            if not (METRICS[name].may_lack and any(_is_lacking(*each) for each in both)):
                value, _, *numbers = resampling.compared(*both, num_examples=n, clusters=sample.clusters)
                rows.append(finite(Difference(f"{name}_difference", value, *numbers, **tags)))
    return rows
