"""Roots of one number in a bracket, under jit and vmap.

No root is differentiated through: `implicit_step` gives it its derivatives afterwards.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Float

from focalgeo.types import Array

Points = Float[Array, "*batch"]

_MOST_STEPS = 100  # in a bracket, where ten are usual; each fourth is a bisection until Newton's steps are short
_NEAR = 0.1  # a Newton step shorter than this is in reach of quadratic convergence, for functions of scale 1


def newton_in_bracket(
    function: Callable[[Array], tuple[Array, Array]],
    start: Points,
    low: Points,
    high: Points,
) -> Points:
    """The root of a function that rises through zero in a bracket, by Newton's steps with bisection as safeguard.

    Args:
        function: function(x) -> (value, slope) for x [...], each element by itself. The value is at most 0 at `low`
            and at least 0 at `high`, and crosses zero once between them; the slope may have any sign in between.
        start: Float [...], inside the bracket.
        low: Float [...].
        high: Float [...].

    Returns:
        [...], where steps are shorter than 16 eps max(|x|, 1), or after 100 steps.
    """
    tolerance = 16 * jnp.finfo(start.dtype).eps

    def advance(state):
        point, low, high, moving, step = state
        value, slope = function(point)
        low, high = jnp.where(value <= 0, point, low), jnp.where(value >= 0, point, high)
        newton = point - value / jnp.maximum(slope, jnp.finfo(slope.dtype).tiny)
        moved = jnp.abs(newton - point)
        outside = ~((newton >= low) & (newton <= high))
        after = jnp.where(outside | ((moved > _NEAR) & (step % 4 == 3)), low + (high - low) / 2, newton)
        small = tolerance * jnp.maximum(jnp.abs(point), 1)
        going = moving & (moved > small) & (high - low > small)
        # An accepted Newton step is taken even when it is the last: it costs nothing and only improves the point.
        after = jnp.where(going, after, jnp.clip(newton, low, high))
        # What has settled stays as it is, so that no root depends on its neighbours in the batch.
        return jnp.where(moving, after, point), low, high, going, step + 1

    def goes_on(state):
        *_, moving, step = state
        return jnp.any(moving) & (step < _MOST_STEPS)

    state = start, low, high, jnp.ones(start.shape, bool), jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(goes_on, advance, state)[0]


def implicit_step(root: Points, value: Points, slope: Points) -> Points:
    """One Newton step root - value / slope, whose derivatives are those of the root as an implicit function.

    Args:
        root: Float [...]; no derivative is taken through it.
        value: The function at stop_gradient(root), as a function of what the root is to be differentiated by.
        slope: Its derivative by the root, not 0; no derivative is taken through it, so the first order is right alone.
    """
    return jax.lax.stop_gradient(root) - value / jax.lax.stop_gradient(slope)


def bisection(is_below: Callable[[Array], Array], low: Points, high: Points, *, num_halvings: int) -> Points:
    """The middle of the bracket [...] around a root after `num_halvings`; is_below(x) says that x is below the root."""

    def halve(_, ends):
        middle = ends[0] / 2 + ends[1] / 2
        below = is_below(middle)
        return jnp.where(below, middle, ends[0]), jnp.where(below, ends[1], middle)

    low, high = jax.lax.fori_loop(0, num_halvings, halve, (low, high))
    return low / 2 + high / 2
