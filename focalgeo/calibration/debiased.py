"""Binned calibration error less the part of it that sampling alone would make."""

import jax.numpy as jnp

from focalgeo.calibration.binning import Reliability, adaptive_reliability, gap
from focalgeo.types import Array


def debiased_ece(log_probs: Array, labels: Array, *, num_bins: int = 15, mask: Array | None = None) -> Array:
    """Root of `debiased_squared_ece`, 0 where that is negative: a root mean square over bins, as a fraction.

    It estimates the L2 calibration error, which is never below the L1 error that `ece` estimates: do not compare the
    two. Arguments as `adaptive_ece`. Inside `bootstrap` its draws are biased upwards: a resample repeats examples, so
    its gaps vary more than its count says and too little is taken off.

    Source: Kumar, Liang and Ma, arXiv 1909.10155, the debiased estimator. Roelofs et al., arXiv 2012.08668, call it
    ECE debiased and advise bins of equal mass, which are used here.
    """
    squared = debiased_squared_ece(log_probs, labels, num_bins=num_bins, mask=mask)
    return jnp.sqrt(jnp.maximum(squared, 0))


def debiased_squared_ece(log_probs: Array, labels: Array, *, num_bins: int = 15, mask: Array | None = None) -> Array:
    """Squared L2 calibration error sum_i (n_i / N) [(a_i - c_i)^2 - a_i (1 - a_i) / (n_i - 1)], may be negative.

    Bins hold equally many examples, see `adaptive_reliability`; a_i and c_i are a bin's accuracy and mean confidence.
    The second term estimates the variance of a_i, so that calibrated draws give 0 on average but for -(variance of the
    confidence in the bin) / N per bin, held by tests/calibration/test_binned_variants.py. A bin of one example says
    nothing of its variance and counts as 0.

    Source: Kumar, Liang and Ma, arXiv 1909.10155, the debiased estimator of the squared error.
    """
    return debiased(adaptive_reliability(log_probs, labels, num_bins=num_bins, mask=mask))


def debiased(bins: Reliability) -> Array:
    """`debiased_squared_ece` of bins that are already counted."""
    variance = bins.accuracy * (1 - bins.accuracy) / jnp.maximum(bins.count - 1, 1)
    squared = jnp.where(bins.count > 1, gap(bins) ** 2 - variance, 0)
    return jnp.sum(bins.count * squared) / jnp.sum(bins.count)
