"""Calibration metrics: metric(log_probs, labels, *, mask=None, ...) -> scalar, for jit and vmap.

Everywhere log_probs is float [examples, classes], labels int [examples] in 0 .. classes - 1, and mask is None, bool
[examples], or how often each example counts (so that a bootstrap resample is a mask). Masked examples count for
nothing, whatever they hold; with no example left the result is NaN. float16 and bfloat16 are taken as the float32
numbers that they are. What is no log-probability or no class is an InputError where values are concrete; under jit and
vmap the result is NaN (see `arguments.examples`).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from focalgeo.arguments import Examples, check_interval, examples, in_interval, marked, number_array
from focalgeo.calibration.binning import (
    Labels,
    LogProbs,
    Mask,
    Scalar,
    adaptive_reliability,
    equal_mass,
    equal_width,
    expected_gap,
    gap,
    reliability,
    share_of,
    top_label,
    top_of,
)
from focalgeo.rows import Title
from focalgeo.types import Array


class HighConfidence(NamedTuple):
    """The share of examples predicted with high confidence, and their accuracy."""

    fraction: Scalar  # share of all examples, 0 to 1
    accuracy: Scalar  # share of them that is right; NaN if there is none


def ece(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Scalar:
    """Expected calibration error sum_i (n_i / N) |accuracy_i - confidence_i| of the predicted class, as a fraction.

    Bins have equal width and are closed on the right, see `reliability`. It is piecewise constant in a temperature: no
    gradients. Absolute error 1e-6, tested in tests/calibration/test_metrics.py.

    Source: Mukhoti et al., arXiv 2002.09437, Eq. 1, 15 bins in their tables.
    """
    return expected_gap(reliability(log_probs, labels, num_bins=num_bins, mask=mask))


def adaptive_ece(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Scalar:
    """Equal-mass ECE: as `ece`, over bins that hold equally many examples, see `adaptive_reliability`.

    Source: Mukhoti et al., arXiv 2002.09437, Eq. 3, by rank: no example is dropped, as their published code does.
    """
    return expected_gap(adaptive_reliability(log_probs, labels, num_bins=num_bins, mask=mask))


def mce(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Scalar:
    """Maximum calibration error max_i |accuracy_i - confidence_i| over the equal-width bins that are not empty.

    Source: Mukhoti et al., arXiv 2002.09437, Eq. 2.
    """
    bins = reliability(log_probs, labels, num_bins=num_bins, mask=mask)
    largest = jnp.max(gap(bins))
    return jnp.where(jnp.sum(bins.count) > 0, largest, jnp.nan)


def classwise_ece(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Scalar:
    """Mean over classes of the ECE of p_k as a prediction of "the label is k", with equal-width bins.

    A class that no label has still counts, and so does p_k = 0 (the published code drops both).
    """
    log_probs, labels, weight = examples(log_probs, labels, mask)

    def of_class(column: tuple[Array, Array]) -> Array:
        log_p, k = column
        return expected_gap(equal_width(jnp.exp(log_p), labels == k, weight, num_bins))

    return jnp.mean(jax.lax.map(of_class, (log_probs.T, jnp.arange(log_probs.shape[-1], dtype=jnp.int32))))


def nll(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> Scalar:
    """Mean negative log-likelihood -log p_y in nats, not clipped: infinite if p_y is 0."""
    return nll_of(examples(log_probs, labels, mask))


def nll_of(given: Examples) -> Scalar:
    """`nll` of what has been checked."""
    true = jax.nn.one_hot(given.labels, given.log_probs.shape[-1], dtype=bool)
    return weighted_mean(-jnp.sum(jnp.where(true, given.log_probs, 0), axis=-1), given.weight)


def ece_of(given: Examples, num_bins: int, *, by_rank: bool) -> Scalar:
    """`ece`, or by rank `adaptive_ece`, of what has been checked."""
    return expected_gap((equal_mass if by_rank else equal_width)(*top_of(given), num_bins))


def brier(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> Scalar:
    """Brier score sum_k (p_k - [k = y])^2, summed over classes and averaged over examples: 0 to 2."""
    log_probs, labels, weight = examples(log_probs, labels, mask)
    error = jnp.exp(log_probs) - jax.nn.one_hot(labels, log_probs.shape[-1], dtype=log_probs.dtype)
    return weighted_mean(jnp.sum(error**2, axis=-1), weight)


def accuracy(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> Scalar:
    """Share of examples whose most probable class is the label, 0 to 1; of tied classes the first is predicted."""
    top = top_label(log_probs, labels, mask)
    return jnp.sum(top.weight * top.correct.astype(top.weight.dtype)) / jnp.sum(top.weight)


def high_confidence(
    log_probs: LogProbs, labels: Labels, threshold: float = 0.99, *, mask: Mask = None
) -> HighConfidence:
    """Share of examples whose confidence is `threshold` or more, and their accuracy; the threshold is from 0 to 1.

    Source: Mukhoti et al., arXiv 2002.09437, Table 6 (|S99|).
    """
    number_array("threshold", threshold, ())
    check_interval("threshold", threshold, 0, 1)
    top = top_label(log_probs, labels, mask)
    chosen = share_of(top.weight, top.confidence >= threshold)
    size = jnp.sum(chosen)
    accuracy = jnp.sum(share_of(chosen, top.correct)) / size
    return marked(in_interval(threshold, 0, 1), HighConfidence(size / jnp.sum(top.weight), accuracy))


def weighted_mean(values: Float[Array, " examples"], weight: Float[Array, " examples"]) -> Scalar:
    """Mean of `values` [examples], each as often as its weight says; NaN where none counts, and where one is NaN."""
    return jnp.sum(jnp.where(weight > 0, values * weight, 0)) / jnp.sum(weight)


class MetricEntry(NamedTuple):
    """A metric of METRICS: its function, and how its numbers are shown and bounded."""

    function: Callable[..., Array]  # function(log_probs, labels, *, mask=None) -> scalar; with num_bins where binned
    title: str
    unit: str = ""  # this and the next four: see rows.Title
    note: str = ""
    scale: float = 1.0
    digits: int = 4
    best: str = "low"
    binned: bool = False  # takes num_bins
    largest: float = math.inf  # that it can be; the smallest is 0
    share: bool = False  # of the examples: Wilson's interval holds, where a bootstrap's has no width at 0 and 1

    @property
    def shown(self) -> Title:
        """The metric's entry in a manifest."""
        return Title(**{name: getattr(self, name) for name in Title._fields})


METRICS: dict[str, MetricEntry] = {
    "accuracy": MetricEntry(accuracy, "Accuracy", "%", "higher is better", 100.0, 2, "high", largest=1.0, share=True),
    "ece": MetricEntry(ece, "ECE", "%", "equal-width bins", 100.0, 2, binned=True, largest=1.0),
    "adaptive_ece": MetricEntry(
        adaptive_ece, "Adaptive ECE", "%", "equal-mass bins", 100.0, 2, binned=True, largest=1.0
    ),
    "nll": MetricEntry(nll, "NLL", "nats"),
    "brier": MetricEntry(brier, "Brier score", largest=2.0),
}
DEFAULT_METRICS = ("accuracy", "ece", "adaptive_ece", "nll", "brier")


def all_metrics(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> dict[str, Scalar]:
    """Every metric of METRICS by its name; with num_bins bound it is a metric for `bootstrap`."""
    return {
        name: entry.function(log_probs, labels, mask=mask, **({"num_bins": num_bins} if entry.binned else {}))
        for name, entry in METRICS.items()
    }
