"""A method fitted on val, on several tests: does its calibration hold there, and what would a fit of each gain?"""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from scipy.sparse import csr_array
from scipy.special import chdtrc

from focalgeo import checks
from focalgeo.calibration.examples import Clusters, Outputs
from focalgeo.calibration.study import comparison, suspicions
from focalgeo.rows import Difference, Metric, Row, finite, select
from focalgeo.types import DataWarning

UNCALIBRATED = "uncalibrated"
ON_VAL = "fitted_on_val"  # the method, in rows of a test
_PER_BIN = 20  # errors of each split that confidences expect, to their variance
_LEAST = 1e-12  # variance of a mean where all examples agree


class Kept(NamedTuple):
    """Whether two splits have one reliability curve."""

    statistic: float  # chi-square
    bins: int  # its degrees of freedom
    p_value: float


def calibration_kept(val: tuple, test: tuple, *, num_bins: int = 15) -> Kept:
    """Test whether confidence minus accuracy is the same on test as on val, at each confidence.

    Confidence and accuracy may both differ between the splits: the test asks whether 80% still means what it meant on
    val. Let g_b be the mean of confidence minus correct over the examples of a bin b, and V_b its variance over
    examples, or over clusters with its covariances. The statistic is d' (V_val + V_test)^-1 d with d = g_test - g_val,
    chi-square with as many degrees of freedom as bins. In each split the confidences c of a bin have a sum of c (1 -
    c), the expected variance of its number of errors, of 20 or more. Without a difference 4 to 7 in 100 pairs of splits
    have p < 0.05, tested in tests/calibration/test_shift.py.

    Args:
        val: (log_probs, labels), or `Outputs` where there are clusters or weights; float [examples, classes].
        test: The same of other examples.
        num_bins: The largest number of bins.

    Example:
        >>> right, sharp = (jax.nn.log_softmax(times * scores) for times in (1, 3))
        >>> kept = calibration.calibration_kept((right, drawn), (sharp, drawn))
        >>> kept.bins, kept.p_value < 0.001
        (1, True)
    """
    splits = []
    for split in (val, test):
        log_probs, labels, _, clusters, weights = Outputs(*split)
        rows, labels, _ = map(np.asarray, checks.examples(log_probs, labels))
        clusters = Clusters.of(np.arange(len(rows)) if clusters is None else clusters, labels, weights)
        confidence = suspicions.confidence(rows)
        splits.append((confidence, confidence - (rows.argmax(axis=1) == labels), clusters))
    cuts = _cuts(splits, checks.count("num_bins", num_bins, 1))
    means, covariances = zip(*(_of_bins(cuts, *split) for split in splits), strict=True)
    less, covariance = means[1] - means[0], sum(covariances)
    # a bin without variance and without a difference says nothing
    told = (np.diag(covariance) > 0) | (less != 0)
    less, covariance = less[told], covariance[np.ix_(told, told)] + _LEAST * np.eye(told.sum())
    statistic = float(less @ np.linalg.pinv(covariance, hermitian=True) @ less)
    return Kept(statistic, len(less), float(chdtrc(max(len(less), 1), statistic)))


def _cuts(splits, num_bins):
    """The largest confidences of all bins but the last."""
    confidence = np.sort(np.concatenate([split[0] for split in splits]))
    reached, steps = [], []  # the errors' variance that each split expects up to each confidence, and in a bin
    for own, _, clusters in splits:
        own = np.sort(own)
        variance = np.cumsum(own * (1 - own)) * clusters.worth / len(own)
        reached.append(np.append(0, variance)[np.searchsorted(own, confidence, side="right")])
        steps.append(max(_PER_BIN, variance[-1] / num_bins))
    places, ends = [], np.zeros(2)
    while (place := max(map(np.searchsorted, reached, ends + steps))) < len(confidence):
        places.append(place)
        ends = np.array([each[place] for each in reached])
    return np.unique(confidence[places[:-1]])  # what is left belongs to the last bin


def _of_bins(cuts, confidence, excess, clusters):
    """Means [bins] of confidence minus correct, and their covariance [bins, bins]."""
    index, counts = np.searchsorted(cuts, confidence), np.float64(clusters.counts)
    total = np.bincount(index, counts, len(cuts) + 1)
    means = np.bincount(index, counts * excess, len(total)) / total
    apart = counts * (excess - means[index]) / total[index]
    sums = csr_array((apart, (clusters.index, index)), shape=(clusters.number, len(total)))
    return means, clusters.spread**2 * (sums.T @ sums).toarray()


def on_tests(
    compared: comparison.Comparison,
    val: tuple,
    tests: Mapping[str, tuple],
    *,
    num_bins: int = 15,
    **settings: Any,
) -> list[Row]:
    """Rows of several tests: the method fitted on val, whether its calibration holds, and a fit on each test.

    Args:
        compared: Result of `compare`, which chose the method on `val`.
        val: `Outputs` of val, as `compare` got them.
        tests: Name -> `Outputs` of a test, with labels.
        num_bins: Bins of `calibration_kept` and of the ECE.
        **settings: Settings of `compare`: num_resamples, num_folds, seed, trained_gamma.

    A test's rows have the split "cross_fit_NAME". Metrics are of uncalibrated outputs ("uncalibrated"), of the method
    fitted on val ("fitted_on_val"), and of the method fitted on the other folds of the test itself (named as the
    method; temperature scaling where the choice is uncalibrated). Differences between them are paired. The value of the
    row "calibration_kept" is the p-value of `calibration_kept`, with each fold of val calibrated by a fit of the
    others.

    Example:
        >>> val, blurred = (scores, drawn), (3 * scores, drawn)
        >>> compared = calibration.compare(val, methods=["temperature_scaling"], num_resamples=100)
        >>> rows = calibration.on_tests(compared, val, {"blurred": blurred}, num_resamples=100)
        >>> sorted({row.method for row in rows})
        ['fitted_on_val', 'temperature_scaling', 'uncalibrated']
    """
    chosen, rows = compared.choice.fitted, []
    own = chosen.method.name if chosen.criterion else "temperature_scaling"
    as_chosen = Outputs(compared.held_out_choice.log_probs, *Outputs(*val)[1:])
    options = comparison.Settings(num_bins=num_bins, **settings)
    options = options._replace(criterion=chosen.criterion or "nll", metrics=("nll", "ece"))
    for name, outputs in tests.items():
        test, split = Outputs(*outputs), f"cross_fit_{name}"
        log_probs = chosen.predict_log_proba(test.logits, test.group)
        kept = calibration_kept(as_chosen, test._replace(logits=log_probs), num_bins=num_bins)
        rows.append(finite(Metric("calibration_kept", kept.p_value, n=len(log_probs), split=split, method=ON_VAL)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # of the file, which `compare` has looked at
            there = comparison.study({"val": test}, [own], options, also={ON_VAL: (log_probs, None)})
        measured = select(there.rows, Metric | Difference, split="cross_fit")
        rows += [replace(row, split=split) for row in measured if row.method in (UNCALIBRATED, ON_VAL, own)]
    return rows
