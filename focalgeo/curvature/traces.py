"""Trace of a matvec from random probes, with its standard error; the probes, and the interval of a mean of samples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from focalgeo.checks import check_choice, check_key, count, described
from focalgeo.curvature.arguments import MOST_PRODUCTS, check_bytes, check_finite_tree, check_params, power_of_two
from focalgeo.curvature.matvec import Layout, flat_matvec, iterate, layout_of, map_rows
from focalgeo.curvature.xtrace import start_vectors, value_and_stderr
from focalgeo.precision import matmul
from focalgeo.types import Array, Estimate, InputError, PyTree

# a standard error takes two samples of 1, 1 or 2 products
LEAST_PRODUCTS = {"hutchinson": 2, "hutch++": 4, "xtrace": 4}
MOST_XTRACE_SAMPLES = (
    500  # two products each; its standard error takes operations with the fourth power of them, memory with the third
)


def trace(matvec, like: PyTree, key: Array, num_probes: int, *, method: str = "hutchinson") -> Estimate:
    """Tr H as the mean of v' H v over random signs v, with the standard error and 95% interval of that mean.

    "hutchinson" uses every product for one sample, of variance 2 sum_{i != j} H_ij^2. "hutch++" spends two thirds of
    the products on an exact trace over a random subspace that catches the largest eigenvalues, and samples only what is
    left: far better where few eigenvalues carry the trace. "xtrace" spends two products on a sample, and lets every
    sample use the subspace of all others: nearer still, but its standard error is less certain (see
    `xtrace.value_and_stderr`). On concrete arrays the loop runs in Python, under jit and vmap in XLA, with the same
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
        InputError: num_probes or method out of range, or more vectors than memory holds; `like` empty or not
            floating-point; a product that is no tree like its vector.
        RunError: a concrete product is not finite (the leaf is named), or the trace is beyond the dtype's range.

    Accuracy: unbiased; coverage over 200 keys in tests/curvature/test_traces.py; equal to matfree's with the same
    vectors, tests/curvature/test_matfree.py.

    Source: Hutchinson (1990); Meyer et al., Hutch++ (2021), Algorithm 1, with random signs and the split 1:1:1;
    Epperly, Tropp and Webber, XTrace (2024), with Gaussian vectors brought to one length in each subspace.
    """
    check_params(like, name="like")
    check_key(key)
    layout = layout_of(like)
    num_probes = _checked_probes(num_probes, layout, method)
    product = flat_matvec(matvec, layout)
    if method == "hutchinson":
        found = _estimate(jnp.zeros((), layout.dtype), _samples(product, key, num_probes, layout))
    elif method == "xtrace":
        found = _xtrace(product, key, num_probes, layout)
    else:
        found = _hutch_plus_plus(product, key, num_probes, layout)
    check_finite_tree(found[:2], name="the trace")
    return found


def _checked_probes(num_probes: int, layout: Layout, method: str) -> int:
    check_choice("method", method, LEAST_PRODUCTS)
    least = LEAST_PRODUCTS[method]
    num_probes = count("num_probes", num_probes, 1, MOST_PRODUCTS)
    if num_probes < least:
        raise InputError(f"num_probes is {num_probes}; {method} takes at least {least} for a standard error")
    samples = min(num_probes // 2, layout.size)
    if method == "xtrace" and samples > MOST_XTRACE_SAMPLES:
        raise InputError(f'num_probes is {num_probes}; xtrace takes at most {2 * MOST_XTRACE_SAMPLES}, use "hutch++"')
    rows = {"hutchinson": 0, "hutch++": min(num_probes // 3, layout.size), "xtrace": samples}[method]
    check_bytes((4 * rows + 3) * layout.nbytes, what=f"{rows} vectors of {layout.size} numbers for num_probes")
    return num_probes


def _xtrace(product, key, num_probes, layout):
    samples = min(num_probes // 2, layout.size)
    vectors = start_vectors(key, samples=samples, size=layout.size, dtype=layout.dtype)
    products = map_rows(product, vectors)
    basis = _orthonormal_rows(products)
    value, stderr = value_and_stderr(vectors, products, basis, map_rows(product, basis))
    return _interval(value, stderr, count=len(vectors))


def _hutch_plus_plus(product, key, num_probes, layout):
    sketch_key, sample_key = jax.random.split(key)
    size = min(num_probes // 3, layout.size)
    basis = _orthonormal_rows(map_rows(product, _signs(sketch_key, (size, layout.size), layout.dtype)))
    exact = jnp.vdot(basis, map_rows(product, basis), precision="highest")
    samples = _samples(product, sample_key, num_probes - 2 * size, layout, basis=basis)
    return _estimate(exact, samples)


def _samples(product, key, count, layout, *, basis=None):
    """Values of v' H v for `count` probes v, each projected away from the rows of `basis` if there is one."""

    def body(state):
        index, samples = state
        probe = sign_probe(key, index, basis, layout=layout)
        return _record(index, samples, probe, product(probe))

    start = (jnp.int32(0), jnp.zeros(count, layout.dtype))
    return iterate(lambda state: state[0] < count, body, start)[1]


@jax.jit
def _estimate(offset, samples):
    found = sample_mean(samples)
    return found._replace(value=offset + found.value, low=offset + found.low, high=offset + found.high)


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def _signs(key, shape, dtype):
    return jax.random.rademacher(key, shape, dtype)


@jax.jit
def _record(index, samples, probe, product):
    return index + 1, samples.at[index].set(jnp.vdot(probe, product, precision="highest"))


@jax.jit
def _orthonormal_rows(rows):
    return jnp.linalg.qr(rows.T)[0].T


@functools.partial(jax.jit, static_argnames="layout")
def sign_probe(
    key: Array, index: Array, basis: Float[Array, "rows size"] | None, *, layout: Layout
) -> Float[Array, " size"]:
    """The probe of this index as a flat vector; projected away from the rows of `basis`, if there is one."""
    probe = jax.random.rademacher(jax.random.fold_in(key, index), (layout.size,), layout.dtype)
    if basis is None:
        return probe
    return probe - matmul(matmul(basis, probe), basis)


def sample_mean(samples: Float[Array, "n ..."]) -> Estimate:
    """The mean of n independent samples with its standard error and 95% interval by Student's t.

    Args:
        samples: [n, ...], of NumPy or JAX, n 2 or more; several numbers of a sample get an interval each.

    Returns:
        Estimate of arrays [...] of the samples' own library and dtype; n is a scalar. Deviations are squared in a unit
        of the samples' size, so that they neither overflow nor vanish.

    Raises:
        InputError: no array of numbers, or fewer than two samples.

    Accuracy: covers the mean of normal samples 95 times in 100; tests/curvature/test_quadratic_forms.py.
    """
    dtype = getattr(samples, "dtype", None)
    if dtype is None or not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
        raise InputError(f"samples are {described(samples)}; give an array of numbers [samples, ...]")
    if samples.ndim == 0 or samples.shape[0] < 2:
        raise InputError(f"{samples.size} sample has no standard error; take 2 or more")
    count = samples.shape[0]
    unit = power_of_two(samples) if jnp.issubdtype(dtype, jnp.floating) else 1
    inside = samples / unit
    return with_interval(inside.mean(axis=0) * unit, inside.std(axis=0, ddof=1) / count**0.5 * unit, count=count)


def with_interval(value: PyTree, stderr: PyTree, *, count: int) -> Estimate:
    """The Estimate of a value, or of a tree of them, whose standard error has count - 1 degrees of freedom."""
    low = jax.tree.map(lambda mean, error: Estimate.by_student(mean, error, count).low, value, stderr)
    high = jax.tree.map(lambda mean, error: Estimate.by_student(mean, error, count).high, value, stderr)
    return Estimate(value, stderr, low, high, np.int32(count))


_interval = jax.jit(with_interval, static_argnames="count")
