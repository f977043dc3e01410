"""Extreme eigenvalues of a symmetric matvec by the Lanczos method."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from focalgeo.checks import check_choice, check_key, count
from focalgeo.curvature.arguments import check_bytes, check_finite_tree, check_params, check_positive
from focalgeo.curvature.lanczos import (
    ROUNDING,
    Krylov,
    check_symmetric,
    expanded,
    is_symmetric,
    krylov_start,
    next_row,
    orthogonalise,
    ritz,
)
from focalgeo.curvature.matvec import Layout, flat_matvec, iterate, layout_of, map_rows, unravel, updating
from focalgeo.precision import matmul
from focalgeo.types import Array, InputError, PyTree


class Eigenpairs(NamedTuple):
    """Approximate eigenpairs; an eigenvalue lies within `residual` of each `value`."""

    value: Array  # [k], the extreme one first; a scalar from lambda_max
    vector: PyTree  # leaves [k, ...], of norm 1 over all leaves
    residual: Array  # [k], ||H v - value v||, from a product of its own
    num_matvecs: Array  # int32, every product that was made
    converged: Array  # bool [k]; never of a value or residual that is not finite


def lambda_max(matvec, like: PyTree, key: Array, *, max_products: int = 40, tolerance: float = 1e-3) -> Eigenpairs:
    """The largest, that is the most positive, eigenvalue of a symmetric matvec, never the largest in magnitude.

    Args:
        matvec: symmetric linear map, tree -> tree; jitted for speed when called from Python.
        like: tree of arrays with the shapes and dtypes that `matvec` takes; its values are not used.
        key: PRNG key of the random start.
        max_products: most products made, at least 2.
        tolerance: wanted residual as a fraction of the absolute eigenvalue, above 0.

    Returns:
        Eigenpairs of scalars, `vector` a tree like `like`; see `extreme_eigenvalues`.

    Raises:
        InputError, RunError: as for `extreme_eigenvalues`.

    Accuracy: within `residual` of an eigenvalue, usually within residual squared over the gap;
    tests/curvature/test_eigenvalues.py.

    Source: as for `extreme_eigenvalues`.
    """
    pairs = extreme_eigenvalues(matvec, like, key, max_products=max_products, tolerance=tolerance)
    return _first(pairs)


def extreme_eigenvalues(
    matvec,
    like: PyTree,
    key: Array,
    *,
    k: int = 1,
    which: str = "largest",
    max_products: int = 100,
    tolerance: float = 1e-3,
) -> Eigenpairs:
    """The k most positive (`which="largest"`) or most negative (`which="smallest"`) eigenvalues of a symmetric matvec.

    Stops when every residual ||H v - value v|| is at most tolerance * |value|, or 100 machine epsilons of ||H||, which
    rounding does not let a product undercut. A block of k random vectors starts the search, so that an eigenvalue that
    is k-fold is found k times. Memory: min(max_products, n) + k vectors. On concrete arrays the loop runs in Python,
    under jit and vmap in XLA, with the same results up to rounding. A residual certifies an eigenvalue nearby, not that
    none lies further out: that rests on the random start.

    Args:
        matvec: symmetric linear map, tree -> tree; jitted for speed when called from Python.
        like: tree of arrays with the shapes and dtypes that `matvec` takes; its values are not used.
        key: PRNG key of the random start.
        k: number of eigenvalues, from 1 to the dimension.
        which: "largest" or "smallest", as real numbers.
        max_products: most products made, at least 2 k; k of them measure the residuals.
        tolerance: wanted residual as a fraction of the absolute eigenvalue, above 0.

    Returns:
        Eigenpairs with a leading axis k. Where a product under jit is not finite, or the matvec not symmetric: NaN, and
        `converged` False.

    Raises:
        InputError: k, which, max_products or tolerance out of range, or more vectors than memory holds; `like` empty or
            not floating-point; a product that is no tree like its vector, or H not symmetric by a tenth of its norm.
        RunError: a concrete product is not finite (the leaf is named), or an eigenvalue is beyond the dtype's range.

    Accuracy: chosen spectra and a dense MLP Hessian in float64, tests/curvature/test_eigenvalues.py; equal to
    matfree's, tests/curvature/test_matfree.py.

    Source: Golub and Underwood, The block Lanczos method (1977), one vector at a time (Ruhe 1979); Gram-Schmidt twice
    (Giraud et al. 2005).
    """
    check_params(like, name="like")
    check_key(key)
    layout = layout_of(like)
    k, max_products, tolerance = _checked_options(layout, k, which, max_products, tolerance)
    sign = 1 if which == "largest" else -1
    product = flat_matvec(matvec, layout, sign=sign)

    def body(search: _Search) -> _Search:
        return _continued(search, product(next_row(search.krylov)), tolerance)

    start = _random_start(key, layout=layout, steps=min(max_products - k, layout.size), k=k)
    found = iterate(lambda search: ~search.done, body, start).krylov
    check_symmetric(found)
    values, vectors = _ritz_pairs(found)
    products = map_rows(product, vectors)
    pairs = _measured(found._replace(basis=None), values, vectors, products, tolerance, sign=sign, layout=layout)
    check_finite_tree(pairs.value, name="the eigenvalue")
    return pairs


def _checked_options(layout: Layout, k: int, which: str, max_products: int, tolerance: float) -> tuple[int, int, float]:
    """As Python's numbers: k, max_products and tolerance."""
    dimension = layout.size
    k = count("k", k, 1)
    if k > dimension:
        raise InputError(f"k is {k}, but there are {dimension} eigenvalues; ask for 1 to {dimension}")
    check_choice("which", which, ("largest", "smallest"))
    max_products = count("max_products", max_products, 1)
    if max_products < 2 * k:
        raise InputError(f"max_products is {max_products}; {k} eigenvalues and their residuals take at least {2 * k}")
    tolerance = check_positive(tolerance, name="tolerance", of="fraction of the eigenvalue, such as 1e-3")
    vectors = min(max_products - k, dimension) + 3 * k
    check_bytes(vectors * layout.nbytes, what=f"{vectors} vectors of {dimension} numbers for max_products and k")
    return k, max_products, tolerance


class _Search(NamedTuple):
    krylov: Krylov
    key: Array
    done: Array


@functools.partial(jax.jit, static_argnames=("layout", "steps", "k"))
def _random_start(key: Array, *, layout: Layout, steps: int, k: int) -> _Search:
    key, block_key = jax.random.split(key)
    block = jax.random.normal(block_key, (k, layout.size), layout.dtype)
    block = block / jnp.linalg.norm(block) if k == 1 else jnp.linalg.qr(block.T)[0].T
    return _Search(krylov_start(block, steps=steps), key, jnp.bool_(False))


@updating
def _continued(search: _Search, product: Array, tolerance: float) -> _Search:
    """A step of the search, which goes on in a fresh direction where the space closes, until the residuals are small.

    Further copies of an eigenvalue lie outside an invariant subspace.
    """
    krylov = expanded(search.krylov, product)
    key, fresh_key = jax.random.split(search.key)
    steps, width = krylov.coupling.shape
    new = krylov.step - 1 + (width - steps)
    missing = krylov.closed & (new < krylov.basis.shape[1])
    row = jax.lax.cond(missing, lambda: _fresh_direction(krylov.basis, fresh_key), lambda: krylov.basis[new])
    krylov = krylov._replace(basis=krylov.basis.at[new].set(row))
    return _Search(krylov, key, _is_done(krylov, tolerance))


def _fresh_direction(basis: Array, key: Array) -> Array:
    """Random and orthogonal to all rows."""
    vector = jax.random.normal(key, basis.shape[1:], basis.dtype)
    rest, _ = orthogonalise(basis, vector / jnp.linalg.norm(vector))
    return rest / jnp.linalg.norm(rest)


def _is_done(krylov: Krylov, tolerance: float) -> Array:
    steps, width = krylov.coupling.shape
    values, coefficients = _largest(krylov)
    waiting = jnp.arange(width, dtype=jnp.int32) >= krylov.step
    outside = jnp.where(waiting[:, None], matmul(krylov.coupling.T, coefficients), 0)
    # A little inside the tolerance, so that the residual measured at the end is within it despite rounding.
    small = jnp.linalg.norm(outside, axis=0) <= 0.9 * _threshold(krylov.scale, values, tolerance)
    return (small.all() & (krylov.step >= width - steps)) | (krylov.step >= steps) | ~krylov.finite


def _largest(krylov: Krylov) -> tuple[Array, Array]:
    """The k largest values, largest first, and their coefficients [steps, k]."""
    k = krylov.coupling.shape[1] - krylov.coupling.shape[0]
    values, coefficients = ritz(krylov)
    return values[::-1][:k], coefficients[:, ::-1][:, :k]


def _threshold(scale: Array, values: Array, tolerance: float) -> Array:
    """The residual at which a value counts as converged."""
    floor = ROUNDING * jnp.finfo(values.dtype).eps * scale
    return jnp.maximum(jnp.asarray(tolerance, values.dtype) * jnp.abs(values), floor)


# One program each for what comes after the search: every operation of its own would be compiled for itself.
@jax.jit
def _ritz_pairs(krylov: Krylov) -> tuple[Array, Array]:
    """The k largest values [k] / unit and unit vectors [k, n]; NaN where a product was not finite or not symmetric."""
    values, coefficients = _largest(krylov)
    vectors = matmul(coefficients.T, krylov.basis[: coefficients.shape[0]])
    vectors = vectors / jnp.linalg.norm(vectors, axis=1, keepdims=True)
    holds = krylov.finite & is_symmetric(krylov)
    return jnp.where(holds, values, jnp.nan), jnp.where(holds, vectors, jnp.nan)


@functools.partial(jax.jit, static_argnames=("sign", "layout"))
def _measured(
    krylov: Krylov, values: Array, vectors: Array, products: Array, tolerance: float, *, sign: int, layout: Layout
) -> Eigenpairs:
    residuals = jnp.linalg.norm(products / krylov.unit - values[:, None] * vectors, axis=1)
    found, error = sign * krylov.unit * values, krylov.unit * residuals
    finite = jnp.isfinite(found) & jnp.isfinite(error)
    found, error = jnp.where(finite, found, jnp.nan), jnp.where(finite, error, jnp.nan)
    converged = finite & (residuals <= _threshold(krylov.scale, values, tolerance))
    tree = jax.vmap(functools.partial(unravel, layout=layout))(vectors)
    return Eigenpairs(found, tree, error, krylov.step + len(values), converged)


@jax.jit
def _first(pairs: Eigenpairs) -> Eigenpairs:
    rest = pairs._replace(num_matvecs=None)
    return jax.tree.map(lambda leaf: leaf[0], rest)._replace(num_matvecs=pairs.num_matvecs)
