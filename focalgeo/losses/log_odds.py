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

    The strongest rival o is taken out of the sum, r = (z_y - z_o) - log1p(sum_{k != y, o} exp(z_k - z_o)): only
    differences appear, so that second derivatives keep their relative accuracy where one class outweighs all others.
    Masked sums stand for gathers, whose transposes are scatters.
    """
    logits = jnp.asarray(logits)
    logits = logits.astype(jnp.float64 if logits.dtype == jnp.float64 else jnp.float32)
    is_true = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    others = jnp.where(is_true, -jnp.inf, logits)
    is_rival = jax.nn.one_hot(jnp.argmax(others, axis=-1), logits.shape[-1], dtype=bool)
    true_logit = jnp.sum(jnp.where(is_true, logits, 0), axis=-1)
    rival_logit = jnp.sum(jnp.where(is_rival, logits, 0), axis=-1)
    behind = jnp.where(is_true | is_rival, -jnp.inf, logits - rival_logit[..., None])
    return (true_logit - rival_logit) - jnp.log1p(jnp.sum(jnp.exp(behind), axis=-1))


def softplus(x: Array) -> Array:
    """The function log(1 + e^x), with derivatives that keep their relative accuracy at every order.

    jax.nn.softplus loses its second derivative for x > 17, as 1 minus a rounded sigmoid.
    """
    positive = x > 0
    return jnp.where(positive, x, 0) + jnp.log1p(jnp.exp(jnp.where(positive, -x, x)))
