"""A Krylov basis that grows by one product at a time, from a block of k random vectors, kept orthogonal to rounding."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from focalgeo.curvature.iteration import updating
from focalgeo.types import Array

ROUNDING = 100.0  # in units of the machine epsilon times the matrix norm; no residual is asked to be below
BREAKDOWN = 10.0  # same unit; a new direction shorter than this is rounding error


class Krylov(NamedTuple):
    """The state of the search; arrays keep their shapes, so that jit compiles one step once."""

    basis: Array  # [steps + k, n]: the first `step` rows are expanded, the next k are waiting, the rest is zero
    coupling: Array  # [steps, steps + k]: basis @ H @ basis' for the expanded rows
    scale: Array  # the largest ||H q|| so far, a lower bound of the matrix norm
    step: Array
    key: Array
    finite: Array
    done: Array


@functools.partial(jax.jit, static_argnames=("size", "steps", "k", "dtype"))
def start(key, *, size, steps, k, dtype):
    """Begins with k orthonormal random rows and nothing expanded; room for `steps` products."""
    key, block_key = jax.random.split(key)
    block = jax.random.normal(block_key, (k, size), dtype)
    block = block / jnp.linalg.norm(block) if k == 1 else jnp.linalg.qr(block.T)[0].T
    basis = jnp.zeros((steps + k, size), dtype).at[:k].set(block)
    coupling = jnp.zeros((steps, steps + k), dtype)
    return Krylov(basis, coupling, jnp.zeros((), dtype), jnp.int32(0), key, jnp.bool_(True), jnp.bool_(False))


@jax.jit
def next_row(state):
    """The vector whose product is wanted."""
    return state.basis[state.step]


@updating(static_argnames="k")
def expand(state, product, tolerance, *, k):
    """Takes in the product of `next_row`; a product that is not finite ends the search."""
    finite = jnp.isfinite(product).all()
    scale = jnp.maximum(state.scale, jnp.linalg.norm(product))
    rest, projection = orthogonalise(state.basis, product)
    key, fresh_key = jax.random.split(state.key)
    row, length = _direction(state, rest, scale, fresh_key, k)
    state = state._replace(
        basis=state.basis.at[state.step + k].set(row),
        coupling=state.coupling.at[state.step].set(projection.at[state.step + k].set(length)),
        scale=scale,
        step=state.step + 1,
        key=key,
        finite=finite,
    )
    return state._replace(done=_is_done(state, tolerance, k))


def _direction(state, rest, scale, key, k):
    """The new unit row and its coupling: what is left of the product, unless that is rounding error."""
    length = jnp.linalg.norm(rest)
    full = state.step + k >= rest.shape[0]
    broken = full | (length <= BREAKDOWN * jnp.finfo(rest.dtype).eps * scale)
    row = jax.lax.cond(broken, lambda: _fresh_direction(state.basis, key), lambda: rest / length)
    return jnp.where(full, jnp.zeros_like(row), row), jnp.where(broken, jnp.zeros_like(length), length)


def _fresh_direction(basis, key):
    """Random and orthogonal to an invariant subspace: further copies of an eigenvalue lie outside it."""
    vector = jax.random.normal(key, basis.shape[1:], basis.dtype)
    rest, _ = orthogonalise(basis, vector / jnp.linalg.norm(vector))
    return rest / jnp.linalg.norm(rest)


def orthogonalise(basis, vector):
    """Gram-Schmidt twice: what is left of `vector`, and its coefficients in `basis`; zero rows do nothing."""
    first = _matmul(basis, vector)
    vector = vector - _matmul(first, basis)
    second = _matmul(basis, vector)
    return vector - _matmul(second, basis), first + second


def _is_done(state, tolerance, k):
    values, coefficients = _ritz(state, k)
    waiting = jnp.arange(state.coupling.shape[1], dtype=jnp.int32) >= state.step
    outside = jnp.where(waiting[:, None], _matmul(state.coupling.T, coefficients), 0)
    # A little inside the tolerance, so that the residual measured at the end is within it despite rounding.
    small = jnp.linalg.norm(outside, axis=0) <= 0.9 * threshold(state, values, tolerance)
    return (small.all() & (state.step >= k)) | (state.step >= state.coupling.shape[0]) | ~state.finite


def threshold(state, values, tolerance):
    """The residual at which a value counts as converged."""
    dtype = values.dtype
    floor = ROUNDING * jnp.finfo(dtype).eps * state.scale
    return jnp.maximum(jnp.asarray(tolerance, dtype) * jnp.abs(values), floor)


def _ritz(state, k):
    """The k largest eigenvalues of the projected matrix, largest first, and their coefficients [steps, k]."""
    steps = state.coupling.shape[0]
    upper = jnp.triu(state.coupling[:, :steps])
    active = jnp.arange(steps, dtype=jnp.int32) < state.step
    matrix = jnp.where(active[:, None] & active[None, :], upper + jnp.triu(upper, 1).T, 0)
    size = jnp.linalg.norm(matrix)
    # Rows not yet reached get an eigenvalue below all others, at a distance that costs no precision.
    below = jnp.where(size > 0, -2 * size, -1)
    values, coefficients = jnp.linalg.eigh(matrix + jnp.diag(jnp.where(active, 0, below)))
    return values[::-1][:k], coefficients[:, ::-1][:, :k]


@functools.partial(jax.jit, static_argnames="k")
def ritz_pairs(state, *, k):
    """The k largest values [k] and unit vectors [k, n]; NaN where a product was not finite."""
    values, coefficients = _ritz(state, k)
    vectors = _matmul(coefficients.T, state.basis[: coefficients.shape[0]])
    vectors = vectors / jnp.linalg.norm(vectors, axis=1, keepdims=True)
    return jnp.where(state.finite, values, jnp.nan), jnp.where(state.finite, vectors, jnp.nan)


def _matmul(left, right):
    # Accelerators multiply float32 in fewer bits unless told otherwise, and orthogonality would go with them.
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)
