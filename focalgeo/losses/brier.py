"""Brier loss per example."""

import jax.numpy as jnp

from focalgeo.losses.log_odds import behind_rival, margins, softplus, true_class_log_odds
from focalgeo.types import Array


def brier_loss(logits: Array, labels: Array) -> Array:
    """Brier loss sum_k (p_k - [k = y])^2, a pure number from 0 to 2, with p = softmax(logits).

    The sum runs over the classes; some programs take the mean, which is `classes` times smaller.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; what lies outside gives a meaningless finite value.

    Returns:
        [...] float32, computed as (1 - p_y)^2 + p_o^2 (1 + sum_{k != y, o} exp(2 (z_k - z_o))) with o the strongest
        class but y, so that gradients keep their relative accuracy where one class outweighs all others, right or
        wrong. Held by tests/losses/test_family.py.

    Source: Mukhoti et al., arXiv 2002.09437, section 5.
    """
    margin = margins(logits, labels)
    miss = jnp.exp(-2 * softplus(true_class_log_odds(logits, labels)))
    rival = jnp.exp(-2 * softplus(-true_class_log_odds(logits, margin.rival)))
    return miss + rival * (1 + jnp.sum(jnp.exp(2 * behind_rival(margin)), axis=-1))
