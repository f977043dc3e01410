"""Precision of products: full float32 in all that is measured, whatever an accelerator does by default.

By default a TPU multiplies float32 matrices in one bfloat16 pass, of 8 bits, and a GPU may in TF32, of 11: two to three
decimal digits, with no word said. Elementwise operations and sums are float32 everywhere. On a CPU nothing changes.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from focalgeo.types import Array, InputError, shown

PRECISIONS = ("default", "high", "highest")  # one, three and six bfloat16 passes on a TPU


def at_precision(function: Callable, precision: str) -> Callable:
    """`function`, in which products and convolutions that name no precision have this one.

    An operation that names a precision of its own keeps it. It holds for what is traced or run while the function runs,
    its derivatives taken there included; a function that is returned is not covered. Bfloat16 operands stay bfloat16.

    Args:
        function: any function of arrays, to be jitted or not, as another network's forward pass.
        precision: one of PRECISIONS.

    Raises:
        InputError: another precision.
    """
    if precision not in PRECISIONS:
        raise InputError(
            f"precision is {shown(precision)}: it must be {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}"
        )

    @functools.wraps(function)
    def call(*args, **kwargs):
        with jax.default_matmul_precision(precision):
            return function(*args, **kwargs)

    return call


def at_highest(function: Callable) -> Callable:
    """`at_precision` with "highest": float32 products in float32."""
    return at_precision(function, "highest")


def matmul(left: Array, right: Array) -> Array:
    """The matrix product at full precision."""
    return jnp.matmul(left, right, precision="highest")
