"""The sum of focal weights over improbable classes, from ten sums that no gamma enters.

For p below about 1/10 the ratio f = h(p) / p of the focal map is to float32 a short polynomial in p and p log p, with
coefficients that depend on gamma alone. So the sum of h over all classes but the few largest costs the same for one
gamma as for fifty.
"""

from math import comb
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.types import Array

TERMS = tuple((a, b) for a in range(4) for b in range(a + 1))  # (p / cap)^a log(p / cap)^b
_FIRST = 8  # classes below the top that are computed one by one, doubled until the polynomial is good enough
_TOLERANCE = 2e-6  # of f, relative
_FARTHEST = -80.0  # log(p / p_second) below which a class adds nothing that float32 can hold


class Tail(NamedTuple):
    """How the sum over classes is split: the largest few one by one, the others by the polynomial."""

    num_exact: int  # classes below the top that are computed one by one
    coefficients: np.ndarray | None  # float32 [gammas, terms]; None where no class is left over


def fit_tail(gammas: np.ndarray, num_classes: int) -> Tail:
    """The least split for which the polynomial meets h(p) / p within 2e-6 of its value for every gamma given.

    The class of rank k has p <= 1 / k at any temperature, so the bound holds for all logits. Large gammas need more
    classes one by one, up to all of them. Held by tests/calibration/test_tail.py.
    """
    num_exact = _FIRST
    while num_classes - 1 > 2 * num_exact:
        coefficients, error = _fitted(np.asarray(gammas, np.float64), cap(num_exact))
        if error < _TOLERANCE:
            return Tail(num_exact, coefficients.astype(np.float32))
        num_exact *= 2
    return Tail(num_classes - 1, None)


def cap(num_exact: int) -> float:
    """The largest probability that a class can have after the top and `num_exact` more."""
    return 1 / (num_exact + 2)


def tail_sums(below: Array, temperature: Array) -> Array:
    """[terms, examples]: sums over classes of r^(1 + a) log(r)^b, where r = exp(below / temperature) = p / p_second.

    Args:
        below: Float [classes, examples], the logit minus the second largest, at most 0.
        temperature: Float scalar above 0.
    """
    z = jnp.maximum(below / temperature, _FARTHEST)
    z, r = jax.lax.optimization_barrier((z, jnp.exp(z)))  # without it every sum would compute exp anew
    y = r * z
    pairs = r * r, r * y, y * y
    rr, ry, yy = jax.lax.optimization_barrier(pairs)
    powers = r, rr, ry, r * rr, r * ry, r * yy, rr * rr, rr * ry, rr * yy, ry * yy
    return jnp.stack([jnp.sum(power, axis=0) for power in powers])


def tail_weights(sums: Array, log_second: Array, tail: Tail) -> Array:
    """[gammas, examples]: sum of h over the tail's classes divided by p_second, from `tail_sums`."""
    shift = jnp.clip(log_second - np.float32(np.log(cap(tail.num_exact))), _FARTHEST, None)
    moments = dict(zip(TERMS, sums, strict=True))
    shifted = []
    for a, b in TERMS:
        terms = [comb(b, c) * shift ** (b - c) * moments[a, c] for c in range(b + 1)]
        shifted.append(jnp.exp(a * shift) * sum(terms))
    return jnp.matmul(tail.coefficients, jnp.stack(shifted), precision="highest")


def _fitted(gammas: np.ndarray, largest: float) -> tuple[np.ndarray, float]:
    """Coefficients [gammas, terms] by least squares of the relative error, and the largest such error."""
    share = np.concatenate([np.geomspace(1e-12, 1, 500), np.linspace(1e-3, 1, 500)])
    basis = np.stack([share**a * np.log(share) ** b for a, b in TERMS], axis=1)
    p = share * largest
    surprise = -p * np.log(p) / (1 - p)
    inverse = np.exp(np.outer(gammas, np.log1p(-p))) * (1 + np.outer(gammas, surprise))
    rows = [np.linalg.lstsq(basis * scale[:, None], np.ones_like(p), rcond=1e-9)[0] for scale in inverse]
    coefficients = np.stack(rows)
    return coefficients, np.abs(coefficients @ basis.T * inverse - 1).max()
