"""Matvecs of flat vectors, and the one loop around them: Python's on concrete arrays, XLA's when traced.

A tree becomes a flat vector in the order of `jax.flatten_util.ravel_pytree`, in one dtype of at least float32.
XLA runs a convolution inside a loop far slower on a CPU than the same jitted function called from Python, and only a
traced loop can be vmapped; so the loop is Python's while all values are known, and XLA's as soon as they are not.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from focalgeo.checks import is_traced
from focalgeo.curvature.arguments import check_callable, check_finite_tree, check_matches
from focalgeo.precision import at_highest
from focalgeo.types import Array, PyTree


class Layout(NamedTuple):
    """Layout of a tree's leaves in a flat vector; hashable, so that jitted functions take it as static."""

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

    @property
    def nbytes(self) -> int:
        """Bytes of a flat vector."""
        return self.size * self.dtype.itemsize


def layout_of(tree: PyTree) -> Layout:
    """Structure, shapes and dtypes of a tree of arrays, as JAX takes them: float64 is float32 unless x64 is on."""
    leaves, treedef = jax.tree.flatten(tree)
    return Layout(treedef, tuple(leaf.shape for leaf in leaves), tuple(jnp.result_type(leaf) for leaf in leaves))


@functools.partial(jax.jit, static_argnames="layout")
def ravel(tree: PyTree, layout: Layout) -> Float[Array, " size"]:
    """The tree as one vector of shape [layout.size] and dtype layout.dtype."""
    return jnp.concatenate([jnp.ravel(leaf).astype(layout.dtype) for leaf in jax.tree.leaves(tree)])


@functools.partial(jax.jit, static_argnames="layout")
def unravel(vector: Float[Array, " size"], layout: Layout) -> PyTree:
    """The inverse of `ravel`: leaves get back their shapes and dtypes."""
    leaves, start = [], 0
    for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True):
        stop = start + math.prod(shape)
        leaves.append(vector[start:stop].reshape(shape).astype(dtype))
        start = stop
    return layout.treedef.unflatten(leaves)


def checked_matvec(matvec):
    """`matvec` at full precision, refusing a product that is no tree like its vector, or is concrete and not finite."""
    check_callable(matvec, name="matvec")
    matvec = at_highest(matvec)

    def product(vector):
        tree = matvec(vector)
        check_matches(tree, vector, name="the product of matvec", other="its vector")
        check_finite_tree(tree, name="product")
        return tree

    return product


def flat_matvec(matvec, layout: Layout, *, sign: int = 1):
    """`sign * matvec` for flat vectors, checked."""
    checked = checked_matvec(matvec)

    def product(vector):
        flat = ravel(checked(unravel(vector, layout)), layout)
        return flat if sign > 0 else -flat

    return product


def iterate(condition, body, state: PyTree) -> PyTree:
    """Applies `body` while `condition(state)` holds: in Python on concrete arrays, by lax.while_loop when traced.

    A matvec may close over traced values that are not in `state` at first; the switch then comes after one step.
    """
    while not is_traced(state):
        if not condition(state):
            return state
        state = body(state)
    return lax.while_loop(condition, body, state)


def updating(function=None, **options):
    """jax.jit that overwrites its first argument where it can: on concrete arrays, not under jit and vmap.

    A donated buffer that only part of a vmapped call is batched over cannot be reused, and JAX warns about it.
    """
    if function is None:
        return functools.partial(updating, **options)
    plain, overwriting = jax.jit(function, **options), jax.jit(function, donate_argnums=0, **options)

    @functools.wraps(function)
    def call(*arrays, **static):
        return (plain if is_traced(arrays) else overwriting)(*arrays, **static)

    return call


def map_rows(function, rows: Float[Array, "rows size"]) -> Float[Array, "rows size"]:
    """`function` (vector -> vector of the same length) applied to each row, one at a time."""

    def body(state):
        index, done = state
        return index + 1, _set_row(done, index, function(_row(rows, index)))

    count = rows.shape[0]
    return iterate(lambda state: state[0] < count, body, (jnp.int32(0), jnp.zeros_like(rows)))[1]


@jax.jit
def _row(rows, index):
    return rows[index]


@updating
def _set_row(rows, index, row):
    return rows.at[index].set(row)
