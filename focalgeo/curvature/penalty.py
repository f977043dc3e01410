"""The Hessian trace as a term of a training loss, built so that a gradient through it stays cheap."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Float

from focalgeo import trees
from focalgeo.checks import check_choice, check_key, count
from focalgeo.curvature.arguments import check_callable, check_params, scalar
from focalgeo.curvature.taylor import second_order
from focalgeo.types import Array, InputError, PyTree

MATRICES = ("hessian", "gauss_newton")
MOST_PROBES = 100  # each is one more forward pass of second order in the program


def value_and_trace(
    loss: Callable[[PyTree], Array], params: PyTree, key: Array, *, num_probes: int = 1, form: str = "taylor"
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The loss and the mean of v' H v over `num_probes` random sign vectors v, an unbiased estimate of Tr H.

    v' H v is the second derivative of t -> loss(params + t v) at 0. `form` says how it is computed, which changes the
    time and nothing else: "jvp_of_grad" is the textbook's v . jvp(grad loss)(v), "forward_over_forward" is jvp of jvp,
    which has no gradient in it, so that reverse mode through it costs the reverse of about three forward passes, and
    "taylor" is the same second derivative with every product formed once (see `taylor.second_order`).

    Args:
        loss: params -> one floating-point number; as under `jax.jit`, it cannot branch in Python on a value.
        params: tree of floating-point arrays.
        key: PRNG key of the probes; a fresh one at every training step.
        num_probes: 1 to 100; time, memory and compilation grow with it.
        form: "taylor", "forward_over_forward" or "jvp_of_grad".

    Returns:
        (loss value, trace estimate), scalars, in the unit of the loss; differentiable in `params`.

    Raises:
        InputError: num_probes or form out of range; else as for `hvp`.

    Accuracy: a term of training, its products have the precision in force (`jax.default_matmul_precision`). All forms
    equal up to rounding, also their gradients, and equal to the exact trace in the mean over all sign vectors;
    tests/curvature/test_penalty.py.

    Source: Kimura and Naganuma, Geometric Insights into Focal Loss, Eq. 33; probes of Hutchinson (1990).
    """
    check_params(params)
    check_key(key)
    num_probes = count("num_probes", num_probes, 1, MOST_PROBES)
    curvature_of, checked = _form(form), scalar(loss)

    def measured(point: PyTree) -> tuple[Array, tuple]:
        return checked(point), ()

    # Unrolled: vmap over probes makes convolutions and matrix products of another shape, measured slower.
    results = [
        curvature_of(measured, params, trees.rademacher(probe_key, params))
        for probe_key in jax.random.split(key, num_probes)
    ]
    return results[0][0], jnp.mean(jnp.stack([curvature for _, _, curvature in results]))


def outputs_and_trace(
    network: Callable[[PyTree], tuple[PyTree, PyTree]],
    loss: Callable[[PyTree], Array],
    params: PyTree,
    key: Array,
    *,
    of: str = "hessian",
    form: str = "taylor",
) -> tuple[PyTree, PyTree, Float[Array, ""]]:
    """The network's outputs, and v' M v for a random sign vector v, an unbiased estimate of Tr M of loss(outputs).

    M is the Hessian H, or the Gauss-Newton matrix J' H_out J: J the Jacobian of the outputs, H_out the loss's Hessian
    in them. It is H without the network's own curvature; of cross-entropy it has no negative eigenvalue, and equals the
    Fisher matrix. v' J' H_out J v takes one directional derivative of the network, where v' H v takes two: a gradient
    through it costs about 2.65 plain gradients of floating-point operations, through the Hessian's about 4.3; of time,
    for ResNet-20 at batch 128 on 2 busy CPU cores, 1.8 and 3.0 with jax 0.10, 2.3 and 3.7 with jax 0.12
    (experiments/benchmarks/trace_forms.py).

    Of the Hessian it is `value_and_trace` with the network's own results, so that other losses of the same outputs take
    no second forward pass.

    Args:
        network: params -> (outputs, auxiliary results), arrays; it cannot branch in Python on a value.
        loss: outputs -> one floating-point number.
        params: tree of floating-point arrays.
        key: PRNG key of the probe; a fresh one at every training step.
        of: "hessian" or "gauss_newton".
        form: as for `value_and_trace`; of "gauss_newton", that of the loss in the outputs.

    Returns:
        (outputs, auxiliary results, trace estimate), differentiable in `params`.

    Raises:
        InputError: as for `value_and_trace`.

    Accuracy: products as in `value_and_trace`; equal to it with the same probe up to rounding, gradients too, in all
    forms, and of "gauss_newton" to the dense product in float64; tests/curvature/test_penalty.py.

    Source: as for `value_and_trace`; Schraudolph (2002) for the Gauss-Newton product.
    """
    check_params(params)
    check_key(key)
    check_callable(network, name="network")
    check_choice("of", of, MATRICES)
    checked, curvature_of, probe = scalar(loss), _form(form), trees.rademacher(key, params)

    def results_of(point: PyTree) -> tuple[PyTree, PyTree]:
        results = network(point)
        if not isinstance(results, tuple | list) or len(results) != 2:
            raise InputError("network returns no pair (outputs, auxiliary results); return (outputs, ()) for no others")
        return tuple(results)

    def measured(point: PyTree) -> tuple[Array, tuple[PyTree, PyTree]]:
        outputs, auxiliary = results_of(point)
        return checked(outputs), (outputs, auxiliary)

    if of == "gauss_newton":
        outputs, along, auxiliary = jax.jvp(results_of, (params,), (probe,), has_aux=True)
        return outputs, auxiliary, curvature_of(lambda point: (checked(point), ()), outputs, along)[2]
    _, (outputs, auxiliary), curvature = curvature_of(measured, params, probe)
    return outputs, auxiliary, curvature


# Each takes a function params -> (loss, other results), params and v, and gives (loss, other results, v' H v).


def _taylor(function: Callable, params: PyTree, probe: PyTree) -> tuple[Array, PyTree, Array]:
    (value, others), _, (curvature, _) = second_order(function, params, probe)
    return value, others, reverse_after_forward(curvature)


def _forward_over_forward(function: Callable, params: PyTree, probe: PyTree) -> tuple[Array, PyTree, Array]:
    def along(point: PyTree) -> tuple[Array, tuple[Array, PyTree]]:
        value, slope, others = jax.jvp(function, (point,), (probe,), has_aux=True)
        return slope, (value, others)

    _, curvature, (value, others) = jax.jvp(along, (params,), (probe,), has_aux=True)
    return value, others, reverse_after_forward(curvature)


def _jvp_of_grad(function: Callable, params: PyTree, probe: PyTree) -> tuple[Array, PyTree, Array]:
    def gradient(point: PyTree) -> tuple[PyTree, tuple[Array, PyTree]]:
        (value, others), slopes = jax.value_and_grad(function, has_aux=True)(point)
        return slopes, (value, others)

    _, product, (value, others) = jax.jvp(gradient, (params,), (probe,), has_aux=True)
    return value, others, trees.dot(probe, product)


FORMS: dict[str, Callable] = {
    "taylor": _taylor,
    "forward_over_forward": _forward_over_forward,
    "jvp_of_grad": _jvp_of_grad,
}


def _form(name: str) -> Callable:
    check_choice("form", name, FORMS)
    return FORMS[name]


def reverse_after_forward(curvature: Array) -> Array:
    """The curvature, unchanged, with a gradient that starts only when its value is known.

    The cotangent of the coefficient of t^2 depends on values at t = 0 alone. XLA would send it back through the network
    while the other coefficients still come forward, and keep what both need: on ResNet-20 with jax 0.10 that is 3.01
    times the memory of a plain gradient, and 2.88 with this. The factor is 1, or NaN if the curvature is: a constant 1
    would be folded away.
    """
    return curvature * jax.lax.stop_gradient(jnp.where(jnp.isnan(curvature), curvature, 1))
