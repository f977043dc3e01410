"""Metrics of the predicted class and of all classes: metric(log_probs, labels, *, mask, weights) -> scalar.

For jit and vmap. Everywhere log_probs is float [examples, classes] and labels int [examples] in 0 .. classes - 1. mask,
bool [examples], says which examples count; weights [examples], 0 or more, how often each does, as if its row
were repeated; they need not be whole numbers. What does not count may hold anything; with no example left the result is
NaN. A log-probability of -inf is p = 0, as of a class that cannot be. float16 and bfloat16 are taken as the float32
numbers that they are.

The calibration of the probability of class 1 in two-class problems is not that of the predicted class: there
P(class 1) = 0.1 is a confidence of 0.9 in class 0 and shares a bin with 0.9, so that errors of opposite sign cancel.
`binary_ece` and `binary_reliability`, in `two_classes`, are of P(class 1).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from focalgeo import checks
from focalgeo.calibration.metrics.binning import (
    Events,
    Labels,
    LogProbs,
    Scalar,
    SoftLabels,
    Summed,
    area,
    bin_mean,
    bin_sums,
    bins_of,
    ece_of,
    gap,
    gap_of_residuals,
    mean_of,
    metric,
    of_bins,
    of_equal_mass,
    of_label,
    ranked,
    residual_sums,
    top_by_log_odds,
    top_label,
    weighted_sums,
)
from focalgeo.calibration.newton import bisection
from focalgeo.types import ON_EDGE

_CELLS = 2048  # of [0, 1]; a mirrored copy makes it a circle of length 2, on which reflection is plain convolution
_HALVINGS = 24  # of [0, 1], in the search for the width: to 6e-8


@metric
def ece(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15) -> Scalar:
    """Expected calibration error sum_i (n_i / N) |accuracy_i - confidence_i| of the predicted class, as a fraction.

    Bins have equal width and are closed on the right, see `reliability`. It is piecewise constant in a temperature: no
    gradients. Absolute error 1e-6, tested in tests/calibration/test_metrics.py.

    Source: Mukhoti et al., ICLR 2020 submission, Eq. 1, 15 bins in their tables.

    Example:
        >>> round(float(calibration.ece(log_probs, labels, num_bins=3)), 4)
        0.2391
    """
    return ece_of(top_label, num_bins)


@metric
def adaptive_ece(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15) -> Scalar:
    """Equal-mass ECE: as `ece`, over bins that hold equally many examples, see `adaptive_reliability`.

    Source: Mukhoti et al., ICLR 2020 submission, Eq. 3, by rank: no example is dropped, as their published code does.

    Example:
        >>> round(float(calibration.adaptive_ece(log_probs, labels, num_bins=2)), 4)
        0.4065
    """
    return of_equal_mass(top_label, num_bins, lambda bins: bin_mean(bins, gap(bins)))


@metric
def mce(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15) -> Scalar:
    """Maximum calibration error max_i |accuracy_i - confidence_i| over the equal-width bins that are not empty.

    Source: Mukhoti et al., ICLR 2020 submission, Eq. 2.

    Example:
        >>> round(float(calibration.mce(log_probs, labels, num_bins=3)), 4)
        0.2668
    """
    return of_bins(
        top_label,
        num_bins,
        lambda bins: jnp.where(jnp.sum(bins.count) > 0, jnp.max(gap(bins)), jnp.nan),
    )


def _of_classes(statistic, examples):
    """A statistic of the events that the label is k, for each class k."""
    classes = jnp.arange(examples.rows.shape[-1], dtype=jnp.int32)
    events = lambda log_p, k: Events(jnp.exp(log_p), examples.labels == k, examples.weight)  # noqa: E731
    return jax.lax.map(lambda column: statistic(events(*column)), (examples.rows.T, classes))


@metric
def classwise_ece(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15) -> Scalar:
    """Mean over classes of the ECE of p_k as a prediction of "the label is k", with equal-width bins.

    A class that no label has still counts, and so does p_k = 0 (the published code drops both).

    Example:
        >>> round(float(calibration.classwise_ece(log_probs, labels, num_bins=3)), 4)
        0.2356
    """
    checks.check_bins(num_bins)

    def sums(examples):
        residuals = _of_classes(lambda events: residual_sums(*events, num_bins), examples)
        return residuals, len(residuals) * jnp.sum(examples.weight)

    return Summed(sums, gap_of_residuals)


@metric
def nll(log_probs: LogProbs, labels: SoftLabels) -> Scalar:
    """Mean negative log-likelihood -log p_y in nats, not clipped: infinite if p_y is 0.

    For soft labels q [examples, classes], rows that sum to 1, it is -sum_k q_k log p_k.

    Example:
        >>> round(float(calibration.nll(log_probs, labels)), 4)
        0.8055
        >>> round(float(calibration.nll(log_probs, labels, weights=np.float32([1, 1, 2, 0]))), 4)
        0.7345
    """
    return mean_of(lambda examples: -of_label(examples.rows, examples.labels), soft=True)


def _squared_error(examples):
    rows, labels, _ = examples
    p = jnp.exp(rows)
    if labels.ndim == 2:
        return jnp.sum((p - labels) ** 2 + labels * (1 - labels), axis=-1)
    true = jax.nn.one_hot(labels, rows.shape[-1], dtype=bool)
    error = jnp.where(true, p - 1, p)  # p minus the one-hot label; as a difference XLA's CPU rounds exp otherwise
    return jnp.sum(error**2, axis=-1)


@metric
def brier(log_probs: LogProbs, labels: SoftLabels) -> Scalar:
    """Brier score sum_k (p_k - [k = y])^2, summed over classes and averaged over examples: 0 to 2.

    For two classes scikit-learn's brier_score_loss is half of it, see `binary_brier`; for more classes it is the same.
    For soft labels q [examples, classes], rows that sum to 1, it is the mean of sum_k (p_k - q_k)^2 + q_k (1 - q_k)
    over q.

    Example:
        >>> round(float(calibration.brier(log_probs, labels)), 4)
        0.4991
    """
    return mean_of(_squared_error, soft=True)


@metric
def accuracy(log_probs: LogProbs, labels: Labels) -> Scalar:
    """Share of examples whose most probable class is the label, 0 to 1; of tied classes the first is predicted.

    Example:
        >>> round(float(calibration.accuracy(log_probs, labels)), 4)
        0.5
    """
    return mean_of(lambda examples: top_label(examples).correct.astype(examples.weight.dtype))


class HighConfidence(NamedTuple):
    """The share of examples predicted with high confidence, and their accuracy."""

    fraction: Scalar  # share of all examples, 0 to 1
    accuracy: Scalar  # share of them that is right; NaN if there is none


@metric
def high_confidence(log_probs: LogProbs, labels: Labels, threshold: float = 0.99) -> HighConfidence:
    """Share of examples whose confidence is `threshold`, 0 to 1, or more, to 1e-6, and their accuracy.

    Source: Mukhoti et al., ICLR 2020 submission, Table 6 (|S99|).

    Example:
        >>> sure = calibration.high_confidence(log_probs, labels, 0.6)
        >>> round(float(sure.fraction), 2), round(float(sure.accuracy), 4)
        (0.75, 0.6667)
    """
    checks.check_interval("threshold", threshold, 0, 1)

    def sums(examples):
        confidence, correct, weight = top_label(examples)
        sure = jnp.where(confidence >= threshold - ON_EDGE, weight, 0)
        return jnp.sum(jnp.where(correct, sure, 0)), jnp.sum(sure), jnp.sum(weight)

    return Summed(sums, lambda right, sure, total: HighConfidence(sure / total, right / sure))


@metric
def smooth_ece(log_probs: LogProbs, labels: Labels) -> Scalar:
    """Smooth ECE of the predicted class: integral over t in [0, 1] of |mean_i K_s(t, p_i) (y_i - p_i)|, as a fraction.

    K_s is the Gaussian density of width s, reflected at 0 and 1, and s is the one width at which the integral equals s:
    no number of bins to choose. p_i is the confidence, y_i whether the prediction is right. It is 0 where every
    residual is 0, and at most 1.

    Residuals are shared between the two nearest of 2,049 points, so the absolute error is 1e-4, held against direct
    summation of the kernel by tests/calibration/test_metrics.py.

    Source: Blasiok and Nakkiran, arXiv 2309.12236, the reflected kernel and the fixed point of the width.

    Example:
        >>> round(float(calibration.smooth_ece(log_probs, labels)), 4)
        0.1797
    """

    def sums(examples):
        p, correct, weight = top_label(examples)
        counted = weight > 0
        residual = jnp.where(counted, weight * (correct.astype(p.dtype) - p), 0)
        position = jnp.where(counted, jnp.clip(p, 0, 1), 0) * _CELLS
        below = jnp.clip(jnp.floor(position), 0, _CELLS - 1)
        upper = residual * (position - below)
        index = below.astype(jnp.int32)
        points = jnp.zeros(_CELLS + 1, p.dtype).at[index].add(residual - upper).at[index + 1].add(upper)
        return points, jnp.sum(weight)

    def smoothed(points, total):
        points = points / total
        circle = jnp.concatenate([points, points[-2:0:-1]]) / 2  # half at each point and half at its mirror image
        spectrum = jnp.fft.rfft(circle.at[jnp.array([0, _CELLS])].multiply(2.0))
        frequency = jnp.arange(spectrum.shape[0], dtype=points.dtype) * jnp.pi

        def error(width):
            damping = jnp.exp(-((frequency * width) ** 2) / 2)
            return jnp.sum(jnp.abs(jnp.fft.irfft(spectrum * damping.astype(spectrum.dtype), 2 * _CELLS)))

        ends = jnp.zeros((), points.dtype), jnp.ones((), points.dtype)
        # the error falls as the width grows
        return error(bisection(lambda width: error(width) > width, *ends, num_halvings=_HALVINGS))

    return Summed(sums, smoothed)


@metric
def debiased_ece(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15) -> Scalar:
    """Root of `debiased_squared_ece`, 0 where that is negative: a root mean square over bins, as a fraction.

    It estimates the L2 calibration error, which is never below the L1 error that `ece` estimates: do not compare the
    two. Inside `bootstrap` it is biased upwards: a resample repeats examples, so its gaps vary more than its count says
    and too little is taken off.

    Source: Kumar, Liang and Ma, arXiv 1909.10155, the debiased estimator. Roelofs et al., arXiv 2012.08668, call it
    ECE debiased and advise bins of equal mass, which are used here.

    Example:
        >>> round(float(calibration.debiased_ece(log_probs, labels, num_bins=2)), 4)
        0.4372
    """
    return of_equal_mass(top_label, num_bins, lambda bins: jnp.sqrt(jnp.maximum(_debiased(bins), 0)))


def _debiased(bins):
    variance = bins.accuracy * (1 - bins.accuracy) / jnp.maximum(bins.count - 1, 1)
    return bin_mean(bins, jnp.where(bins.count > 1, gap(bins) ** 2 - variance, 0))


@metric
def debiased_squared_ece(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15) -> Scalar:
    """Squared L2 calibration error sum_i (n_i / N) [(a_i - c_i)^2 - a_i (1 - a_i) / (n_i - 1)], may be negative.

    Bins hold equally many examples, see `adaptive_reliability`; a_i and c_i are a bin's accuracy and mean confidence.
    The second term estimates the variance of a_i, so that calibrated predictions give 0 on average but for -(variance
    of the confidence in the bin) / N per bin, tested in tests/calibration/test_metrics.py. A bin of one example says
    nothing of its variance and counts as 0.

    Source: Kumar, Liang and Ma, arXiv 1909.10155, the debiased estimator of the squared error.

    Example:
        >>> round(float(calibration.debiased_squared_ece(log_probs, labels, num_bins=2)), 4)
        0.1912
    """
    return of_equal_mass(top_label, num_bins, _debiased)


@metric
def overconfidence(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15) -> Scalar:
    """Sum over bins of (n_i / N) max(confidence_i - accuracy_i, 0): the part of `ece` from overconfident bins.

    Overconfidence plus underconfidence is `ece`; overconfidence minus underconfidence is mean confidence minus
    accuracy. Thulasidasan et al., arXiv 1905.11001, also multiply each bin by its confidence; this does not. Tested in
    tests/calibration/test_metrics.py.

    Example:
        >>> round(float(calibration.overconfidence(log_probs, labels, num_bins=3)), 4)
        0.2001
    """
    return of_bins(
        top_label,
        num_bins,
        lambda bins: bin_mean(bins, jnp.maximum(bins.confidence - bins.accuracy, 0)),
    )


@metric
def underconfidence(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15) -> Scalar:
    """Sum over bins of (n_i / N) max(accuracy_i - confidence_i, 0): the rest of `ece`, see `overconfidence`.

    Example:
        >>> round(float(calibration.underconfidence(log_probs, labels, num_bins=3)), 4)
        0.0391
    """
    return of_bins(
        top_label,
        num_bins,
        lambda bins: bin_mean(bins, jnp.maximum(bins.accuracy - bins.confidence, 0)),
    )


class BrierSplit(NamedTuple):
    """Three parts of the Brier score; their sum is `brier` exactly, rounding aside."""

    calibration: Scalar  # sum over classes and bins of (n_b / N) (mean p - share that came true)^2; 0 or more
    refinement: Scalar  # sum of (n_b / N) share (1 - share): what calibration of each bin would leave; 0 or more
    within_bin: Scalar  # mean over bins of Var(p) - 2 Cov(p, outcome) inside the bin; of any sign


@metric
def brier_split(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15) -> BrierSplit:
    """The Brier score as calibration + refinement + within-bin part, each summed over classes.

    For each class k the probabilities p_k fall into equal-width bins, see `reliability`, and in a bin p = mean + a,
    outcome = share + b gives mean (p - outcome)^2 = (mean - share)^2 + mean b^2 + mean(a^2 - 2 a b). With as many bins
    as distinct probabilities the last part is 0 and the other two are the split of DeGroot and Fienberg. Absolute error
    1e-6, tested in tests/calibration/test_metrics.py.

    Source: DeGroot and Fienberg, The Statistician 32 (1983); the within-bin part is that of Stephenson, Coelho and
    Jolliffe, Weather and Forecasting 23 (2008).

    Example:
        >>> split = calibration.brier_split(log_probs, labels, num_bins=3)
        >>> [round(float(part), 3) for part in split]
        [0.235, 0.375, -0.111]
        >>> round(float(sum(split) - calibration.brier(log_probs, labels)), 5)
        0.0
    """
    checks.check_bins(num_bins)

    def sums(examples):
        class_bins = _of_classes(lambda events: bin_sums(events, num_bins), examples)
        return *weighted_sums(_squared_error(examples), examples.weight), *class_bins

    def parts(error, total, *class_bins):
        bins = bins_of(*class_bins)
        calibration = jnp.sum(bins.count * gap(bins) ** 2) / total
        refinement = jnp.sum(bins.count * bins.accuracy * (1 - bins.accuracy)) / total
        return BrierSplit(calibration, refinement, error / total - calibration - refinement)

    return Summed(sums, parts)


@metric
def confidence_auroc(log_probs: LogProbs, labels: Labels) -> Scalar:
    """Area under the ROC curve of confidence as a test of whether the prediction is right, 0 to 1.

    It is the probability that a right prediction has a larger confidence than a wrong one, a tie counted as half: 0.5
    by chance, NaN where all predictions are right or all are wrong. Confidences are ranked by their log-odds, so that
    those that round to 1 still differ; those that differ by rounding alone are tied. Calibration does not enter: any
    increasing function of the confidence has the same. Absolute error 1e-6, tested in
    tests/calibration/test_metrics.py; counts of examples are exact in float32 up to 2^24.

    Source: Hanley and McNeil, Radiology 143 (1982), the area as a Mann-Whitney statistic.

    Example:
        >>> round(float(calibration.confidence_auroc(log_probs, labels)), 4)
        1.0
    """
    return lambda examples: area(top_by_log_odds(examples))


@metric
def aurc(log_probs: LogProbs, labels: Labels) -> Scalar:
    """Area under the risk-coverage curve (1 / N) sum_i risk(c_i), as a fraction; the smaller the better.

    risk(c) is the share of wrong predictions among the examples with a confidence of c or more. So examples of equal
    confidence are accepted together, and their order does not matter; where all are equal it is 1 - accuracy. It is 0
    where all predictions are right. Absolute error 1e-6, tested in tests/calibration/test_metrics.py.

    Source: Geifman, Uziel and El-Yaniv, arXiv 1805.08206, section 2, with the thresholds at the confidences; the curve
    is that of Geifman and El-Yaniv, arXiv 1705.08500.

    Example:
        >>> round(float(calibration.aurc(log_probs, labels)), 4)
        0.2083
    """

    def of(examples):
        right, wrong, first, _ = ranked(top_by_log_odds(examples))
        count = right + wrong
        accepted, failed = (jnp.cumsum(counts[::-1])[::-1][first] for counts in (count, wrong))
        return jnp.sum(count * jnp.where(count == 0, 0, failed / accepted)) / jnp.sum(count)

    return of
