"""Minimax fit of temperature scaling to the focal calibration map, for two, three and four classes."""

from functools import cache, partial
from itertools import combinations_with_replacement

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from focalgeo.calibration import focal_calibration
from focalgeo.calibration.roots import golden_section
from focalgeo.theory.arguments import Scalar, check_choice, check_interval, floats
from focalgeo.types import Array, InputError

SPREAD = 10.0  # largest difference of two logits: those of the papers' cube (-5, 5)^classes
STEPS = {2: 5000, 3: 100, 4: 50}  # steps of the lattice of logit differences, over the whole spread
_SECTIONS = 45  # golden sections: 1.618^-45 of the first bracket is below float32's resolution


def matching_temperature(
    gamma: Scalar, num_classes: int, *, steps: int | None = None, spread: float = SPREAD
) -> Float[Array, ""]:
    """The temperature T that minimises `temperature_mismatch`: the minimax fit of temperature scaling to the focal map.

    Args:
        gamma: Focal parameter, scalar, above -1; 0 gives 1.
        num_classes: 2, 3 or 4.
        steps: Steps of the lattice of logit differences over (0, spread); 5000, 100 and 50 if left out.
        spread: Largest difference of two logits, above 0.

    Returns:
        Scalar float32. Relative error, from the lattice: binary 1e-5 for gamma up to 10, three classes 2e-3, four 1e-2;
        against the same lattice in float64 1e-4 for all; held by tests/theory/test_temperature_match.py. Three classes
        take 0.04 s, four 0.1 s on two CPU cores, after seconds of compilation. Its derivatives are of no use: the worst
        point moves in steps.

    Raises:
        InputError: num_classes other than 2, 3, 4; gamma at -1 or below, where it is concrete; steps below 2.

    Source: Komisarenko & Kull, arXiv 2408.11598, Figures 2, 6 and 7. What of theirs holds: 1/T is near 0.64 gamma +
    0.91 for three classes. What does not: for two classes T is 0.276 at gamma = 3 (printed: 0.36, the three-class
    value) and 0.731 at 0.5 (printed: 0.76), and the error passes 1e-3 between gamma 0.225 and 0.75. The pairs
    (gamma, T) of Figure 5, (1, 0.81) and (3, 0.46), are the temperatures of gamma 0.5 and 2; those of 1 and 3 are 0.66
    and 0.36. For four classes the error at gamma = 9 is 12 to 13%, not "at most 8%".
    """
    _check(gamma, num_classes, steps, spread)
    return _minimax(*floats(gamma), _lattice(num_classes, steps or STEPS[num_classes], spread))


def temperature_mismatch(
    gamma: Scalar, temperature: Scalar, num_classes: int, *, steps: int | None = None, spread: float = SPREAD
) -> Float[Array, ""]:
    """Largest difference of the focal map of softmax(z) and softmax(z / T), over all classes and all z of one spread.

    Args:
        gamma: Focal parameter, scalar, above -1.
        temperature: T, scalar above 0.
        num_classes: 2, 3 or 4.
        steps: Steps of the lattice of logit differences, as for `matching_temperature`.
        spread: Largest difference of two logits, above 0.

    Returns:
        Scalar float32, a difference of probabilities, 0 to 1. Absolute error 2e-7 from rounding; the lattice finds the
        maximum to 1% for two and three classes and to 3% for four. Held by tests/theory/test_temperature_match.py.

    Raises:
        InputError: as `matching_temperature`, and a concrete temperature that is not positive.

    Source: Komisarenko & Kull, arXiv 2408.11598, sections 3.2 and 3.3.
    """
    _check(gamma, num_classes, steps, spread)
    check_interval("temperature", temperature, 1e-6, float("inf"))
    gamma, temperature = floats(gamma, temperature)
    return _largest_gap(gamma, 1 / temperature, _lattice(num_classes, steps or STEPS[num_classes], spread))


@jax.jit
def _minimax(gamma: Array, logits: Array) -> Array:
    """Golden section on 1/T between 1 and gamma + 1, the map's slopes for tiny and for huge gamma."""
    target = jnp.exp(focal_calibration(logits, gamma))
    gap = partial(_gap, target, logits)
    low, high = jnp.minimum(1, gamma + 1), jnp.maximum(1, gamma + 1)
    return 1 / golden_section(gap, low, high, num_sections=_SECTIONS)


@jax.jit
def _largest_gap(gamma: Array, inverse_temperature: Array, logits: Array) -> Array:
    return _gap(jnp.exp(focal_calibration(logits, gamma)), logits, inverse_temperature)


def _gap(target: Array, logits: Array, inverse_temperature: Array) -> Array:
    return jnp.max(jnp.abs(target - jax.nn.softmax(logits * inverse_temperature, axis=-1)))


@cache
def _lattice(num_classes: int, steps: int, spread: float) -> np.ndarray:
    """[points, classes]: sorted logits from 0 down to -spread. Order and a common shift change neither map."""
    levels = spread / steps * np.arange(steps + 1)
    rows = np.array(list(combinations_with_replacement(levels, num_classes - 1)))
    return np.concatenate([np.zeros((len(rows), 1)), -rows], axis=1).astype(np.float32)


def _check(gamma: Array, num_classes: int, steps: int | None, spread: float) -> None:
    check_choice("num_classes", num_classes, tuple(STEPS))
    check_interval("gamma", gamma, -1 + 1e-6, float("inf"))
    if steps is not None and steps < 2:
        raise InputError(f"steps is {steps}: give 2 or more")
    if not 0 < spread < float("inf"):
        raise InputError(f"spread is {spread}: give a finite number above 0")
