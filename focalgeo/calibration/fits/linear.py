"""Softmax regression of the scores (I + change) w + biases from w near log-probabilities, with a ridge: one solver.

By L-BFGS of scipy with the gradient in closed form, in variables in which the curvature at the start is near 1: of a
vector from the two by two block of each class, of a matrix from the mean block of all classes.
"""

from functools import partial

import numpy as np
from jaxtyping import Float
from scipy import optimize, special

from focalgeo.calibration import blocks, maps
from focalgeo.calibration.fits import focal
from focalgeo.types import Array

Numbers = Float[Array, "classes numbers"]  # of each class: the scale's, or the row of the matrix, then the bias

_PRECISE = {"ftol": 1e-9, "gtol": 1e-5, "maxiter": 500, "maxcor": 20}  # to 1e-6 of the least objective, as tested
_FLAT = 1e-4  # a slope in nats of whitened variables at which a fit counts as converged


def fit(
    log_probs: Float[Array, "examples classes"],
    labels: Array,
    weight: Float[Array, " examples"],
    ridge: Numbers,
    start: Numbers,
) -> tuple[Numbers, bool]:
    """The change of least mean NLL plus the sum of ridge * change^2, from `start` on; in float64 on the host.

    Args:
        log_probs: Float [examples, classes]; -inf is a class that cannot be.
        labels: Int [examples], or shares of the classes [examples, classes].
        weight: Float [examples], how often each example counts.
        ridge: Of each number, 0 or more; [classes, 2] for scales and biases, [classes, classes + 1] for a matrix.
        start: Where to begin, of the same shape.

    Returns:
        The change, of the shape of the ridge, and whether its objective is least.
    """
    examples, total = (log_probs, labels, weight), np.sum(weight, dtype=np.float64)
    sums = blocks.summed(partial(_curvature, start), *examples)
    of_ridge = 2 * (np.eye(ridge.shape[1]) * ridge[:, None, :]).mean(axis=0, keepdims=len(sums) == 1)
    lower = np.linalg.cholesky(sums / total + of_ridge)
    whitening = np.linalg.inv(lower).swapaxes(1, 2)  # block = LL', change = L'^-1 v
    whitening = np.broadcast_to(whitening, (len(ridge), *sums.shape[1:]))

    def changed(point):
        return start + np.einsum("kij,kj->ki", whitening, point.reshape(ridge.shape))

    def objective(point):
        change = changed(point)
        nll, *slope = blocks.summed(partial(_nll_and_slope, change), *examples)
        slope = np.reshape(slope, ridge.shape) / total + 2 * ridge * change
        return nll / total + np.sum(ridge * change**2), np.einsum("kij,ki->kj", whitening, slope).ravel()

    found = optimize.minimize(objective, np.zeros(ridge.size), jac=True, method="L-BFGS-B", options=_PRECISE)
    converged = np.isfinite(found.fun) and (found.success or np.abs(found.jac).max() < _FLAT)
    return changed(found.x), converged


def _scores(change, log_probs):
    """Scores, and log-probabilities with 0 where a class cannot be."""
    possible = log_probs > -np.inf
    inputs, change = np.where(possible, log_probs, 0), change.astype(log_probs.dtype)
    linear = inputs * change[:, 0] if change.shape[1] == 2 else inputs @ change[:, :-1].T
    return np.where(possible, inputs + linear + change[:, -1], maps.FAR), inputs


def _nll_and_slope(change, log_probs, labels, weight):
    scores, inputs = _scores(change, log_probs)
    residual, nll = focal.probs_and_nll(scores, labels)  # of which probabilities less labels are made in place
    if labels.ndim == 1:
        residual[np.arange(len(labels)), labels] -= 1
    else:
        residual -= labels
    residual *= weight[:, None]
    of_inputs = np.einsum("nk,nk->k", residual, inputs)[:, None] if change.shape[1] == 2 else residual.T @ inputs
    slope = np.concatenate([of_inputs, residual.sum(axis=0)[:, None]], axis=1)
    return np.append(nll.astype(np.float64) @ weight, slope)


def _curvature(change, log_probs, labels, weight):
    """Blocks of the sum of the curvature: [classes, 2, 2] of a vector, [1, classes + 1, classes + 1] of a matrix."""
    scores, inputs = _scores(change, log_probs)
    probs = special.softmax(scores, axis=1)
    strength = weight[:, None] * probs * (1 - probs)
    if change.shape[1] == 2:
        cross, bias = np.einsum("nk,nk->k", strength, inputs), strength.sum(axis=0)
        scale = np.einsum("nk,nk,nk->k", strength, inputs, inputs)
        return np.moveaxis(np.array([[scale, cross], [cross, bias]]), -1, 0)
    columns = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
    return (columns.T @ (columns * strength.mean(axis=1, keepdims=True)))[None]
