"""Temperature scaling beside the focal calibration map: bounds for two classes, and the minimax fit for up to four."""

from functools import cache, partial
from itertools import combinations_with_replacement
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import checks
from focalgeo.calibration import binary_focal_calibration, focal_calibration
from focalgeo.calibration.newton import bisection
from focalgeo.checks import Batch, Numbers, Scalar
from focalgeo.types import Array

# Logits at which the ratio of the maps is evaluated, which is too smooth for more to matter.
_POINTS = 4096


class TemperatureBounds(NamedTuple):
    """Temperatures between which the focal map lies: for every logit, and the tightest for |logit| up to a range."""

    low: Array
    high: Array
    tight_low: Array
    tight_high: Array


def focal_slope_at_zero(gamma: Numbers) -> Batch:
    """Slope of the binary map at even odds: gamma + (1 + gamma (1 - log 2)) / (1 + gamma log 2).

    Args:
        gamma: Focal parameter, scalar or [...], above -1.

    Returns:
        [...] float32, relative error 1e-6; tested in tests/theory/test_temperature_bounds.py. It is 1 at gamma = 0 and
        at gamma = -0.885 and below 1 between them only: past -0.885 a negative gamma sharpens predictions near 1/2.

    Raises:
        InputError: gamma below -1, where it is concrete.

    Source: derived from Komisarenko & Kull, arXiv 2408.11598, Proposition 2.

    Example:
        >>> print(np.asarray(theory.focal_slope_at_zero(np.float32([-0.885, 0, 1, 3]))).round(2))
        [1.   1.   1.77 3.62]
    """
    checks.check_interval("gamma", gamma, -1)
    (gamma,) = checks.floats(gamma)
    log_2 = jnp.log(jnp.asarray(2, gamma.dtype))
    return gamma + (1 + gamma * (1 - log_2)) / (1 + gamma * log_2)


def temperature_bounds(gamma: Scalar, *, logit_range: Scalar = 20.0) -> TemperatureBounds:
    """Temperatures that enclose the binary focal map: sigmoid(s / T_high) <= map(s) <= sigmoid(s / T_low) for s >= 0.

    For log-odds s below 0 it is the other way round. Theory, for every s: T_low = 1 / (gamma + 1) and T_high =
    1 / (gamma + 1 - log(gamma + 1) / 2). Tight, for |s| up to R = `logit_range`: the smallest and the largest ratio
    of s to the map's log-odds there. T_high is 1 / slope at 0, whatever R, up to gamma = 5.635, the root of the map's
    third derivative at 0, gamma (6 - 8 l + (9 - 18 l + 8 l^2) gamma - (3 l - 2) gamma^2) / (4 (1 + gamma l)^3) with
    l = log 2: up to there the map is convex for s > 0 (tested, not proven); above it the ratio peaks inside.

    Args:
        gamma: Focal parameter, scalar, 0 or more; 0 gives 1 for all four.
        logit_range: R, the largest |log-odds| that the tight bounds serve, scalar above 0.

    Returns:
        TemperatureBounds of float32 scalars. Relative error of the tight ones 2e-6, for R from 1 to 100 and gamma up to
        10; tested in tests/theory/test_temperature_bounds.py.

    Raises:
        InputError: gamma below 0, or a range that is not positive, where they are concrete; traced, they give NaN.

    Source: Komisarenko & Kull, arXiv 2408.11598, Proposition 3 and Figure 3, corrected. The printed inequality has
    sigmoid(s / (gamma + 1)) where sigmoid(s (gamma + 1)) is meant, and with that corrected its two sides are still
    swapped: at gamma = 4 and s = -2 it would put the map, 1.0026e-4, between 0.383 and 0.401 (true: between 4.54e-5
    and 2.27e-4). It is strict in the paper, but at s = 0 all three are 1/2. The tight T_low of 0.206 that the paper
    gives for gamma = 4 and logits in (-20, 20) belongs to (-10, 10); for (-20, 20) it is 0.203.

    Example:
        >>> [round(float(bound), 3) for bound in theory.temperature_bounds(4.0)]
        [0.2, 0.238, 0.203, 0.218]
    """
    for name, number, least in (("gamma", gamma, 0), ("logit_range", logit_range, 1e-3)):
        checks.check_interval(name, checks.number_array(name, number, ()), least)
    gamma, reach = checks.floats(gamma, logit_range)
    s = reach * jnp.linspace(0.02, 1, _POINTS, dtype=gamma.dtype)
    ratio, at_zero = binary_focal_calibration(s, gamma) / s, focal_slope_at_zero(gamma)
    return TemperatureBounds(
        low=1 / (gamma + 1),
        high=1 / (gamma + 1 - jnp.log1p(gamma) / 2),
        tight_low=1 / jnp.maximum(at_zero, jnp.max(ratio)),
        tight_high=1 / jnp.minimum(at_zero, jnp.min(ratio)),
    )


# The largest difference of two logits in the papers' cube (-5, 5)^classes.
SPREAD = 10.0
STEPS = {2: 5000, 3: 100, 4: 50}  # steps of the lattice of logit differences, over the whole spread
# Lattices of about a million points in each number of classes.
MOST_STEPS = {2: 1_000_000, 3: 1_400, 4: 180}
_HALVINGS, _STEP = 30, 1e-5  # of the bracket; relative, by which the error is seen to fall or to rise


def matching_temperature(gamma: Scalar, num_classes: int, *, steps: int | None = None, spread: float = SPREAD) -> Array:
    """The temperature T that minimises `temperature_mismatch`: the minimax fit of temperature scaling to the focal map.

    Args:
        gamma: Focal parameter, scalar, above -1; 0 gives 1.
        num_classes: 2, 3 or 4.
        steps: Steps of the lattice of logit differences over (0, spread); 5000, 100 and 50 if left out.
        spread: Largest difference of two logits, above 0.

    Returns:
        Scalar float32. Relative error, from the lattice: binary 1e-5 for gamma up to 10, three classes 2e-3, four 1e-2;
        against the same lattice in float64 1e-4 for all; tested in tests/theory/test_temperature_match.py. Three
        classes take 0.04 s, four 0.1 s on two CPU cores, after seconds of compilation. Its derivatives are of no use:
        the worst point moves in steps.

    Raises:
        InputError: num_classes other than 2, 3, 4; gamma at -1 or below, where it is concrete; steps below 2, or
            so many that the lattice has more than a million points.

    Source: Komisarenko & Kull, arXiv 2408.11598, Figures 2, 6 and 7. Confirmed: 1/T is near 0.64 gamma +
    0.91 for three classes. Not confirmed: for two classes T is 0.276 at gamma = 3 (printed: 0.36, the three-class
    value) and 0.731 at 0.5 (printed: 0.76), and the error passes 1e-3 between gamma 0.225 and 0.75. The pairs
    (gamma, T) of Figure 5, (1, 0.81) and (3, 0.46), are the temperatures of gamma 0.5 and 2; those of 1 and 3 are 0.66
    and 0.36. For four classes the error at gamma = 9 depends on the lattice of logits: 12% with 60 steps, 7.4%
    with steps of 0.5; printed: at most 8%.

    Example:
        >>> round(float(theory.matching_temperature(3.0, 2)), 3)
        0.276
    """
    return _minimax(*_checked(gamma, num_classes, steps, spread))


def temperature_mismatch(
    gamma: Scalar, temperature: Scalar, num_classes: int, *, steps: int | None = None, spread: float = SPREAD
) -> Array:
    """Largest difference of the focal map of softmax(z) and softmax(z / T), over all classes and all z of one spread.

    Args:
        gamma: Focal parameter, scalar, above -1.
        temperature: T, scalar above 0.
        num_classes: 2, 3 or 4.
        steps: Steps of the lattice of logit differences, as for `matching_temperature`.
        spread: Largest difference of two logits, above 0.

    Returns:
        Scalar float32, a difference of probabilities, 0 to 1. Absolute error 2e-7 from rounding; the lattice finds the
        maximum to 1% for two and three classes and to 3% for four. Tested in tests/theory/test_temperature_match.py.

    Raises:
        InputError: as `matching_temperature`, and a concrete temperature that is not positive.

    Source: Komisarenko & Kull, arXiv 2408.11598, sections 3.2 and 3.3.

    Example:
        >>> [round(float(theory.temperature_mismatch(3.0, T, 2)), 3) for T in (0.276, 0.36)]
        [0.0, 0.059]
    """
    gamma, logits = _checked(gamma, num_classes, steps, spread)
    checks.check_interval("temperature", checks.number_array("temperature", temperature, ()), 1e-6)
    (temperature,) = checks.floats(temperature)
    return _gap(jnp.exp(focal_calibration(logits, gamma)), logits, 1 / temperature)


@jax.jit
def _minimax(gamma, logits):
    """By halving 1/T between 1 and gamma + 1, the map's slopes for tiny and for huge gamma."""
    target = jnp.exp(focal_calibration(logits, gamma))
    gap = partial(_gap, target, logits)
    low, high = jnp.minimum(1, gamma + 1), jnp.maximum(1, gamma + 1)
    falls = lambda slope: gap(slope * (1 + _STEP)) < gap(slope)  # noqa: E731
    return 1 / bisection(falls, low, high, num_halvings=_HALVINGS)


def _gap(target, logits, inverse_temperature):
    return jnp.max(jnp.abs(target - jax.nn.softmax(logits * inverse_temperature, axis=-1)))


@cache
def _lattice(num_classes, steps, spread):
    """[points, classes]: sorted logits from 0 down to -spread. Order and a common shift change neither map."""
    levels = spread / steps * np.arange(steps + 1)
    rows = np.array(list(combinations_with_replacement(levels, num_classes - 1)))
    return np.concatenate([np.zeros((len(rows), 1)), -rows], axis=1).astype(np.float32)


def _checked(gamma, num_classes, steps, spread):
    """Gamma as an array, and the lattice of logits."""
    checks.check_choice("num_classes", num_classes, tuple(STEPS))
    checks.check_above("gamma", checks.number_array("gamma", gamma, ()), -1)
    checks.check_above("spread", spread, 0)
    steps = checks.count("steps", STEPS[num_classes] if steps is None else steps, 2, MOST_STEPS[num_classes])
    return checks.floats(gamma)[0], _lattice(num_classes, steps, spread)
