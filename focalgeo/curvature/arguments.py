"""Checks of arguments: parameters, vectors, numbers, keys and products, and that a loss is the same at every call.

Each raises an error of one line, and costs nothing once a function is compiled.
"""

import math
import os
from numbers import Real
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import trees
from focalgeo.checks import described, is_traced, shown_value
from focalgeo.precision import at_highest
from focalgeo.types import Array, InputError, PyTree, RunError

LARGEST = float(np.finfo(np.float64).max)  # whole numbers beyond it are no floats
MOST_PRODUCTS = 100_000  # the standard error of so many samples is 1/300 of a sample's


def check_params(params: PyTree, *, name: str = "params") -> None:
    """Refuses a tree that holds no number, or anything but floating-point arrays.

    Raises:
        InputError: naming the leaf and its type.
    """
    if not jax.tree.leaves(params):
        raise InputError(f"{name} is an empty tree; pass the parameters that the loss depends on")
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            kind = type(leaf).__name__ if dtype is None else dtype
            where = f"{name}{jax.tree_util.keystr(path)}"
            raise InputError(f"{where} is {kind}, not a floating-point array; close over what is not differentiated")
    if not any(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)):
        raise InputError(f"{name} holds no number, all its leaves are of size 0; pass parameters of size 1 or more")


def check_matches(vector: PyTree, params: PyTree, *, name: str = "vector", other: str = "params") -> None:
    """Refuses a vector that has not the structure, shapes and dtypes of `params`.

    Raises:
        InputError: naming both structures, or the leaf whose shape or dtype differs.
    """
    (leaves, left), (wanted_leaves, right) = jax.tree.flatten(vector), jax.tree.flatten(params)
    if left != right:
        found, wanted = (" ".join(str(each).split()) for each in (left, right))
        raise InputError(f"{name} has structure {found:.200} and {other} {wanted:.200}; they must be the same")
    if all(map(_are_alike, leaves, wanted_leaves)):
        return
    pairs = zip(jax.tree_util.tree_leaves_with_path(vector), wanted_leaves, strict=True)
    for (path, a), b in pairs:
        found, wanted = described(a), described(b)
        if found != wanted:
            where = jax.tree_util.keystr(path)
            raise InputError(f"{name}{where} is {found}, {other}{where} {wanted}; they must be the same")


def _are_alike(a: Any, b: Any) -> bool:
    """Whether two leaves are arrays of one shape and dtype; false also of some that are alike, as Python's numbers."""
    return hasattr(a, "dtype") and hasattr(b, "dtype") and a.shape == b.shape and a.dtype == b.dtype


def check_callable(function: Any, *, name: str) -> None:
    """Refuses what cannot be called.

    Raises:
        InputError: naming the argument and its type.
    """
    if not callable(function):
        raise InputError(
            f"{name} is {type(function).__name__}, not a function; pass a function of the parameters' tree"
        )


def check_positive(value: Any, *, name: str, of: str, zero: bool = False) -> float:
    """Python's float of a finite number above 0 (or 0, if `zero`), known outside jit; of: what the number is.

    Raises:
        InputError: naming the argument, its value and what it may be.
    """
    number = value.item() if isinstance(value, np.ndarray | jax.Array) and _is_known_scalar(value) else value
    is_number = isinstance(number, Real) and not isinstance(number, bool | np.bool_)
    if not is_number or not 0 <= number <= LARGEST or (number == 0 and not zero):
        raise InputError(f"{name} is {shown_value(value)}; use {'0 or ' if zero else ''}a positive {of}")
    return float(number)


def _is_known_scalar(value: Array) -> bool:
    return not is_traced(value) and value.ndim == 0


def check_bytes(needed: int, *, what: str) -> None:
    """Refuses to ask for more than the memory of the device, all of it; what: the arguments that make it so much.

    Raises:
        InputError: what is asked for, and what there is.
    """
    there = _device_bytes()
    if needed > there:
        raise InputError(f"{what} take {needed / 1e9:.3g} GB, there are {there / 1e9:.3g} GB of memory; lower them")


def _device_bytes() -> int:
    """Bytes of the first device's memory: its own, or the machine's within the limit of its container."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"]
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(machine, int(text)) if text.isdigit() else machine


def scalar(loss):
    """`loss` itself, refusing at trace time whatever is not one floating-point number.

    Raises:
        InputError: naming what was returned.
    """
    check_callable(loss, name="loss")

    def checked(params):
        value = loss(params)
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape != () or not jnp.issubdtype(dtype, jnp.floating):
            kind = type(value).__name__ if shape is None else f"{dtype}{list(shape)}"
            raise InputError(
                f"the loss returns {kind}, not one floating-point number; take a mean or a sum over examples"
            )
        return value

    return checked


def check_finite_tree(tree: PyTree, *, name: str) -> None:
    """Refuses NaN and infinities in concrete arrays; does nothing while traced.

    Raises:
        RunError: naming the first leaf that is not finite.
    """
    if is_traced(tree) or _all_finite(tree):
        return
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not _all_finite(leaf):
            where = f"{name}{jax.tree_util.keystr(path)}"
            raise RunError(f"{where} is not finite; look at the loss, the data and the parameters there")


@jax.jit
def _all_finite(tree: PyTree) -> Array:
    return jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]).all()


def power_of_two(values: Array) -> Array:
    """The power of two next below the largest absolute value, a scalar of the same dtype; 1 where there is none.

    Divided by it, numbers keep all their digits, and their squares neither overflow nor vanish.
    """
    library = jnp if isinstance(values, jax.Array) else np
    largest = library.max(library.abs(values), initial=0)
    limits = jnp.finfo(largest.dtype)
    exponent = library.clip(library.frexp(largest)[1] - 1, int(limits.minexp), int(limits.maxexp) - 1)
    unit = library.ldexp(library.ones_like(largest), exponent)
    return library.where((largest > 0) & library.isfinite(largest), unit, library.ones_like(unit))


@at_highest
def check_deterministic(loss, params: PyTree, *, tolerance: float = 1e-5) -> None:
    """Evaluates loss and gradient twice and refuses a loss that is not the same function of `params` both times.

    A loss that changes between two calls has no Hessian, so this comes before any measurement of one.

    The losses may differ by `tolerance` relatively, the gradients by `tolerance` times their norm: a GPU reorders sums
    by about 1e-6, dropout or another batch changes far more. `tolerance=0.0` asks for equal bits. Only differences
    between calls are detected: dropout with a fixed key, or batch statistics of one fixed batch, are deterministic and
    pass. A loss that is already jitted keeps what it read when it was traced; pass it unjitted if it reads anything but
    its argument.

    Args:
        loss: params -> one floating-point number.
        params: tree of concrete floating-point arrays.
        tolerance: relative difference that still passes, 0 or more.

    Raises:
        InputError: the two evaluations differ; the arguments are traced; else as for `hvp`.
        RunError: the loss or the gradient is not finite; the leaf is named.

    Accuracy: noise of 1e-3 is caught and a sum in another order passes; tests/curvature/test_arguments.py.
    """
    check_params(params)
    check_positive(tolerance, name="tolerance", of="fraction of the gradient's norm, such as 1e-5", zero=True)
    if is_traced(params):
        raise InputError("check_deterministic compares values; call it outside jit, vmap and grad")
    evaluate = jax.value_and_grad(scalar(loss))
    first, second = evaluate(params), evaluate(params)
    check_finite_tree(first[0], name="loss")
    check_finite_tree(first[1], name="gradient")
    _refuse_difference("loss", first[0], second[0], tolerance)
    _refuse_difference("gradient", first[1], second[1], tolerance)


def _refuse_difference(what: str, first: PyTree, second: PyTree, tolerance: float) -> None:
    unit, *norms = (float(each) for each in _difference_and_size(first, second))
    difference, size = (unit * each for each in norms)  # of Python's floats, whose range holds them
    # Written so that a second evaluation that is NaN is refused too.
    if not difference <= tolerance * size:
        raise InputError(
            f"the {what} changes from call to call (by {difference:.2g}, its size is {size:.2g}): "
            "switch off dropout, use batch statistics in evaluation mode, and fix the data and their order"
        )


@jax.jit
def _difference_and_size(first: PyTree, second: PyTree) -> tuple[Array, Array, Array]:
    """A unit, and in it the norms of the difference and of `first`, whose squares might leave the dtype's range."""
    unit = tree_unit((first, second))
    first, second = (jax.tree.map(lambda leaf: leaf / unit.astype(leaf.dtype), each) for each in (first, second))
    return unit, trees.norm(trees.axpy(jnp.float32(-1), first, second)), trees.norm(first)


def tree_unit(tree: PyTree) -> Array:
    """`power_of_two` of the largest number of a tree."""
    return power_of_two(jnp.stack([jnp.max(jnp.abs(leaf), initial=0).astype(float) for leaf in jax.tree.leaves(tree)]))
