"""Spectral density of a symmetric matvec by stochastic Lanczos quadrature, and the shares of eigenvalues from it.

The standard errors of the shares are those of the probes alone. A node stands for the eigenvalues around it, so where
they are dense a share is right to about the weight of the node next to the boundary: more steps make that smaller, more
probes do not. Where the boundary lies in a gap of the spectrum that the nodes have found, nothing is missing.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.checks import check_key, count, described, is_traced, number_array
from focalgeo.curvature.arguments import MOST_PRODUCTS, check_bytes, check_finite_tree, check_params, check_positive
from focalgeo.curvature.lanczos import (
    Krylov,
    check_symmetric,
    expanded,
    is_symmetric,
    krylov_start,
    next_row,
    ritz,
)
from focalgeo.curvature.matvec import flat_matvec, iterate, layout_of, updating
from focalgeo.curvature.traces import sample_mean, sign_probe
from focalgeo.types import Array, Estimate, InputError, PyTree


class SpectralDensity(NamedTuple):
    """One discrete distribution for each probe, of weight weights[i, j] at the value nodes[i, j]."""

    nodes: Array  # [num_probes, steps], ascending in each row
    weights: Array  # [num_probes, steps], each row sums to 1
    num_matvecs: Array  # int32, every product that was made
    dimension: Array  # int32, the number of eigenvalues


def spectral_density(matvec, like: PyTree, key: Array, *, num_probes: int = 10, steps: int = 40) -> SpectralDensity:
    """The distribution of the eigenvalues of H, as Gauss quadratures that hold v' f(H) v / v'v for random signs v.

    Lanczos from v gives nodes and weights with sum_j weights[i, j] f(nodes[i, j]) = v' f(H) v / v'v for every
    polynomial f of degree up to 2 steps - 1; its mean over v is the mean of f over the eigenvalues. Nodes settle on
    isolated eigenvalues first, the ends of the spectrum before its middle; in a dense part of it they lie between
    eigenvalues, and each stands for those around it. The probes are those of `trace` with method "hutchinson": with the
    same key and number, dimension * mean over probes of sum_j weights * nodes is its value.

    Memory: steps + 2 vectors of the dimension beside what a product takes. On concrete arrays the loops run in Python,
    under jit and vmap in XLA, with the same results up to rounding.

    Args:
        matvec: symmetric linear map, tree -> tree; jitted for speed when called from Python.
        like: tree of arrays with the shapes and dtypes that `matvec` takes; its values are not used.
        key: PRNG key of the probes.
        num_probes: 2 to 100,000, for standard errors.
        steps: products for each probe, 1 or more; no more are made, and no more nodes returned, than the dimension. A
            probe whose Krylov space closes makes fewer: its other nodes repeat the lowest one with weight 0.

    Returns:
        SpectralDensity; `share_in_bins`, `cumulative_distribution` and `smoothed_density` make estimates of it. A probe
        with a product under jit that is not finite, or an asymmetric matvec there, is NaN throughout.

    Raises:
        InputError: num_probes or steps out of range, or more than memory holds; `like` empty or not floating-point; a
            product that is no tree like its vector, or H not symmetric by a tenth of its norm.
        RunError: a concrete product is not finite (the leaf is named), or a node is beyond the dtype's range.

    Accuracy: moments to rounding, cumulative weights within the Chebyshev-Markov-Stieltjes bounds,
    tests/curvature/test_density.py; quadratures equal to matfree's, tests/curvature/test_matfree.py.

    Source: Lin, Saad and Yang, Approximating spectral densities of large matrices (2016), section 3.2; Golub and
    Meurant, Matrices, moments and quadrature (2010). Gram-Schmidt twice against all rows, so no node is a ghost copy.
    """
    check_params(like, name="like")
    check_key(key)
    num_probes = count("num_probes", num_probes, 2, MOST_PRODUCTS)
    steps = count("steps", steps, 1)
    layout = layout_of(like)
    rows = min(steps, layout.size)
    needed = (rows + 3) * layout.nbytes + 2 * num_probes * rows * layout.dtype.itemsize
    check_bytes(needed, what=f"{rows} steps with vectors of {layout.size} numbers and {num_probes} num_probes")
    product = flat_matvec(matvec, layout)

    def body(found: _Found) -> _Found:
        krylov = _start(sign_probe(key, found.count, None, layout=layout), steps=rows)
        krylov = iterate(_goes_on, lambda krylov: _expanded(krylov, product(next_row(krylov))), krylov)
        check_symmetric(krylov)
        return _with_probe(found, krylov)

    found = iterate(lambda found: found.count < num_probes, body, _none_found(num_probes, rows, layout.dtype))
    check_finite_tree(found.nodes, name="a node of the density")
    return SpectralDensity(found.nodes, found.weights, found.num_matvecs, np.int32(layout.size))


class _Found(NamedTuple):
    """The quadratures of the first `count` probes."""

    nodes: Array
    weights: Array
    num_matvecs: Array
    count: Array


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _none_found(num_probes: int, steps: int, dtype: Any) -> _Found:
    numbers = jnp.zeros((num_probes, steps), dtype)
    return _Found(numbers, numbers, jnp.int32(0), jnp.int32(0))


@functools.partial(jax.jit, static_argnames="steps")
def _start(probe: Array, *, steps: int) -> Krylov:
    return krylov_start((probe / jnp.linalg.norm(probe))[None], steps=steps)


_expanded = updating(expanded)


@jax.jit
def _goes_on(krylov: Krylov) -> Array:
    return ~krylov.closed & (krylov.step < krylov.coupling.shape[0])


@jax.jit
def _with_probe(found: _Found, krylov: Krylov) -> _Found:
    nodes, weights = _quadrature(krylov)
    return _Found(
        found.nodes.at[found.count].set(nodes),
        found.weights.at[found.count].set(weights),
        found.num_matvecs + krylov.step,
        found.count + 1,
    )


def _quadrature(krylov: Krylov) -> tuple[Array, Array]:
    """Nodes and weights [steps]: eigenvalues of H in the basis, and the squared first entries of the eigenvectors."""
    values, vectors = ritz(krylov)
    values = values * krylov.unit
    missing = len(values) - krylov.step
    is_node = jnp.arange(len(values), dtype=jnp.int32) >= missing
    nodes = jnp.where(is_node, values, values[missing])
    weights = jnp.where(is_node, vectors[0] ** 2, 0)
    holds = krylov.finite & jnp.isfinite(nodes).all() & is_symmetric(krylov)
    nodes, weights = (jnp.where(holds, each, jnp.nan) for each in (nodes, weights / weights.sum()))
    return nodes, weights


def cumulative_distribution(density: SpectralDensity, points: Array) -> Estimate:
    """The fraction of eigenvalues at or below each point, the mean over probes of sum_j weights (nodes <= point).

    Args:
        density: from `spectral_density`.
        points: [points], in any order, in the unit of the eigenvalues.

    Returns:
        Estimate of arrays [points] from 0 to 1, n the number of probes; low and high are Student's t and may pass 0
        and 1. A node is known up to rounding: keep points away from an eigenvalue that must count.

    Raises:
        InputError: `density` is none, `points` are no vector of numbers, or more than memory holds.

    Accuracy: within the Chebyshev-Markov-Stieltjes bounds of each probe; tests/curvature/test_density.py.
    """
    return _cumulative(density, _checked(density, points, name="points"))


def share_in_bins(density: SpectralDensity, edges: Array) -> Estimate:
    """The fraction of eigenvalues in each bin, which holds its lower edge but not its upper one; the last holds both.

    Args:
        density: from `spectral_density`.
        edges: [bins + 1], rising; infinite ones are allowed, and what lies outside all bins is left out.

    Returns:
        Estimate of arrays [bins] from 0 to 1, n the number of probes; low and high are Student's t and may pass 0 and
        1. Times `density.dimension` it is the number of eigenvalues.

    Raises:
        InputError: fewer than two edges, or edges that do not rise (NaN where they are traced); else as above.

    Accuracy: two standard errors cover 90 to 99 times in 100 with 40 probes, where edges lie in gaps;
    tests/curvature/test_density.py. With 10 probes the share of a single eigenvalue is skewed, and they cover 85.
    A bin narrower than the nodes lie apart may hold none of them and claim 0 with no error, wherever eigenvalues are.
    """
    edges = _checked(density, edges, name="edges")
    if edges.size < 2:
        raise InputError(f"{edges.size} edges bound no bin; give two or more")
    if not is_traced(edges) and not np.all(edges[1:] > edges[:-1]):
        first = int(np.argmin(edges[1:] > edges[:-1]))
        raise InputError(f"edges[{first + 1}] is {edges[first + 1]}, not above {edges[first]}; edges must rise")
    return _shares(density, edges)


def smoothed_density(density: SpectralDensity, points: Array, *, width: float) -> Estimate:
    """The eigenvalue density at each point, sum_j weights normal(point; nodes, width), in fractions per unit.

    Args:
        density: from `spectral_density`.
        points: [points], in the unit of the eigenvalues.
        width: standard deviation of the Gaussian that replaces each node, above 0, in that unit.

    Returns:
        Estimate of arrays [points], n the number of probes; it integrates to 1 over all numbers.

    Raises:
        InputError: `width` is not above 0 (NaN where it is traced); else as above.

    Accuracy: of the spectrum so smoothed, with errors as above; tests/curvature/test_density.py.

    Source: Ghorbani, Krishnan and Xiao, An investigation into neural net optimization via Hessian eigenvalue density
    (2019), section 2.
    """
    points = _checked(density, points, name="points")
    if not is_traced(width):
        width = check_positive(width, name="width", of="number in the unit of the eigenvalues")
    return _smoothed(density, points, jnp.asarray(width, density.nodes.dtype))


def _checked(density: SpectralDensity, points: Array, *, name: str) -> Array:
    """`points` in the dtype of the nodes, on the host if they are known; refuses all but a vector of numbers."""
    if not isinstance(density, SpectralDensity):
        raise InputError(f"density is {described(density)}; give what spectral_density returns")
    points = number_array(name, points)
    points = points if is_traced(points) else np.asarray(points, np.float64)
    if points.ndim != 1:
        raise InputError(f"{name} have {points.ndim} axes; give a vector of numbers")
    if not is_traced(points) and np.isnan(points).any():
        raise InputError(f"{name}[{int(np.argmax(np.isnan(points)))}] is nan; give numbers")
    needed = 3 * density.nodes.size * points.size * density.nodes.dtype.itemsize
    check_bytes(needed, what=f"{points.size} {name} for {density.nodes.size} nodes")
    return points.astype(density.nodes.dtype)


@jax.jit
def _cumulative(density, points):
    below = density.nodes[:, :, None] <= points[None, None, :]
    return sample_mean(jnp.where(jnp.isnan(points)[None, :], jnp.nan, _weighted(density, below)))


@jax.jit
def _shares(density, edges):
    nodes = density.nodes[:, :, None]
    lower, upper = edges[None, None, :-1], edges[None, None, 1:]
    inside = (nodes >= lower) & ((nodes < upper) | ((nodes == upper) & (upper == edges[-1])))
    rising = jnp.all(edges[1:] > edges[:-1])
    return sample_mean(jnp.where(rising, _weighted(density, inside), jnp.nan))


@jax.jit
def _smoothed(density, points, width):
    # in units of the width, whose square may leave the dtype's range
    width = jnp.where((width > 0) & jnp.isfinite(width), width, jnp.nan)
    apart = (points[None, None, :] - density.nodes[:, :, None]) / width
    return sample_mean(_weighted(density, jax.scipy.stats.norm.pdf(apart) / width))


def _weighted(density, values):
    """[num_probes, points]: sums of the values [num_probes, steps, points] by weight; NaN where a probe is NaN."""
    weights = density.weights[:, :, None]
    sums = jnp.sum(weights * values.astype(weights.dtype), axis=1)
    # Said outright: XLA makes a selection of a product with 0 and 1, and NaN would not survive that.
    return jnp.where(jnp.isfinite(density.weights).all(axis=1, keepdims=True), sums, jnp.nan)
