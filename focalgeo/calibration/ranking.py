"""Ranking of examples by confidence: how well it parts right predictions from wrong ones.

Arguments are as those of `metrics`. Counts of examples are exact in float32 up to 2^24. The order of the confidences
does not depend on the mask, so that one sort serves every resample of a bootstrap.
"""

from typing import NamedTuple

import jax.numpy as jnp

from focalgeo.calibration.binning import Labels, LogProbs, Mask, Numbers, Scalar, TopLabel, share_of, top_label
from focalgeo.types import Array


class _Ranked(NamedTuple):
    """Examples by ascending confidence; equal confidences are a group."""

    right: Numbers  # how often the example counts where its prediction is right, else 0
    wrong: Numbers  # and where it is wrong
    first: Array  # int [examples]: position of the first example of its group
    end: Array  # int [examples]: position behind the last one


def auroc(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> Scalar:
    """Area under the ROC curve of confidence as a test of whether the prediction is right, 0 to 1.

    It is the probability that a right prediction has a larger confidence than a wrong one, a tie counted as half: 0.5
    by chance, NaN where all predictions are right or all are wrong. Calibration does not enter: any increasing function
    of the confidence has the same. Absolute error 1e-6, tested in tests/calibration/test_ranking.py.

    Source: Hanley and McNeil, Radiology 143 (1982), the area as a Mann-Whitney statistic.
    """
    ranked = _ranked(top_label(log_probs, labels, mask))
    below = _sums_before(ranked.wrong)
    beaten = (below[ranked.first] + below[ranked.end]) / 2 / below[-1]  # shares: their sum is no large number
    return jnp.sum(ranked.right * beaten) / jnp.sum(ranked.right)


def aurc(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> Scalar:
    """Area under the risk-coverage curve (1 / N) sum_i risk(c_i), as a fraction; the smaller the better.

    risk(c) is the share of wrong predictions among the examples with a confidence of c or more. So examples of equal
    confidence are accepted together, and their order does not matter; where all are equal it is 1 - accuracy. It is 0
    where all predictions are right. Absolute error 1e-6, tested in tests/calibration/test_ranking.py.

    Source: Geifman, Uziel and El-Yaniv, arXiv 1805.08206, section 2, with the thresholds at the confidences; the curve
    is that of Geifman and El-Yaniv, arXiv 1705.08500.
    """
    ranked = _ranked(top_label(log_probs, labels, mask))
    count = ranked.right + ranked.wrong
    accepted, wrong = (_sums_from(each)[ranked.first] for each in (count, ranked.wrong))
    risk = jnp.where(count == 0, 0, wrong / accepted)
    return jnp.sum(count * risk) / jnp.sum(count)


def _ranked(top: TopLabel) -> _Ranked:
    order = jnp.argsort(top.confidence, stable=True)
    ordered = top.confidence[order]
    ends = (jnp.searchsorted(ordered, ordered, side=side, method="sort") for side in ("left", "right"))
    return _Ranked(share_of(top.weight, top.correct)[order], share_of(top.weight, ~top.correct)[order], *ends)


def _sums_before(counts: Numbers) -> Array:
    """[examples + 1] sums of the counts in front of each position, the sum of all last."""
    return jnp.concatenate([jnp.zeros_like(counts[:1]), jnp.cumsum(counts)])


def _sums_from(counts: Numbers) -> Array:
    """[examples] sums of the counts from each position on."""
    return jnp.cumsum(counts[::-1])[::-1]
