"""Lanczos with full reorthogonalisation: a Krylov basis, and extreme eigenvalues from it.

`spectral_density` looks at all of the spectrum with the same basis.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import checks, trees
from focalgeo.curvature.matvec import (
    flat_matvec,
    iterate,
    on_host,
    orthonormal_rows,
    overwriting,
    row_of,
    stacked,
    unravel,
    when,
)
from focalgeo.trees import matmul
from focalgeo.types import Array, InputError, PyTree

# In units of the machine epsilon times the matrix norm: what is shorter, of a new direction or a residual, is rounding
# error.
ROUNDING = 100.0
ASYMMETRY = 0.1  # of the matrix norm: far beyond what rounding in bfloat16 makes of a symmetric matrix


class Krylov(NamedTuple):
    """A Krylov basis that grows by one product at a time; arrays keep their shapes: jit compiles a step once.

    H stands in the unit of its first product, so that squares neither overflow nor vanish, whatever its scale. After a
    product that is not finite `coupling` is not either, nor what is computed from it.
    """

    basis: Array  # [steps + k, n]: the first `step` rows are expanded, the next k are waiting, the rest is zero
    unit: Array  # a power of two
    coupling: Array  # [steps, steps + k]: basis @ H @ basis' / unit for the expanded rows
    scale: Array  # the largest ||H q|| / unit so far, a lower bound of the matrix norm
    step: Array
    closed: Array  # the last product added no direction to the basis, which therefore did not grow


def krylov_start(block: Array, *, steps: int) -> Krylov:
    """The orthonormal rows of `block` and nothing expanded; room for `steps` products."""
    k, size = block.shape
    basis = jnp.zeros((steps + k, size), block.dtype).at[:k].set(block)
    zero, one = jnp.zeros((), block.dtype), jnp.ones((), block.dtype)
    return Krylov(basis, one, jnp.zeros((steps, steps + k), block.dtype), zero, jnp.int32(0), jnp.bool_(False))


def grown(krylov: Krylov, product: Callable) -> Krylov:
    """`expanded` by the product of the row that waits next; all but the basis is small and then on the host."""
    krylov = expanded(krylov, product(row_of(krylov.basis, krylov.step)))
    return Krylov(krylov.basis, *on_host(krylov[1:]))


@overwriting
def expanded(krylov: Krylov, product: Array) -> Krylov:
    """The basis and its coupling after one more product, that of row `step`.

    What is left of the product beside all rows is the new row, unless it is rounding error: then the row is zero.
    """
    steps, width = krylov.coupling.shape
    new = krylov.step + (width - steps)
    unit = jnp.where(krylov.step == 0, trees.power_of_two(product), krylov.unit)
    product = product / unit
    scale = jnp.maximum(krylov.scale, jnp.linalg.norm(product))
    rest, projection = orthogonalise(krylov.basis, product)
    length = jnp.linalg.norm(rest)
    # A length that is not a number is not above the limit either.
    is_new = (new < rest.shape[0]) & (length > ROUNDING * jnp.finfo(rest.dtype).eps * scale)
    length = jnp.where(is_new, length, 0)
    return Krylov(
        krylov.basis.at[new].set(jnp.where(is_new, rest / jnp.where(is_new, length, 1), 0)),
        unit,
        krylov.coupling.at[krylov.step].set(projection.at[new].set(length)),
        scale,
        krylov.step + 1,
        ~is_new,
    )


def orthogonalise(basis: Array, vector: Array) -> tuple[Array, Array]:
    """Gram-Schmidt twice: the part of `vector` orthogonal to `basis`, and its coefficients; zero rows do nothing."""
    first = matmul(basis, vector)
    vector = vector - matmul(first, basis)
    second = matmul(basis, vector)
    return vector - matmul(second, basis), first + second


def _among_expanded(krylov):
    """The coupling [steps, steps] of the expanded rows to each other, 0 elsewhere, and which rows these are."""
    steps, library = krylov.coupling.shape[0], trees.namespace(krylov.coupling)
    active = library.arange(steps, dtype=np.int32) < krylov.step
    return library.where(active[:, None] & active[None, :], krylov.coupling[:, :steps], 0), active


def ritz(krylov: Krylov) -> tuple[Array, Array]:
    """Eigenvalues of H / unit projected on the expanded rows, ascending, and their coefficients in these, in columns.

    The first `steps - step` of them belong to rows not yet reached: they lie below all others and mean nothing.
    """
    (coupling, active), library = _among_expanded(krylov), trees.namespace(krylov.coupling)
    matrix = library.triu(coupling) + library.triu(coupling, 1).T
    size = library.linalg.norm(matrix)
    # Below all others, at a distance that costs no precision.
    below = library.where(size > 0, -2 * size, -1).astype(size.dtype)
    matrix = matrix + library.diag(library.where(active, 0, below))
    finite = library.isfinite(size)  # else a block beside a NaN would keep its eigenvalues, and NumPy refuse it
    values, coefficients = library.linalg.eigh(library.where(finite, matrix, 0))
    return library.where(finite, values, np.nan), library.where(finite, coefficients, np.nan)


def check_symmetric(krylov: Krylov) -> None:
    """Refuses a matvec whose expanded rows couple to each other otherwise both ways; does nothing while traced.

    The part above the diagonal alone is used, so what lies below it tells an asymmetric matvec at no cost.
    """
    if checks.is_traced(krylov):
        return
    matrix, _ = _among_expanded(krylov)
    if not np.max(np.abs(matrix - matrix.T)) <= ASYMMETRY * krylov.scale:
        raise InputError("matvec is not symmetric: v' H w and w' H v differ; pass a Hessian's product, or (H + H') / 2")


class Eigenpairs(NamedTuple):
    """Approximate eigenpairs; an eigenvalue lies within `residual` of each `value`."""

    value: Array  # [k], the extreme one first; a scalar from lambda_max
    vector: PyTree  # leaves [k, ...], of norm 1 over all leaves
    residual: Array  # [k], ||H v - value v||, from a product of its own
    num_matvecs: Array  # int32, every product that was made
    converged: Array  # bool [k]; never of a value or residual that is not finite


def lambda_max(
    matvec, like: PyTree, key: Array | int, *, max_products: int = 40, tolerance: float = 1e-3
) -> Eigenpairs:
    """The largest, that is the most positive, eigenvalue of a symmetric matvec, never the largest in magnitude.

    Args:
        matvec: symmetric linear map, tree -> tree; jitted for speed when called from Python.
        like: tree of arrays with the shapes and dtypes that `matvec` takes; its values are not used.
        key: PRNG key, or a seed, of the random start.
        max_products: most products made, at least 2.
        tolerance: wanted residual as a fraction of the absolute eigenvalue, above 0.

    Returns:
        Eigenpairs of scalars, `vector` a tree like `like`; see `extreme_eigenvalues`.

    Raises:
        InputError, RunError: as for `extreme_eigenvalues`.

    Accuracy: within `residual` of an eigenvalue, usually within residual squared over the gap;
    tests/curvature/test_lanczos.py.

    Source: as for `extreme_eigenvalues`.

    Example:
        >>> top = curvature.lambda_max(matvec, params, key)
        >>> round(float(top.value), 4), int(top.num_matvecs)
        (4.0, 4)
        >>> print(np.abs(top.vector["w"]).round(3))
        [0. 1.]
    """
    return _only(extreme_eigenvalues(matvec, like, key, max_products=max_products, tolerance=tolerance))


@jax.jit
def _only(pairs):
    """The arrays without their first axis, of one pair; the number of products has none."""
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[1:]), pairs)


@np.errstate(over="ignore", invalid="ignore")
def extreme_eigenvalues(
    matvec,
    like: PyTree,
    key: Array | int,
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
        key: PRNG key, or a seed, of the random start.
        k: number of eigenvalues, from 1 to the dimension.
        which: "largest" or "smallest", as real numbers.
        max_products: most products made, at least 2 k; k of them measure the residuals.
        tolerance: wanted residual as a fraction of the absolute eigenvalue, above 0.

    Returns:
        Eigenpairs with a leading axis k. Not finite, and not `converged`, where a product
        under jit is not.

    Raises:
        InputError: an option out of range; H not symmetric by a tenth of its norm; else as `matvec.checked_matvec`.
        RunError: an eigenvalue is beyond the dtype's range; else as there.

    Accuracy: chosen spectra and a dense MLP Hessian in float64, tests/curvature/test_lanczos.py; equal to
    matfree's, tests/curvature/test_matfree.py.

    Source: Golub and Underwood, The block Lanczos method (1977), one vector at a time (Ruhe 1979); Gram-Schmidt twice
    (Giraud et al. 2005).

    Example:
        >>> print(curvature.extreme_eigenvalues(matvec, params, key, k=2).value.round(3))
        [4.    3.618]
        >>> print(curvature.extreme_eigenvalues(matvec, params, key, which="smallest").value.round(3))
        [1.382]
    """
    layout, product, key = flat_matvec(matvec, like, key)
    k = checks.count("k", k, 1, layout.size)
    max_products = checks.count("max_products", max_products, 2 * k)
    checks.check_choice("which", which, ("largest", "smallest"))
    checks.check_above("tolerance", tolerance, 0)
    sign = 1 if which == "largest" else -1

    def towards(vector):  # the end that is wanted is the largest of sign * H
        return product(vector) if sign == 1 else -product(vector)

    def body(search):
        krylov = grown(search[0], towards)
        new = krylov.step - 1 + k
        missing = krylov.closed & (new < layout.size)
        basis = when(missing, lambda basis: _with_fresh_row(basis, new, key), krylov.basis)
        krylov = krylov._replace(basis=basis)
        return krylov, _is_done(krylov, tolerance)

    def measured(index):
        vector = row_of(vectors, index)
        return unravel(vector, layout), _residual(towards(vector), krylov.unit, values[index], vector)

    krylov, key = _random_start(key, layout=layout, steps=min(max_products - k, layout.size), k=k)
    krylov, _ = iterate(lambda search: ~search[1], body, (krylov, np.bool_(False)))
    check_symmetric(krylov)
    values, coefficients = _largest(krylov)
    vectors = _combined(coefficients, krylov.basis)
    pairs, residuals = stacked(measured, k)
    residuals, eigenvalues = on_host(residuals), sign * krylov.unit * values
    converged = (residuals <= _threshold(krylov.scale, values, tolerance)) & (abs(eigenvalues) < np.inf)
    checks.check_finite_tree("the eigenvalue", eigenvalues)
    return Eigenpairs(eigenvalues, pairs, krylov.unit * residuals, krylov.step + k, converged)


@functools.partial(jax.jit, static_argnames=("layout", "steps", "k"))
def _random_start(key, *, layout, steps, k):
    """The basis of a search, and the key of its fresh directions."""
    key, block_key = jax.random.split(key)
    block = jax.random.normal(block_key, (k, layout.size), layout.dtype)
    block = block / jnp.linalg.norm(block) if k == 1 else orthonormal_rows(block)
    return krylov_start(block, steps=steps), key


@overwriting
def _with_fresh_row(basis, row, key):
    """The basis with a random unit vector, orthogonal to all rows, in a row that was zero.

    The search goes on there where the space closes: further copies of an eigenvalue lie outside an invariant subspace.
    """
    vector = jax.random.normal(jax.random.fold_in(key, row), basis.shape[1:], basis.dtype)
    rest = orthogonalise(basis, vector / jnp.linalg.norm(vector))[0]
    return basis.at[row].set(rest / jnp.linalg.norm(rest))


@trees.at_highest
def _is_done(krylov, tolerance):
    (steps, width), library = krylov.coupling.shape, trees.namespace(krylov.coupling)
    values, coefficients = _largest(krylov)
    waiting = library.arange(width, dtype=np.int32) >= krylov.step
    outside = library.where(waiting[:, None], krylov.coupling.T @ coefficients, 0)
    # A little inside the tolerance, so that the residual measured at the end is within it despite rounding.
    small = library.linalg.norm(outside, axis=0) <= 0.9 * _threshold(krylov.scale, values, tolerance)
    return (small.all() & (krylov.step >= width - steps)) | (krylov.step >= steps)


def _largest(krylov):
    """The k largest values, largest first, and their coefficients [steps, k], not negative in the first row."""
    k = krylov.coupling.shape[1] - krylov.coupling.shape[0]
    values, coefficients = ritz(krylov)
    coefficients = coefficients[:, ::-1][:, :k]
    signed = trees.namespace(values).where(coefficients[0] < 0, -coefficients, coefficients)  # libraries differ in it
    return values[::-1][:k], signed


def _threshold(scale, values, tolerance):
    """The residual at which a value counts as converged."""
    library = trees.namespace(values)
    floor = ROUNDING * jnp.finfo(values.dtype).eps * scale
    return library.maximum(library.asarray(tolerance, values.dtype) * abs(values), floor)


@jax.jit
def _combined(coefficients, basis):
    """Vectors [k, n] with these coefficients [steps, k] in the basis."""
    return matmul(coefficients.T, basis[: coefficients.shape[0]])


@jax.jit
def _residual(product, unit, value, vector):
    return jnp.linalg.norm(product / unit - value * vector)
