"""Focal loss per example."""

import jax.numpy as jnp

from focalgeo.losses.log_odds import softplus, true_class_log_odds
from focalgeo.types import Array


def focal_loss(logits: Array, labels: Array, gamma: Array) -> Array:
    """Focal loss -(1 - p_y)^gamma log p_y in nats, with p = softmax(logits).

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; what lies outside gives a meaningless finite value.
        gamma: Float scalar or [...], 0 or more; it may be traced and differentiated. Zero gives `cross_entropy` bit
            for bit. Below zero the loss is not convex and its gradient in p has no bound: not a loss to train with.

    Returns:
        [...] float32, non-negative, computed as exp(gamma log(1 - p_y)) times -log p_y from the log-odds. Value and
        derivatives up to the third are finite for any logits, where the power of a rounded 1 - p gives NaN for gamma <
        1. Relative to float64 the gradient is right to 2e-5, the Hessian to 1e-4, down to where float32 underflows.
        Held by tests/losses/test_losses.py.

    Source: Mukhoti et al., arXiv 2002.09437, section 4; Kimura & Naganuma, arXiv 2405.00442, Eq. 3.
    """
    log_odds = true_class_log_odds(logits, labels)
    log_complement = -softplus(log_odds)
    return jnp.exp(jnp.asarray(gamma, log_odds.dtype) * log_complement) * softplus(-log_odds)
