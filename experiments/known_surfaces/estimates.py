"""Every estimator on a surface with many keys: true error, claimed error, and how often the claim holds.

Shares and differences over keys have 95% intervals over keys, as [mean, low, high].
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.intervals import clipped, interval
from experiments.known_surfaces.surfaces import Surface
from focalgeo import curvature

TRACES = ("hutchinson", "hutch++", "xtrace")
PRODUCTS = (30, 60, 120)
SEARCHES = (10, 20, 40, 80)
TOLERANCE = 1e-3  # of the search for lambda_max
DENSITY = ((10, 20), (10, 40), (30, 40))  # probes, Lanczos steps of each
ROUNDING = 100 * float(np.finfo(np.float32).eps)  # as a share: what float32 products leave open
POINTS = 20  # of the distribution function, over the range of the spectrum


def measure(surface: Surface, draws: int) -> list[dict[str, Any]]:
    """A row for each estimator and cost."""
    keys = jax.random.split(jax.random.PRNGKey(0), draws)
    eigenvalues = np.linalg.eigvalsh(surface.hessian)
    points = np.linspace(eigenvalues[0], eigenvalues[-1], POINTS + 2)[1:-1]
    of = (curvature.linearized_hvp(surface.loss, surface.params), surface.params)

    def distribution(key: jax.Array, **options: int) -> Any:
        density = curvature.spectral_density(*of, key, **options)
        return curvature.cumulative_distribution(density, jnp.asarray(points, jnp.float32))

    rows = []
    for products in PRODUCTS:
        errors = {}
        for method in TRACES:
            found = _each(partial(curvature.trace, *of), keys, num_probes=products, method=method)
            row, errors[method] = trace_row(found, eigenvalues)
            if method != TRACES[0]:
                row["more"] = interval(errors[method] - errors[TRACES[0]])
            rows.append({"estimator": method, "products": products, **row})
    for products in SEARCHES:
        found = _each(partial(curvature.lambda_max, *of), keys, max_products=products, tolerance=TOLERANCE)
        rows.append({"estimator": "lambda_max", "products": products, **search_row(found, eigenvalues)})
    for probes, steps in DENSITY:
        found = _each(distribution, keys, num_probes=probes, steps=steps)
        row = density_row(found, eigenvalues, points)
        rows.append({"estimator": "density", "products": probes * steps, "probes": probes, "steps": steps, **row})
    for products in PRODUCTS:
        found = _each(partial(curvature.diagonal, *of), keys, num_probes=products)
        rows.append({"estimator": "diagonal", "products": products, **diagonal_row(found, np.diag(surface.hessian))})
    return [{"surface": surface.name, "draws": draws, **row} for row in rows]


def _each(estimate: Callable, keys: jax.Array, **options: Any) -> Any:
    """The estimates of all keys, in float64."""
    found = jax.jit(lambda every: jax.lax.map(lambda key: estimate(key, **options), every, batch_size=50))(keys)
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), found)


def _held(found: Any, truth: np.ndarray | float, scale: float) -> np.ndarray:
    """Where the interval holds the truth, or lies as near as float32 tells two numbers of this scale apart."""
    away = np.maximum(found.low - truth, truth - found.high)
    return away <= ROUNDING * scale


def trace_row(found: Any, eigenvalues: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """Errors as shares of the sum of |eigenvalues|, which of a positive Hessian is the trace; and those of each key."""
    scale, truth = np.abs(eigenvalues).sum(), eigenvalues.sum()
    errors = np.abs(found.value - truth) / scale
    row = {
        "error": _rms(errors),
        "claimed": _rms(found.stderr / scale),
        "held": clipped(interval(_held(found, truth, scale)), 0, 1),
    }
    return row, errors


def search_row(found: Any, eigenvalues: np.ndarray) -> dict[str, Any]:
    """Errors and residuals as shares of the largest |eigenvalue|; what the searches that ended have found.

    converged: share of searches; elsewhere: how many of them have not found lambda_max to their tolerance.
    """
    scale, truth = np.abs(eigenvalues).max(), eigenvalues[-1]
    errors = np.abs(found.value - truth)
    rounding = ROUNDING * scale
    converged = found.converged.astype(bool)
    wanted = np.maximum(TOLERANCE * abs(truth), rounding)
    return {
        "error": _rms(errors / scale),
        "claimed": _rms(found.residual / scale),
        "held": clipped(interval(errors <= np.maximum(found.residual, rounding)), 0, 1),
        "converged": float(converged.mean()),
        "elsewhere": int((converged & (errors > wanted)).sum()),
        "made": float(found.num_matvecs.mean()),
    }


def density_row(found: Any, eigenvalues: np.ndarray, points: np.ndarray) -> dict[str, Any]:
    """Errors of the distribution function, a share of eigenvalues; held: by the share of points of each key."""
    truth = (eigenvalues[:, None] <= points).mean(0)
    return {
        "error": _rms(found.value - truth),
        "claimed": _rms(found.stderr),
        "held": clipped(interval(_held(found, truth, 1.0).mean(1)), 0, 1),
    }


def diagonal_row(found: Any, truth: np.ndarray) -> dict[str, Any]:
    """Errors as shares of the diagonal's root mean square; held: by the share of entries of each key."""
    scale = _rms(truth)
    return {
        "error": _rms(found.value - truth) / scale,
        "claimed": _rms(found.stderr) / scale,
        "held": clipped(interval(_held(found, truth, scale).mean(1)), 0, 1),
    }


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
