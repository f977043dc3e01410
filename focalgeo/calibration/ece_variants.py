"""Variants of the expected calibration error: smooth, debiased, as published code computes it, and of class 1.

Arguments are as those of `metrics`. The calibration of the probability of class 1 in two-class problems is not that of
the predicted class: there P(class 1) = 0.1 is a confidence of 0.9 in class 0 and shares a bin with 0.9, so that errors
of opposite sign cancel. The functions `binary_...` take log_probs [examples, 2], and raise InputError for another
number of classes.
"""

import jax.numpy as jnp

from focalgeo.calibration.binning import (
    Labels,
    LogProbs,
    Mask,
    Reliability,
    Scalar,
    TopLabel,
    adaptive_reliability,
    equal_mass,
    equal_width,
    equal_width_gap,
    expected_gap,
    gap,
    top_label,
    whole_times,
)
from focalgeo.calibration.roots import bisection
from focalgeo.checks import TABLE, check_bins, examples, marked, score_rows
from focalgeo.types import Array, InputError

_CELLS = 2048  # of [0, 1]; a mirrored copy makes it a circle of length 2, on which reflection is plain convolution
_HALVINGS = 24  # of [0, 1], in the search for the width: to 6e-8


def smooth_ece(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> Scalar:
    """Smooth ECE of the predicted class: integral over t in [0, 1] of |mean_i K_s(t, p_i) (y_i - p_i)|, as a fraction.

    K_s is the Gaussian density of width s, reflected at 0 and 1, and s is the one width at which the integral equals s:
    no number of bins to choose. p_i is the confidence, y_i whether the prediction is right. It is 0 where every
    residual is 0, and at most 1.

    Args:
        log_probs: Float [examples, classes].
        labels: Int [examples].
        mask: Bool [examples], or how often each example counts; None counts each once.

    Residuals are shared between the two nearest of 2,049 points, so the absolute error is 1e-4, held against direct
    summation of the kernel by tests/calibration/test_smooth.py.

    Source: Blasiok and Nakkiran, arXiv 2309.12236, the reflected kernel and the fixed point of the width.
    """
    return _smoothed_error(*top_label(log_probs, labels, mask))


def _smoothed_error(confidence: Array, correct: Array, weight: Array) -> Array:
    """`smooth_ece` from the probability [examples] of an event, whether it came true, and the weights."""
    spectrum = jnp.fft.rfft(_residuals(confidence, correct, weight))
    frequency = jnp.arange(spectrum.shape[0], dtype=confidence.dtype) * jnp.pi

    def error(width: Array) -> Array:
        damping = jnp.exp(-((frequency * width) ** 2) / 2)
        return jnp.sum(jnp.abs(jnp.fft.irfft(spectrum * damping.astype(spectrum.dtype), 2 * _CELLS)))

    ends = jnp.zeros((), confidence.dtype), jnp.ones((), confidence.dtype)
    # the error falls as the width grows
    return error(bisection(lambda width: error(width) > width, *ends, num_halvings=_HALVINGS))


def _residuals(confidence: Array, correct: Array, weight: Array) -> Array:
    """Mean residual on the circle of 2 * cells points, half of it at each point and half at its mirror image."""
    counted = weight > 0
    residual = jnp.where(counted, weight * (correct.astype(confidence.dtype) - confidence), 0) / jnp.sum(weight)
    position = jnp.where(counted, jnp.clip(confidence, 0, 1), 0) * _CELLS
    below = jnp.clip(jnp.floor(position), 0, _CELLS - 1)
    upper = residual * (position - below)
    index = below.astype(jnp.int32)
    points = jnp.zeros(_CELLS + 1, confidence.dtype).at[index].add(residual - upper).at[index + 1].add(upper)
    circle = jnp.concatenate([points, points[-2:0:-1]]) / 2
    return circle.at[jnp.array([0, _CELLS])].multiply(2.0)


def debiased_ece(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Scalar:
    """Root of `debiased_squared_ece`, 0 where that is negative: a root mean square over bins, as a fraction.

    It estimates the L2 calibration error, which is never below the L1 error that `ece` estimates: do not compare the
    two. Arguments as `adaptive_ece`. Inside `bootstrap` it is biased upwards: a resample repeats examples, so
    its gaps vary more than its count says and too little is taken off.

    Source: Kumar, Liang and Ma, arXiv 1909.10155, the debiased estimator. Roelofs et al., arXiv 2012.08668, call it
    ECE debiased and advise bins of equal mass, which are used here.
    """
    squared = debiased_squared_ece(log_probs, labels, num_bins=num_bins, mask=mask)
    return jnp.sqrt(jnp.maximum(squared, 0))


def debiased_squared_ece(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Scalar:
    """Squared L2 calibration error sum_i (n_i / N) [(a_i - c_i)^2 - a_i (1 - a_i) / (n_i - 1)], may be negative.

    Bins hold equally many examples, see `adaptive_reliability`; a_i and c_i are a bin's accuracy and mean confidence.
    The second term estimates the variance of a_i, so that calibrated predictions give 0 on average but for -(variance
    of the confidence in the bin) / N per bin, tested in tests/calibration/test_binned_variants.py. A bin of one example
    says nothing of its variance and counts as 0.

    Source: Kumar, Liang and Ma, arXiv 1909.10155, the debiased estimator of the squared error.
    """
    return _debiased(adaptive_reliability(log_probs, labels, num_bins=num_bins, mask=mask))


def _debiased(bins: Reliability) -> Array:
    """`debiased_squared_ece` of bins that are already counted."""
    variance = bins.accuracy * (1 - bins.accuracy) / jnp.maximum(bins.count - 1, 1)
    squared = jnp.where(bins.count > 1, gap(bins) ** 2 - variance, 0)
    return jnp.sum(bins.count * squared) / jnp.sum(bins.count)


def interpolated_adaptive_ece(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Scalar:
    """AdaECE as published code computes it: bins (lo, hi] between edges interpolated in the sorted confidences.

    Edge i is at rank i N / M of the sorted confidences, counted from 0 and cut at the last. The smallest confidence
    and all that equal it are in no bin, so its examples are dropped from the sum but not from N; ties make bins empty
    or uneven. It serves for comparing with published tables; `adaptive_ece` is the definition without these faults.
    Edges are rounded to the type of the confidences. Arguments and errors as `adaptive_ece`; weights are rounded to
    whole numbers.

    Source: the code of Mukhoti et al., arXiv 2002.09437; tested in tests/calibration/test_binned_variants.py.
    """
    confidence, correct, weight = top_label(log_probs, labels, mask)
    check_bins(num_bins)
    count, valid = whole_times(weight)
    confidence = jnp.where(count > 0, confidence, jnp.inf)
    edges = _edges(jnp.sort(confidence), count[jnp.argsort(confidence)], num_bins)[:, None]
    row = confidence[None, :]
    inside = (row > edges[:-1]) & (row <= edges[1:])
    residual = jnp.where(count > 0, correct.astype(confidence.dtype) - confidence, 0) * count.astype(confidence.dtype)
    sums = jnp.abs(jnp.sum(jnp.where(inside, residual[None, :], 0), axis=1))
    return marked(valid, jnp.sum(sums) / jnp.sum(count).astype(confidence.dtype))


def _edges(ordered: Array, count: Array, num_bins: int) -> Array:
    """[bins + 1] confidences at ranks i N / M, each linear between the two examples around it."""
    last = jnp.cumsum(count)
    total = last[-1]
    steps = jnp.arange(num_bins + 1, dtype=jnp.int32)
    quotient, rest = total // num_bins, total % num_bins
    rank = steps * quotient + steps * rest // num_bins
    share = (steps * rest % num_bins).astype(ordered.dtype) / num_bins
    ranks = jnp.minimum(jnp.stack([rank, rank + 1]), total - 1)
    below, above = ordered[jnp.searchsorted(last, ranks, side="right")]
    return below + share * (above - below)


def binary_reliability(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Reliability:
    """Reliability bins of P(class 1): as `reliability`, of the event that the label is 1."""
    return equal_width(*_class_one(log_probs, labels, mask), num_bins)


def binary_ece(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Scalar:
    """ECE sum_i (n_i / N) |share of label 1 - mean P(class 1)| over equal-width bins of P(class 1), as a fraction.

    log_probs float [examples, 2], labels int [examples]; bins as `reliability`. Absolute error 1e-6, tested in
    tests/calibration/test_binned_variants.py.
    """
    return equal_width_gap(*_class_one(log_probs, labels, mask), num_bins)


def binary_adaptive_ece(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Scalar:
    """Equal-mass ECE of P(class 1): as `binary_ece`, over bins that hold equally many examples."""
    return expected_gap(equal_mass(*_class_one(log_probs, labels, mask), num_bins))


def binary_smooth_ece(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> Scalar:
    """Smooth ECE of P(class 1): as `smooth_ece`, of the event that the label is 1, as the paper defines it."""
    return _smoothed_error(*_class_one(log_probs, labels, mask))


def _class_one(log_probs: LogProbs, labels: Labels, mask: Mask) -> TopLabel:
    table = score_rows("log_probs", log_probs, shape=TABLE)
    if table.shape[1] != 2:
        raise InputError(f"log_probs have {table.shape[1]} classes: binary metrics take 2, `ece` takes more")
    given = examples(log_probs, labels, mask)
    return TopLabel(jnp.exp(given.rows[:, 1]), given.labels == 1, given.weight)
