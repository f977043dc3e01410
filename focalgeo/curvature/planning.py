"""Trace of a matvec to a requested standard error, with as few products as its spectrum allows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.checks import check_key, count, is_traced
from focalgeo.curvature.arguments import MOST_PRODUCTS, check_bytes, check_finite_tree, check_params, check_positive
from focalgeo.curvature.lanczos import orthogonalise
from focalgeo.curvature.matvec import Layout, flat_matvec, layout_of, map_rows
from focalgeo.curvature.traces import MOST_XTRACE_SAMPLES, sample_mean
from focalgeo.curvature.xtrace import start_vectors, value_and_stderr
from focalgeo.types import Array, Estimate, InputError, PyTree

FIRST_ROWS = 8
FEWEST_SAMPLES = 20  # of skewed samples; with 12, two standard errors were seen to cover 89 times in 100
MARGIN = 1.4  # samples planned over samples expected to do: a pilot of few vectors is off by that much


class TraceTo(NamedTuple):
    """A trace, the products it took, and whether its standard error is within the request."""

    estimate: Estimate
    num_matvecs: int  # every product that was made
    reached: bool


class Subspace(NamedTuple):
    """Orthonormal rows that span products with random vectors; all arrays [rows, n]."""

    vectors: Array
    products: Array
    basis: Array
    basis_products: Array


def trace_to(
    matvec,
    like: PyTree,
    key: Array,
    *,
    relative_error: float = 0.02,
    max_products: int = 1000,
    max_rows: int = 32,
) -> TraceTo:
    """Tr H with a standard error of at most `relative_error` times |Tr H|, or as near as `max_products` gets.

    A pilot takes the span of products with random vectors, on which the trace is exact, and tells by XTrace how much
    samples of the rest will scatter. It doubles its rows for as long as that saves more samples than it costs. Then
    as many samples are drawn as the pilot asks for, from probes of their own: value and standard error come from them
    and from the exact part alone. To stop a sampling as soon as its standard error is small enough would favour
    samples that happen to lie close together, and the claim would be too low.

    To be called outside jit: the plan depends on values. Memory: 4 vectors of the dimension for each row.

    Args:
        matvec: symmetric linear map, tree -> tree; jitted for speed.
        like: tree of arrays with the shapes and dtypes that `matvec` takes; its values are not used.
        key: PRNG key of all random vectors.
        relative_error: wanted standard error as a fraction of the absolute trace, above 0.
        max_products: most products made, from 36 to 100,000.
        max_rows: most rows of the subspace, from 8 to 500.

    Returns:
        TraceTo: `estimate` as from `trace`, n the number of samples; `reached` is whether its standard error is within
        the request, as it is nine times in ten, and not where the trace is small beside its scatter.

    Raises:
        InputError: an option out of range, or more rows than memory holds; traced arguments; `like` empty or not
            floating-point; a product that is no tree like its vector.
        RunError: a product is not finite (the leaf is named), or the trace is beyond the dtype's range.

    Accuracy: over 200 keys two standard errors cover 90 to 99 times in 100; tests/curvature/test_planning.py.

    Source: Persson, Cortinovis and Kressner, Improved variants of the Hutch++ algorithm (2022), section 3, with the
    error of XTrace (Epperly, Tropp and Webber 2024) for the plan and Student's t for the claim.
    """
    check_params(like, name="like")
    check_key(key)
    layout = layout_of(like)
    relative_error, max_products, max_rows = _checked_options(layout, relative_error, max_products, max_rows)
    sketch_key, sample_key = jax.random.split(key)
    product = _concrete(flat_matvec(matvec, layout), like, key)
    rows = min(FIRST_ROWS, layout.size)
    space = _grown(None, product, sketch_key, rows, layout)
    wanted, before = _samples_needed(space, relative_error), np.inf
    while _pays(wanted, before, rows) and _fits(2 * rows, layout.size, max_products, max_rows):
        sketch_key, _ = jax.random.split(sketch_key)
        space = _grown(space, product, sketch_key, rows, layout)
        rows, before = 2 * rows, wanted
        wanted = _samples_needed(space, relative_error)
    count = int(np.clip(np.ceil(wanted), FEWEST_SAMPLES, max_products - 2 * rows))
    probes = (_probe(sample_key, np.int32(index), space.basis) for index in range(count))
    samples = jax.device_get([_dot(probe, product(probe)) for probe in probes])
    estimate = sample_mean(np.stack(samples) + jax.device_get(_dot(space.basis, space.basis_products)))
    check_finite_tree(estimate[:2], name="the trace")
    reached = bool(estimate.stderr <= relative_error * abs(estimate.value))
    return TraceTo(estimate, 2 * rows + count, reached)


def _pays(wanted: float, before: float, rows: int) -> bool:
    """Whether twice the rows should save more samples than the 2 * rows products that they cost.

    The saving is taken to be in the ratio of the last doubling, and of half at first.
    """
    ratio = 0.5 if np.isinf(before) else min(1.0, wanted / before)
    return wanted * (1 - ratio) > 2 * rows


def _fits(rows: int, size: int, max_products: int, max_rows: int) -> bool:
    return rows <= min(size, max_rows) and 2 * rows + FEWEST_SAMPLES <= max_products


def _grown(space: Subspace | None, product, key: Array, rows: int, layout: Layout) -> Subspace:
    """`space` with so many rows more."""
    vectors = start_vectors(key, samples=rows, size=layout.size, dtype=layout.dtype)
    products = map_rows(product, vectors)
    basis = _new_rows(None if space is None else space.basis, products)
    added = Subspace(vectors, products, basis, map_rows(product, basis))
    return added if space is None else _joined(space, added)


@jax.jit
def _new_rows(basis, products):
    """Orthonormal rows that span what `products` add to `basis`, by Householder, orthogonal whatever their rank."""
    if basis is None:
        return jnp.linalg.qr(products.T)[0].T
    return jnp.linalg.qr(jnp.concatenate([basis, products]).T)[0].T[len(basis) :]


@jax.jit
def _joined(space, added):
    return jax.tree.map(lambda old, new: jnp.concatenate([old, new]), space, added)


def _samples_needed(space: Subspace, relative_error: float) -> float:
    """Samples of what the subspace leaves out that the request will take, by XTrace's scatter of as many as rows."""
    value, stderr = jax.device_get(value_and_stderr(*space))
    check_finite_tree((value, stderr), name="the trace")
    if stderr == 0:
        return 0.0
    wanted = relative_error * abs(float(value))
    ratio = float(stderr) / wanted if wanted > 0 else np.inf
    return MARGIN * len(space.basis) * ratio * ratio


@jax.jit
def _probe(key, index, basis):
    """A vector of random direction in all that `basis` leaves out, as long as its sign vectors would be on average.

    The mean of its quadratic forms is the trace there, and they are equal where the eigenvalues are, as XTrace's are;
    sign vectors lose that with their length when they are projected.
    """
    vector = jax.random.normal(jax.random.fold_in(key, index), basis.shape[1:], basis.dtype)
    rest = orthogonalise(basis, vector)[0]
    left = basis.shape[1] - basis.shape[0]
    return rest * (left**0.5 / jnp.linalg.norm(rest)) if left else jnp.zeros_like(rest)


@jax.jit
def _dot(left, right):
    return jnp.vdot(left, right, precision="highest")


def _concrete(product, like: PyTree, key: Array):
    """`product`, refusing values that are only known inside jit."""

    def checked(vector):
        result = product(vector)
        if is_traced((result, like, key)):
            raise InputError("trace_to plans by values; call it outside jit, vmap and grad, or use trace there")
        return result

    return checked


def _checked_options(layout: Layout, relative_error: float, max_products: int, max_rows: int) -> tuple[float, int, int]:
    """As Python's numbers: relative_error, max_products and max_rows."""
    relative_error = check_positive(relative_error, name="relative_error", of="fraction of the trace, such as 0.02")
    least = 2 * FIRST_ROWS + FEWEST_SAMPLES
    max_products = count("max_products", max_products, 1, MOST_PRODUCTS)
    if max_products < least:
        raise InputError(f"max_products is {max_products}; a plan and its samples take at least {least}")
    max_rows = count("max_rows", max_rows, 1, MOST_XTRACE_SAMPLES)
    if max_rows < FIRST_ROWS:
        raise InputError(f"max_rows is {max_rows}; the plan takes at least {FIRST_ROWS}")
    rows = min(max_rows, layout.size, max_products // 2)
    check_bytes(4 * rows * layout.nbytes, what=f"{rows} rows of {layout.size} numbers for max_rows")
    return relative_error, max_products, max_rows
