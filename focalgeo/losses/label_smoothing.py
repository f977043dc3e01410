"""Cross-entropy against smoothed labels, per example."""

import jax
import jax.numpy as jnp

from focalgeo.losses.cross_entropy import cross_entropy
from focalgeo.losses.log_odds import in_float32
from focalgeo.types import Array


def label_smoothed_cross_entropy(logits: Array, labels: Array, smoothing: Array) -> Array:
    """Cross-entropy in nats against the target (1 - a) e_y + a / classes, with a the smoothing.

    It is -log p_y + a mean_k(z_y - z_k): the smoothing adds a linear function of the logits, so that the Hessian is
    that of the cross-entropy for every a.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; what lies outside gives a meaningless finite value.
        smoothing: Float scalar or [...] from 0 to 1, may be traced; 0 gives `cross_entropy` bit for bit. Outside that
            range the formula is followed, though its target is no distribution.

    Returns:
        [...] float32, non-negative. Relative to float64 right to 2e-5 of the largest entry for the gradient and 1e-4
        for the Hessian. Held by tests/losses/test_family.py.

    Source: Szegedy et al., arXiv 1512.00567; 0.05 in Mukhoti et al., arXiv 2002.09437.
    """
    logits = in_float32(logits)
    is_true = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    true_logit = jnp.sum(jnp.where(is_true, logits, 0), axis=-1, keepdims=True)
    return cross_entropy(logits, labels) + jnp.asarray(smoothing, logits.dtype) * jnp.mean(true_logit - logits, axis=-1)
