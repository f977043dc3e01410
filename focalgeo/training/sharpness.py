"""Sharpness-aware minimisation: the step uphill from whose end the gradient is taken."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from focalgeo import trees
from focalgeo.types import PyTree


def make_ascent(radius: float, *, adaptive: bool = False) -> Callable | None:
    """(gradient g, params w) -> radius g / |g|, or of adaptive steps radius w^2 g / |w g|, entry by entry; None for 0.

    The loss at its end is, to first order, the largest within a ball about the parameters: of that radius, or of that
    radius once each parameter is measured by its own size. A gradient of 0 has no way up, and gives 0.

    Source: Foret et al., Sharpness-aware minimization (2021), Eq. 2; Kwon et al., ASAM (2021), Eq. 10, without its
    constant added to |w|.
    """
    if not radius:
        return None

    def ascent(gradient: PyTree, params: PyTree) -> PyTree:
        sizes = jax.tree.map(jnp.abs, params) if adaptive else jax.tree.map(jnp.ones_like, params)
        measured = jax.tree.map(jnp.multiply, sizes, gradient)
        length = trees.norm(measured)
        factor = jnp.where(length > 0, radius / jnp.where(length > 0, length, 1.0), 0.0)
        return trees.scale(jax.tree.map(jnp.multiply, sizes, measured), factor)

    return ascent
