"""Temperature bounds of the binary focal calibration map, and its slope at even odds."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from focalgeo.calibration import binary_focal_calibration
from focalgeo.theory.arguments import Batch, Numbers, Scalar, check_interval, floats
from focalgeo.types import Array

_POINTS = 4096  # logits at which the ratio of the maps is evaluated; it is too smooth for more to matter


class TemperatureBounds(NamedTuple):
    """Temperatures between which the focal map lies: for every logit, and the tightest for |logit| up to a range."""

    low: Float[Array, ""]
    high: Float[Array, ""]
    tight_low: Float[Array, ""]
    tight_high: Float[Array, ""]


def focal_slope_at_zero(gamma: Numbers) -> Batch:
    """Slope of the binary map at even odds: gamma + (1 + gamma (1 - log 2)) / (1 + gamma log 2).

    Args:
        gamma: Focal parameter, scalar or [...], above -1.

    Returns:
        [...] float32, relative error 1e-6; held by tests/theory/test_temperature_bounds.py. It is 1 at gamma = 0 and at
        gamma = -0.885 and below 1 between them only: past -0.885 a negative gamma sharpens predictions near 1/2.

    Raises:
        InputError: gamma below -1, where it is concrete.

    Source: derived from Komisarenko & Kull, arXiv 2408.11598, Proposition 2.
    """
    check_interval("gamma", gamma, -1, float("inf"))
    (gamma,) = floats(gamma)
    log_2 = jnp.log(jnp.asarray(2, gamma.dtype))
    return gamma + (1 + gamma * (1 - log_2)) / (1 + gamma * log_2)


def temperature_bounds(gamma: Scalar, *, logit_range: Scalar = 20.0) -> TemperatureBounds:
    """Temperatures that enclose the binary focal map: sigmoid(s / T_high) <= map(s) <= sigmoid(s / T_low) for s >= 0.

    For log-odds s below 0 it is the other way round. Theory, for every s: T_low = 1 / (gamma + 1) and T_high =
    1 / (gamma + 1 - log(gamma + 1) / 2). Tight, for |s| up to R = `logit_range`: the smallest and the largest ratio
    of s to the map's log-odds there. T_high is 1 / slope at 0 up to gamma = 5.635; above it the ratio peaks inside.

    Args:
        gamma: Focal parameter, scalar, 0 or more; 0 gives 1 for all four.
        logit_range: R, the largest |log-odds| that the tight bounds serve, scalar above 0.

    Returns:
        TemperatureBounds of float32 scalars. Relative error of the tight ones 2e-6, for R from 1 to 100 and gamma up to
        10; held by tests/theory/test_temperature_bounds.py.

    Raises:
        InputError: gamma below 0, or a range that is not positive, where they are concrete.

    Source: Komisarenko & Kull, arXiv 2408.11598, Proposition 3 and Figure 3, corrected. The printed inequality has
    sigmoid(s / (gamma + 1)) where sigmoid(s (gamma + 1)) is meant, and with that mended its two sides are still
    swapped: at gamma = 4 and s = -2 it would put the map, 1.0026e-4, between 0.383 and 0.401 (true: between 4.54e-5
    and 2.27e-4). It is strict in the paper, but at s = 0 all three are 1/2. The tight T_low of 0.206 that the paper
    gives for gamma = 4 and logits in (-20, 20) belongs to (-10, 10); for (-20, 20) it is 0.203.
    """
    check_interval("gamma", gamma, 0, float("inf"))
    check_interval("logit_range", logit_range, 1e-3, float("inf"))
    gamma, reach = floats(gamma, logit_range)
    s = reach * jnp.linspace(0.02, 1, _POINTS, dtype=gamma.dtype)
    ratio, at_zero = binary_focal_calibration(s, gamma) / s, focal_slope_at_zero(gamma)
    return TemperatureBounds(
        low=1 / (gamma + 1),
        high=1 / (gamma + 1 - jnp.log1p(gamma) / 2),
        tight_low=1 / jnp.maximum(at_zero, jnp.max(ratio)),
        tight_high=1 / jnp.minimum(at_zero, jnp.min(ratio)),
    )
