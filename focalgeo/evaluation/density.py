"""The distribution of the eigenvalues of each loss's Hessian, as rows of one histogram."""

import jax
import numpy as np

from focalgeo import curvature
from focalgeo.evaluation.curvature import Curvature
from focalgeo.evaluation.problem import Problem, count_examples
from focalgeo.evaluation.rows import make_row
from focalgeo.types import Array

NUM_BINS = 60
LINEAR_WIDTH = 1e-3  # of the largest eigenvalue in magnitude: bins are even below it, and even in the logarithm above


def density_rows(
    problem: Problem, measured: Curvature, key: Array, *, split: str, num_probes: int, steps: int
) -> list[dict]:
    """Rows "spectral_density": the share of each Hessian's eigenvalues between `lower` and `upper`, for all losses.

    The bins are the same for all losses, even in asinh(eigenvalue / width), so that the bulk near 0 and the outliers
    both show. value is the mean over probes of stochastic Lanczos quadrature, stderr its standard error.

    Args:
        problem: what was measured.
        measured: of the same problem, by `measure_curvature`.
        key: PRNG key of the probes, the same for all losses.
        split: name for the rows.
        num_probes: 2 or more starting vectors.
        steps: products from each of them, 1 or more.

    Accuracy: shares of a known spectrum within errors; tests/curvature/test_density.py. Eigenvalues closer together
    than Lanczos steps tell apart share a bin or its neighbour.
    """
    options = {"num_probes": num_probes, "steps": steps}
    found = {
        name: curvature.spectral_density(matvec, problem.params, key, **options)
        for name, matvec in measured.matvecs.items()
    }
    edges = _edges(np.concatenate([np.ravel(density.nodes) for density in found.values()]))
    place = {"split": split, "n": count_examples(problem)}
    rows = []
    for name, density in found.items():
        shares = jax.device_get(curvature.share_in_bins(density, edges))
        for index in range(NUM_BINS):
            numbers = {"value": shares.value[index], "stderr": shares.stderr[index]}
            numbers |= {"lower": edges[index], "upper": edges[index + 1]}
            row = make_row({"name": "spectral_density", "loss": name, "bin": index}, numbers)
            rows.append({**row, "probes": num_probes, "products": int(density.num_matvecs), **place})
    return rows


def _edges(nodes: Array) -> Array:
    """NUM_BINS + 1 edges around all nodes, even in asinh, wide enough that rounding leaves no node outside."""
    largest = float(np.max(np.abs(nodes)))
    width = LINEAR_WIDTH * largest if largest > 0 else 1.0
    low, high = np.arcsinh(np.array([np.min(nodes), np.max(nodes)], np.float64) / width)
    margin = 0.01 * (high - low) + 0.01
    return (width * np.sinh(np.linspace(low - margin, high + margin, NUM_BINS + 1))).astype(np.float32)
