"""The gate before any measurement: a loss that changes between two calls has no Hessian to speak of."""

import jax
import jax.numpy as jnp

from focalgeo import trees
from focalgeo.curvature.arguments import check_finite, check_params, is_traced, scalar
from focalgeo.types import Array, InputError, PyTree


def check_deterministic(loss, params: PyTree, *, tolerance: float = 1e-5) -> None:
    """Evaluates loss and gradient twice and refuses a loss that is not the same function of `params` both times.

    The losses may differ by `tolerance` relatively, the gradients by `tolerance` times their norm: a GPU reorders sums
    by about 1e-6, dropout or another batch changes far more. `tolerance=0.0` asks for equal bits. Only differences
    between calls can be seen: dropout with a fixed key, or batch statistics of one fixed batch, are deterministic and
    pass. A loss that is already jitted keeps what it saw when it was traced; pass it unjitted if it reads anything but
    its argument.

    Args:
        loss: params -> one floating-point number.
        params: tree of concrete floating-point arrays.
        tolerance: relative difference that still passes, 0 or more.

    Raises:
        InputError: the two evaluations differ; the arguments are traced; else as for `hvp`.
        RunError: the loss or the gradient is not finite; the leaf is named.

    Accuracy: noise of 1e-3 is caught and a sum in another order passes; tests/curvature/test_check_deterministic.py.
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
