"""The sum of focal weights over improbable classes, from sums that no gamma enters, interpolated in the temperature.

For p below about 1/4 the ratio f = h(p) / p of the focal map is to float32 a short polynomial in p and p log p, with
coefficients that depend on gamma alone. So the sum of h over all classes but the few largest costs the same for one
gamma as for fifty. The sums of r^(1 + a) log(r)^b that it needs, with r = exp(d / T), are the function
M_b(x) = sum of (x d)^b exp(x d) at x = (1 + a) / T. It is smooth in log x and gives its own derivatives,
dM_b / dlog x = b M_b + M_(b + 1), so that values at a few dozen nodes give it at all temperatures.
"""

from functools import cache
from math import comb
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.precision import matmul
from focalgeo.types import Array

_ORDER = 5
TERMS = tuple((a, b) for a in range(_ORDER + 1) for b in range(a + 1))  # (p / cap)^a log(p / cap)^b
_FIRST = 1  # classes below the top that are computed one by one, doubled until the polynomial is good enough
_TOLERANCE = 2e-6  # of f, relative
_FARTHEST = -80.0  # log(p / p_second) below which a class adds nothing that float32 can hold
_SPACING = 1 / 8  # of the nodes in log x: the quintic is right to 1e-9 for each class, to 1e-6 of the sum
_MOMENTS = _ORDER + 3  # M_0 to M_5 and two more for the derivatives of the last


class Tail(NamedTuple):
    """Split of the sum over classes: the largest few one by one, the others by the polynomial."""

    num_exact: int  # classes below the top that are computed one by one
    coefficients: np.ndarray | None  # float32 [gammas, terms]; None where no class is left over


class Nodes(NamedTuple):
    """Nodes at which M_b is computed, and the weights that interpolate it to each temperature."""

    x: np.ndarray  # float32 [nodes], equally spaced in log x
    left: np.ndarray  # int32 [temperatures, order + 1], the node to the left of (1 + a) / T
    weights: np.ndarray  # float32 [temperatures, terms, 2, 3], of M_b, M_(b + 1), M_(b + 2) at the two nodes


def fit_tail(gammas: np.ndarray, num_classes: int) -> Tail:
    """The least split for which the polynomial meets h(p) / p within 2e-6 of its value for every gamma given.

    The class of rank k has p <= 1 / k at any temperature, so the bound holds for all logits. Large gammas need more
    classes one by one, up to all of them. Tested in tests/calibration/test_tail.py.
    """
    num_exact = _FIRST
    while num_classes - 1 > 2 * num_exact:
        coefficients, error = _fitted(tuple(np.asarray(gammas, np.float64).tolist()), cap(num_exact))
        if error < _TOLERANCE:
            return Tail(num_exact, coefficients.astype(np.float32))
        num_exact *= 2
    return Tail(num_classes - 1, None)


def cap(num_exact: int) -> float:
    """The largest probability that a class can have after the top and `num_exact` more."""
    return 1 / (num_exact + 2)


def interpolation_nodes(temperatures: np.ndarray) -> Nodes:
    """Nodes around (1 + a) / T for all temperatures [temperatures] and a, with the weights of quintic Hermite."""
    powers = np.arange(1, _ORDER + 2)
    position = np.log(powers / np.asarray(temperatures, np.float64)[:, None]) / _SPACING
    first = np.floor(position.min())
    left = np.floor(position).astype(np.int32)
    x = np.exp(_SPACING * np.arange(first, left.max() + 2))
    basis = _hermite(position - left)  # [2, 3, temperatures, powers]
    weights = np.stack([_moment_weights(basis[..., a], b) / (1 + a) ** b for a, b in TERMS])
    return Nodes(x.astype(np.float32), left - np.int32(first), weights.transpose(3, 0, 1, 2).astype(np.float32))


def _hermite(t: np.ndarray) -> np.ndarray:
    """[2, 3, ...]: weights of value, first and second derivative in log x, at the left and the right node."""
    right = t**3 * np.stack([10 - 15 * t + 6 * t**2, -4 + 7 * t - 3 * t**2, (1 - 2 * t + t**2) / 2])
    s = 1 - t  # the left node is the right one mirrored, which turns the sign of the first derivative
    left = s**3 * np.stack([10 - 15 * s + 6 * s**2, 4 - 7 * s + 3 * s**2, (1 - 2 * s + s**2) / 2])
    spacings = np.array([1, _SPACING, _SPACING**2]).reshape(3, *[1] * t.ndim)
    return np.stack([left, right]) * spacings


def _moment_weights(basis: np.ndarray, b: int) -> np.ndarray:
    """[2, 3, temperatures]: from weights of M_b and its derivatives to weights of M_b, M_(b + 1), M_(b + 2)."""
    value, first, second = basis[:, 0], basis[:, 1], basis[:, 2]
    return np.stack([value + b * first + b**2 * second, first + (2 * b + 1) * second, second], axis=1)


def moments_at(x: Array, below: Array) -> Array:
    """[nodes, moments, examples]: M_b at each node.

    Args:
        x: Float [nodes], above 0.
        below: Float [classes, examples], the logit minus the second largest, at most 0.
    """

    def at_node(x: Array) -> Array:
        z = jnp.maximum(below * x, _FARTHEST)
        z, power = jax.lax.optimization_barrier((z, jnp.exp(z)))  # without it every sum would compute exp anew
        sums = []
        for _ in range(_MOMENTS):
            sums.append(jnp.sum(power, axis=0))
            power = power * z
        return jnp.stack(sums)

    return jax.lax.map(at_node, x)


def tail_sums(moments: Array, left: Array, weights: Array) -> Array:
    """[terms, examples]: sums over classes of r^(1 + a) log(r)^b at one temperature, r = exp(below / T) = p / p_second.

    Args:
        moments: Of `moments_at`.
        left: One temperature's entry of `Nodes`.
        weights: The same.
    """
    sums = []
    for (a, b), weight in zip(TERMS, weights, strict=True):
        near = jax.lax.dynamic_slice_in_dim(moments, left[a], 2)[:, b : b + 3]
        sums.append(jnp.sum(weight[..., None] * near, axis=(0, 1)))
    return jnp.stack(sums)


def tail_weights(sums: Array, log_second: Array, tail: Tail) -> Array:
    """[gammas, examples]: sum of h over the tail's classes divided by p_second, from `tail_sums`."""
    shift = jnp.clip(log_second - np.float32(np.log(cap(tail.num_exact))), _FARTHEST, None)
    moments = dict(zip(TERMS, sums, strict=True))
    shifted = []
    for a, b in TERMS:
        terms = [comb(b, c) * shift ** (b - c) * moments[a, c] for c in range(b + 1)]
        shifted.append(jnp.exp(a * shift) * sum(terms))
    return matmul(tail.coefficients, jnp.stack(shifted))


@cache  # a fit takes as long as a small search, and every fold asks for the same one
def _fitted(gammas: tuple[float, ...], largest: float) -> tuple[np.ndarray, float]:
    """Coefficients [gammas, terms] by least squares of the relative error, and the largest such error."""
    share = np.concatenate([np.geomspace(1e-12, 1, 500), np.linspace(1e-3, 1, 500)])
    basis = np.stack([share**a * np.log(share) ** b for a, b in TERMS], axis=1)
    p = share * largest
    surprise = -p * np.log(p) / (1 - p)
    inverse = np.exp(np.outer(gammas, np.log1p(-p))) * (1 + np.outer(gammas, surprise))
    rows = [np.linalg.lstsq(basis * scale[:, None], np.ones_like(p), rcond=1e-9)[0] for scale in inverse]
    coefficients = np.stack(rows)
    return coefficients, np.abs(coefficients @ basis.T * inverse - 1).max()
