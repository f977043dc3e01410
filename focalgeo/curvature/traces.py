"""Trace of a matvec from so many random probes, with its standard error.

XTrace: each random vector gives a sample of the trace, exact on the span of the other vectors' products.
"""

import jax
import jax.numpy as jnp

from focalgeo import checks, trees
from focalgeo.curvature.matvec import MOST_PRODUCTS, flat_matvec, on_host, orthonormal_rows, over_rows
from focalgeo.curvature.quadratic_forms import sample_mean, sampled
from focalgeo.trees import matmul
from focalgeo.types import Array, Estimate, PyTree

# a standard error takes two samples of 1, 1 or 2 products
# Two samples at least of each kind: one alone has no standard error.
LEAST_PRODUCTS = {"hutchinson": 2, "hutch++": 4, "xtrace": 4}
# two products each; its standard error takes operations with the fourth power of them, memory with the third
MOST_XTRACE_SAMPLES = 500


def trace(matvec, like: PyTree, key: Array | int, num_probes: int, *, method: str = "hutchinson") -> Estimate:
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
        key: PRNG key, or a seed, of the probes.
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

    Example:
        >>> found = curvature.trace(matvec, params, key, 30)
        >>> round(float(found.value)), round(float(found.stderr), 1)
        (9, 0.4)
    """
    layout, product, key = flat_matvec(matvec, like, key)
    checks.check_choice("method", method, LEAST_PRODUCTS)
    num_probes = checks.count("num_probes", num_probes, LEAST_PRODUCTS[method], MOST_PRODUCTS)
    if method == "xtrace":
        count = checks.count("num_probes // 2", min(num_probes // 2, layout.size), 1, MOST_XTRACE_SAMPLES)
        vectors = jax.random.normal(key, (count, layout.size), layout.dtype)  # uniform directions in any subspace
        products = over_rows(product, vectors)
        basis = orthonormal_rows(products)
        value, stderr = on_host(value_and_stderr(vectors, products, basis, over_rows(product, basis)))
    else:
        basis, count = None, num_probes
        if method == "hutch++":
            sketch_key, key = jax.random.split(key)
            signs = jax.random.rademacher(sketch_key, (min(num_probes // 3, layout.size), layout.size), layout.dtype)
            basis, count = orthonormal_rows(over_rows(product, signs)), num_probes - 2 * len(signs)
        samples, exact = sampled(lambda probe: matmul(probe, product(probe)), key, count, layout, basis)
        mean = sample_mean(samples)
        value, stderr = exact + mean.value, mean.stderr
    estimate = Estimate.by_student(value, stderr, count)
    checks.check_finite_tree("the trace", estimate[:2])
    return estimate


# Of a squared length: what is left of less is rounding alone.
_LEAST = 1e-5


@jax.jit
def value_and_stderr(vectors: Array, products: Array, basis: Array, basis_products: Array) -> tuple[Array, Array]:
    """The trace as the mean over vectors w_i of tr(Q_i' A Q_i) + c (w_i - Q_i Q_i' w_i)' A (w_i - Q_i Q_i' w_i).

    Of Gaussian vectors w, their products A w, orthonormal rows that span these, and theirs: all [rows, n].
    Q_i is an orthonormal basis of the products but the i-th, and c makes w_i - Q_i Q_i' w_i as long as a sign vector of
    its subspace would be. The samples share their subspaces, so their scatter understates the error of their mean, and
    the jackknife (the estimates without each vector in turn) overstates it, both up to twofold and more with many
    vectors; the standard error is their geometric mean. On the spectra of tests/curvature/test_traces.py two of it
    cover as they should. Where a vector hardly leaves Q_i, the second term divides rounding by a small length: how far
    that may go is added to the error.
    """
    unit = trees.power_of_two(products)  # so that squares neither overflow nor vanish
    products, basis_products = products / unit, basis_products / unit
    inner = matmul(basis, basis_products.T)  # [basis, basis], Q' A Q
    projected, coupled = matmul(vectors, basis.T), matmul(vectors, basis_products.T)  # [samples, basis], w' Q, w' A Q
    forms, lengths = jnp.sum(vectors * products, axis=1), jnp.sum(vectors**2, axis=1)  # [samples], w' A w, w' w
    left_out = _left_out(matmul(basis, products.T))  # [samples, basis], the direction that only product i reaches
    count, size = vectors.shape

    def per_length(values, inside):
        """Divided by the squared length of what is left of each vector; 0 where that is rounding."""
        length = lengths - jnp.sum(inside**2, axis=1)
        return jnp.where(length > _LEAST * lengths, values / length, 0)

    def estimates(other, dimension):
        """[samples]: with the directions `left_out` and `other` (orthogonal to it, of norm 1 or 0) taken from Q."""
        inside = projected - _along(projected, left_out) - _along(projected, other)
        exact = jnp.trace(inner) - _quadratic(inner, left_out) - _quadratic(inner, other)
        outside = forms - 2 * jnp.sum(inside * coupled, axis=1) + _quadratic(inner, inside)
        return exact + per_length(dimension * outside, inside)

    def without(index):
        # Beside its own direction, each sample loses the one that product `index` alone reaches.
        direction = jnp.broadcast_to(left_out[index], left_out.shape)
        other = direction - _along(direction, left_out)
        length = jnp.linalg.norm(other, axis=1, keepdims=True)
        other = jnp.where(length > 1e-3, other / jnp.maximum(length, 1e-3), 0)
        fewer = estimates(other, size - count + 2)
        return (fewer.sum() - fewer[index]) / (count - 1)

    dimension = size - count + 1
    samples = estimates(jnp.zeros_like(left_out), dimension)
    values = jax.lax.map(without, jnp.arange(count, dtype=jnp.int32))
    scatter, jackknife = samples.std(ddof=1) / count**0.5, (count - 1) ** 0.5 * values.std()
    # The second terms of the estimates are differences of numbers as large as these, and err by their rounding.
    inside = projected - _along(projected, left_out)
    terms = jnp.abs(forms) + 2 * jnp.abs(jnp.sum(inside * coupled, axis=1))
    rounding = per_length(2 * float(jnp.finfo(terms.dtype).eps) * dimension * terms, inside)
    stderr = jnp.hypot(jnp.sqrt(scatter * jackknife), rounding.mean())
    return samples.mean() * unit, stderr * unit


def _along(rows, units):
    """The component of each row along its unit vector."""
    return jnp.sum(rows * units, axis=-1, keepdims=True) * units


def _left_out(coordinates):
    """[samples, basis]: row i is a unit vector orthogonal to all columns of `coordinates` [basis, samples] but one.

    By QR of the others with the i-th put last: the last column of a full Q is orthogonal to them, also where they are
    linearly dependent, as they are when the matrix has a small rank.
    """

    def one(index):
        others = jnp.delete(coordinates, index, axis=1, assume_unique_indices=True)
        return jnp.linalg.qr(others, mode="complete")[0][:, -1]

    return jax.vmap(one)(jnp.arange(coordinates.shape[1], dtype=jnp.int32))


def _quadratic(matrix, rows):
    """[rows]: r' M r of each row."""
    return jnp.sum(matmul(rows, matrix) * rows, axis=1)
