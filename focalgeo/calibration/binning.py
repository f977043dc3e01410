"""Bins of confidence, of equal width and of equal mass, and weighted means over examples.

An example counts as often as its weight says: 1 and 0 for a mask, a whole number for a resample. A bin scheme is a
table [bins, examples] of how often each example counts in each bin; its columns add up to the weights, so no example
is dropped.
"""

from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer, Shaped

from focalgeo import checks
from focalgeo.types import Array

LogProbs = Logits = Float[Array, "examples classes"]
Labels = Integer[Array, " examples"]
Mask = Shaped[Array, " examples"] | None  # bool, or how often each example counts; None counts each once
Scalar = Float[Array, ""]
Numbers = Float[Array, " examples"]

_ROW = 100  # numbers in a row of the table of a running sum


class Reliability(NamedTuple):
    """The bins of a reliability diagram; means of an empty bin are NaN and its count is 0."""

    count: Float[Array, " bins"]  # examples in the bin
    confidence: Float[Array, " bins"]  # mean predicted probability
    accuracy: Float[Array, " bins"]  # share of examples that came true
    lower: Float[Array, " bins"]  # equal width: the bin is (lower, upper]; equal mass: least and largest confidence
    upper: Float[Array, " bins"]


class Events(NamedTuple):
    """A probability of an event for each example, whether it came true, and the example's weight."""

    p: Numbers
    correct: Bool[Array, " examples"]
    weight: Numbers


def top_label(examples: checks.Examples) -> Events:
    """The event that the predicted class is right."""
    predicted = jnp.argmax(examples.rows, axis=-1)
    return Events(jnp.exp(jnp.max(examples.rows, axis=-1)), predicted == examples.labels, examples.weight)


def reliability(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Reliability:
    """Mean confidence and accuracy of the predicted class in `num_bins` bins of equal width, ((i-1)/M, i/M].

    Args:
        log_probs: Float [examples, classes].
        labels: Int [examples].
        num_bins: M, 1 or more. A confidence of 0 belongs to the first bin, of 1 to the last; a confidence that equals
            an edge belongs to the bin below, decided in exact arithmetic (float32(0.1) is above 1/10).
        mask: Bool [examples], or how often each example counts; None counts each once.

    Source: Mukhoti et al., arXiv 2002.09437, section 2 (their figures use 25 bins, their tables 15).
    """
    return equal_width(*top_label(checks.examples(log_probs, labels, mask, num_bins=num_bins)), num_bins)


def adaptive_reliability(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Reliability:
    """Mean confidence and accuracy of the predicted class in `num_bins` bins of equal count, by rank of confidence.

    With N examples the first N mod M bins hold one more than the rest; equal confidences keep the order of the
    examples. Arguments as `reliability`; weights are rounded to whole numbers.

    Source: Mukhoti et al., arXiv 2002.09437, Eq. 3. The published code interpolates edges instead and drops examples.
    """
    return equal_mass(*top_label(checks.examples(log_probs, labels, mask, num_bins=num_bins)), num_bins)


def equal_width(p: Numbers, correct: Bool[Array, " examples"], weight: Numbers, num_bins: int) -> Reliability:
    """`reliability` of events."""
    edges = bin_edges(num_bins, p.dtype)
    inside = jax.nn.one_hot(bin_index(p, num_bins), num_bins, axis=0, dtype=p.dtype)
    values = jnp.stack([weight, _counted(weight, weight * p), weight * correct.astype(p.dtype)])
    count, sums, right = jnp.einsum("ve,be->vb", values, inside, precision=jax.lax.Precision.HIGHEST)
    return Reliability(count, sums / count, right / count, jnp.asarray(edges[:-1]), jnp.asarray(edges[1:]))


def residual_sums(
    p: Numbers, correct: Bool[Array, " examples"], weight: Numbers, num_bins: int
) -> Float[Array, " bins"]:
    """Sums of event - p in the bins of `equal_width`: their sizes over the weights' sum make an expected gap.

    Many classes under many resamples ask for no more than these, in a third of the time of the bins' three means.
    """
    inside = jax.nn.one_hot(bin_index(p, num_bins), num_bins, axis=0, dtype=p.dtype)
    residual = _counted(weight, weight * (correct.astype(p.dtype) - p))
    return jnp.einsum("e,be->b", residual, inside, precision=jax.lax.Precision.HIGHEST)


def bin_index(p, num_bins):
    """Number from 0 of the equal-width bin that each probability falls into."""
    return jnp.searchsorted(bin_edges(num_bins, p.dtype)[1:-1], p, side="left", method="compare_all")


def bin_edges(num_bins, dtype):
    """Edges 0, 1/M, ..., 1 of equal-width bins, each rounded down in `dtype`.

    Rounded down, `p <= edge` says exactly whether p <= i/M for every p of that type.
    """
    edges = (np.arange(num_bins + 1) / num_bins).astype(dtype)
    above = [Fraction(float(edge)) > Fraction(i, num_bins) for i, edge in enumerate(edges)]
    return np.where(above, np.nextafter(edges, np.asarray(-1, dtype)), edges)


def equal_mass(p: Numbers, correct: Bool[Array, " examples"], weight: Numbers, num_bins: int) -> Reliability:
    """`adaptive_reliability` of events."""
    order = jnp.argsort(p, stable=True)
    times = jnp.round(weight).astype(jnp.int32)[order]
    p, correct = _counted(times, p[order]), correct[order].astype(times.dtype)
    last, right_before = jnp.cumsum(times), jnp.cumsum(correct * times)
    step, total = jnp.arange(num_bins + 1, dtype=last.dtype), last[-1]
    bounds = step * (total // num_bins) + jnp.minimum(step, total % num_bins)  # the first bins hold one more
    # Sums up to each bound, whose differences are those of the bins: a table [bins, examples] takes five times as long
    # under resampling. Of confidence less correct, as that sum stays small and so keeps its digits.
    excess = p - correct.astype(p.dtype)
    ends = jnp.searchsorted(last, bounds, side="left")
    beyond = last[ends] - bounds
    sums = _running_sum(excess * times.astype(excess.dtype))[ends] - excess[ends] * beyond.astype(excess.dtype)
    right = right_before[ends] - correct[ends] * beyond
    count, sums, right = (jnp.diff(cumulated).astype(p.dtype) for cumulated in (bounds, sums, right))
    lower = jnp.where(count > 0, p[jnp.searchsorted(last, bounds[:-1], side="right")], jnp.inf)
    upper = jnp.where(count > 0, p[ends[1:]], -jnp.inf)
    return Reliability(count, (sums + right) / count, right / count, lower, upper)


def _running_sum(values):
    """`jnp.cumsum` in rows of a table, all rows side by side, to which the sums of the rows above are then added."""
    rows = jnp.pad(values, (0, -len(values) % _ROW)).reshape(-1, _ROW)
    totals, within = jax.lax.scan(lambda total, column: (total + column,) * 2, 0 * rows[:, 0], rows.T)
    return (within + (jnp.cumsum(totals) - totals)[None]).T.ravel()


def _counted(weight, values):
    """`values` where the weight is not 0. It comes after the sort, so that one sort serves every resample."""
    return jnp.where(weight > 0, values, 0)


def gap(bins: Reliability) -> Float[Array, " bins"]:
    """|accuracy - confidence|, 0 where a bin is empty."""
    return jnp.where(bins.count > 0, jnp.abs(bins.accuracy - bins.confidence), 0)


def bin_mean(bins: Reliability, values: Float[Array, " bins"]) -> Scalar:
    """Mean of a value of each bin, by the examples that it holds."""
    return jnp.sum(bins.count * values) / jnp.sum(bins.count)


def weighted_mean(values: Numbers, weight: Numbers) -> Scalar:
    """Mean of `values` [examples], each as often as its weight says; NaN where none counts, and where one is NaN."""
    return jnp.sum(jnp.where(weight > 0, values * weight, 0)) / jnp.sum(weight)


def nll_of(examples: checks.Examples) -> Scalar:
    """`nll` of what has been checked."""
    true = jax.nn.one_hot(examples.labels, examples.rows.shape[-1], dtype=bool)
    return weighted_mean(-jnp.sum(jnp.where(true, examples.rows, 0), axis=-1), examples.weight)


def ece_of(events: Events, num_bins: int, *, by_rank: bool = False) -> Scalar:
    """Expected gap of events in bins of equal width, from `residual_sums` alone, or by rank in bins of equal mass."""
    if by_rank:
        bins = equal_mass(*events, num_bins)
        return bin_mean(bins, gap(bins))
    return jnp.sum(jnp.abs(residual_sums(*events, num_bins))) / jnp.sum(events.weight)
