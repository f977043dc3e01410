"""Focal loss whose gamma may be negative, per example."""

import jax.numpy as jnp

from focalgeo.losses.log_odds import softplus, true_class_log_odds
from focalgeo.types import Array


def signed_focal_loss(logits: Array, labels: Array, gamma: Array) -> Array:
    """Focal loss for gamma >= 0 and its inverse -(1 + p_y)^|gamma| log p_y for gamma < 0, in nats.

    The branch below zero is not the focal loss's own formula at a negative gamma, which has no bounded gradient in p.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; what lies outside gives a meaningless finite value.
        gamma: Float scalar or [...] of either sign, may be traced. Zero gives `cross_entropy` bit for bit, and above
            zero `focal_loss` bit for bit.

    Returns:
        [...] float32, non-negative. The branches are joined in the exponent, where both are finite for all logits, so
        that the branch not taken never reaches a derivative as NaN. Held by tests/losses/test_family.py.

    Source: Ghosh et al., AdaFocal, arXiv 2211.11838, the inverse-focal loss; the published code uses 1 + p.
    """
    log_odds = true_class_log_odds(logits, labels)
    gamma = jnp.asarray(gamma, log_odds.dtype)
    log_complement = -softplus(log_odds)
    log_one_plus_p = jnp.log1p(jnp.exp(-softplus(-log_odds)))
    exponent = jnp.where(gamma >= 0, gamma * log_complement, -gamma * log_one_plus_p)
    return jnp.exp(exponent) * softplus(-log_odds)
