"""Diagonal of a matvec, and its trace leaf by leaf, from random probes, with standard errors."""

import functools

import jax
import jax.numpy as jnp

from focalgeo import trees
from focalgeo.checks import check_key, count
from focalgeo.curvature.arguments import MOST_PRODUCTS, check_finite_tree, check_params, tree_unit
from focalgeo.curvature.matvec import checked_matvec, iterate
from focalgeo.curvature.traces import with_interval
from focalgeo.types import Array, Estimate, PyTree


def diagonal(matvec, like: PyTree, key: Array, num_probes: int) -> Estimate:
    """The diagonal of H as the mean of v * (H v) over random sign vectors v, entry by entry.

    The variance of one sample of entry i is the sum of H_ij^2 over j != i: exact for a diagonal H, and poor where rows
    are large beside the diagonal.

    Args:
        matvec: symmetric linear map, tree -> tree; jitted for speed when called from Python.
        like: tree of arrays with the shapes and dtypes that `matvec` takes; its values are not used.
        key: PRNG key of the probes.
        num_probes: number of products, 2 to 100,000.

    Returns:
        Estimate whose fields are trees like `like`; low and high bound each entry's own 95% interval by Student's t. n
        is num_probes, a scalar.

    Raises:
        InputError: num_probes out of range; `like` empty or not floating-point; a product that is no tree like its
            vector.
        RunError: a concrete product, or what is estimated, is not finite; the leaf is named.

    Accuracy: unbiased; coverage over 200 keys against a dense Hessian in tests/curvature/test_diagonal.py.

    Source: Bekas, Kokiopoulou and Saad, An estimator for the diagonal of a matrix (2007), with random signs.
    """
    return _sampled(_entries, matvec, like, key, num_probes)


def leaf_traces(matvec, like: PyTree, key: Array, num_probes: int) -> Estimate:
    """The trace of each leaf's block of H, the sum of its diagonal entries: where in a network the trace lies.

    A sample of a leaf is v_l' (H v)_l, and the samples of all leaves sum to one of Tr H. The leaves of a layer may be
    added up, but not their standard errors, as they share their probes: for those restrict the loss to the layer.

    Args:
        matvec: symmetric linear map, tree -> tree; jitted for speed when called from Python.
        like: tree of arrays with the shapes and dtypes that `matvec` takes; its values are not used.
        key: PRNG key of the probes.
        num_probes: number of products, 2 to 100,000.

    Returns:
        Estimate whose fields are trees of scalars of the structure of `like`; n is num_probes, a scalar.

    Raises:
        InputError, RunError: as for `diagonal`.

    Accuracy: unbiased; coverage over 200 keys against a dense Hessian in tests/curvature/test_diagonal.py.

    Source: Hutchinson (1990), leaf by leaf.
    """
    return _sampled(_blocks, matvec, like, key, num_probes)


def _sampled(samples_of, matvec, like, key, num_probes):
    check_params(like, name="like")
    check_key(key)
    num_probes = count("num_probes", num_probes, 2, MOST_PRODUCTS)
    product = checked_matvec(matvec)

    def body(state):
        probe = _probe(key, state[0], like)
        return _updated(*state, samples_of(probe, product(probe)))

    zeros = _zeros(jax.eval_shape(samples_of, like, like))
    start = (jnp.int32(0), jnp.float32(1), zeros, zeros)
    _, unit, mean, spread = iterate(lambda state: state[0] < num_probes, body, start)
    found = _estimated(unit, mean, spread, count=num_probes)
    check_finite_tree(found.stderr, name="the standard error")
    return found


@jax.jit
def _entries(probe, product):
    def entry(v, h):
        return (v * h).astype(v.dtype if v.dtype == jnp.float64 else jnp.float32)

    return jax.tree.map(entry, probe, product)


@jax.jit
def _blocks(probe, product):
    return jax.tree.map(jnp.sum, _entries(probe, product))


@jax.jit
def _probe(key, index, like):
    return trees.rademacher(jax.random.fold_in(key, index), like)


def _zeros(shapes):
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


@jax.jit
def _updated(index, unit, mean, spread, sample):
    """Running mean and sum of squared deviations, so that no more than two samples are in memory.

    Both in the unit of the first sample, so that squares neither overflow nor vanish.
    """
    unit = jnp.where(index == 0, tree_unit(sample).astype(unit.dtype), unit)
    sample = jax.tree.map(lambda leaf: leaf / unit.astype(leaf.dtype), sample)
    off = jax.tree.map(jnp.subtract, sample, mean)
    mean = jax.tree.map(lambda m, d: m + d / (index + 1).astype(d.dtype), mean, off)
    spread = jax.tree.map(lambda s, d, x, m: s + d * (x - m), spread, off, sample, mean)
    return index + 1, unit, mean, spread


@functools.partial(jax.jit, static_argnames="count")
def _estimated(unit, mean, spread, *, count):
    stderr = jax.tree.map(lambda s: jnp.sqrt(s / (count * (count - 1))), spread)
    mean, stderr = jax.tree.map(lambda leaf: leaf * unit.astype(leaf.dtype), (mean, stderr))
    return with_interval(mean, stderr, count=count)
