"""Relatives of temperature scaling: ensemble temperature scaling, and a temperature after the loss-implied map."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from focalgeo.calibration.binning import Labels, Logits, Mask
from focalgeo.calibration.fits import checked, fit_temperature
from focalgeo.calibration.fitted import Params
from focalgeo.calibration.maps import (
    Numbers,
    Rows,
    focal_temperature_scaling,
    normalised,
    temperature_scaling,
    top_class,
)
from focalgeo.checks import check_above, check_distribution, marked, number_array
from focalgeo.precision import matmul
from focalgeo.types import Array

_MOST_STEPS = 60  # of the shares; ten are usual
_STEP_SIZES = 0.5 ** np.arange(12)[:, None]  # of a step that are tried
_GAIN = {"float32": 1e-6, "float64": 1e-9}  # nats that other shares could still gain where a fit has converged


def ensemble_temperature_scaling(logits: Rows, temperature: Numbers, shares: Float[Array, "3"]) -> Rows:
    """Log-probabilities of shares[0] softmax(z / T) + shares[1] softmax(z) + shares[2] / K, for K classes.

    Args:
        logits: Float [..., classes], finite; types narrower than float32 are computed in float32.
        temperature: Float scalar or [...], above 0; a traced one that is not gives NaN.
        shares: Float [3], each 0 or more, with the sum 1.

    Returns:
        [..., classes] float32 log-probabilities, normalised, with the argmax of the logits.

    Raises:
        InputError: shapes and types that do not fit; a concrete temperature or shares out of range.

    Source: Zhang, Kailkhura & Han, arXiv 2003.07329, section 3.2 (ensemble temperature scaling).
    """
    shares = number_array("shares", shares, (3,))
    check_distribution("shares", shares)
    parts = _parts(logits, temperature)
    log_shares = jnp.log(jnp.broadcast_to(jnp.asarray(shares, parts.dtype), (3,)))
    scores = jax.nn.logsumexp(parts + log_shares.reshape((3,) + (1,) * (parts.ndim - 1)), axis=0)
    return normalised(scores, top_class(parts[1]))


def _parts(logits: Rows, temperature: Numbers) -> Array:
    """Log-probabilities of the three parts, [3, ..., classes]."""
    scaled, plain = temperature_scaling(logits, temperature), temperature_scaling(logits, 1.0)
    return jnp.stack([scaled, plain, jnp.full_like(plain, -np.log(plain.shape[-1]))])


def fit_ensemble_temperature(logits: Logits, labels: Labels, mask: Mask = None) -> Params:
    """Ensemble temperature scaling: T by least NLL, then the shares by least NLL, which is convex in them.

    Args:
        logits: Float [examples, classes].
        labels: Int [examples].
        mask: Bool [examples], or how often each example counts; None counts each once.

    Returns:
        "temperature", "shares" [3] for `ensemble_temperature_scaling`, and "converged", False too where T ends at its
        bracket. Shares within 1e-6 nats of the least NLL, and never worse than the temperature alone. For use inside
        jit and vmap.

    Raises:
        InputError: as `fit_temperature`; of traced values that are not valid, the numbers are NaN.

    Source: Zhang, Kailkhura & Han, arXiv 2003.07329, section 3.2; they minimise over the shares by SLSQP, here it is
    Newton's method on the simplex, stopped where the largest of mean(part / mixture) - 1 bounds what is left to gain.
    """
    rows, labels, weight = checked(logits, labels, mask)
    first = fit_temperature(rows, labels, weight)
    shares, converged = _fit_shares(rows, labels, weight, first.temperature)
    valid = ~jnp.isnan(first.nll)
    params = {"temperature": first.temperature, "shares": marked(valid, shares)}
    return {**params, "converged": first.converged & converged & valid}


class _Ascent(NamedTuple):
    shares: Array  # [3]
    bound: Array  # on the nats that other shares could have gained before the last step
    moved: Array  # bool
    step: Array


@jax.jit
def _fit_shares(rows: Array, labels: Array, weight: Array, temperature: Array) -> tuple[Array, Array]:
    """The shares, and whether no others gain more than the tolerance."""
    is_true = jax.nn.one_hot(labels, rows.shape[-1], dtype=bool)
    log_parts = jnp.sum(jnp.where(is_true[None], _parts(rows, temperature), 0), axis=-1)
    parts = jnp.exp(log_parts - jnp.max(log_parts, axis=0, keepdims=True))  # [3, examples]
    each, least = (weight / jnp.sum(weight))[None], 8 * jnp.finfo(weight.dtype).eps - 1

    def excess(shares: Array) -> Array:
        """Part / mixture - 1, [3, examples]; its mean is the gradient along the simplex."""
        mixture = matmul(shares[None], parts)
        return (parts - mixture) / mixture

    def gain(over: Array, change: Array) -> Array:
        """Nats that changes [changes, 3] of the shares gain; minus infinity where an example is left nothing."""
        ratio = matmul(change, over)
        return jnp.sum(each * jnp.where(ratio > least, jnp.log1p(ratio), -jnp.inf), axis=-1)

    def advance(state: _Ascent) -> _Ascent:
        over = excess(state.shares)
        slope, curvature = jnp.sum(each * over, axis=-1), matmul(each * over, over.T)
        changes = sizes * _newton_step(state.shares, slope, curvature)[None]
        gains = gain(over, changes)
        best, moved = jnp.argmax(gains), jnp.max(gains) > 0
        shares = jnp.maximum(state.shares + jnp.where(moved, changes[best], 0), 0)
        return _Ascent(shares / jnp.sum(shares), jnp.max(slope), moved, state.step + 1)

    def going(state: _Ascent) -> Array:
        return (state.bound > tolerance) & state.moved & (state.step < _MOST_STEPS)

    tolerance, sizes = _GAIN[rows.dtype.name], jnp.asarray(_STEP_SIZES, rows.dtype)
    thirds = jnp.full(3, 1 / 3, rows.dtype)
    start = _Ascent(thirds, jnp.full((), jnp.inf, rows.dtype), jnp.ones((), bool), jnp.int32(0))
    found = jax.lax.while_loop(going, advance, start)
    alone = jnp.asarray([1, 0, 0], rows.dtype)
    is_best = gain(excess(found.shares), (alone - found.shares)[None])[0] >= 0
    return jnp.where(is_best, alone, found.shares), found.bound <= tolerance


def _newton_step(shares: Array, slope: Array, curvature: Array) -> Array:
    """The change d with the largest slope'd - d' curvature d / 2 that keeps the shares on their simplex.

    It is the best of the edges, or without regard to the signs of the shares, if none of these is then negative.
    """
    corners = jnp.eye(3, dtype=shares.dtype)

    def rise(along: Array, change: Array) -> Array:
        return matmul(along, slope - matmul(curvature, change))

    edges = []
    for first, second in ((0, 1), (0, 2), (1, 2)):
        along, begin = corners[second] - corners[first], corners[first] - shares
        bend = matmul(along, matmul(curvature, along))
        size = rise(along, begin) / jnp.maximum(bend, jnp.finfo(shares.dtype).tiny)
        edges.append(begin + jnp.clip(size, 0, 1) * along)
    sides = corners[1:] - corners[:1]
    (a, b), (_, c) = matmul(sides, matmul(curvature, sides.T))
    up = matmul(sides, slope)
    inside = matmul(jnp.stack([c * up[0] - b * up[1], a * up[1] - b * up[0]]) / (a * c - b * b), sides)
    changes = jnp.stack([*edges, inside])
    promised = jnp.stack([matmul(each, slope) / 2 + rise(each, each) / 2 for each in changes])
    valid = jnp.all(shares[None] + changes >= -jnp.finfo(shares.dtype).eps, axis=-1)
    return changes[jnp.argmax(jnp.where(valid, promised, -jnp.inf))]


def loss_implied_temperature_scaling(logits: Rows, trained_gamma: Numbers, temperature: Numbers) -> Rows:
    """Log-probabilities of softmax(log p / T), with p the focal calibration map of softmax(logits).

    The other order than `focal_temperature_scaling`: the map of the gamma of the training is the theory's, known and
    applied first, and T is fitted to what the theory leaves.

    Args:
        logits: Float [..., classes], finite.
        trained_gamma: Float scalar or [...], above -1: of the focal loss that the model was trained with.
        temperature: Float scalar or [...], above 0.

    Returns:
        [..., classes] float32 log-probabilities, normalised, with the argmax of the logits.

    Raises:
        InputError: as `focal_temperature_scaling`.

    Source: our own; the map is Komisarenko & Kull, arXiv 2408.11598, Proposition 4.
    """
    return temperature_scaling(focal_temperature_scaling(logits, trained_gamma, 1.0), temperature)


def fit_loss_implied_temperature(
    logits: Logits, labels: Labels, mask: Mask = None, *, trained_gamma: Numbers
) -> Params:
    """The T of `loss_implied_temperature_scaling` with the least NLL.

    Returns:
        "gamma", which is `trained_gamma`, "temperature" and "converged". Arguments and errors as `fit_temperature`.
    """
    gamma = number_array("trained_gamma", trained_gamma, ())
    check_above("trained_gamma", gamma, -1)
    rows, labels, weight = checked(logits, labels, mask)
    gamma = jnp.asarray(gamma, rows.dtype)
    found = fit_temperature(_implied(rows, gamma), labels, weight)
    return {"gamma": gamma, "temperature": found.temperature, "converged": found.converged}


@jax.jit
def _implied(rows: Array, gamma: Array) -> Array:
    return focal_temperature_scaling(rows, gamma, 1.0)
