"""What the functions of this room accept: checks that end in one line, and cost nothing once a function is compiled."""

import jax
import jax.numpy as jnp

from focalgeo.types import Array, InputError, PyTree, RunError


def check_params(params: PyTree, *, name: str = "params") -> None:
    """Refuses a tree that is empty or holds anything but floating-point arrays.

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


def check_matches(vector: PyTree, params: PyTree) -> None:
    """Refuses a vector that has not the structure, shapes and dtypes of `params`.

    Raises:
        InputError: naming both structures, or the leaf whose shape differs.
    """
    left, right = jax.tree.structure(vector), jax.tree.structure(params)
    if left != right:
        raise InputError(f"the vector has structure {left} and the parameters {right}; they must be the same")
    pairs = zip(jax.tree_util.tree_leaves_with_path(vector), jax.tree.leaves(params), strict=True)
    for (path, a), b in pairs:
        mine, wanted = (f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}" for leaf in (a, b))
        if mine != wanted:
            where = f"vector{jax.tree_util.keystr(path)}"
            raise InputError(f"{where} is {mine}, the parameter {wanted}; they must be the same")


def scalar(loss):
    """`loss` itself, refusing at trace time whatever is not one floating-point number.

    Raises:
        InputError: naming what was returned.
    """

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


def is_traced(tree: PyTree) -> bool:
    """Whether any leaf stands for a value that is only known inside jit or vmap."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def check_finite(tree: PyTree, *, name: str) -> None:
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
