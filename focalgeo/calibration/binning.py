"""Bins of confidence, of equal width and of equal mass, and the checks of predictions.

An example counts as often as its weight says: 1 and 0 for a mask, a whole number for a resample. A bin scheme is a
table [bins, examples] of how often each example counts in each bin; its columns add up to the weights, so no example
is dropped.
"""

from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from focalgeo.types import Array, InputError

LogProbs = Logits = Float[Array, "examples classes"]
Labels = Int[Array, " examples"]
Mask = Shaped[Array, " examples"] | None  # bool, or how often each example counts; None counts each once
Scalar = Float[Array, ""]
Numbers = Float[Array, " examples"]


class Reliability(NamedTuple):
    """The bins of a reliability diagram; means of an empty bin are NaN and its count is 0."""

    count: Float[Array, " bins"]  # examples in the bin
    confidence: Float[Array, " bins"]  # mean predicted probability
    accuracy: Float[Array, " bins"]  # share of examples that came true
    lower: Float[Array, " bins"]  # equal width: the bin is (lower, upper]; equal mass: least and largest confidence
    upper: Float[Array, " bins"]


class TopLabel(NamedTuple):
    """The predicted class of each example: its probability, whether it is right, and the example's weight."""

    confidence: Numbers  # its probability
    correct: Bool[Array, " examples"]
    weight: Numbers  # how often the example counts


def top_label(log_probs: LogProbs, labels: Labels, mask: Mask = None) -> TopLabel:
    """Confidence, correctness and weight of each example; what has weight 0 may hold anything, NaN too."""
    log_probs = widened(log_probs)
    predicted = jnp.argmax(log_probs, axis=-1)
    confidence = jnp.exp(jnp.max(log_probs, axis=-1))
    return TopLabel(confidence, predicted == jnp.asarray(labels, predicted.dtype), weights(mask, confidence))


def weights(mask: Mask, like: Numbers) -> Numbers:
    """`mask` (bool, or how often each example counts) as numbers in the type of `like`; ones where it is None."""
    return jnp.ones_like(like) if mask is None else jnp.asarray(mask, like.dtype)


def widened(log_probs: Array) -> Array:
    """Half-precision numbers as float32, exactly: sums and counts in bfloat16 stop growing at 256.

    Raises:
        InputError: log_probs are not floats, or (outside jit) are logits or probabilities: most rows hold a value
            above 0. Rows that a mask leaves out may.
    """
    log_probs = jnp.asarray(log_probs)
    if not jnp.issubdtype(log_probs.dtype, jnp.floating):
        raise InputError(f"log_probs are {log_probs.dtype}: give log-probabilities as floats")
    if not isinstance(log_probs, jax.core.Tracer) and _mostly_positive(log_probs):
        largest = float(np.max(log_probs))
        raise InputError(f"log_probs hold {largest:.4g}: of logits give jax.nn.log_softmax, of probabilities the log")
    return log_probs.astype(jnp.float32) if jnp.finfo(log_probs.dtype).bits < 32 else log_probs


def _mostly_positive(log_probs: Array) -> bool:
    return np.mean(np.any(np.asarray(log_probs) > 1e-3, axis=-1)) > 0.5


def reliability(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Reliability:
    """Mean confidence and accuracy of the predicted class in `num_bins` bins of equal width, ((i-1)/M, i/M].

    Args:
        log_probs: Float [examples, classes].
        labels: Int [examples].
        num_bins: M, 1 or more. A confidence of 0 belongs to the first bin, of 1 to the last; a confidence that equals
            an edge belongs to the bin below, decided in exact arithmetic (float32(0.1) is above 1/10).
        mask: Bool [examples], or how often each example counts; None counts each once.

    Raises:
        InputError: num_bins is below 1.

    Source: Mukhoti et al., arXiv 2002.09437, section 2 (their figures use 25 bins, their tables 15).
    """
    return equal_width(*top_label(log_probs, labels, mask), num_bins)


def adaptive_reliability(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Reliability:
    """Mean confidence and accuracy of the predicted class in `num_bins` bins of equal count, by rank of confidence.

    With N examples the first N mod M bins hold one more than the rest; equal confidences keep the order of the
    examples. Arguments and errors as `reliability`; weights are rounded to whole numbers.

    Source: Mukhoti et al., arXiv 2002.09437, Eq. 3. The published code interpolates edges instead and drops examples.
    """
    return equal_mass(*top_label(log_probs, labels, mask), num_bins)


def equal_width(confidence: Numbers, correct: Bool[Array, " examples"], weight: Numbers, num_bins: int) -> Reliability:
    """`reliability` from the probability [examples] of an event, whether it came true, and the weights."""
    edges = bin_edges(num_bins, confidence.dtype)
    inside = jax.nn.one_hot(bin_index(confidence, num_bins), num_bins, axis=0, dtype=confidence.dtype)
    correct = correct.astype(confidence.dtype)
    values = jnp.stack([weight, _counted(weight, weight * confidence), weight * correct])
    count, mean, accuracy = _means(inside, values)
    return Reliability(count, mean, accuracy, jnp.asarray(edges[:-1]), jnp.asarray(edges[1:]))


def bin_index(confidence: Numbers, num_bins: int) -> Int[Array, " examples"]:
    """Number from 0 of the equal-width bin that each confidence [examples] falls into, see `reliability`."""
    edges = bin_edges(num_bins, confidence.dtype)
    return jnp.searchsorted(edges[1:-1], confidence, side="left", method="compare_all")


def equal_mass(confidence: Numbers, correct: Bool[Array, " examples"], weight: Numbers, num_bins: int) -> Reliability:
    """`adaptive_reliability` from the probability [examples] of an event, whether it came true, and the weights."""
    check_bins(num_bins)
    order = jnp.argsort(confidence, stable=True)
    weight = jnp.round(weight)[order].astype(jnp.int32)
    confidence, correct = _counted(weight, confidence[order]), correct[order].astype(confidence.dtype)
    last = jnp.cumsum(weight)[None, :]
    bounds = _rank_bounds(last[0, -1], num_bins)[:, None]
    inside = jnp.minimum(last, bounds[1:]) - jnp.maximum(last - weight[None, :], bounds[:-1])
    lower = jnp.min(jnp.where(inside > 0, confidence[None, :], jnp.inf), axis=1)
    upper = jnp.max(jnp.where(inside > 0, confidence[None, :], -jnp.inf), axis=1)
    values = jnp.stack([jnp.ones_like(confidence), confidence, correct])
    return Reliability(*_means(jnp.maximum(inside, 0).astype(confidence.dtype), values), lower, upper)


def expected_gap(bins: Reliability) -> Scalar:
    """Sum over bins of their share of the examples times |accuracy - confidence|."""
    return jnp.sum(bins.count * gap(bins)) / jnp.sum(bins.count)


def gap(bins: Reliability) -> Float[Array, " bins"]:
    """|accuracy - confidence|, 0 where a bin is empty."""
    return jnp.where(bins.count > 0, jnp.abs(bins.accuracy - bins.confidence), 0)


def bin_edges(num_bins: int, dtype: np.dtype) -> np.ndarray:
    """Edges 0, 1/M, ..., 1 of equal-width bins, each rounded down in `dtype`.

    Rounded down, `confidence <= edge` says exactly whether confidence <= i/M for every confidence of that type.
    """
    check_bins(num_bins)
    edges = (np.arange(num_bins + 1) / num_bins).astype(dtype)
    above = [Fraction(float(edge)) > Fraction(i, num_bins) for i, edge in enumerate(edges)]
    return np.where(above, np.nextafter(edges, np.asarray(-1, dtype)), edges)


def _rank_bounds(total: Array, num_bins: int) -> Array:
    """[bins + 1] ranks at which equal-count bins begin and end; the first `total mod bins` bins hold one more."""
    step = jnp.arange(num_bins + 1, dtype=total.dtype)
    return step * (total // num_bins) + jnp.minimum(step, total % num_bins)


def _means(inside: Array, values: Array) -> tuple[Array, Array, Array]:
    """Count, mean confidence and accuracy of each bin, from `inside` [bins, examples] and `values` [3, examples]."""
    sums = jnp.einsum("ve,be->vb", values, inside, precision=jax.lax.Precision.HIGHEST)
    return sums[0], sums[1] / sums[0], sums[2] / sums[0]


def _counted(weight: Array, values: Array) -> Array:
    """`values` where the weight is not 0. It comes after the sort, so that one sort serves every resample."""
    return jnp.where(weight > 0, values, 0)


def check_bins(num_bins: int) -> None:
    """Refuses a number of bins below 1."""
    if num_bins < 1:
        raise InputError(f"num_bins is {num_bins}: give 1 or more")


def check_predictions(logits: Logits, labels: Labels) -> None:
    """Refuses logits and labels from which no calibration can be computed; traced arrays pass unchecked.

    Args:
        logits: Float [examples, classes], finite, one example and two classes or more.
        labels: Int [examples], from 0 to classes - 1.

    Raises:
        InputError: one line that says which array, what is wrong with it and where first.
    """
    if isinstance(logits, jax.core.Tracer) or isinstance(labels, jax.core.Tracer):
        return
    logits, labels = np.asarray(logits), np.asarray(labels)
    _check_shapes(logits, labels)
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"labels are {labels.dtype}: give class numbers as integers")
    outside = np.flatnonzero((labels < 0) | (labels >= logits.shape[1]))
    if outside.size:
        i, last = outside[0], logits.shape[1] - 1
        raise InputError(f"labels[{i}] is {labels[i]}: with {last + 1} classes give labels from 0 to {last}")
    bad = np.flatnonzero(~np.isfinite(logits.astype(np.float32, copy=False)).all(axis=1))
    if bad.size:
        raise InputError(
            f"logits of {bad.size} examples are not finite, the first in row {bad[0]}: remove or mend them"
        )


def _check_shapes(logits: np.ndarray, labels: np.ndarray) -> None:
    if logits.ndim != 2:
        raise InputError(f"logits have shape {logits.shape}: give [examples, classes]")
    if labels.shape != logits.shape[:1]:
        raise InputError(
            f"labels have shape {labels.shape}, logits {logits.shape}: give one label for each row of logits"
        )
    if logits.shape[0] == 0:
        raise InputError("logits and labels are empty: give at least one example")
    if logits.shape[1] < 2:
        raise InputError("logits have one class: give two or more")
