"""Arguments of the closed forms: one float type for all of them, and checks that raise one line."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from focalgeo.types import Array, InputError

Scalar = Float[Array, ""] | float
Numbers = Float[Array, "*#batch"] | float  # scalars or arrays that broadcast against one another, results [*batch]
Rows = Float[Array, "*#batch classes"] | Sequence  # a last axis of classes, or (nested) lists of numbers
Batch = Float[Array, "*batch"]


def floats(*values: Array) -> tuple[Array, ...]:
    """The values as float32 arrays, or as float64 where one of them is float64 and JAX's x64 mode is on."""
    wide = any(getattr(value, "dtype", None) == np.float64 for value in values)
    dtype = jnp.result_type(float) if wide else jnp.float32
    return tuple(jnp.asarray(value, dtype) for value in values)


def broadcast(*values: Array) -> tuple[Array, ...]:
    """`floats`, broadcast against one another."""
    values = floats(*values)
    shape = np.broadcast_shapes(*(value.shape for value in values))
    return tuple(jnp.broadcast_to(value, shape) for value in values)


def check_interval(name: str, value: Array, low: float, high: float) -> None:
    """Refuse a concrete number outside [low, high], and NaN; a traced one is not checked.

    Raises:
        InputError: `value` holds such a number.
    """
    if isinstance(value, jax.core.Tracer):
        return
    array = np.asarray(value, float)
    outside = ~((array >= low) & (array <= high))
    if outside.any():
        raise InputError(f"{name} is {array[outside].flat[0]:g}: give a value from {low:g} to {high:g}")


def check_distribution(name: str, value: Array) -> None:
    """Refuse concrete rows that are not probabilities over two classes or more: negative, or a sum off 1 by 1e-4.

    Raises:
        InputError: `value` holds such a row, or the last axis is missing.
    """
    if np.ndim(value) == 0 or np.shape(value)[-1] < 2:
        raise InputError(f"{name} holds no class axis of two or more: give probabilities, [p, 1 - p] for two classes")
    check_interval(name, value, 0, 1 + 1e-4)
    if isinstance(value, jax.core.Tracer):
        return
    sums = np.sum(np.asarray(value, float), axis=-1)
    if np.any(np.abs(sums - 1) > 1e-4):
        worst = np.ravel(sums)[np.argmax(np.abs(sums - 1))]
        raise InputError(f"{name} sums to {worst:g} over the classes: divide each row by its sum")


def check_finite(name: str, value: Array) -> None:
    """Refuse concrete NaN and infinite numbers.

    Raises:
        InputError: `value` holds one.
    """
    if not isinstance(value, jax.core.Tracer) and not np.all(np.isfinite(np.asarray(value, float))):
        raise InputError(f"{name} holds NaN or infinite numbers: give finite ones")


def check_choice(name: str, value: int, choices: Sequence[int]) -> None:
    """Refuse a number that is none of the choices.

    Raises:
        InputError: it is none.
    """
    if value not in choices:
        raise InputError(f"{name} is {value}: choose one of {', '.join(map(str, choices))}")
