"""Weights per class."""

import jax.numpy as jnp

from focalgeo.types import Array


def weighted_by_class(losses: Array, labels: Array, alpha: Array) -> Array:
    """Losses times the weight of their class, alpha[y] loss, in nats.

    Args:
        losses: Float [...], one per example, of any loss here.
        labels: Int [...], from 0 to classes - 1; what lies outside takes the nearest class's weight.
        alpha: Float [classes], 0 or more, may be traced. Ones give the losses bit for bit. The weights are not
            normalised: a mean of the result is over examples, not over weights.

    Returns:
        [...] in the losses' type. Held by tests/losses/test_family.py.

    Source: Lin et al., arXiv 1708.02002, with one weight per class.
    """
    losses = jnp.asarray(losses)
    return losses * jnp.take(jnp.asarray(alpha, losses.dtype), jnp.asarray(labels, jnp.int32), mode="clip")
