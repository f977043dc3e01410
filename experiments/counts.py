"""The floating-point operations that a computation asks for, counted from its jaxpr before any compiler sees it."""

import math
from collections.abc import Callable
from typing import Any

import jax

from focalgeo import parallel


def product_flops(function: Callable, *arguments: Any) -> int:
    """Operations of all matrix products and convolutions of function(*arguments), two for each multiplication.

    The arguments are arrays or their shapes; nothing runs. Positions that a stride leaves out count for nothing, those
    of zero padding count as others. A scan's body counts once for each of its steps, of a condition's branches the
    costliest counts, a while loop's body counts once. Everything else (sums, norms, activations) counts for nothing.
    """
    made = jax.make_jaxpr(function, axis_env=[(parallel.AXIS, 1)])(*arguments)
    return _of_jaxpr(made.jaxpr)


def _of_jaxpr(jaxpr: Any) -> int:
    return sum(map(_of_equation, jaxpr.eqns))


def _of_equation(equation: Any) -> int:
    name, parameters = equation.primitive.name, equation.params
    if name == "dot_general":
        return _of_dot(equation)
    if name == "conv_general_dilated":
        return _of_convolution(equation)
    if name == "cond":
        return max(_of_jaxpr(branch.jaxpr) for branch in parameters["branches"])
    inner = [getattr(each, "jaxpr", each) for each in parameters.values()]
    times = parameters["length"] if name == "scan" else 1
    return times * sum(_of_jaxpr(each) for each in inner if hasattr(each, "eqns"))


def _of_dot(equation: Any) -> int:
    left = equation.invars[0].aval.shape
    (contracted, _), _ = equation.params["dimension_numbers"]
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)


def _of_convolution(equation: Any) -> int:
    kernel, out = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
    axes = equation.params["dimension_numbers"].rhs_spec  # output features, input features of a group, window
    each = kernel[axes[1]] * math.prod(kernel[axis] for axis in axes[2:])
    return 2 * math.prod(out) * each // math.prod(equation.params["lhs_dilation"])
