"""Smooth calibration error: residuals smoothed by a Gaussian kernel that is reflected at 0 and 1, in place of bins."""

import jax
import jax.numpy as jnp

from focalgeo.calibration.binning import top_label
from focalgeo.types import Array

_CELLS = 2048  # of [0, 1]; a mirrored copy makes it a circle of length 2, on which reflection is plain convolution
_HALVINGS = 24  # of [0, 1], in the search for the width: to 6e-8


def smooth_ece(log_probs: Array, labels: Array, *, mask: Array | None = None) -> Array:
    """Smooth ECE of the predicted class: integral over t in [0, 1] of |mean_i K_s(t, p_i) (y_i - p_i)|, as a fraction.

    K_s is the Gaussian density of width s, reflected at 0 and 1, and s is the one width at which the integral equals s:
    no number of bins to choose. p_i is the confidence, y_i whether the prediction is right. It is 0 where every
    residual is 0, and at most 1.

    Args:
        log_probs: Float [examples, classes].
        labels: Int [examples].
        mask: Bool [examples], or how often each example counts; None counts each once.

    Residuals are shared between the two nearest of 2,049 points, so the absolute error is 1e-4, held against direct
    summation of the kernel by tests/calibration/test_smooth.py.

    Source: Blasiok and Nakkiran, arXiv 2309.12236, the reflected kernel and the fixed point of the width.
    """
    return smoothed_error(*top_label(log_probs, labels, mask))


def smoothed_error(confidence: Array, correct: Array, weight: Array) -> Array:
    """`smooth_ece` from the probability [examples] of an event, whether it came true, and the weights."""
    spectrum = jnp.fft.rfft(_residuals(confidence, correct, weight))
    frequency = jnp.arange(spectrum.shape[0], dtype=confidence.dtype) * jnp.pi

    def error(width: Array) -> Array:
        damping = jnp.exp(-((frequency * width) ** 2) / 2)
        return jnp.sum(jnp.abs(jnp.fft.irfft(spectrum * damping.astype(spectrum.dtype), 2 * _CELLS)))

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        above = error(middle) > middle  # the error falls as the width grows
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    ends = jnp.zeros((), confidence.dtype), jnp.ones((), confidence.dtype)
    low, high = jax.lax.fori_loop(0, _HALVINGS, halve, ends)
    return error((low + high) / 2)


def _residuals(confidence: Array, correct: Array, weight: Array) -> Array:
    """Mean residual on the circle of 2 * cells points, half of it at each point and half at its mirror image."""
    counted = weight > 0
    residual = jnp.where(counted, weight * (correct.astype(confidence.dtype) - confidence), 0) / jnp.sum(weight)
    place = jnp.where(counted, jnp.clip(confidence, 0, 1), 0) * _CELLS
    below = jnp.clip(jnp.floor(place), 0, _CELLS - 1)
    upper = residual * (place - below)
    index = below.astype(jnp.int32)
    points = jnp.zeros(_CELLS + 1, confidence.dtype).at[index].add(residual - upper).at[index + 1].add(upper)
    circle = jnp.concatenate([points, points[-2:0:-1]]) / 2
    return circle.at[jnp.array([0, _CELLS])].multiply(2.0)
