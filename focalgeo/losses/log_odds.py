"""The true class's log-odds, from which every loss here is computed: it keeps 1 - p where p rounds to 1."""

import jax
import jax.numpy as jnp

from focalgeo.types import Array


def true_class_log_odds(logits: Array, labels: Array) -> Array:
    """Log-odds of the true class, r = z_y - logsumexp_{k != y} z_k, so that p_y = sigmoid(r).

    Args:
        logits: Float [..., classes], two classes or more. Types narrower than float32 are computed in float32.
        labels: Int [...], from 0 to classes - 1. They are not checked here; data is checked where it enters.

    Returns:
        [...] in float32 (float64 for float64 logits), with derivatives of every order.

    Source: the log form that avoids log(1 - p) of a rounded p; a masked sum stands for a gather, whose transpose is a
    scatter.
    """
    logits = jnp.asarray(logits)
    logits = logits.astype(jnp.float64 if logits.dtype == jnp.float64 else jnp.float32)
    is_true = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    true_logit = jnp.sum(jnp.where(is_true, logits, 0), axis=-1)
    return true_logit - jax.nn.logsumexp(logits, axis=-1, where=~is_true)
