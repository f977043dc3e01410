"""The Hessian trace of a loss of a network's outputs, when the outputs themselves are wanted as well."""

from collections.abc import Callable

from focalgeo import trees
from focalgeo.curvature.arguments import check_params, scalar
from focalgeo.curvature.penalty import reverse_after_forward
from focalgeo.curvature.taylor import second_order
from focalgeo.types import Array, PyTree


def outputs_and_trace(
    network: Callable[[PyTree], tuple[PyTree, PyTree]], loss: Callable[[PyTree], Array], params: PyTree, key: Array
) -> tuple[PyTree, PyTree, Array]:
    """What `network` returns, and v' H v for a random sign vector v: an unbiased estimate of Tr H of loss(outputs).

    The outputs' first two derivatives along v come from one forward pass of second order, so that other losses of the
    same outputs cost nothing beside it. It is `value_and_trace`, with the network's own results.

    Args:
        network: params -> (outputs, auxiliary results), arrays; it cannot branch in Python on a value.
        loss: outputs -> one floating-point number.
        params: tree of floating-point arrays.
        key: PRNG key of the probe; a fresh one at every training step.

    Returns:
        (outputs, auxiliary results, trace estimate), differentiable in `params`.

    Raises:
        InputError: as for `hvp`.

    Accuracy: equal to `value_and_trace` with the same probe up to rounding, gradients too; tests/curvature/
    test_outputs.py.

    Source: Kimura and Naganuma, Geometric Insights into Focal Loss, Eq. 33; probes of Hutchinson (1990).
    """
    check_params(params)
    probe = trees.rademacher(key, params)

    def measured(point: PyTree) -> tuple[Array, PyTree, PyTree]:
        outputs, auxiliary = network(point)
        return scalar(loss)(outputs), outputs, auxiliary

    (_, outputs, auxiliary), _, (curvature, _, _) = second_order(measured, params, probe)
    return outputs, auxiliary, reverse_after_forward(curvature)
