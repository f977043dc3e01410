"""Decompositions of calibration metrics: scores by outcome, over- and underconfidence, parts of the Brier score."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from focalgeo.calibration.binning import (
    Labels,
    LogProbs,
    Mask,
    Reliability,
    Scalar,
    bin_index,
    equal_width,
    nll_of,
    reliability,
    share_of,
    top_of,
    weighted_mean,
)
from focalgeo.checks import Examples, examples
from focalgeo.types import Array


class ByOutcome(NamedTuple):
    """A mean over the examples predicted right and over those predicted wrong; NaN where there is none."""

    correct: Scalar
    wrong: Scalar


class BrierSplit(NamedTuple):
    """Three parts of the Brier score; their sum is `brier` exactly, rounding aside."""

    calibration: Scalar  # sum over classes and bins of (n_b / N) (mean p - share that came true)^2; 0 or more
    refinement: Scalar  # sum of (n_b / N) share (1 - share): what calibration of each bin would leave; 0 or more
    within_bin: Scalar  # mean over bins of Var(p) - 2 Cov(p, outcome) inside the bin; of any sign


def overconfidence(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Scalar:
    """Sum over bins of (n_i / N) max(confidence_i - accuracy_i, 0): the part of `ece` from overconfident bins.

    Overconfidence plus underconfidence is `ece`; overconfidence less underconfidence is mean confidence less accuracy.
    Arguments as `ece`. Thulasidasan et al., arXiv 1905.11001, multiply each bin by its confidence besides; this does
    not. Tested in tests/calibration/test_decomposition.py.
    """
    return _signed(reliability(log_probs, labels, num_bins=num_bins, mask=mask), 1)


def underconfidence(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Scalar:
    """Sum over bins of (n_i / N) max(accuracy_i - confidence_i, 0): the rest of `ece`, see `overconfidence`."""
    return _signed(reliability(log_probs, labels, num_bins=num_bins, mask=mask), -1)


def entropy(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> Scalar:
    """Mean entropy -sum_k p_k log p_k of the predictions in nats, 0 to log(classes); the labels do not enter."""
    return _entropy_of(examples(log_probs, labels, mask))


def _entropy_of(given: Examples) -> Array:
    terms = jnp.where(given.rows > -jnp.inf, jnp.exp(given.rows) * given.rows, 0)
    return weighted_mean(-jnp.sum(terms, axis=-1), given.weight)


def nll_by_outcome(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> ByOutcome:
    """`nll` of the examples predicted right and of those predicted wrong, in nats.

    With a the accuracy, a * correct + (1 - a) * wrong is the NLL of all, tested in
    tests/calibration/test_decomposition.py.

    Source: Mukhoti et al., arXiv 2002.09437, section 3, Figs 1 and 3, where both are drawn over training.
    """
    return ByOutcome(*map(nll_of, _outcomes(examples(log_probs, labels, mask))))


def entropy_by_outcome(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> ByOutcome:
    """`entropy` of the examples predicted right and of those predicted wrong, in nats; averages as `nll_by_outcome`."""
    return ByOutcome(*map(_entropy_of, _outcomes(examples(log_probs, labels, mask))))


def brier_split(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> BrierSplit:
    """The Brier score as calibration + refinement + within-bin part, each summed over classes.

    For each class k the probabilities p_k fall into equal-width bins, see `reliability`, and in a bin p = mean + a,
    outcome = share + b gives mean (p - outcome)^2 = (mean - share)^2 + mean b^2 + mean(a^2 - 2 a b). With as many bins
    as distinct probabilities the last part is 0 and the other two are the split of DeGroot and Fienberg. Absolute error
    1e-6, tested in tests/calibration/test_decomposition.py. Arguments and errors as `ece`.

    Source: DeGroot and Fienberg, The Statistician 32 (1983); the within-bin part is that of Stephenson, Coelho and
    Jolliffe, Weather and Forecasting 23 (2008).
    """
    log_probs, labels, weight = examples(log_probs, labels, mask)

    def of_class(column: tuple[Array, Array]) -> BrierSplit:
        log_p, k = column
        return _binary_split(jnp.exp(log_p), labels == k, weight, num_bins)

    parts = jax.lax.map(of_class, (log_probs.T, jnp.arange(log_probs.shape[-1], dtype=jnp.int32)))
    return BrierSplit(*(jnp.sum(part) for part in parts))


def _binary_split(p: Array, event: Array, weight: Array, num_bins: int) -> BrierSplit:
    bins = equal_width(p, event, weight, num_bins)
    index, full = bin_index(p, num_bins), bins.count > 0
    share = bins.count / jnp.sum(bins.count)
    calibration = jnp.where(full, (bins.confidence - bins.accuracy) ** 2, 0)
    refinement = jnp.where(full, bins.accuracy * (1 - bins.accuracy), 0)
    inside, outcome = p - bins.confidence[index], event.astype(p.dtype) - bins.accuracy[index]
    within = weighted_mean(inside**2 - 2 * inside * outcome, weight)
    return BrierSplit(jnp.sum(share * calibration), jnp.sum(share * refinement), within)


def _signed(bins: Reliability, sign: int) -> Array:
    excess = jnp.where(bins.count > 0, jnp.maximum(sign * (bins.confidence - bins.accuracy), 0), 0)
    return jnp.sum(bins.count * excess) / jnp.sum(bins.count)


def _outcomes(given: Examples) -> tuple[Examples, Examples]:
    """The examples predicted right, and those predicted wrong; the others have weight 0."""
    top = top_of(given)
    parts = (share_of(top.weight, chosen) for chosen in (top.correct, ~top.correct))
    return tuple(given._replace(weight=part) for part in parts)
