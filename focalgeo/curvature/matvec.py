"""Matvecs of flat vectors, and the loops around them: Python's on concrete arrays, XLA's when traced.

A tree becomes a flat vector in the order of `jax.flatten_util.ravel_pytree`, in one dtype of at least float32.
XLA runs a convolution inside a loop far slower on a CPU than the same jitted function called from Python, and only a
traced loop can be vmapped; so the loop is Python's while all values are known, and XLA's as soon as they are not.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from focalgeo import checks
from focalgeo.trees import at_highest
from focalgeo.types import Array, PyTree

MOST_PRODUCTS = 100_000  # the standard error of so many samples is 1/300 of a sample's


class Layout(NamedTuple):
    """Layout of a tree's leaves in a flat vector; hashable, so that jitted functions take it as static."""

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]

    @property
    def size(self) -> int:
        """Number of scalars."""
        return sum(map(math.prod, self.shapes))

    @property
    def dtype(self) -> Any:
        """Float64 if a leaf is float64, else float32: bfloat16 would not hold an orthogonal basis."""
        return jnp.dtype(jnp.float64 if jnp.dtype(jnp.float64) in self.dtypes else jnp.float32)


of_layout = functools.partial(jax.jit, static_argnames="layout")  # a decorator


def layout_of(tree: PyTree) -> Layout:
    """Structure, shapes and dtypes of a tree of arrays, as JAX takes them: float64 is float32 unless x64 is on."""
    leaves, treedef = jax.tree.flatten(tree)
    return Layout(treedef, tuple(leaf.shape for leaf in leaves), tuple(map(jnp.result_type, leaves)))


@of_layout
def ravel(tree: PyTree, layout: Layout) -> Array:
    """The tree as one vector of shape [layout.size] and dtype layout.dtype."""
    return jnp.concatenate([jnp.ravel(leaf).astype(layout.dtype) for leaf in jax.tree.leaves(tree)])


@of_layout
def unravel(vector: Array, layout: Layout) -> PyTree:
    """The inverse of `ravel`: leaves get back their shapes and dtypes."""
    leaves, start = [], 0
    for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True):
        stop = start + math.prod(shape)
        leaves.append(vector[start:stop].reshape(shape).astype(dtype))
        start = stop
    return layout.treedef.unflatten(leaves)


def checked_matvec(matvec: Callable, like: PyTree, key: Array | int) -> tuple[Callable, Array]:
    """The door of every estimate: `matvec` at full precision and the key; a product is like its vector and finite.

    Raises:
        InputError: `like` empty or not floating-point, no PRNG key, no function; a product that is no tree like its
            vector.
        RunError: a concrete product is not finite (the leaf is named).
    """
    checks.check_params("like", like)
    key = checks.prng_key(key)
    checks.check_function("matvec", matvec)
    matvec = at_highest(matvec)

    def product(vector):
        tree = matvec(vector)
        checks.check_alike(
            "the product of matvec (for a loss take linearized_hvp(loss, params))", tree, "its vector", vector
        )
        checks.check_finite_tree("product", tree)
        return tree

    return product, key


def flat_matvec(matvec: Callable, like: PyTree, key: Array | int) -> tuple[Layout, Callable, Array]:
    """The layout of `like`, `checked_matvec` of flat vectors, and the key."""
    product, key = checked_matvec(matvec, like, key)
    layout = layout_of(like)
    return layout, lambda vector: ravel(product(unravel(vector, layout)), layout), key


def iterate(condition: Callable, body: Callable, state: PyTree) -> PyTree:
    """Applies `body` while `condition(state)` holds: in Python on concrete arrays, by lax.while_loop when traced.

    A matvec may close over traced values that are not in `state` at first; the switch then comes after one step.
    """
    while not checks.is_traced(state):
        if not condition(state):
            return state
        state = body(state)
    return lax.while_loop(condition, body, state)


def when(condition: Array, function: Callable, state: PyTree) -> PyTree:
    """`function` of the state if the condition holds, else the state: by Python's if, or lax.cond when traced."""
    if checks.is_traced(condition):
        return lax.cond(condition, function, lambda state: state, state)
    return function(state) if condition else state


def on_host(tree: PyTree) -> PyTree:
    """Small arrays as NumPy's, of which no operation has to be compiled; traced ones as they are."""
    return tree if checks.is_traced(tree) else jax.device_get(tree)


def stacked(function: Callable, count: int) -> PyTree:
    """`function` of each index below count, its results along a new first axis; traced results by lax.map."""
    first = function(np.int32(0))
    if checks.is_traced(first):
        return lax.map(function, jnp.arange(count, dtype=jnp.int32))
    rows = _with_room(first, count)
    for index in range(1, count):
        rows = _placed(rows, index, function(np.int32(index)))
    return rows


def over_rows(function: Callable, rows: Array) -> PyTree:
    """`function` of each row, `stacked`."""
    return stacked(lambda index: function(row_of(rows, index)), len(rows))


@jax.jit
def row_of(rows: Array, index: Array) -> Array:
    """One row, by one program for all indices."""
    return rows[index]


@functools.partial(jax.jit, static_argnums=1)
def _with_room(first, count):
    return jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype).at[0].set(leaf), first)


@functools.partial(jax.jit, donate_argnums=0)
def _placed(rows, index, row):
    return jax.tree.map(lambda leaf, value: leaf.at[index].set(value), rows, row)


def overwriting(function: Callable) -> Callable:
    """jax.jit that overwrites its first argument where it can: on concrete arrays, not under jit and vmap.

    A donated buffer that only part of a vmapped call is batched over cannot be reused, and JAX warns about it.
    """
    plain, donating = jax.jit(function), jax.jit(function, donate_argnums=0)

    def call(*arrays):
        return (plain if checks.is_traced(arrays) else donating)(*arrays)

    return call


@jax.jit
def orthonormal_rows(rows: Array) -> Array:
    """Orthonormal rows with the same span, by Householder, orthogonal whatever the rank."""
    return jnp.linalg.qr(rows.T)[0].T
