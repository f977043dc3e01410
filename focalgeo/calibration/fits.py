"""Continuous fit of the temperature by least NLL; a bracket keeps it from diverging."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.calibration.maps import focal_temperature_scaling, temperature_scaling, wide
from focalgeo.calibration.predictions import check_predictions
from focalgeo.types import Array, InputError

TEMPERATURE_BRACKET = (0.01, 100.0)
MOST_STEPS = 60

_GAIN = {"float32": 1e-9, "float64": 1e-14}  # nats that a further Newton step promises where a fit has converged


class CalibrationFit(NamedTuple):
    """Where the NLL is least, and whether it truly is."""

    gamma: Array  # 0 for a fit of the temperature alone
    temperature: Array
    nll: Array  # nats per example
    converged: Array  # bool: a least value inside the bracket
    at_bound: Array  # bool: the NLL still falls, or does not change, where the bracket ends
    iterations: Array  # int32


def fit_temperature(logits: Array, labels: Array, mask: Array | None = None) -> CalibrationFit:
    """The T from 0.01 to 100 with the least mean of -log softmax(logits / T)[label], in nats.

    The NLL is convex in 1 / T, so its slope in log T changes sign once: Newton steps in log T, a bisection where one
    leaves the bracket. It cannot diverge.

    Args:
        logits: Float [examples, classes].
        labels: Int [examples].
        mask: Bool [examples], or how often each example counts; None counts each once.

    Returns:
        CalibrationFit with gamma 0. Predictions that are all right end at T = 0.01 and labels that have nothing to do
        with the logits often at 100, with converged False and at_bound True; logits that are all equal leave T = 1.
        For use inside jit and vmap. T is within 1e-3 relative of scipy's minimum in float64 and its NLL within 1e-6
        (tests/calibration/test_fits.py).

    Raises:
        InputError: predictions that `check_predictions` refuses, an unfit mask (outside jit).

    Source: Guo et al., arXiv 1706.04599, section 4.2; their L-BFGS on T itself can diverge.
    """
    return temperature_fit(*checked(logits, labels, mask))


@jax.jit
def temperature_fit(logits: Array, labels: Array, weight: Array) -> CalibrationFit:
    """`fit_temperature` of what `checked` returns."""
    objective = partial(mean_nll, logits, labels, weight)

    def slopes(log_temperature: Array) -> tuple[Array, Array]:
        slope = jax.grad(lambda t: objective(None, t))
        return jax.jvp(slope, (log_temperature,), (jnp.ones_like(log_temperature),))

    low, high = jnp.log(jnp.asarray(TEMPERATURE_BRACKET, logits.dtype))
    slope_low, slope_high = slopes(low)[0], slopes(high)[0]
    at_bound = (slope_low >= 0) | (slope_high <= 0)
    found, converged, steps = _root(slopes, low, high)
    end = jnp.where(slope_low == slope_high, 0, jnp.where(slope_low >= 0, low, high))
    found = jnp.where(at_bound, end, found)
    return CalibrationFit(
        jnp.zeros_like(found), jnp.exp(found), objective(None, found), converged & ~at_bound, at_bound, steps
    )


def _root(slopes: Callable[[Array], tuple[Array, Array]], low: Array, high: Array) -> tuple[Array, Array, Array]:
    """Where the slope turns from negative to positive, whether Newton's promise of gain is used up, and the steps."""

    def advance(state: tuple) -> tuple:
        point, low, high, _, step = state
        slope, curvature = slopes(point)
        low, high = jnp.where(slope < 0, point, low), jnp.where(slope < 0, high, point)
        newton = point - slope / curvature
        inside = (newton >= low) & (newton <= high) & (curvature > 0)
        small = (curvature > 0) & (slope * slope <= 2 * least_gain(point.dtype) * curvature)
        otherwise = jnp.where(small, point, (low + high) / 2)
        return jnp.where(inside, newton, otherwise), low, high, small, step + 1

    state = jnp.zeros_like(low), low, high, jnp.zeros((), bool), jnp.zeros((), jnp.int32)
    point, _, _, converged, steps = jax.lax.while_loop(lambda s: ~s[3] & (s[4] < MOST_STEPS), advance, state)
    return point, converged, steps


def mean_nll(logits: Array, labels: Array, weight: Array, gamma: Array | None, log_temperature: Array) -> Array:
    """Mean NLL at (gamma, log T); without gamma, of temperature scaling."""
    temperature = jnp.exp(log_temperature)
    if gamma is None:
        log_probs = temperature_scaling(logits, temperature)
    else:
        log_probs = focal_temperature_scaling(logits, gamma, temperature)
    is_true = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    return -jnp.sum(weight * jnp.sum(jnp.where(is_true, log_probs, 0), axis=-1)) / jnp.sum(weight)


def least_gain(dtype: jnp.dtype) -> float:
    """Nats that a Newton step may still promise where a fit has converged."""
    return _GAIN[jnp.dtype(dtype).name]


def checked(logits: Array, labels: Array, mask: Array | None) -> tuple[Array, Array, Array]:
    """Logits, labels and weights ready to be traced; rows of weight 0 hold zeros."""
    if mask is None:
        mask = np.ones(np.shape(labels), bool)
    if np.shape(mask) != np.shape(labels):
        raise InputError(f"mask has shape {np.shape(mask)}, labels {np.shape(labels)}: give one entry for each label")
    if not any(isinstance(array, jax.core.Tracer) for array in (logits, labels, mask)):
        counted = np.asarray(mask) > 0
        if counted.size and not counted.any():
            raise InputError("the mask leaves no example: give at least one")
        check_predictions(np.asarray(logits)[counted], np.asarray(labels)[counted])
    logits = wide(logits)
    weight = jnp.asarray(mask).astype(logits.dtype)
    return jnp.where(weight[:, None] > 0, logits, 0), jnp.asarray(labels), weight
