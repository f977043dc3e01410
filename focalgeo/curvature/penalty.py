"""The Hessian trace as a term of a training loss: v' H v by jvp of grad, or by a form that is cheaper to train with."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from focalgeo import checks, trees
from focalgeo.curvature.products import forward_derivative
from focalgeo.types import Array, PyTree

MATRICES = ("hessian", "gauss_newton", "scale_free")
_NO_RULE = "the function calls a jax.custom_vjp, which has no forward derivative; make it a jax.custom_jvp"
# Each probe is one more forward pass of second order in the program.
MOST_PROBES = 100


def value_and_trace(
    loss: Callable[[PyTree], Array], params: PyTree, key: Array | int, *, num_probes: int = 1, form: str = "jvp_of_grad"
) -> tuple[Array, Array]:
    """The loss and the mean of v' H v over `num_probes` random sign vectors v, an unbiased estimate of Tr H.

    v' H v is the second derivative of t -> loss(params + t v) at 0. `form` says how it is computed, which changes time
    and memory and nothing else: "jvp_of_grad" is the textbook's v . jvp(grad loss)(v), and "jvp_of_jvp" the second
    derivative along v itself, with no gradient in it: cheaper to differentiate, above all through convolutions.

    Args:
        loss: params -> one floating-point number; as under `jax.jit`, it cannot branch in Python on a value.
        params: tree of floating-point arrays.
        key: PRNG key, or a seed, of the probes; a fresh one at every training step.
        num_probes: 1 to 100; time, memory and compilation grow with it.
        form: "jvp_of_grad" or "jvp_of_jvp".

    Returns:
        (loss value, trace estimate), scalars, in the unit of the loss; differentiable in `params`.

    Raises:
        InputError: num_probes or form out of range; else as for `hvp`.

    Accuracy: a term of training, its products have the precision in force (`jax.default_matmul_precision`). All forms
    equal up to rounding, also their gradients, and equal to the exact trace in the mean over all sign vectors;
    tests/curvature/test_penalty.py.

    Source: Kimura and Naganuma, Geometric Insights into Focal Loss, Eq. 33; probes of Hutchinson (1990).

    Example:
        >>> value, trace = curvature.value_and_trace(loss, params, key)
        >>> float(value), float(trace) in (7, 11)  # by the probe's signs; the trace is 9
        (3.875, True)
    """
    key = checks.prng_key(key)
    num_probes = checks.count("num_probes", num_probes, 1, MOST_PROBES)
    checks.check_function("loss", loss)
    # Unrolled: vmap over probes makes convolutions and matrix products of another shape, measured slower.
    results = [
        outputs_and_trace(lambda point: (loss(point), ()), lambda value: value, params, probe_key, form=form)
        for probe_key in jax.random.split(key, num_probes)
    ]
    return results[0][0], jnp.mean(jnp.stack([curvature for _, _, curvature in results]))


def with_trace_penalty(loss: Callable[..., Array], weight: float | Array) -> Callable[..., Array]:
    """The function (params, key, *inputs) -> loss(params, *inputs) + weight v' H v, with v' H v of `value_and_trace`.

    In a training loop it replaces the loss, `jax.value_and_grad(with_trace_penalty(loss, 1e-3))`, and takes a
    fresh key at every step. Where the trace is that of another loss than the one trained with, call `value_and_trace`.

    Args:
        loss: (params, *inputs) -> one floating-point number.
        weight: a number; it may be traced.

    Source, accuracy: as for `value_and_trace`; tests/curvature/test_penalty.py.

    Example:
        >>> squares = lambda params: 2 * params["w"] @ params["w"]  # 4, and its Hessian's trace is 8
        >>> penalised = curvature.with_trace_penalty(squares, 0.1)
        >>> round(float(penalised(params, key)), 4)
        4.8
    """
    checks.check_function("loss", loss)
    checks.check_finite("weight", checks.number_array("weight", weight, ()))

    def penalised(params, key, *inputs):
        value, trace = value_and_trace(lambda point: loss(point, *inputs), params, key)
        return value + weight * trace

    return penalised


def outputs_and_trace(
    network: Callable[[PyTree], tuple[PyTree, PyTree]],
    loss: Callable[[PyTree], Array],
    params: PyTree,
    key: Array | int,
    *,
    of: str = "hessian",
    form: str = "jvp_of_grad",
) -> tuple[PyTree, PyTree, Array]:
    """The network's outputs, and v' M v for a random sign vector v, an unbiased estimate of Tr M of loss(outputs).

    M is the Hessian H, or the Gauss-Newton matrix J' H_out J: J the Jacobian of the outputs, H_out the loss's Hessian
    in them. It is H without the network's own curvature; of cross-entropy it has no negative eigenvalue, and equals the
    Fisher matrix. v' J' H_out J v takes one directional derivative of the network, where v' H v takes two: a gradient
    through it costs about 2.65 plain gradients of floating-point operations, through the Hessian's about 4.3
    (experiments/accelerators).

    For the Hessian it is `value_and_trace` with the network's own results, so that other losses of the same outputs
    take no second forward pass.

    Args:
        network: params -> (outputs, auxiliary results), arrays; it cannot branch in Python on a value.
        loss: outputs -> one floating-point number.
        params: tree of floating-point arrays.
        key: PRNG key, or a seed, of the probe; a fresh one at every training step.
        of: "hessian", "gauss_newton" or "scale_free": the Hessian between two diagonals of the parameters, of trace
            sum_i theta_i^2 H_ii, which does not change when one layer is multiplied and the next divided.
        form: as for `value_and_trace`; of "gauss_newton", that of the loss in the outputs.

    Returns:
        (outputs, auxiliary results, trace estimate), differentiable in `params`.

    Raises:
        InputError: as for `value_and_trace`.

    Accuracy: products as in `value_and_trace`; equal to it with the same probe up to rounding, gradients too, in all
    forms, of "gauss_newton" to the dense product in float64 and of "scale_free" to the dense trace in the mean over
    probes; tests/curvature/test_penalty.py.

    Source: as for `value_and_trace`; Schraudolph (2002) for the Gauss-Newton product; Kwon et al., ASAM (2021) for the
    elementwise scale.

    Example:
        >>> network, squares = lambda params: (params["w"] ** 2, ()), lambda z: jnp.sum(z**2)
        >>> [float(curvature.outputs_and_trace(network, squares, params, key, of=of)[2])
        ...     for of in ("hessian", "gauss_newton")]
        [24.0, 16.0]
    """
    checks.check_params("params", params)
    key = checks.prng_key(key)
    checks.check_choice("of", of, MATRICES)
    checks.check_choice("form", form, FORMS)
    loss, curvature_of, probe = checks.scalar(loss), FORMS[form], trees.rademacher(key, params)
    if of == "scale_free":
        probe = jax.tree.map(jnp.multiply, probe, params)
    if of == "gauss_newton":
        outputs, along, auxiliary = jax.jvp(network, (params,), (probe,), has_aux=True)
        return outputs, auxiliary, curvature_of(lambda point: (loss(point), ()), outputs, along)[2]

    def measured(point):
        outputs, auxiliary = network(point)
        return loss(outputs), (outputs, auxiliary)

    _, (outputs, auxiliary), curvature = curvature_of(measured, params, probe)
    return outputs, auxiliary, curvature


def second_order(function: Callable[[PyTree], PyTree], params: PyTree, probe: PyTree) -> tuple[PyTree, PyTree, PyTree]:
    """function(params + t probe) and its first and second derivatives in t at t = 0, by jvp of jvp.

    Raises:
        InputError: the function calls a `jax.custom_vjp`, which has no forward derivative.
    """

    def along(point):
        return jax.jvp(function, (point,), (probe,))

    with forward_derivative(_NO_RULE):
        (value, first), (_, second) = jax.jvp(along, (params,), (probe,))
    return value, first, second


# Each takes a function params -> (loss, other results), params and v, and gives (loss, other results, v' H v).


def _jvp_of_grad(function, params, probe):
    def gradient(point):
        (value, others), slopes = jax.value_and_grad(function, has_aux=True)(point)
        return slopes, (value, others)

    with forward_derivative(_NO_RULE):
        _, product, (value, others) = jax.jvp(gradient, (params,), (probe,), has_aux=True)
    return value, others, trees.dot(probe, product)


def _jvp_of_jvp(function, params, probe):
    (value, others), _, (curvature, _) = second_order(function, params, probe)
    return value, others, reverse_after_forward(curvature)


FORMS: dict[str, Callable] = {"jvp_of_grad": _jvp_of_grad, "jvp_of_jvp": _jvp_of_jvp}


def reverse_after_forward(curvature: Array) -> Array:
    """The curvature, unchanged, with a gradient that starts only when its value is known.

    The cotangent of the second derivative depends on values at t = 0 alone. XLA would send it back through the network
    while the derivatives still come forward, and keep what both need: on ResNet-20 with jax 0.10 that is 3.01
    times the memory of a plain gradient, and 2.88 with this. The factor is 1, or NaN if the curvature is: a constant 1
    would be folded away.
    """
    return curvature * jax.lax.stop_gradient(jnp.where(jnp.isnan(curvature), curvature, 1))
