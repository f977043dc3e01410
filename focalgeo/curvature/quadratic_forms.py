"""Quadratic forms v' A v: parts of v' H v without a product, samples of many traces at once, a matrix's diagonal."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import checks, trees
from focalgeo.curvature.matvec import (
    MOST_PRODUCTS,
    Layout,
    checked_matvec,
    flat_matvec,
    layout_of,
    of_layout,
    on_host,
    orthonormal_rows,
    over_rows,
    stacked,
    unravel,
)
from focalgeo.curvature.penalty import second_order
from focalgeo.trees import at_highest, matmul
from focalgeo.types import Array, Estimate, InputError, PyTree


class Parts(NamedTuple):
    """The two parts of v' H v, which sum to it."""

    gauss_newton: Array  # of the loss in the outputs, zdot' H_out zdot
    residual: Array  # of the network, grad_z L . zddot


@at_highest
def quadratic_parts(
    network: Callable[[PyTree], PyTree],
    losses: Mapping[str, Callable[[PyTree], Array]],
    params: PyTree,
    vector: PyTree,
) -> dict[str, Parts]:
    """The parts of v' H v = zdot' H_out zdot + grad_z L . zddot, for every loss L of the outputs z(params) at once.

    zdot and zddot are the network's first two derivatives along v. One forward pass of second order gives both, and no
    reverse pass is made; further losses cost nothing beside it. The first part is the Gauss-Newton part: it is never
    negative for cross-entropy, but may be for focal loss. The second, the residual, vanishes in the trace of a network
    whose outputs are linear in each single parameter, as with ReLU and batch norm in evaluation mode.

    Args:
        network: params -> tree of outputs (logits of all examples, say).
        losses: name -> function of those outputs that gives one floating-point number.
        params: tree of floating-point arrays.
        vector: tree of the same structure and shapes.

    Returns:
        name -> Parts of scalars, in the unit of the loss times the vector's squared.

    Raises:
        InputError: a loss is not scalar, `params` is empty or holds integers, or `vector` does not match.

    Accuracy: float rounding; against dense float64 matrices in tests/curvature/test_quadratic_forms.py.

    Source: Schraudolph, Fast curvature matrix-vector products for second-order gradient descent (2002).

    Example:
        >>> network = lambda params: params["w"] * params["b"]
        >>> parts = curvature.quadratic_parts(network, {"squares": lambda z: jnp.sum(z**2)}, params, params)
        >>> parts["squares"]
        Parts(gauss_newton=Array(4., dtype=float32), residual=Array(2., dtype=float32))
    """
    checks.check_params("params", params)
    checks.check_alike("vector", vector, "params", params)
    outputs, first, second = second_order(network, params, vector)

    def parts(loss):
        return Parts(second_order(loss, outputs, first)[2], jax.jvp(loss, (outputs,), (second,))[1])

    return {name: parts(checks.scalar(loss)) for name, loss in losses.items()}


def trace_samples(
    form: Callable[[PyTree], PyTree],
    like: PyTree,
    key: Array | int,
    num_samples: int,
    *,
    basis: Array | None = None,
) -> PyTree:
    """Unbiased samples of Tr A for every quadratic form v' A v that `form` returns, all from the same sign vectors.

    A sample is sum_i q_i' A q_i + w' A w, with q_i the rows of `basis` and w a sign vector projected away from them.
    The first sum is exact, and the better the basis spans the large eigenvalues, the less the samples scatter. What is
    linear in the forms holds sample by sample: parts of a form sum to the whole, and differences carry the error of a
    difference. To be called outside jit: the loop is Python's.

    Args:
        form: tree -> tree of numbers, each quadratic in its argument; jitted for speed by the caller.
        like: tree of arrays with the shapes and dtypes that `form` takes; its values are not used.
        key: PRNG key, or a seed, of the probes.
        num_samples: number of samples, 1 to 100,000; `form` is called once for each, and once for each row of `basis`.
        basis: orthonormal rows [rows, dimension] in the order of `ravel_pytree`, as `dominant_basis` gives; None: none.

    Returns:
        The tree that `form` returns, its leaves NumPy arrays [num_samples, ...]; `sample_mean` makes estimates of them.

    Raises:
        InputError: num_samples out of range, `like` is empty or not floating-point, `basis` has another shape.
        RunError: a value of `form` is not finite.

    Accuracy: the mean over all sign vectors is the trace; tests/curvature/test_quadratic_forms.py.

    Source: Hutchinson (1990); the exact part as in Meyer et al., Hutch++ (2021).

    Example:
        >>> form = lambda v: jax.tree.map(jnp.vdot, v, matvec(v))  # leaf by leaf
        >>> samples = curvature.trace_samples(form, params, key, 20)
        >>> print(np.unique(samples["b"] + samples["w"]))  # of the trace 9
        [ 7. 11.]
    """
    checks.check_params("like", like)
    key = checks.prng_key(key)
    num_samples = checks.count("num_samples", num_samples, 1, MOST_PRODUCTS)
    layout, form = layout_of(like), at_highest(form)
    if basis is not None and (np.ndim(basis) != 2 or np.shape(basis)[1] != layout.size):
        raise InputError(f"basis is {checks.described(basis)}: give rows of {layout.size} numbers, as dominant_basis")

    samples = sampled(lambda vector: form(unravel(vector, layout)), key, num_samples, layout, basis)
    checks.check_finite_tree("a value of form", samples)
    return jax.tree.map(np.add, *samples)


def sampled(form: Callable, key: Array, count: int, layout: Layout, basis: Array | None) -> tuple[PyTree, PyTree]:
    """Values of the form of `count` sign vectors projected away from the basis, and its sum over the basis."""
    samples = on_host(stacked(lambda index: form(sign_probe(key, index, basis, layout=layout)), count))
    if basis is None:
        return samples, jax.tree.map(lambda leaf: 0, samples)
    return samples, jax.tree.map(lambda leaf: leaf.sum(axis=0), on_host(over_rows(form, basis)))


@of_layout
def sign_probe(key: Array, index: Array, basis: Array | None, *, layout: Layout) -> Array:
    """The probe of this index as a flat vector; projected away from the rows of `basis`, if there is one."""
    probe = jax.random.rademacher(jax.random.fold_in(key, index), (layout.size,), layout.dtype)
    if basis is None:
        return probe
    return probe - matmul(matmul(basis, probe), basis)


def dominant_basis(matvecs: Sequence[Callable], like: PyTree, key: Array | int, num_products: int) -> Array:
    """Orthonormal rows that span products of the matvecs with random signs: mostly their largest eigenvectors.

    Args:
        matvecs: symmetric linear maps, tree -> tree; each makes `num_products` products.
        like: tree of arrays with the shapes and dtypes that they take; its values are not used.
        key: PRNG key, or a seed, of the signs.
        num_products: 1 to 100,000.

    Returns:
        [rows, dimension], rows at most len(matvecs) * num_products and at most the dimension.

    Raises:
        InputError: num_products out of range; else as `matvec.checked_matvec`.
        RunError: as there.

    Accuracy: orthonormal to rounding; tests/curvature/test_quadratic_forms.py.

    Source: Meyer et al., Hutch++ (2021), the sketch of Algorithm 1.

    Example:
        >>> basis = curvature.dominant_basis([matvec], params, key, 3)  # of three dimensions: none is left
        >>> form = lambda v: sum(jax.tree.leaves(jax.tree.map(jnp.vdot, v, matvec(v))))
        >>> print(basis.shape, curvature.trace_samples(form, params, key, 4, basis=basis).round(3))
        (3, 3) [9. 9. 9. 9.]
    """
    num_products = checks.count("num_products", num_products, 1, MOST_PRODUCTS)
    layout, products = layout_of(like), [flat_matvec(matvec, like, key)[1] for matvec in matvecs]
    key = checks.prng_key(key)
    share = max(1, min(num_products, layout.size // len(products)))
    signs = jax.random.rademacher(key, (share, layout.size), layout.dtype)
    return orthonormal_rows(jnp.stack([product(row) for product in products for row in signs][: layout.size]))


def sample_mean(samples: Array) -> Estimate:
    """The mean of n independent samples with its standard error and 95% interval by Student's t.

    Args:
        samples: [n, ...], of NumPy or JAX, n 2 or more; several numbers of a sample get an interval each.

    Returns:
        Estimate of arrays [...] of the samples' own library and dtype; n is a scalar. Deviations are squared in a unit
        of the samples' size, so that they neither overflow nor vanish.

    Raises:
        InputError: no array of numbers, or fewer than two samples.

    Accuracy: covers the mean of normal samples 95 times in 100; tests/curvature/test_quadratic_forms.py.

    Example:
        >>> mean = curvature.sample_mean(np.array([1.0, 2.0, 3.0, 4.0]))
        >>> [round(float(number), 4) for number in mean]
        [2.5, 0.6455, 0.4457, 4.5543, 4.0]
    """
    samples = checks.array_of("samples", samples)
    if samples.ndim == 0 or samples.shape[0] < 2:
        raise InputError(f"samples have shape {samples.shape}: a standard error takes 2 or more")
    count = samples.shape[0]
    unit = trees.power_of_two(samples) if jnp.issubdtype(samples.dtype, jnp.floating) else 1
    inside = samples / unit
    return Estimate.by_student(inside.mean(axis=0) * unit, inside.std(axis=0, ddof=1) / count**0.5 * unit, count)


def diagonal(matvec, like: PyTree, key: Array | int, num_probes: int) -> Estimate:
    """The diagonal of H as the mean of v * (H v) over random sign vectors v, entry by entry.

    The variance of one sample of entry i is the sum of H_ij^2 over j != i: exact for a diagonal H, and poor where rows
    are large beside the diagonal.

    Args:
        matvec: symmetric linear map, tree -> tree; jitted for speed when called from Python.
        like: tree of arrays with the shapes and dtypes that `matvec` takes; its values are not used.
        key: PRNG key, or a seed, of the probes.
        num_probes: number of products, 2 to 100,000.

    Returns:
        Estimate whose fields are trees like `like`; low and high bound each entry's own 95% interval by Student's t. n
        is num_probes, a scalar. Memory: num_probes vectors of the dimension.

    Raises:
        InputError: num_probes out of range; else as `matvec.checked_matvec`.
        RunError: what is estimated is beyond the dtype's range; else as there.

    Accuracy: unbiased; coverage over 200 keys against a dense Hessian in tests/curvature/test_traces.py.

    Source: Bekas, Kokiopoulou and Saad, An estimator for the diagonal of a matrix (2007), with random signs.

    Example:
        >>> found = curvature.diagonal(matvec, params, key, 50)
        >>> print(np.asarray(found.value["w"]).round(), np.asarray(found.stderr["w"]).round(1))
        [2. 4.] [0.1 0. ]
    """
    return _by_products(jnp.asarray, matvec, like, key, num_probes)


def leaf_traces(matvec, like: PyTree, key: Array | int, num_probes: int) -> Estimate:
    """The trace of each leaf's block of H, the sum of its diagonal entries: where in a network the trace lies.

    A sample of a leaf is v_l' (H v)_l, and the samples of all leaves sum to one of Tr H. The leaves of a layer may be
    added up, but not their standard errors, as they share their probes: for those restrict the loss to the layer.

    Args:
        matvec: symmetric linear map, tree -> tree; jitted for speed when called from Python.
        like: tree of arrays with the shapes and dtypes that `matvec` takes; its values are not used.
        key: PRNG key, or a seed, of the probes.
        num_probes: number of products, 2 to 100,000.

    Returns:
        Estimate whose fields are trees of scalars of the structure of `like`; n is num_probes, a scalar.

    Raises:
        InputError, RunError: as for `diagonal`.

    Accuracy: unbiased; coverage over 200 keys against a dense Hessian in tests/curvature/test_traces.py.

    Source: Hutchinson (1990), leaf by leaf.

    Example:
        >>> found = curvature.leaf_traces(matvec, params, key, 50)
        >>> {name: round(float(value)) for name, value in found.value.items()}
        {'b': 3, 'w': 6}
    """
    return _by_products(jnp.sum, matvec, like, key, num_probes)


def _by_products(summary, matvec, like, key, num_probes):
    """The mean over probes of the summary of each leaf's v * (H v)."""
    product, key = checked_matvec(matvec, like, key)
    num_probes = checks.count("num_probes", num_probes, 2, MOST_PRODUCTS)

    def sample(index):
        probe = _probe(key, index, like)
        return _summaries(probe, product(probe), summary)

    estimate = _means(stacked(sample, num_probes))._replace(n=num_probes)
    checks.check_finite_tree("the standard error", estimate.stderr)
    return estimate


@jax.jit
def _probe(key, index, like):
    return trees.rademacher(jax.random.fold_in(key, index), like)


@functools.partial(jax.jit, static_argnums=2)
def _summaries(probe, product, summary):
    def of_leaf(v, h):
        return summary((v * h).astype(v.dtype if v.dtype == jnp.float64 else jnp.float32))

    return jax.tree.map(of_leaf, probe, product)


@jax.jit
def _means(samples):
    return jax.tree.transpose(jax.tree.structure(samples), None, jax.tree.map(sample_mean, samples))
