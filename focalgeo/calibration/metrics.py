"""Calibration metrics: metric(log_probs, labels, *, mask=None, ...) -> scalar, for jit and vmap.

Everywhere log_probs is float [examples, classes], labels int [examples] in 0 .. classes - 1, and mask is None, bool
[examples], or how often each example counts (so that a bootstrap resample is a mask). Masked examples count for
nothing, whatever they hold; with no example left the result is NaN. float16 and bfloat16 are taken as the float32
numbers that they are. What is no log-probability or no class is an InputError where values are concrete; under jit and
vmap the result is NaN (see `arguments.examples`).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from focalgeo.calibration.binning import (
    Labels,
    LogProbs,
    Mask,
    Scalar,
    equal_mass,
    equal_width_gap,
    expected_gap,
    gap,
    nll_of,
    reliability,
    residual_sums,
    share_of,
    top_label,
    top_of,
    weighted_mean,
)
from focalgeo.calibration.decomposition import brier_split, overconfidence, underconfidence
from focalgeo.calibration.ece_variants import debiased_ece, smooth_ece
from focalgeo.calibration.ranking import aurc, auroc
from focalgeo.checks import (
    Examples,
    check_interval,
    examples,
    in_interval,
    is_traced,
    marked,
    number_array,
    score_rows,
)
from focalgeo.rows import Title
from focalgeo.types import DEFAULT_METRICS, PROBABILITY_FLOOR, Array, InputError, floored_log


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
    return ece_of(examples(log_probs, labels, mask), num_bins, by_rank=False)


def adaptive_ece(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Scalar:
    """Equal-mass ECE: as `ece`, over bins that hold equally many examples, see `adaptive_reliability`.

    Source: Mukhoti et al., arXiv 2002.09437, Eq. 3, by rank: no example is dropped, as their published code does.
    """
    return ece_of(examples(log_probs, labels, mask), num_bins, by_rank=True)


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
        return jnp.sum(jnp.abs(residual_sums(jnp.exp(log_p), labels == k, weight, num_bins)))

    sums = jax.lax.map(of_class, (log_probs.T, jnp.arange(log_probs.shape[-1], dtype=jnp.int32)))
    return jnp.mean(sums) / jnp.sum(weight)


def nll(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> Scalar:
    """Mean negative log-likelihood -log p_y in nats, not clipped: infinite if p_y is 0."""
    return nll_of(examples(log_probs, labels, mask))


def ece_of(given: Examples, num_bins: int, *, by_rank: bool) -> Scalar:
    """`ece`, or by rank `adaptive_ece`, of what has been checked."""
    top = top_of(given)
    return expected_gap(equal_mass(*top, num_bins)) if by_rank else equal_width_gap(*top, num_bins)


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


def log_probabilities(probs: Float[Array, "*batch classes"]) -> Float[Array, "*batch classes"]:
    """Log max(p, PROBABILITY_FLOOR) in float32, as logits or log-probabilities of probabilities that may hold 0.

    Args:
        probs: Float [..., classes], rows that sum to 1 within 0.01. Where it is traced, other rows give NaN.

    The floor, 1.2e-38, is the least number of full precision in float32: an NLL says no more than 87.3 of an example
    whose true class has probability 0.

    Raises:
        InputError: no probabilities: negative, above 1, not finite, or rows that do not sum to 1.
    """
    rows = score_rows("probs", probs)
    if not is_traced(rows):
        check_interval("probs", rows, 0, 1 + 1e-2)
        sums = np.sum(np.asarray(rows, np.float64), axis=-1)
        if np.any(np.abs(sums - 1) > 1e-2):
            worst = sums.flat[np.argmax(np.abs(sums - 1))]
            raise InputError(f"probs have a row that sums to {worst:.4g}: give probabilities, of logits the softmax")
        return jnp.asarray(floored_log(np.asarray(rows)))
    wide = rows.astype(jnp.float32)
    valid = jnp.all(wide >= 0, axis=-1, keepdims=True) & (jnp.abs(jnp.sum(wide, axis=-1, keepdims=True) - 1) <= 1e-2)
    return marked(valid, jnp.log(jnp.maximum(wide, PROBABILITY_FLOOR)))


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
    share: bool = False  # of examples: Wilson's interval holds, where a bootstrap's has no width at 0 and 1
    among: Callable[..., Array] | None = None  # among(log_probs, labels) -> the number of examples a share is of
    may_lack: bool = False  # NaN where it has no meaning, as the accuracy of no example: no fault of the numbers

    @property
    def shown(self) -> Title:
        """The metric's entry in a manifest."""
        return Title(**{name: getattr(self, name) for name in Title._fields})


def _part(function: Callable[..., NamedTuple], field: str) -> Callable[..., Array]:
    """One field of what a function of log-probabilities and labels returns."""
    return lambda log_probs, labels, **options: getattr(function(log_probs, labels, **options), field)


def _num_confident(log_probs: LogProbs, labels: Labels) -> Scalar:
    """The number of examples that `high_confidence` takes the accuracy of."""
    return jnp.sum(top_label(log_probs, labels).confidence >= 0.99)


def _percent(
    function: Callable[..., Array], title: str, note: str = "", **fields: bool | str | Callable
) -> MetricEntry:
    return MetricEntry(function, title, "%", note, 100.0, 2, largest=1.0, **fields)


METRICS: dict[str, MetricEntry] = {
    "accuracy": _percent(accuracy, "Accuracy", "higher is better", best="high", share=True),
    "ece": _percent(ece, "ECE", "equal-width bins", binned=True),
    "adaptive_ece": _percent(adaptive_ece, "Adaptive ECE", "equal-mass bins", binned=True),
    "nll": MetricEntry(nll, "NLL", "nats"),
    "brier": MetricEntry(brier, "Brier score", largest=2.0),
    "mce": _percent(mce, "MCE", "largest gap of a bin", binned=True),
    "classwise_ece": _percent(classwise_ece, "Class-wise ECE", "mean over classes", binned=True),
    "debiased_ece": _percent(debiased_ece, "Debiased ECE", "L2, equal-mass bins", binned=True),
    "smooth_ece": _percent(smooth_ece, "Smooth ECE", "no bins"),
    "overconfidence": _percent(overconfidence, "Overconfidence", "part of the ECE", binned=True),
    "underconfidence": _percent(underconfidence, "Underconfidence", "part of the ECE", binned=True),
    "brier_calibration": MetricEntry(
        _part(brier_split, "calibration"), "Brier calibration", note="part of the Brier score", binned=True, largest=2.0
    ),
    "brier_refinement": MetricEntry(
        _part(brier_split, "refinement"), "Brier refinement", note="part of the Brier score", binned=True, largest=1.0
    ),
    "high_confidence": _percent(
        _part(high_confidence, "fraction"), "|S99|", "confidence of 0.99 or more", best="high", share=True
    ),
    "high_confidence_accuracy": _percent(
        _part(high_confidence, "accuracy"),
        "Accuracy of S99",
        "confidence of 0.99 or more",
        best="high",
        share=True,
        among=_num_confident,
        may_lack=True,
    ),
    "auroc": _percent(auroc, "AUROC", "right from wrong by confidence", best="high", may_lack=True),
    "aurc": _percent(aurc, "AURC", "area under risk-coverage"),
}


def all_metrics(
    log_probs: LogProbs,
    labels: Labels,
    *,
    num_bins: int = 15,
    mask: Mask = None,
    names: Iterable[str] = DEFAULT_METRICS,
) -> dict[str, Scalar]:
    """The metrics of METRICS with these names; with num_bins and names bound it is a metric for `bootstrap`.

    Raises:
        InputError: a name that is not in METRICS; what the metrics refuse.
    """
    return metrics_of(log_probs, labels, mask, entries=metric_entries(names), num_bins=num_bins)


def metrics_of(
    log_probs: LogProbs,
    labels: Labels,
    mask: Mask = None,
    *,
    entries: Mapping[str, MetricEntry],
    num_bins: int,
) -> dict[str, Scalar]:
    """The metrics of these entries by name; errors as theirs."""
    return {
        name: entry.function(log_probs, labels, mask=mask, **({"num_bins": num_bins} if entry.binned else {}))
        for name, entry in entries.items()
    }


def metric_entries(names: Iterable[str]) -> dict[str, MetricEntry]:
    """The entries of METRICS with these names, each once, in the order given.

    Raises:
        InputError: a name that is not in METRICS, or one text in place of several names.
    """
    if isinstance(names, str):
        raise InputError(f"metrics are {names!r}: give a list of names, [{names!r}]")
    for name in (names := tuple(names)):
        if name not in METRICS:
            raise InputError.of_choice("a metric", str(name), METRICS)
    return {name: METRICS[name] for name in names}
