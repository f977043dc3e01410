"""Checks of arguments: parameters, vectors, losses and products, and that a loss is the same at every call.

Each raises an error of one line, and costs nothing once a function is compiled.
"""

import jax
import jax.numpy as jnp

from focalgeo import trees
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
        found, wanted = (f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}" for leaf in (a, b))
        if found != wanted:
            where = f"vector{jax.tree_util.keystr(path)}"
            raise InputError(f"{where} is {found}, the parameter {wanted}; they must be the same")


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
    """Whether any leaf is a tracer, whose value is known only when a compiled function runs."""
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
    if is_traced(params):
        raise InputError("check_deterministic compares values; call it outside jit, vmap and grad")
    evaluate = jax.value_and_grad(scalar(loss))
    first, second = evaluate(params), evaluate(params)
    check_finite(first[0], name="loss")
    check_finite(first[1], name="gradient")
    _refuse_difference("loss", first[0], second[0], tolerance)
    _refuse_difference("gradient", first[1], second[1], tolerance)


def _refuse_difference(what: str, first: PyTree, second: PyTree, tolerance: float) -> None:
    difference, size = (float(each) for each in _difference_and_size(first, second))
    # Written so that a second evaluation that is NaN is refused too.
    if not difference <= tolerance * size:
        raise InputError(
            f"the {what} changes from call to call (by {difference:.2g}, its size is {size:.2g}): "
            "switch off dropout, use batch statistics in evaluation mode, and fix the data and their order"
        )


@jax.jit
def _difference_and_size(first: PyTree, second: PyTree) -> tuple[Array, Array]:
    return trees.norm(trees.axpy(jnp.float32(-1), first, second)), trees.norm(first)
