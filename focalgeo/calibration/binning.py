"""Bins of confidence, of equal width and of equal mass, means over examples, and the checks of predictions.

An example counts as often as its weight says: 1 and 0 for a mask, a whole number for a resample. A bin scheme is a
table [bins, examples] of how often each example counts in each bin; its columns add up to the weights, so no example
is dropped.
"""

from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Integer, Shaped

from focalgeo.checks import Examples, check_bins, examples, marked, predicted_logits
from focalgeo.types import Array

LogProbs = Logits = Float[Array, "examples classes"]
Labels = Integer[Array, " examples"]
Mask = Shaped[Array, " examples"] | None  # bool, or how often each example counts; None counts each once
Scalar = Float[Array, ""]
Numbers = Float[Array, " examples"]

_COLUMNS = 100  # of the table of a running sum


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
    """Confidence, correctness and weight of each example, checked by `arguments.examples`."""
    return top_of(examples(log_probs, labels, mask))


def top_of(given: Examples) -> TopLabel:
    """`top_label` of what has been checked."""
    predicted = jnp.argmax(given.rows, axis=-1)
    confidence = jnp.exp(jnp.max(given.rows, axis=-1))
    return TopLabel(confidence, predicted == jnp.asarray(given.labels, predicted.dtype), given.weight)


def weights(mask: Mask, like: Numbers) -> Numbers:
    """`mask` (bool, or how often each example counts) as numbers in the type of `like`; ones where it is None."""
    return jnp.ones_like(like) if mask is None else jnp.asarray(mask, like.dtype)


def reliability(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Reliability:
    """Mean confidence and accuracy of the predicted class in `num_bins` bins of equal width, ((i-1)/M, i/M].

    Args:
        log_probs: Float [examples, classes].
        labels: Int [examples].
        num_bins: M, 1 or more. A confidence of 0 belongs to the first bin, of 1 to the last; a confidence that equals
            an edge belongs to the bin below, decided in exact arithmetic (float32(0.1) is above 1/10).
        mask: Bool [examples], or how often each example counts; None counts each once.

    Raises:
        InputError: num_bins is below 1 or above 10,000; log_probs, labels or a mask that `arguments.examples` refuses.

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
    check_bins(num_bins)
    edges = bin_edges(num_bins, confidence.dtype)
    inside = jax.nn.one_hot(bin_index(confidence, num_bins), num_bins, axis=0, dtype=confidence.dtype)
    correct = correct.astype(confidence.dtype)
    values = jnp.stack([weight, _counted(weight, weight * confidence), weight * correct])
    means = _means(inside, values)
    count, mean, accuracy = marked(jnp.sum(means[0]) >= 0, means)
    return Reliability(count, mean, accuracy, jnp.asarray(edges[:-1]), jnp.asarray(edges[1:]))


def residual_sums(p: Numbers, event: Bool[Array, " examples"], weight: Numbers, num_bins: int) -> Float[Array, " bins"]:
    """Sums of event - p in the bins of `equal_width`: their sizes over the weights' sum make an expected gap.

    Many classes under many resamples ask for no more than these, in a third of the time of the bins' three means.
    """
    check_bins(num_bins)
    inside = jax.nn.one_hot(bin_index(p, num_bins), num_bins, axis=0, dtype=p.dtype)
    residual = _counted(weight, weight * (event.astype(p.dtype) - p))
    return jnp.einsum("e,be->b", residual, inside, precision=jax.lax.Precision.HIGHEST)


def bin_index(confidence: Numbers, num_bins: int) -> Int[Array, " examples"]:
    """Number from 0 of the equal-width bin that each confidence [examples] falls into, see `reliability`."""
    edges = bin_edges(num_bins, confidence.dtype)
    return jnp.searchsorted(edges[1:-1], confidence, side="left", method="compare_all")


def equal_mass(confidence: Numbers, correct: Bool[Array, " examples"], weight: Numbers, num_bins: int) -> Reliability:
    """`adaptive_reliability` from the probability [examples] of an event, whether it came true, and the weights."""
    check_bins(num_bins)
    order = jnp.argsort(confidence, stable=True)
    times, valid = whole_times(weight)
    times = times[order]
    confidence, correct = _counted(times, confidence[order]), correct[order].astype(times.dtype)
    last, right_before = running_sum(jnp.stack([times, correct * times]))
    bounds = _rank_bounds(last[-1], num_bins)
    # Sums up to each bound, whose differences are those of the bins: a table [bins, examples] takes five times as long
    # under resampling. Of confidence less correct, as that sum stays small and so keeps its digits.
    excess = confidence - correct.astype(confidence.dtype)
    ends = jnp.searchsorted(last, bounds, side="left")
    beyond = last[ends] - bounds
    sums = running_sum(excess * times.astype(excess.dtype))[ends] - excess[ends] * beyond.astype(excess.dtype)
    right = right_before[ends] - correct[ends] * beyond
    count, sums, right = (jnp.diff(each).astype(confidence.dtype) for each in (bounds, sums, right))
    means = count, (sums + right) / count, right / count
    lower = jnp.where(count > 0, confidence[jnp.searchsorted(last, bounds[:-1], side="right")], jnp.inf)
    upper = jnp.where(count > 0, confidence[ends[1:]], -jnp.inf)
    return Reliability(*marked(valid, means), lower, upper)


def running_sum(values: Shaped[Array, "*batch numbers"]) -> Shaped[Array, "*batch numbers"]:
    """Sum of the numbers up to each, itself among them: `jnp.cumsum` in a third of its time on a CPU.

    In rows of a table, all rows side by side, to which the sums of the rows above are then added.
    """
    size = values.shape[-1]
    table = jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -size % _COLUMNS)])
    columns = jnp.moveaxis(table.reshape(*values.shape[:-1], -1, _COLUMNS), -1, 0)
    add = lambda total, column: (total + column,) * 2  # noqa: E731
    totals, within = jax.lax.scan(add, jnp.zeros_like(columns[0]), columns)
    sums = jnp.moveaxis(within, 0, -1) + (jnp.cumsum(totals, axis=-1) - totals)[..., None]
    return sums.reshape(table.shape)[..., :size]


def whole_times(weight: Numbers) -> tuple[Int[Array, " examples"], Bool[Array, ""]]:
    """Weights as whole numbers, and whether none is NaN and their sum fits int32."""
    return jnp.round(weight).astype(jnp.int32), jnp.sum(weight) < 2.0**31


def share_of(weight: Numbers, chosen: Bool[Array, " examples"]) -> Numbers:
    """The weight of the chosen examples, 0 of the others; NaN stays NaN, where XLA makes 0 of NaN times false."""
    return jnp.where(chosen | jnp.isnan(weight), weight, 0)


def equal_width_gap(p: Numbers, event: Bool[Array, " examples"], weight: Numbers, num_bins: int) -> Scalar:
    """`expected_gap` of `equal_width`, from `residual_sums` alone."""
    return jnp.sum(jnp.abs(residual_sums(p, event, weight, num_bins))) / jnp.sum(weight)


def expected_gap(bins: Reliability) -> Scalar:
    """Sum over bins of their share of the examples times |accuracy - confidence|."""
    return jnp.sum(bins.count * gap(bins)) / jnp.sum(bins.count)


def weighted_mean(values: Numbers, weight: Numbers) -> Scalar:
    """Mean of `values` [examples], each as often as its weight says; NaN where none counts, and where one is NaN."""
    return jnp.sum(jnp.where(weight > 0, values * weight, 0)) / jnp.sum(weight)


def nll_of(given: Examples) -> Scalar:
    """`nll` of what has been checked."""
    true = jax.nn.one_hot(given.labels, given.rows.shape[-1], dtype=bool)
    return weighted_mean(-jnp.sum(jnp.where(true, given.rows, 0), axis=-1), given.weight)


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


def check_predictions(logits: Logits, labels: Labels) -> None:
    """Refuses logits and labels from which no calibration can be computed; of traced arrays, by shape and type alone.

    Args:
        logits: Float [examples, classes], finite, one example and two classes or more.
        labels: Int [examples], from 0 to classes - 1.

    Raises:
        InputError: one line that says which array, what is wrong with it and where first.
    """
    predicted_logits(logits, labels)
