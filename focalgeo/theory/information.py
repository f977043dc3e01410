"""Fisher information of a softmax, and the KL divergence whose second order it is."""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from focalgeo.theory.arguments import Rows, floats
from focalgeo.types import Array

_TERMS = 10  # Taylor terms of exp(x) - 1 - x below |x| = 1/2: the first one left out is below 1e-10 of the sum


def softmax_fisher(logits: Rows) -> Float[Array, "*batch classes classes"]:
    """Fisher information of softmax(logits) in its logits: diag(p) - p p^T.

    Args:
        logits: Float [..., classes].

    Returns:
        [..., classes, classes] float32, symmetric, positive semidefinite, with rows that sum to 0. Absolute error 1e-6;
        held by tests/theory/test_information.py.

    Source: Kimura & Naganuma, arXiv 2405.00442, Theorem 2.
    """
    (logits,) = floats(logits)
    p = jax.nn.softmax(logits)
    return jnp.eye(p.shape[-1], dtype=p.dtype) * p[..., None] - p[..., :, None] * p[..., None, :]


def softmax_divergence(logits: Rows, displacement: Rows) -> Float[Array, "*batch"]:
    """KL(softmax(z) || softmax(z + d)) in nats: log(1 + sum_k p_k (exp(d_k - m) - 1 - (d_k - m))), m = sum_k p_k d_k.

    Value and gradient vanish at d = 0 and the Hessian there is `softmax_fisher`(z): KL = d^T F d / 2 + O(|d|^3), so
    curvature of the loss and sharpness of the likelihood are the same thing.

    Args:
        logits: z, float [..., classes].
        displacement: d, float [..., classes].

    Returns:
        [...] float32, 0 or more, relative error 1e-5 however small d is (the difference of log-probabilities would
        lose a KL below 1e-7); held by tests/theory/test_information.py.

    Source: Kimura & Naganuma, arXiv 2405.00442, Theorem 2, Eqs. 20-26.
    """
    logits, displacement = floats(logits, displacement)
    p = jax.nn.softmax(logits)
    centred = displacement - jnp.sum(p * displacement, axis=-1, keepdims=True)
    return jnp.log1p(jnp.sum(p * _exp_minus_line(centred), axis=-1))


def _exp_minus_line(x: Array) -> Array:
    """exp(x) - 1 - x, by its series where the subtraction would cancel."""
    small = jnp.abs(x) < 0.5
    near = jnp.where(small, x, 0)
    series = jnp.ones_like(x)
    for order in range(_TERMS + 1, 2, -1):
        series = 1 + series * near / order
    return jnp.where(small, near**2 / 2 * series, jnp.expm1(jnp.where(small, 1, x)) - x)
