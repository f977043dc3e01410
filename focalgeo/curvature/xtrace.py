"""XTrace: each random vector gives a sample of the trace, exact on the span of the other vectors' products."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from focalgeo.curvature.arguments import power_of_two
from focalgeo.precision import matmul
from focalgeo.types import Array


@functools.partial(jax.jit, static_argnames=("samples", "size", "dtype"))
def start_vectors(key: Array, *, samples: int, size: int, dtype: Any) -> Float[Array, "samples size"]:
    """Gaussian rows: their directions are uniform in any subspace."""
    return jax.random.normal(key, (samples, size), dtype)


class Compressed(NamedTuple):
    """Small arrays from which the estimates are computed, of the size of the number of vectors."""

    inner: Array  # [basis, basis], Q' A Q
    projected: Array  # [samples, basis], w' Q
    coupled: Array  # [samples, basis], w' A Q
    forms: Array  # [samples], w' A w
    lengths: Array  # [samples], w' w
    left_out: Array  # [samples, basis], the direction of the basis that only product i reaches


_LEAST = 1e-5  # of a squared length: what is left of less is rounding alone


@jax.jit
def value_and_stderr(
    vectors: Float[Array, "samples size"],
    products: Float[Array, "samples size"],
    basis: Float[Array, "samples size"],
    basis_products: Float[Array, "samples size"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The trace as the mean over vectors w_i of tr(Q_i' A Q_i) + c (w_i - Q_i Q_i' w_i)' A (w_i - Q_i Q_i' w_i).

    Q_i is an orthonormal basis of the products but the i-th, and c makes w_i - Q_i Q_i' w_i as long as a sign vector of
    its subspace would be. The samples share their subspaces, so their scatter understates the error of their mean, and
    the jackknife (the estimates without each vector in turn) overstates it, both up to twofold and more with many
    vectors; the standard error is their geometric mean. On the spectra of tests/curvature/test_xtrace.py two of it
    cover as they should. Where a vector hardly leaves Q_i, the second term divides rounding by a small length: how far
    that may go is added to the error.

    Args:
        vectors: the w.
        products: A w.
        basis: orthonormal rows that span the products.
        basis_products: A times the rows of `basis`.
    """
    unit = power_of_two(products)  # so that squares neither overflow nor vanish
    products, basis_products = products / unit, basis_products / unit
    small = Compressed(
        matmul(basis, basis_products.T),
        matmul(vectors, basis.T),
        matmul(vectors, basis_products.T),
        jnp.sum(vectors * products, axis=1),
        jnp.sum(vectors**2, axis=1),
        _left_out(matmul(basis, products.T)),
    )
    count, size = vectors.shape
    samples = _samples(small, jnp.zeros_like(small.left_out), size - count + 1)

    def without(index: Array) -> Array:
        # Beside its own direction, each sample loses the one that product `index` alone reaches.
        own = jnp.broadcast_to(small.left_out[index], small.left_out.shape)
        other = own - _along(own, small.left_out)
        length = jnp.linalg.norm(other, axis=1, keepdims=True)
        other = jnp.where(length > 1e-3, other / jnp.maximum(length, 1e-3), 0)
        fewer = _samples(small, other, size - count + 2)
        return (fewer.sum() - fewer[index]) / (count - 1)

    values = jax.lax.map(without, jnp.arange(count, dtype=jnp.int32))
    scatter, jackknife = samples.std(ddof=1) / count**0.5, (count - 1) ** 0.5 * values.std()
    stderr = jnp.hypot(jnp.sqrt(scatter * jackknife), _rounding(small, size - count + 1).mean())
    return samples.mean() * unit, stderr * unit


def _samples(small: Compressed, other: Array, dimension: int) -> Array:
    """[samples]: with the directions `left_out` and `other` (orthogonal to it, of norm 1 or 0) taken from the basis."""
    inside = small.projected - _along(small.projected, small.left_out) - _along(small.projected, other)
    exact = jnp.trace(small.inner) - _quadratic(small.inner, small.left_out) - _quadratic(small.inner, other)
    outside = small.forms - 2 * jnp.sum(inside * small.coupled, axis=1) + _quadratic(small.inner, inside)
    return exact + _per_length(dimension * outside, small, inside)


def _rounding(small: Compressed, dimension: int) -> Array:
    """[samples]: size of the rounding errors in the second terms of `_samples`, differences of numbers as large."""
    inside = small.projected - _along(small.projected, small.left_out)
    terms = jnp.abs(small.forms) + 2 * jnp.abs(jnp.sum(inside * small.coupled, axis=1))
    return _per_length(2 * float(jnp.finfo(terms.dtype).eps) * dimension * terms, small, inside)


def _per_length(values: Array, small: Compressed, inside: Array) -> Array:
    """[samples]: values divided by the squared length of what is left of each vector; 0 where that is rounding."""
    length = small.lengths - jnp.sum(inside**2, axis=1)
    return jnp.where(length > _LEAST * small.lengths, values / length, 0)


def _along(rows: Array, units: Array) -> Array:
    """The component of each row along its unit vector."""
    return jnp.sum(rows * units, axis=-1, keepdims=True) * units


def _left_out(coordinates: Array) -> Array:
    """[samples, basis]: row i is a unit vector orthogonal to all columns of `coordinates` [basis, samples] but one.

    By QR of the others with the i-th put last: the last column of a full Q is orthogonal to them, also where they are
    linearly dependent, as they are when the matrix has a small rank.
    """
    count = coordinates.shape[1]

    def one(index: Array) -> Array:
        others = jnp.delete(coordinates, index, axis=1, assume_unique_indices=True)
        return jnp.linalg.qr(others, mode="complete")[0][:, -1]

    return jax.vmap(one)(jnp.arange(count, dtype=jnp.int32))


def _quadratic(matrix: Array, rows: Array) -> Array:
    """[rows]: r' M r of each row."""
    return jnp.sum(matmul(rows, matrix) * rows, axis=1)
