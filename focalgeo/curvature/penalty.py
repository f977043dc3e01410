"""The Hessian trace as a term of a training loss, built so that a gradient through it stays cheap.

It is the second derivative of the loss along a line, by Taylor propagation through the loss's equations.
"""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jax.extend.core.primitives import conv_general_dilated_p, custom_vjp_call_p, dot_general_p, jit_p, mul_p

from focalgeo import checks, trees
from focalgeo.types import Array, InputError, PyTree

MATRICES = ("hessian", "gauss_newton", "scale_free")
MOST_PROBES = 100  # each is one more forward pass of second order in the program


def value_and_trace(
    loss: Callable[[PyTree], Array], params: PyTree, key: Array | int, *, num_probes: int = 1, form: str = "taylor"
) -> tuple[Array, Array]:
    """The loss and the mean of v' H v over `num_probes` random sign vectors v, an unbiased estimate of Tr H.

    v' H v is the second derivative of t -> loss(params + t v) at 0. `form` says how it is computed, which changes the
    time and nothing else: "jvp_of_grad" is the textbook's v . jvp(grad loss)(v), and "taylor" is the
    second derivative itself, with no gradient in it and every product formed once (see `second_order`).

    Args:
        loss: params -> one floating-point number; as under `jax.jit`, it cannot branch in Python on a value.
        params: tree of floating-point arrays.
        key: PRNG key, or a seed, of the probes; a fresh one at every training step.
        num_probes: 1 to 100; time, memory and compilation grow with it.
        form: "taylor" or "jvp_of_grad".

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
    """The function (params, key, *inputs) -> loss(params, *inputs) + weight v' H v, v' H v as of `value_and_trace`.

    In a training loop it stands where the loss stood, `jax.value_and_grad(with_trace_penalty(loss, 1e-3))`, and takes a
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
    checks.number_array("weight", weight, ())

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
    form: str = "taylor",
) -> tuple[PyTree, PyTree, Array]:
    """The network's outputs, and v' M v for a random sign vector v, an unbiased estimate of Tr M of loss(outputs).

    M is the Hessian H, or the Gauss-Newton matrix J' H_out J: J the Jacobian of the outputs, H_out the loss's Hessian
    in them. It is H without the network's own curvature; of cross-entropy it has no negative eigenvalue, and equals the
    Fisher matrix. v' J' H_out J v takes one directional derivative of the network, where v' H v takes two: a gradient
    through it costs about 2.65 plain gradients of floating-point operations, through the Hessian's about 4.3
    (experiments/accelerators).

    Of the Hessian it is `value_and_trace` with the network's own results, so that other losses of the same outputs take
    no second forward pass.

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


# Each takes a function params -> (loss, other results), params and v, and gives (loss, other results, v' H v).


def _taylor(function, params, probe):
    (value, others), _, (curvature, _) = second_order(function, params, probe)
    return value, others, reverse_after_forward(curvature)


def _jvp_of_grad(function, params, probe):
    def gradient(point):
        (value, others), slopes = jax.value_and_grad(function, has_aux=True)(point)
        return slopes, (value, others)

    _, product, (value, others) = jax.jvp(gradient, (params,), (probe,), has_aux=True)
    return value, others, trees.dot(probe, product)


FORMS: dict[str, Callable] = {"taylor": _taylor, "jvp_of_grad": _jvp_of_grad}


def reverse_after_forward(curvature: Array) -> Array:
    """The curvature, unchanged, with a gradient that starts only when its value is known.

    The cotangent of the coefficient of t^2 depends on values at t = 0 alone. XLA would send it back through the network
    while the other coefficients still come forward, and keep what both need: on ResNet-20 with jax 0.10 that is 3.01
    times the memory of a plain gradient, and 2.88 with this. The factor is 1, or NaN if the curvature is: a constant 1
    would be folded away.
    """
    return curvature * jax.lax.stop_gradient(jnp.where(jnp.isnan(curvature), curvature, 1))


CONTRACTIONS = frozenset({dot_general_p, conv_general_dilated_p})
BILINEAR = CONTRACTIONS | {mul_p}


class Series(NamedTuple):
    """value + first t + second t^2; None is a coefficient known to be zero, which costs nothing."""

    value: Array
    first: Array | None = None
    second: Array | None = None


def second_order(function: Callable[[PyTree], PyTree], params: PyTree, probe: PyTree) -> tuple[PyTree, PyTree, PyTree]:
    """function(params + t probe) and its first and second derivatives in t, at t = 0.

    Every equation of the function takes and gives the coefficients of 1, t and t^2. The last one of a product u v is
    u0 v2 + u1 v1 + u2 v0, where jvp of jvp forms u1 v1 twice; reverse mode through the result saves as much again.
    Every other equation alone is differentiated by jvp of jvp: rules of `jax.custom_jvp` hold as they do there, and
    scans, loops, branches and `jax.checkpoint` stay what they are.

    Gain, as the gradient of a loss plus its trace in plain gradients of time, all in one run on 2 CPU cores with jax
    0.10.2: ResNet-20 (batch 32) 2.42, jvp of jvp 2.76, jvp of grad 10.4; an MLP of 669,706 parameters (batch 256) 2.58,
    2.91 and 3.70. The memory is that of jvp of jvp, and so is the processor time of compiling: 16.8 s against 16.5 s,
    and 21.3 s for jvp of grad, on a residual network of 3 blocks; 3.6 s against 3.4 s and 3.6 s on the MLP.

    Args:
        function: params -> tree of arrays, traced as by `jax.jit`: it cannot branch in Python on a value.
        params: tree of floating-point arrays.
        probe: tree of the same structure, shapes and dtypes.

    Returns:
        (value, first derivative, second derivative), trees like what `function` returns, differentiable in `params` and
        in what `function` closes over; as in `jax.jvp`, the derivatives of what is not floating are of dtype float0.

    Raises:
        InputError: the function calls a `jax.custom_vjp`, which has no forward derivative.

    Accuracy: equal to `jax.jvp` of `jax.jvp` up to rounding, gradients through it too; tests/curvature/test_penalty.py.

    Source: Griewank and Walther, Evaluating Derivatives (2008), chapter 13; Bettencourt, Johnson and Duvenaud,
    Taylor-mode automatic differentiation for higher-order derivatives in JAX (2019).
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(params)
    inputs = [Series(*pair) for pair in zip(jax.tree.leaves(params), jax.tree.leaves(probe), strict=True)]
    shapes, structure = jax.tree.flatten(shapes)
    outputs = map(_derivatives, _evaluate(closed, inputs), shapes)
    value, first, second = (structure.unflatten(leaves) for leaves in zip(*outputs, strict=True))
    return value, first, second


# jax.experimental.jet is the same idea at any order, but it has no rules for custom_jvp (relu), scan, cond, checkpoint,
# psum or max pooling, in jax 0.10 and 0.12.
def _evaluate(closed: ClosedJaxpr, inputs: list[Series]) -> list[Series]:
    jaxpr, series = closed.jaxpr, [*map(Series, closed.consts), *inputs]
    known = dict(zip(jaxpr.constvars + jaxpr.invars, series, strict=True))

    def read(atom):
        return Series(atom.val) if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        outputs = _propagate(equation, [read(atom) for atom in equation.invars])
        known |= zip(equation.outvars, outputs, strict=True)
    return [read(atom) for atom in jaxpr.outvars]


def _propagate(equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
    def apply(*values):
        outputs = equation.primitive.bind(*values, **equation.primitive.get_bind_params(equation.params))
        return list(outputs) if equation.primitive.multiple_results else [outputs]

    if all(series.first is None for series in inputs):
        return [Series(value) for value in apply(*[series.value for series in inputs])]
    if equation.primitive is jit_p:
        return _evaluate(equation.params["jaxpr"], inputs)
    if equation.primitive in BILINEAR:
        factors = map(_behind_barriers, inputs) if equation.primitive in CONTRACTIONS else inputs
        return [_product(lambda u, v: apply(u, v)[0], *factors)]
    if equation.primitive is custom_vjp_call_p:
        raise InputError(
            "the function calls a jax.custom_vjp, which has no forward derivative; make it a jax.custom_jvp"
        )
    return _twice_forward(equation, apply, inputs)


def _behind_barriers(series: Series) -> Series:
    """The series, stored as arrays before a product and its derivatives read them.

    Without it XLA's CPU compiler of jax 0.12 computes a layer's input again, from all residual blocks before it, for
    the product's derivative in its other factor. With jax 0.10 on CPU it does nothing: barriers go early there.
    Each coefficient has its own: the derivative of a joint one would make zero coefficients count as arrays.
    """
    return Series(*[part if part is None else jax.lax.optimization_barrier(part) for part in series])


def _product(times: Callable, u: Series, v: Series) -> Series:
    def terms(*pairs):
        products = [times(left, right) for left, right in pairs if left is not None and right is not None]
        return sum(products[1:], products[0]) if products else None

    first = terms((u.value, v.first), (u.first, v.value))
    second = terms((u.value, v.second), (u.first, v.first), (u.second, v.value))
    return Series(times(u.value, v.value), first, second)


def _twice_forward(equation: JaxprEqn, apply: Callable, inputs: list[Series]) -> list[Series]:
    """The equation's outputs by jvp of jvp.

    A coefficient that depends on no input is zero: where x1 and x2 are scaled by s and s^2, so are y1 and y2.
    """
    floating = [jnp.issubdtype(variable.aval.dtype, jnp.inexact) for variable in equation.outvars]
    derivatives = functools.partial(_jvp_of_jvp, apply, floating)
    closed, shapes = jax.make_jaxpr(derivatives, return_shape=True)(inputs)
    structure = jax.tree.structure(shapes)
    outputs = structure.unflatten(jaxpr_as_fun(closed)(*jax.tree.leaves(inputs)))
    known = structure.unflatten(_depend_on_inputs(closed.jaxpr))
    return [
        Series(series.value, series.first if flags.first else None, series.second if flags.second else None)
        for series, flags in zip(outputs, known, strict=True)
    ]


def _jvp_of_jvp(apply: Callable, floating: list[bool], inputs: list[Series]) -> list[Series]:
    moving = {index: series for index, series in enumerate(inputs) if series.first is not None}
    values, firsts = ({index: getattr(series, name) for index, series in moving.items()} for name in ("value", "first"))
    seconds = {index: series.second for index, series in enumerate(inputs) if series.second is not None}

    def outputs(values):
        results = apply(*[values.get(index, series.value) for index, series in enumerate(inputs)])
        return list(itertools.compress(results, floating)), results

    def along(values, varying):
        _, slopes, results = jax.jvp(outputs, (values,), (firsts | varying,), has_aux=True)
        return slopes, results

    varying = {index: firsts[index] for index in seconds}  # the first coefficients that change with t themselves
    # The coefficient of t^2 is half the second derivative: f'' x1 x1 / 2 + f' x2.
    halves = jax.tree.map(lambda first: first / 2, firsts)
    slopes, curvatures, results = jax.jvp(along, (values, varying), (halves, seconds), has_aux=True)
    pairs = zip(slopes, curvatures, strict=True)
    return [Series(value, *(next(pairs) if smooth else ())) for value, smooth in zip(results, floating, strict=True)]


def _depend_on_inputs(jaxpr: Jaxpr) -> list[bool]:
    reached = set(jaxpr.invars)

    def depends(atom):
        return not isinstance(atom, Literal) and atom in reached

    for equation in jaxpr.eqns:
        if any(map(depends, equation.invars)):
            reached.update(equation.outvars)
    return [depends(atom) for atom in jaxpr.outvars]


def _derivatives(series: Series, like: jax.ShapeDtypeStruct) -> Series:
    if not jnp.issubdtype(like.dtype, jnp.inexact):
        zero = np.zeros(like.shape, jax.dtypes.float0)
        return Series(series.value, zero, zero)
    parts = (series.first, series.second)
    first, second = (jnp.zeros(like.shape, like.dtype) if part is None else part for part in parts)
    return Series(jnp.asarray(series.value, like.dtype), first, 2 * second)
