"""Trees as flat vectors, in the order of `jax.flatten_util.ravel_pytree`, in one dtype of at least float32."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from focalgeo.curvature.arguments import check_finite
from focalgeo.types import Array, PyTree


class Layout(NamedTuple):
    """How a tree lies in a flat vector; hashable, so that jitted functions take it as a static argument."""

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]

    @property
    def size(self) -> int:
        """Number of scalars."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def dtype(self) -> Any:
        """Float64 if a leaf is float64, else float32: bfloat16 would not hold an orthogonal basis."""
        return jnp.dtype(jnp.float64 if jnp.dtype(jnp.float64) in self.dtypes else jnp.float32)


def layout_of(tree: PyTree) -> Layout:
    """Structure, shapes and dtypes of a tree of arrays."""
    leaves, treedef = jax.tree.flatten(tree)
    return Layout(treedef, tuple(leaf.shape for leaf in leaves), tuple(jnp.dtype(leaf.dtype) for leaf in leaves))


@functools.partial(jax.jit, static_argnames="layout")
def ravel(tree: PyTree, layout: Layout) -> Array:
    """The tree as one vector of shape [layout.size] and dtype layout.dtype."""
    return jnp.concatenate([jnp.ravel(leaf).astype(layout.dtype) for leaf in jax.tree.leaves(tree)])


@functools.partial(jax.jit, static_argnames="layout")
def unravel(vector: Array, layout: Layout) -> PyTree:
    """The inverse of `ravel`: leaves get back their shapes and dtypes."""
    leaves, start = [], 0
    for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True):
        stop = start + math.prod(shape)
        leaves.append(vector[start:stop].reshape(shape).astype(dtype))
        start = stop
    return layout.treedef.unflatten(leaves)


def flat_matvec(matvec, layout: Layout, *, sign: int = 1):
    """`sign * matvec` for flat vectors; refuses a concrete product that is not finite and names the leaf."""

    def product(vector):
        tree = matvec(unravel(vector, layout))
        check_finite(tree, name="product")
        flat = ravel(tree, layout)
        return flat if sign > 0 else -flat

    return product
