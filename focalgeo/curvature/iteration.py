"""One driver for every loop around a matvec.

XLA runs a convolution inside a loop far slower on a CPU than the same jitted function called from Python, and only a
traced loop can be vmapped; so the loop is Python's while all values are known, and XLA's as soon as they are not.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from focalgeo.curvature.arguments import is_traced
from focalgeo.types import Array, PyTree


def iterate(condition, body, state: PyTree) -> PyTree:
    """Applies `body` while `condition(state)` holds: in Python on concrete arrays, by lax.while_loop when traced.

    A matvec may close over traced values that `state` does not show at first; the switch then comes after one step.
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


def map_rows(function, rows: Array) -> Array:
    """`function` (vector -> vector of the same length) applied to each row of `rows` [count, size], one at a time."""

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
