"""Spectral density of a symmetric matvec by stochastic Lanczos quadrature, and the shares of eigenvalues from it.

The standard errors of the shares are those of the probes alone. A node stands for the eigenvalues around it, so where
they are dense a share is right to about the weight of the node next to the boundary: more steps make that smaller, more
probes do not. Where the boundary lies in a gap of the spectrum that the nodes have found, nothing is missing.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import checks, trees
from focalgeo.curvature import lanczos
from focalgeo.curvature.matvec import MOST_PRODUCTS, flat_matvec, iterate, stacked
from focalgeo.curvature.quadratic_forms import sample_mean, sign_probe
from focalgeo.types import Array, Estimate, InputError, PyTree


class SpectralDensity(NamedTuple):
    """One discrete distribution for each probe, of weight weights[i, j] at the value nodes[i, j]."""

    nodes: Array  # [num_probes, steps], ascending in each row
    weights: Array  # [num_probes, steps], each row sums to 1
    num_matvecs: Array  # int32, every product that was made
    dimension: Array  # int32, the number of eigenvalues


def spectral_density(
    matvec, like: PyTree, key: Array | int, *, num_probes: int = 10, steps: int = 40
) -> SpectralDensity:
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
        key: PRNG key, or a seed, of the probes.
        num_probes: 2 to 100,000, for standard errors.
        steps: products for each probe, 1 or more; no more are made, and no more nodes returned, than the dimension. A
            probe whose Krylov space closes makes fewer: its other nodes repeat the lowest one with weight 0.

    Returns:
        SpectralDensity; `share_in_bins`, `cumulative_distribution` and `smoothed_density` make estimates of it. A probe
        with a product under jit that is not finite is NaN throughout.

    Raises:
        InputError: num_probes or steps out of range; H not symmetric by a tenth of its norm; else as
            `matvec.checked_matvec`.
        RunError: a node is beyond the dtype's range; else as there.

    Accuracy: moments to rounding, cumulative weights within the Chebyshev-Markov-Stieltjes bounds,
    tests/curvature/test_density.py; quadratures equal to matfree's, tests/curvature/test_matfree.py.

    Source: Lin, Saad and Yang, Approximating spectral densities of large matrices (2016), section 3.2; Golub and
    Meurant, Matrices, moments and quadrature (2010). Gram-Schmidt twice against all rows, so no node is a ghost copy.

    Example:
        >>> density = curvature.spectral_density(matvec, params, key, num_probes=2)
        >>> print(np.asarray(density.nodes).round(3), np.asarray(density.weights).sum(axis=1).round(3))
        [[1.382 3.618 4.   ]
         [1.382 3.618 4.   ]] [1. 1.]
    """
    layout, product, key = flat_matvec(matvec, like, key)
    num_probes = checks.count("num_probes", num_probes, 2, MOST_PRODUCTS)
    steps = min(checks.count("steps", steps, 1), layout.size)

    def quadrature(index):
        krylov = iterate(
            lambda krylov: ~krylov.closed & (krylov.step < steps),
            lambda krylov: lanczos.grown(krylov, product),
            _start(sign_probe(key, index, None, layout=layout), steps=steps),
        )
        lanczos.check_symmetric(krylov)
        # Nodes are the eigenvalues of H in the basis, weights the squared first entries of the eigenvectors.
        (values, vectors), library = lanczos.ritz(krylov), trees.namespace(krylov.coupling)
        values = values * krylov.unit
        missing = steps - krylov.step  # rows that were not reached, see `ritz`
        is_node = library.arange(steps, dtype=np.int32) >= missing
        weights = library.where(is_node, vectors[0] ** 2, 0)
        return library.where(is_node, values, values[missing]), weights / weights.sum(), krylov.step

    nodes, weights, products = stacked(quadrature, num_probes)
    checks.check_finite_tree("a node of the density", nodes)
    return SpectralDensity(nodes, weights, jnp.sum(products, dtype=jnp.int32), np.int32(layout.size))


@functools.partial(jax.jit, static_argnames="steps")
def _start(probe, *, steps):
    return lanczos.krylov_start((probe / jnp.linalg.norm(probe))[None], steps=steps)


def cumulative_distribution(density: SpectralDensity, points: Array) -> Estimate:
    """The fraction of eigenvalues at or below each point, the mean over probes of sum_j weights (nodes <= point).

    Args:
        density: from `spectral_density`.
        points: [points], in any order, in the unit of the eigenvalues.

    Returns:
        Estimate of arrays [points] from 0 to 1, n the number of probes; low and high are Student's t and may pass 0
        and 1. A node is known up to rounding: keep points away from an eigenvalue that must count.

    Raises:
        InputError: `points` are no vector of numbers.

    Accuracy: within the Chebyshev-Markov-Stieltjes bounds of each probe; tests/curvature/test_density.py.

    Example:
        >>> density = curvature.spectral_density(matvec, params, key)
        >>> print(np.asarray(curvature.cumulative_distribution(density, np.float32([1, 3.8, 5])).value).round(3))
        [0.    0.667 1.   ]
    """
    return _averaged(jnp.less_equal, density, _vector("points", points, density))


def share_in_bins(density: SpectralDensity, edges: Array) -> Estimate:
    """The fraction of eigenvalues in each bin, which holds its lower edge but not its upper one; the last holds both.

    Args:
        density: from `spectral_density`.
        edges: [bins + 1], rising; infinite ones are allowed, and what lies outside all bins is left out.

    Returns:
        Estimate of arrays [bins] from 0 to 1, n the number of probes; low and high are Student's t and may pass 0 and
        1. Times `density.dimension` it is the number of eigenvalues.

    Raises:
        InputError: fewer than two edges, or edges that do not rise.

    Accuracy: two standard errors cover 90 to 99 times in 100 with 40 probes, where edges lie in gaps;
    tests/curvature/test_density.py. With 10 probes the share of a single eigenvalue is skewed, and they cover 85.
    A bin narrower than the nodes lie apart may hold none of them and claim 0 with no error, wherever eigenvalues are.

    Example:
        >>> density = curvature.spectral_density(matvec, params, key)
        >>> share = curvature.share_in_bins(density, np.float32([0, 2, 5]))
        >>> print(np.asarray(share.value).round(3))  # of the eigenvalues 1.382, 3.618 and 4
        [0.333 0.667]
    """
    edges = _vector("edges", edges, density)
    if edges.size < 2 or not (checks.is_traced(edges) or np.all(edges[1:] > edges[:-1])):
        raise InputError(f"edges are {edges}: give two or more, rising")

    return _averaged(_inside, density, edges[:-1], edges[1:])


def _inside(nodes, lower, upper):
    return (nodes >= lower) & ((nodes < upper) | ((nodes == upper) & (upper == upper[..., -1:])))


def smoothed_density(density: SpectralDensity, points: Array, *, width: float) -> Estimate:
    """The eigenvalue density at each point, sum_j weights normal(point; nodes, width), in fractions per unit.

    Args:
        density: from `spectral_density`.
        points: [points], in the unit of the eigenvalues.
        width: standard deviation of the Gaussian that replaces each node, above 0, in that unit.

    Returns:
        Estimate of arrays [points], n the number of probes; it integrates to 1 over all numbers.

    Raises:
        InputError: `width` is not above 0; else as above.

    Accuracy: of the spectrum so smoothed, with errors as above; tests/curvature/test_density.py.

    Source: Ghorbani, Krishnan and Xiao, An investigation into neural net optimization via Hessian eigenvalue density
    (2019), section 2.

    Example:
        >>> density = curvature.spectral_density(matvec, params, key)
        >>> found = curvature.smoothed_density(density, np.float32([1.4, 2.5, 4]), width=0.2)
        >>> print(np.asarray(found.value).round(3))
        [0.662 0.    0.772]
    """
    checks.check_above("width", width, 0)
    return _averaged(
        _normal, density, _vector("points", points, density), jnp.asarray(width, density.nodes.dtype)[None]
    )


def _normal(nodes, points, width):
    return jax.scipy.stats.norm.pdf((points - nodes) / width) / width  # the width's square may leave the dtype's range


def _vector(name, values, density):
    """A vector in the dtype of the nodes, on the host if it is known."""
    values = checks.number_array(name, values)
    if values.ndim != 1 or not (checks.is_traced(values) or not np.isnan(values).any()):
        raise InputError(f"{name} are {checks.described(values)}: give a vector of numbers, none NaN")
    return (jnp if checks.is_traced(values) else np).asarray(values, density.nodes.dtype)


@functools.partial(jax.jit, static_argnums=0)
def _averaged(values_of, density, *vectors):
    """The mean over probes of the sums by weight of values_of(nodes [num_probes, steps, 1], vectors [1, 1, points])."""
    weights = density.weights[:, :, None]
    values = values_of(density.nodes[:, :, None], *(vector[None, None] for vector in vectors))
    # NaN said outright: XLA makes a selection of a product with 0 and 1, and NaN would not survive that.
    nan = jnp.isnan(weights).any(axis=1)
    return sample_mean(jnp.where(nan, jnp.nan, jnp.sum(weights * values.astype(weights.dtype), axis=1)))
