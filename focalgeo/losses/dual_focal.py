"""Dual focal loss per example."""

import jax
import jax.numpy as jnp

from focalgeo.losses.log_odds import in_float32, log_rest, margins, softplus
from focalgeo.types import Array


def dual_focal_loss(logits: Array, labels: Array, gamma: Array) -> Array:
    """Dual focal loss -(1 - p_y + p_j)^gamma log p_y in nats; p_j is the largest probability strictly below p_y.

    Where no class lies strictly below p_y, p_j is 0. Ties with the true class are left out, as in the published code;
    they are decided on the logits, where float32 tells more classes apart than on the probabilities. The choice of j
    jumps at ties, and so does the loss.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; what lies outside gives a meaningless finite value.
        gamma: Float scalar or [...], 0 or more, may be traced. Zero gives `cross_entropy` bit for bit.

    Returns:
        [...] float32, non-negative, finite through second derivatives: 1 - p_y + p_j is (1 - p_y)(1 + w_j) with w_j the
        share of j among the classes but y. Held by tests/losses/test_family.py.

    Source: Tao et al., arXiv 2305.13665.
    """
    margin = margins(logits, labels)
    rest = log_rest(margin)
    log_complement = -softplus(margin.gap - rest) + jnp.log1p(_share_of_next(in_float32(logits), margin, rest, labels))
    return jnp.exp(jnp.asarray(gamma, rest.dtype) * log_complement) * softplus(rest - margin.gap)


def _share_of_next(logits, margin, rest, labels):
    is_true = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    below = logits < jnp.sum(jnp.where(is_true, logits, 0), axis=-1, keepdims=True)
    nearest = jnp.argmax(jnp.where(below, logits, -jnp.inf), axis=-1)
    chosen = below & jax.nn.one_hot(nearest, logits.shape[-1], dtype=bool)
    lag = jnp.sum(jnp.where(chosen, margin.lag, 0), axis=-1)
    return jnp.where(jnp.any(below, axis=-1), jnp.exp(lag - rest), 0)
