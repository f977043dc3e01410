"""Where curvature comes from: the bend of the loss in the outputs, or the bend of the outputs in the parameters."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax

from focalgeo.curvature.arguments import check_matches, check_params, scalar
from focalgeo.types import Array, PyTree


class Parts(NamedTuple):
    """The two parts of v' H v, which sum to it."""

    gauss_newton: Array  # of the loss in the outputs, zdot' H_out zdot
    residual: Array  # of the network, grad_z L . zddot


def quadratic_parts(
    network: Callable[[PyTree], PyTree],
    losses: Mapping[str, Callable[[PyTree], Array]],
    params: PyTree,
    vector: PyTree,
) -> dict[str, Parts]:
    """The parts of v' H v = zdot' H_out zdot + grad_z L . zddot, for every loss L of the outputs z(params) at once.

    zdot and zddot are the network's first two derivatives along v. One forward pass of second order gives both, and no
    reverse pass is made; further losses cost nothing beside it. The first part is the Gauss-Newton part: it is never
    negative for cross-entropy, but may be for focal loss. The second, the residual, vanishes in the trace of a network
    whose outputs are linear in each single parameter, as with ReLU and batch norm in evaluation mode.

    Args:
        network: params -> tree of outputs (logits of all examples, say).
        losses: name -> function of those outputs that gives one floating-point number.
        params: tree of floating-point arrays.
        vector: tree of the same structure and shapes.

    Returns:
        name -> Parts of scalars, in the unit of the loss times the vector's squared.

    Raises:
        InputError: a loss is not scalar, `params` is empty or holds integers, or `vector` does not match.

    Accuracy: float rounding; against dense float64 matrices in tests/curvature/test_quadratic_parts.py.

    Source: Schraudolph, Fast curvature matrix-vector products for second-order gradient descent (2002).
    """
    check_params(params)
    check_matches(vector, params)

    def along(point: PyTree) -> tuple[PyTree, PyTree]:
        return jax.jvp(network, (point,), (vector,))

    (outputs, first), (_, second) = jax.jvp(along, (params,), (vector,))
    return {
        name: Parts(_second_derivative(scalar(loss), outputs, first), jax.jvp(scalar(loss), (outputs,), (second,))[1])
        for name, loss in losses.items()
    }


def _second_derivative(loss: Callable, outputs: PyTree, tangent: PyTree) -> Array:
    def slope(point: PyTree) -> Array:
        return jax.jvp(loss, (point,), (tangent,))[1]

    return jax.jvp(slope, (outputs,), (tangent,))[1]
