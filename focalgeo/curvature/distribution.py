"""How many eigenvalues lie where: estimates from a spectral density, with their scatter over its probes.

The standard errors here are those of the probes alone. A node stands for the eigenvalues around it, so where they are
dense a share is right to about the weight of the node next to the boundary: more steps make that smaller, more probes
do not. Where the boundary lies in a gap of the spectrum that the nodes have found, nothing is missing.
"""

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.curvature.arguments import is_traced
from focalgeo.curvature.density import SpectralDensity
from focalgeo.curvature.probes import sample_mean
from focalgeo.types import Array, Estimate, InputError


def cumulative_distribution(density: SpectralDensity, points: Array) -> Estimate:
    """The fraction of eigenvalues at or below each point, the mean over probes of sum_j weights (nodes <= point).

    Args:
        density: from `spectral_density`.
        points: [points], in any order, in the unit of the eigenvalues.

    Returns:
        Estimate of arrays [points] from 0 to 1, n the number of probes; low and high are Student's t and may pass 0
        and 1. A node is known up to rounding: keep points away from an eigenvalue that must count.

    Raises:
        InputError: `points` is not one-dimensional.

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
        InputError: fewer than two edges, or edges that do not rise.

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
        InputError: `points` is not one-dimensional, or `width` is not above 0.

    Accuracy: of the spectrum so smoothed, with errors as above; tests/curvature/test_density.py.

    Source: Ghorbani, Krishnan and Xiao, An investigation into neural net optimization via Hessian eigenvalue density
    (2019), section 2.
    """
    points = _checked(density, points, name="points")
    if not is_traced(width) and not 0 < width < np.inf:
        raise InputError(f"width is {width}; use a positive number in the unit of the eigenvalues")
    return _smoothed(density, points, jnp.asarray(width, density.nodes.dtype))


def _checked(density: SpectralDensity, points: Array, *, name: str) -> Array:
    """`points` in the dtype of the nodes, on the host if they are known; refuses all but a vector."""
    if np.ndim(points) != 1:
        raise InputError(f"{name} have {np.ndim(points)} axes; give a vector of numbers")
    return (jnp if is_traced(points) else np).asarray(points, density.nodes.dtype)


@jax.jit
def _cumulative(density, points):
    below = density.nodes[:, :, None] <= points[None, None, :]
    return sample_mean(_weighted(density, below))


@jax.jit
def _shares(density, edges):
    nodes = density.nodes[:, :, None]
    lower, upper = edges[None, None, :-1], edges[None, None, 1:]
    inside = (nodes >= lower) & ((nodes < upper) | ((nodes == upper) & (upper == edges[-1])))
    return sample_mean(_weighted(density, inside))


@jax.jit
def _smoothed(density, points, width):
    return sample_mean(
        _weighted(density, jax.scipy.stats.norm.pdf(points[None, None, :], density.nodes[:, :, None], width))
    )


def _weighted(density, values):
    """[num_probes, points]: sums of the values [num_probes, steps, points] by weight; NaN where a probe is NaN."""
    weights = density.weights[:, :, None]
    sums = jnp.sum(weights * values.astype(weights.dtype), axis=1)
    # Said outright: XLA makes a selection of a product with 0 and 1, and NaN would not survive that.
    return jnp.where(jnp.isfinite(density.weights).all(axis=1, keepdims=True), sums, jnp.nan)
