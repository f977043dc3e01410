"""AdaFocal: a gamma per bin of confidence, moved by the calibration gap on validation data."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from focalgeo.losses.log_odds import true_class_probability
from focalgeo.losses.signed_focal import signed_focal_loss
from focalgeo.types import Array

FLIP, LOWEST, HIGHEST = 0.2, -2.0, 20.0


class AdaFocalState(NamedTuple):
    """What AdaFocal remembers between epochs; a pytree of float32."""

    edges: Array  # [bins - 1], ascending: bin i holds edges[i - 1] <= p < edges[i]
    gammas: Array  # [bins]


def adafocal_state(num_bins: int = 15) -> AdaFocalState:
    """The state before the first update: gamma 1 in every one of `num_bins` bins of equal width."""
    return AdaFocalState(jnp.arange(1, num_bins, dtype=jnp.float32) / num_bins, jnp.ones(num_bins, jnp.float32))


def next_gamma(gamma: Array, gap: Array) -> Array:
    """AdaFocal's rule gamma exp(sign(gamma) gap), then a flip of sign to 0.2 where it shrinks below, then a clip.

    Args:
        gamma: Float [...], 0.2 to 20 or -2 to -0.2; zero counts as negative.
        gap: Float [...], mean confidence minus accuracy, from -1 to 1.

    Returns:
        [...] float32. A magnitude of exactly 0.2 does not flip. Held by tests/losses/test_adafocal.py.

    Source: Ghosh et al., arXiv 2211.11838, with lambda = 1; thresholds of the published code.
    """
    gamma, gap = jnp.asarray(gamma, jnp.float32), jnp.asarray(gap, jnp.float32)
    moved = gamma * jnp.exp(jnp.where(gamma > 0, gap, -gap))
    flipped = jnp.where(jnp.abs(moved) < FLIP, jnp.where(gamma > 0, -FLIP, FLIP), moved)
    return jnp.clip(flipped, LOWEST, HIGHEST)


def adafocal_update(
    state: AdaFocalState, confidence: Array, correct: Array, *, mask: Array | None = None
) -> AdaFocalState:
    """The state after an epoch: bins of equal mass from validation confidence, and each gamma moved by its gap.

    Bins are made by rank, so that no sample is lost; the first ones take one sample more where the count does not
    divide. Ties may be split between neighbours. The published code interpolates edges instead. A bin's upper edge is
    its largest confidence. A bin without samples keeps its gamma and takes no probability in the look-up.

    Args:
        state: With its number of bins; its edges are replaced.
        confidence: Float [examples], the largest probability of each validation example.
        correct: Bool or number [examples], 1 where the prediction is right.
        mask: Bool [examples]; False counts for nothing. Without one True anywhere the state stays as it is.

    Returns:
        The new AdaFocalState. Works under jit and vmap. Held by tests/losses/test_adafocal.py.

    Source: Ghosh et al., arXiv 2211.11838.
    """
    confidence = jnp.asarray(confidence, jnp.float32)
    mask = jnp.ones(confidence.shape, bool) if mask is None else jnp.asarray(mask, bool)
    order = jnp.argsort(jnp.where(mask, confidence, jnp.inf))
    confidence, mask = jnp.where(mask, confidence, 0)[order], mask[order]
    correct = jnp.where(mask, jnp.asarray(correct, jnp.float32)[order], 0)
    num_bins = state.gammas.size
    bins = jnp.where(mask, _bin_of_rank(jnp.sum(mask), confidence.size, num_bins), num_bins)

    def total(values):
        return jax.ops.segment_sum(values, bins, num_segments=num_bins + 1)[:-1]

    counts = total(mask.astype(jnp.float32))
    gap = total(confidence - correct) / jnp.maximum(counts, 1)
    gammas = jnp.where(counts > 0, next_gamma(state.gammas, gap), state.gammas)
    largest = jax.ops.segment_max(confidence, bins, num_segments=num_bins + 1)[:-1]
    edges = jnp.where(counts[1:] > 0, largest[:-1], jnp.inf)
    return AdaFocalState(jnp.where(jnp.any(mask), edges, state.edges), gammas)


def adafocal_gamma(state: AdaFocalState, p: Array) -> Array:
    """Gamma of the bin with edges[i - 1] <= p < edges[i], a constant for differentiation.

    The first and the last bin reach to 0 and 1. The look-up is by true-class probability, though the bins are those of
    validation confidence: so do paper and code.
    """
    p = jax.lax.stop_gradient(jnp.asarray(p, jnp.float32))
    edges, gammas = (jnp.asarray(leaf) for leaf in state)
    return jax.lax.stop_gradient(gammas[jnp.searchsorted(edges, p, side="right")])


def adafocal_loss(logits: Array, labels: Array, adafocal: AdaFocalState) -> Array:
    """AdaFocal's loss in nats: `signed_focal_loss` with `adafocal_gamma` of the example's own p_y.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; what lies outside gives a meaningless finite value.
        adafocal: The current AdaFocalState; no gradient flows into it.

    Returns:
        [...] float32; it jumps at the edges of bins. Accuracy as `signed_focal_loss`. Held by
        tests/losses/test_adafocal.py.

    Source: Ghosh et al., arXiv 2211.11838.
    """
    return signed_focal_loss(logits, labels, adafocal_gamma(adafocal, true_class_probability(logits, labels)))


def _bin_of_rank(count, size, num_bins):
    """Bin of ranks 0 to size - 1 for `count` samples: the first count % num_bins bins hold one sample more."""
    small, larger = count // num_bins, count % num_bins
    rank = jnp.arange(size)
    ahead = larger * (small + 1)
    return jnp.where(rank < ahead, rank // (small + 1), larger + (rank - ahead) // jnp.maximum(small, 1))
