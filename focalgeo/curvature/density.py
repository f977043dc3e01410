"""The spectral density of a symmetric matvec by stochastic Lanczos quadrature."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.curvature import krylov
from focalgeo.curvature.arguments import check_params
from focalgeo.curvature.flattening import flat_matvec, layout_of
from focalgeo.curvature.iteration import iterate, updating
from focalgeo.curvature.probes import sign_probe
from focalgeo.types import Array, InputError, PyTree


class SpectralDensity(NamedTuple):
    """One discrete distribution for each probe, of weight weights[i, j] at the value nodes[i, j]."""

    nodes: Array  # [num_probes, steps], ascending in each row
    weights: Array  # [num_probes, steps], each row sums to 1
    num_matvecs: Array  # int32, every product that was made
    dimension: Array  # int32, the number of eigenvalues


class Tridiagonal(NamedTuple):
    """H in the basis of one probe's Krylov space; with a leading axis, of all probes."""

    diagonal: Array  # [steps], q_j' H q_j
    coupling: Array  # [steps], q_j+1' H q_j
    step: Array  # how many rows were reached


class Search(NamedTuple):
    """The search of one probe; arrays keep their shapes, so that jit compiles one step once."""

    basis: Array  # [steps, n], rows not yet reached are zero
    matrix: Tridiagonal
    step: Array
    scale: Array  # the largest ||H q|| so far
    done: Array


def spectral_density(matvec, like: PyTree, key: Array, *, num_probes: int = 10, steps: int = 40) -> SpectralDensity:
    """The distribution of the eigenvalues of H, as Gauss quadratures that hold v' f(H) v / v'v for random signs v.

    Lanczos from v gives nodes and weights with sum_j weights[i, j] f(nodes[i, j]) = v' f(H) v / v'v for every
    polynomial f of degree up to 2 steps - 1; its mean over v is the mean of f over the eigenvalues. Nodes settle on
    isolated eigenvalues first, the ends of the spectrum before its middle; in a dense part of it they lie between
    eigenvalues, and each stands for those around it. The probes are those of `trace` with method "hutchinson": with the
    same key and number, dimension * mean over probes of sum_j weights * nodes is its value.

    Memory: steps + 1 vectors of the dimension beside what a product takes. On concrete arrays the loops run in Python,
    under jit and vmap in XLA, with the same results up to rounding.

    Args:
        matvec: symmetric linear map, tree -> tree; jitted for speed when called from Python.
        like: tree of arrays with the shapes and dtypes that `matvec` takes; its values are not used.
        key: PRNG key of the probes.
        num_probes: 2 or more, for standard errors.
        steps: products for each probe, 1 or more; no more are made, and no more nodes returned, than the dimension. A
            probe whose Krylov space closes makes fewer: its other nodes repeat the lowest one with weight 0.

    Returns:
        SpectralDensity; `share_in_bins`, `cumulative_distribution` and `smoothed_density` make estimates of it. A probe
        with a product under jit that is not finite is NaN throughout.

    Raises:
        InputError: num_probes or steps out of range; `like` empty or not floating-point.
        RunError: a concrete product is not finite; the leaf is named.

    Accuracy: moments to rounding, cumulative weights within the Chebyshev-Markov-Stieltjes bounds;
    tests/curvature/test_density.py.

    Source: Lin, Saad and Yang, Approximating spectral densities of large matrices (2016), section 3.2; Golub and
    Meurant, Matrices, moments and quadrature (2010). Gram-Schmidt twice against all rows, so no node is a ghost copy.
    """
    check_params(like, name="like")
    layout = layout_of(like)
    if num_probes < 2:
        raise InputError(f"num_probes is {num_probes}; use 2 or more, for a standard error")
    if steps < 1:
        raise InputError(f"steps is {steps}; use 1 or more products for each probe")
    product, rows = flat_matvec(matvec, layout), min(steps, layout.size)

    def body(state):
        start = _start(sign_probe(key, state.step, None, layout=layout), steps=rows)
        search = iterate(lambda s: ~s.done, lambda s: _expand(s, product(krylov.next_row(s))), start)
        return _record(state, search.matrix)

    start = _nothing(num_probes, rows, layout.dtype)
    found = iterate(lambda state: state.step < num_probes, body, start).found
    return SpectralDensity(*_quadratures(found), np.int32(layout.size))


class Collected(NamedTuple):
    """The matrices of the first `step` probes."""

    found: Tridiagonal
    step: Array


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _nothing(num_probes, steps, dtype):
    numbers = jnp.zeros((num_probes, steps), dtype)
    return Collected(Tridiagonal(numbers, numbers, jnp.zeros(num_probes, jnp.int32)), jnp.int32(0))


@jax.jit
def _record(state, matrix):
    found = jax.tree.map(lambda all_probes, one: all_probes.at[state.step].set(one), state.found, matrix)
    return Collected(found, state.step + 1)


@functools.partial(jax.jit, static_argnames="steps")
def _start(probe, *, steps):
    basis = jnp.zeros((steps, probe.size), probe.dtype).at[0].set(probe / jnp.linalg.norm(probe))
    numbers = jnp.zeros(steps, probe.dtype)
    matrix = Tridiagonal(numbers, numbers, jnp.int32(0))
    return Search(basis, matrix, jnp.int32(0), jnp.zeros((), probe.dtype), jnp.bool_(False))


@updating
def _expand(search, product):
    """Takes in the product of the next row; the search is over when nothing new is left of it."""
    step, (diagonal, coupling, _) = search.step, search.matrix
    rest, projection = krylov.orthogonalise(search.basis, product)
    length, scale = jnp.linalg.norm(rest), jnp.maximum(search.scale, jnp.linalg.norm(product))
    # A length that is not a number is not above the limit either, and ends the search.
    is_new = length > krylov.ROUNDING * jnp.finfo(rest.dtype).eps * scale
    row, length = jnp.where(is_new, rest / jnp.where(is_new, length, 1), 0), jnp.where(is_new, length, 0)
    matrix = Tridiagonal(diagonal.at[step].set(projection[step]), coupling.at[step].set(length), step + 1)
    basis = search.basis.at[step + 1].set(row)  # beyond the last row nothing is set
    return Search(basis, matrix, step + 1, scale, ~is_new | (step + 1 >= basis.shape[0]))


@jax.jit
def _quadratures(found):
    """Nodes and weights [num_probes, steps] of all tridiagonal matrices, by one batched eigh; and the products made."""
    return *jax.vmap(_quadrature)(found), found.step.sum(dtype=jnp.int32)


def _quadrature(found):
    matrix = jnp.diag(found.diagonal) + jnp.diag(found.coupling[:-1], 1) + jnp.diag(found.coupling[:-1], -1)
    size, index = jnp.linalg.norm(matrix), jnp.arange(len(matrix), dtype=jnp.int32)
    # Rows not reached get an eigenvalue below all others, at a distance that costs no precision, so they come first.
    below = jnp.where(index >= found.step, jnp.where(size > 0, -2 * size, -1), 0)
    values, vectors = jnp.linalg.eigh(matrix + jnp.diag(below))
    missing = len(matrix) - found.step
    nodes = jnp.where(index >= missing, values, values[missing])
    weights = jnp.where(index >= missing, vectors[0] ** 2, 0)
    return [jnp.where(jnp.isfinite(size), each, jnp.nan) for each in (nodes, weights / weights.sum())]
