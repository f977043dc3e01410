"""Precision of products: full float32 in all that is measured, whatever an accelerator does by default.

By default a TPU multiplies float32 matrices in one bfloat16 pass, of 8 bits, and a GPU may in TF32, of 11: two to three
decimal digits, with no word said. Elementwise operations and sums are float32 everywhere. On a CPU nothing changes.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from focalgeo.types import Array


def at_precision(function: Callable, precision: str) -> Callable:
    """`function`, in which products and convolutions that name no precision have this one, as jax names them.

    An operation that names a precision of its own keeps it. It holds for what is traced or run while the function runs,
    its derivatives taken there included; a function that is returned is not covered. Bfloat16 operands stay bfloat16.
    """

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
