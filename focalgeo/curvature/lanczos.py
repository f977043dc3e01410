"""Extreme eigenvalues of a symmetric matvec by the Lanczos method with full reorthogonalisation."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from focalgeo.curvature import krylov
from focalgeo.curvature.arguments import check_params
from focalgeo.curvature.flattening import flat_matvec, layout_of, unravel
from focalgeo.curvature.iteration import iterate, map_rows
from focalgeo.types import Array, InputError, PyTree


class Eigenpairs(NamedTuple):
    """Approximate eigenpairs; an eigenvalue lies within `residual` of each `value`."""

    value: Array  # [k], the extreme one first; a scalar from lambda_max
    vector: PyTree  # leaves [k, ...], of norm 1 over all leaves
    residual: Array  # [k], ||H v - value v||, from a product of its own
    num_matvecs: Array  # int32, every product that was made
    converged: Array  # bool [k]


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
    tests/curvature/test_lanczos.py.

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
        Eigenpairs with a leading axis k. Where a product is not finite under jit: NaN, and `converged` False.

    Raises:
        InputError: k, which, max_products or tolerance out of range; `like` empty or not floating-point.
        RunError: a concrete product is not finite; the leaf is named.

    Accuracy: chosen spectra and a dense MLP Hessian in float64, tests/curvature/test_lanczos.py.

    Source: Golub and Underwood, The block Lanczos method (1977), one vector at a time (Ruhe 1979); Gram-Schmidt twice
    (Giraud et al. 2005).
    """
    check_params(like, name="like")
    layout = layout_of(like)
    _check_options(layout.size, k, which, max_products, tolerance)
    sign = 1 if which == "largest" else -1
    product = flat_matvec(matvec, layout, sign=sign)

    def body(state):
        return krylov.expand(state, product(krylov.next_row(state)), tolerance, k=k)

    steps = min(max_products - k, layout.size)
    start = krylov.start(key, size=layout.size, steps=steps, k=k, dtype=layout.dtype)
    state = iterate(lambda state: ~state.done, body, start)
    values, vectors = krylov.ritz_pairs(state, k=k)
    products = map_rows(product, vectors)
    return _measured(state._replace(basis=None), values, vectors, products, tolerance, sign=sign, layout=layout)


def _check_options(dimension: int, k: int, which: str, max_products: int, tolerance: float) -> None:
    if not 1 <= k <= dimension:
        raise InputError(f"k is {k}, but there are {dimension} eigenvalues; ask for 1 to {dimension}")
    if which not in ("largest", "smallest"):
        raise InputError(f'which is {which!r}; use "largest" or "smallest"')
    if max_products < 2 * k:
        raise InputError(f"max_products is {max_products}; {k} eigenvalues and their residuals take at least {2 * k}")
    if not tolerance > 0:
        raise InputError(f"tolerance is {tolerance}; use a positive fraction of the eigenvalue, such as 1e-3")


# One program each for what comes after the search: every operation of its own would be compiled for itself.
@functools.partial(jax.jit, static_argnames=("sign", "layout"))
def _measured(state, values, vectors, products, tolerance, *, sign, layout):
    residuals = jnp.linalg.norm(products - values[:, None] * vectors, axis=1)
    converged = residuals <= krylov.threshold(state, values, tolerance)
    tree = jax.vmap(functools.partial(unravel, layout=layout))(vectors)
    return Eigenpairs(sign * values, tree, residuals, state.step + len(values), converged)


@jax.jit
def _first(pairs):
    rest = pairs._replace(num_matvecs=None)
    return jax.tree.map(lambda leaf: leaf[0], rest)._replace(num_matvecs=pairs.num_matvecs)
