"""Trace of a matvec: from so many random probes, or to a requested standard error, with that error.

XTrace: each random vector gives a sample of the trace, exact on the span of the other vectors' products. Its error also
plans how many samples a requested error takes.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import checks, trees
from focalgeo.curvature.lanczos import orthogonalise
from focalgeo.curvature.matvec import MOST_PRODUCTS, Layout, flat_matvec, orthonormal_rows, row_of, stacked
from focalgeo.curvature.quadratic_forms import sample_mean, sampled
from focalgeo.trees import matmul
from focalgeo.types import Array, Estimate, InputError, PyTree

# a standard error takes two samples of 1, 1 or 2 products
LEAST_PRODUCTS = {"hutchinson": 2, "hutch++": 4, "xtrace": 4}
# two products each; its standard error takes operations with the fourth power of them, memory with the third
MOST_XTRACE_SAMPLES = 500


def trace(matvec, like: PyTree, key: Array, num_probes: int, *, method: str = "hutchinson") -> Estimate:
    """Tr H as the mean of v' H v over random signs v, with the standard error and 95% interval of that mean.

    "hutchinson" uses every product for one sample, of variance 2 sum_{i != j} H_ij^2. "hutch++" spends two thirds of
    the products on an exact trace over a random subspace that catches the largest eigenvalues, and samples only what is
    left: far better where few eigenvalues carry the trace. "xtrace" spends two products on a sample, and lets every
    sample use the subspace of all others: nearer still, but its standard error is less certain (see
    `value_and_stderr`). On concrete arrays the loop runs in Python, under jit and vmap in XLA, with the same
    results up to rounding.

    Args:
        matvec: symmetric linear map, tree -> tree; jitted for speed when called from Python.
        like: tree of arrays with the shapes and dtypes that `matvec` takes; its values are not used.
        key: PRNG key of the probes.
        num_probes: number of products, at least 2 for "hutchinson" and 4 for the others, at most 100,000; "xtrace"
            makes it even, and takes at most 1,000 where there are as many dimensions.
        method: "hutchinson", "hutch++" or "xtrace".

    Returns:
        Estimate: low and high by Student's t; `n` is the number of samples behind stderr, which is num_probes for
        "hutchinson", about a third of it for "hutch++" and half of it for "xtrace". Not finite where a product under
        jit is not.

    Raises:
        InputError: num_probes or method out of range; else as `matvec.checked_matvec`.
        RunError: the trace is beyond the dtype's range; else as there.

    Accuracy: unbiased; coverage over 200 keys in tests/curvature/test_traces.py; equal to matfree's with the same
    vectors, tests/curvature/test_matfree.py.

    Source: Hutchinson (1990); Meyer et al., Hutch++ (2021), Algorithm 1, with random signs and the split 1:1:1;
    Epperly, Tropp and Webber, XTrace (2024), with Gaussian vectors brought to one length in each subspace.
    """
    layout, product = flat_matvec(matvec, like, key)
    checks.check_choice("method", method, LEAST_PRODUCTS)
    num_probes = checks.count("num_probes", num_probes, LEAST_PRODUCTS[method], MOST_PRODUCTS)
    if method == "xtrace":
        count = checks.count("num_probes // 2", min(num_probes // 2, layout.size), 1, MOST_XTRACE_SAMPLES)
        value, stderr = value_and_stderr(subspace(product, key, count, layout))
    else:
        basis, count = None, num_probes
        if method == "hutch++":
            sketch_key, key = jax.random.split(key)
            signs = jax.random.rademacher(sketch_key, (min(num_probes // 3, layout.size), layout.size), layout.dtype)
            basis, count = orthonormal_rows(_each(product, signs)), num_probes - 2 * len(signs)
        samples, exact = sampled(lambda probe: _dot(probe, product(probe)), key, count, layout, basis)
        mean = _mean(samples)
        value, stderr = exact + mean.value, mean.stderr
    estimate = _interval(value, stderr, count)
    checks.check_finite_tree("the trace", estimate[:2])
    return estimate


def _each(product: Callable, rows: Array) -> Array:
    return stacked(lambda index: product(row_of(rows, index)), len(rows))


_mean = jax.jit(sample_mean)
_interval = jax.jit(Estimate.by_student, static_argnums=2)
_dot = functools.partial(jnp.vdot, precision="highest")


class Subspace(NamedTuple):
    """Random vectors w, their products A w, orthonormal rows that span these, and theirs: all [rows, n]."""

    vectors: Array
    products: Array
    basis: Array
    basis_products: Array


def subspace(product: Callable, key: Array, rows: int, layout: Layout, *, before: Subspace | None = None) -> Subspace:
    """So many rows, from Gaussian vectors, whose directions are uniform in any subspace; after those of `before`."""
    vectors = jax.random.normal(key, (rows, layout.size), layout.dtype)
    products = _each(product, vectors)
    span = products if before is None else jnp.concatenate([before.basis, products])
    basis = orthonormal_rows(span)[len(span) - rows :]
    space = Subspace(vectors, products, basis, _each(product, basis))
    return space if before is None else jax.tree.map(lambda old, new: jnp.concatenate([old, new]), before, space)


class Compressed(NamedTuple):
    """Small arrays from which XTrace's estimates are computed, of the size of the number of vectors."""

    inner: Array  # [basis, basis], Q' A Q
    projected: Array  # [samples, basis], w' Q
    coupled: Array  # [samples, basis], w' A Q
    forms: Array  # [samples], w' A w
    lengths: Array  # [samples], w' w
    left_out: Array  # [samples, basis], the direction of the basis that only product i reaches


_LEAST = 1e-5  # of a squared length: what is left of less is rounding alone


@jax.jit
def value_and_stderr(space: Subspace) -> tuple[Array, Array]:
    """The trace as the mean over vectors w_i of tr(Q_i' A Q_i) + c (w_i - Q_i Q_i' w_i)' A (w_i - Q_i Q_i' w_i).

    Q_i is an orthonormal basis of the products but the i-th, and c makes w_i - Q_i Q_i' w_i as long as a sign vector of
    its subspace would be. The samples share their subspaces, so their scatter understates the error of their mean, and
    the jackknife (the estimates without each vector in turn) overstates it, both up to twofold and more with many
    vectors; the standard error is their geometric mean. On the spectra of tests/curvature/test_traces.py two of it
    cover as they should. Where a vector hardly leaves Q_i, the second term divides rounding by a small length: how far
    that may go is added to the error.
    """
    unit = trees.power_of_two(space.products)  # so that squares neither overflow nor vanish
    products, basis_products = space.products / unit, space.basis_products / unit
    vectors, basis = space.vectors, space.basis
    small = Compressed(
        matmul(basis, basis_products.T),
        matmul(vectors, basis.T),
        matmul(vectors, basis_products.T),
        jnp.sum(vectors * products, axis=1),
        jnp.sum(vectors**2, axis=1),
        _left_out(matmul(basis, products.T)),
    )
    count, size = vectors.shape
    samples = _estimates(small, jnp.zeros_like(small.left_out), size - count + 1)

    def without(index):
        # Beside its own direction, each sample loses the one that product `index` alone reaches.
        direction = jnp.broadcast_to(small.left_out[index], small.left_out.shape)
        other = direction - _along(direction, small.left_out)
        length = jnp.linalg.norm(other, axis=1, keepdims=True)
        other = jnp.where(length > 1e-3, other / jnp.maximum(length, 1e-3), 0)
        fewer = _estimates(small, other, size - count + 2)
        return (fewer.sum() - fewer[index]) / (count - 1)

    values = jax.lax.map(without, jnp.arange(count, dtype=jnp.int32))
    scatter, jackknife = samples.std(ddof=1) / count**0.5, (count - 1) ** 0.5 * values.std()
    stderr = jnp.hypot(jnp.sqrt(scatter * jackknife), _rounding(small, size - count + 1).mean())
    return samples.mean() * unit, stderr * unit


def _estimates(small: Compressed, other: Array, dimension: int) -> Array:
    """[samples]: with the directions `left_out` and `other` (orthogonal to it, of norm 1 or 0) taken from the basis."""
    inside = small.projected - _along(small.projected, small.left_out) - _along(small.projected, other)
    exact = jnp.trace(small.inner) - _quadratic(small.inner, small.left_out) - _quadratic(small.inner, other)
    outside = small.forms - 2 * jnp.sum(inside * small.coupled, axis=1) + _quadratic(small.inner, inside)
    return exact + _per_length(dimension * outside, small, inside)


def _rounding(small: Compressed, dimension: int) -> Array:
    """[samples]: size of the rounding errors in the second terms of `_estimates`, differences of numbers as large."""
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

    def one(index):
        others = jnp.delete(coordinates, index, axis=1, assume_unique_indices=True)
        return jnp.linalg.qr(others, mode="complete")[0][:, -1]

    return jax.vmap(one)(jnp.arange(coordinates.shape[1], dtype=jnp.int32))


def _quadratic(matrix: Array, rows: Array) -> Array:
    """[rows]: r' M r of each row."""
    return jnp.sum(matmul(rows, matrix) * rows, axis=1)


FIRST_ROWS = 8
FEWEST_SAMPLES = 20  # of skewed samples; with 12, two standard errors were seen to cover 89 times in 100
MARGIN = 1.4  # samples planned over samples expected to do: a pilot of few vectors is off by that much


class TraceTo(NamedTuple):
    """A trace, the products it took, and whether its standard error is within the request."""

    estimate: Estimate
    num_matvecs: int  # every product that was made
    reached: bool


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
        InputError: an option out of range, traced arguments; else as `matvec.checked_matvec`.
        RunError: the trace is beyond the dtype's range; else as there.

    Accuracy: over 200 keys two standard errors cover 90 to 99 times in 100; tests/curvature/test_traces.py.

    Source: Persson, Cortinovis and Kressner, Improved variants of the Hutch++ algorithm (2022), section 3, with the
    error of XTrace (Epperly, Tropp and Webber 2024) for the plan and Student's t for the claim.
    """
    layout, product = flat_matvec(matvec, like, key)
    checks.check_above("relative_error", relative_error, 0)
    max_products = checks.count("max_products", max_products, 2 * FIRST_ROWS + FEWEST_SAMPLES, MOST_PRODUCTS)
    max_rows = checks.count("max_rows", max_rows, FIRST_ROWS, MOST_XTRACE_SAMPLES)
    sketch_key, sample_key = jax.random.split(key)
    rows = min(FIRST_ROWS, layout.size)
    space = subspace(product, sketch_key, rows, layout)
    if checks.is_traced((space, like, key, relative_error)):
        raise InputError("trace_to plans by values: call it outside jit, vmap and grad, or use trace there")
    wanted, left = _samples_needed(space, relative_error), 0.5
    most_rows = min(layout.size, max_rows, (max_products - FEWEST_SAMPLES) // 2)
    # Twice the rows cost 2 * rows products; they should leave the share of samples that the last doubling left.
    while 2 * rows <= most_rows and wanted * (1 - left) > 2 * rows:
        sketch_key, _ = jax.random.split(sketch_key)
        space = subspace(product, sketch_key, rows, layout, before=space)
        rows, before = 2 * rows, wanted
        wanted = _samples_needed(space, relative_error)
        left = min(1.0, wanted / before) if np.isfinite(before) else 0.5
    count = int(np.clip(np.ceil(wanted), FEWEST_SAMPLES, max_products - 2 * rows))

    def sample(index):
        probe = _outside(sample_key, index, space.basis)
        return _dot(probe, product(probe))

    samples, exact = jax.device_get((stacked(sample, count), _dot(space.basis, space.basis_products)))
    estimate = sample_mean(samples + exact)
    checks.check_finite_tree("the trace", estimate[:2])
    reached = bool(estimate.stderr <= relative_error * abs(estimate.value))
    return TraceTo(estimate, 2 * rows + count, reached)


def _samples_needed(space: Subspace, relative_error: float) -> float:
    """Samples of what the subspace leaves out that the request will take, by XTrace's scatter of as many as rows."""
    value, stderr = jax.device_get(value_and_stderr(space))
    checks.check_finite_tree("the trace", (value, stderr))
    if stderr == 0:
        return 0.0
    wanted = relative_error * abs(float(value))
    ratio = float(stderr) / wanted if wanted > 0 else np.inf
    return MARGIN * len(space.basis) * ratio * ratio


@jax.jit
def _outside(key, index, basis):
    """A vector of random direction in all that `basis` leaves out, as long as its sign vectors would be on average.

    The mean of its quadratic forms is the trace there, and they are equal where the eigenvalues are, as XTrace's are;
    sign vectors lose that with their length when they are projected.
    """
    vector = jax.random.normal(jax.random.fold_in(key, index), basis.shape[1:], basis.dtype)
    rest = orthogonalise(basis, vector)[0]
    left = basis.shape[1] - basis.shape[0]
    return rest * (left**0.5 / jnp.linalg.norm(rest)) if left else jnp.zeros_like(rest)
