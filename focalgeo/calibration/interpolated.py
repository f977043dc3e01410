"""The equal-mass ECE of published tables, which differs from Eq. 3 of the paper that printed them."""

import jax.numpy as jnp

from focalgeo.calibration.binning import check_bins, top_label
from focalgeo.types import Array


def interpolated_adaptive_ece(
    log_probs: Array, labels: Array, *, num_bins: int = 15, mask: Array | None = None
) -> Array:
    """AdaECE as published code computes it: bins (lo, hi] between edges interpolated in the sorted confidences.

    Edge i stands at rank i N / M of the sorted confidences, counted from 0 and cut at the last. The smallest confidence
    and all that equal it are in no bin, so its examples are dropped from the sum but not from N; ties make bins empty
    or uneven. It serves for comparing with published tables; `adaptive_ece` is the definition without these faults.
    Edges are rounded to the type of the confidences. Arguments and errors as `adaptive_ece`; weights are rounded to
    whole numbers.

    Source: the code of Mukhoti et al., arXiv 2002.09437; held by tests/calibration/test_binned_variants.py.
    """
    check_bins(num_bins)
    confidence, correct, weight = top_label(log_probs, labels, mask)
    count = jnp.round(weight).astype(jnp.int32)
    confidence = jnp.where(count > 0, confidence, jnp.inf)
    edges = _edges(jnp.sort(confidence), count[jnp.argsort(confidence)], num_bins)[:, None]
    row = confidence[None, :]
    inside = (row > edges[:-1]) & (row <= edges[1:])
    residual = jnp.where(count > 0, correct.astype(confidence.dtype) - confidence, 0) * count.astype(confidence.dtype)
    sums = jnp.abs(jnp.sum(jnp.where(inside, residual[None, :], 0), axis=1))
    return jnp.sum(sums) / jnp.sum(count).astype(confidence.dtype) + 0 * jnp.sum(residual)  # NaN is in no bin


def _edges(ordered: Array, count: Array, num_bins: int) -> Array:
    """[bins + 1] confidences at ranks i N / M, each linear between the two examples around it."""
    last = jnp.cumsum(count)
    total = last[-1]
    steps = jnp.arange(num_bins + 1, dtype=jnp.int32)
    whole, rest = total // num_bins, total % num_bins
    rank = steps * whole + steps * rest // num_bins
    share = (steps * rest % num_bins).astype(ordered.dtype) / num_bins
    ranks = jnp.minimum(jnp.stack([rank, rank + 1]), total - 1)
    below, above = ordered[jnp.searchsorted(last, ranks, side="right")]
    return below + share * (above - below)
