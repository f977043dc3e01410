"""Fitted methods for use without JAX: as an ONNX graph, a PyTorch module, or a source file of NumPy alone.

A method's formula is written once, in its map. JAX traces that, and what it traced is handed on to ONNX and PyTorch
step by step, under JAX's names as far as they go. All is float32, as the maps are.
"""

import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from focalgeo import checks, files, formulas
from focalgeo.types import InputError, library

_ONNX = {  # names of steps that are not JAX's: "reduce_max" is ReduceMax
    "argmax": "ArgMax",
    "dot_general": "MatMul",
    "eq": "Equal",
    "floor_divide": "Div",
    "gt": "Greater",
    "le": "LessOrEqual",
    "lt": "Less",
}
_TORCH = {
    "and": "logical_and",
    "dot_general": "matmul",
    "gather": "take",
    "not": "logical_not",
    "or": "logical_or",
    "reduce_max": "amax",
    "reduce_min": "amin",
    "reduce_sum": "sum",
}
_REWRITTEN = {  # what ONNX has not, in what it has
    "convert_element_type": lambda x: x,
    "is_finite": lambda x: jnp.abs(x) < jnp.inf,
    "log1p": lambda x: jnp.where((u := 1 + x) == 1, x, jnp.log(u) * (x / (u - 1))),  # Kahan's
    "ne": lambda a, b: ~(a == b),
    "nextafter": lambda log_prob, _: log_prob * (1 + 2.0**-23) - 1e-37,  # or the number after the next
    "stop_gradient": lambda x: x,
}
_GIVE = "give a model, or its path, of opset 18 or later (onnx.version_converter makes it so)"
_NUMPY = '''\
"""{}: calibrated probabilities of a classifier's logits, by NumPy alone."""

CALIBRATOR = r"""
{}"""


def predict_proba(logits, group=None):
    """Probabilities [examples, classes] of logits of that shape; where each group has numbers, group names them."""
    if {classes} not in (None, logits.shape[-1]):
        raise ValueError(f"logits have shape {{logits.shape}}: give [examples, {classes}]")
{}    return probs
'''


def _log_probs(fitted, logits, add: Callable) -> Any:
    """The step that gives log-probabilities.

    add(name, *steps, **attributes) adds a step and returns it; add("constant", array=...) one of what is given.
    """
    checks.count("num_classes", fitted.num_classes, 2)
    if fitted.groups is not None:
        raise InputError("each group has a temperature of its own: export temperature_scaling of one group")
    row = jax.ShapeDtypeStruct((1, fitted.num_classes), np.float32)  # no step says how many there are
    with jax.disable_jit():  # so that searches among thresholds are unrolled
        return _added(partial(fitted.log_probs, fitted.params), [row], [logits], add)[0]


def _added(function, like, inputs, add):
    """The steps, or arrays, of its results."""
    traced = jax.make_jaxpr(function)(*like)
    variables = [*traced.jaxpr.constvars, *traced.jaxpr.invars]
    values = dict(zip(variables, [*traced.consts, *inputs], strict=True))
    for equation in traced.jaxpr.eqns:
        name, params, atoms = equation.primitive.name, equation.params, equation.invars
        arguments = [np.asarray(atom.val) if isinstance(atom, core.Literal) else values[atom] for atom in atoms]
        inner = _REWRITTEN.get(name) or getattr(params.get("_prim"), "expand", None)  # from jax 0.12 on, of searches
        if "call_jaxpr" in params:
            inner = core.jaxpr_as_fun(params["call_jaxpr"])
        if inner:
            results = _added(inner, [atom.aval for atom in atoms], arguments, add)
        elif all(map(_is_array, arguments)):
            found = equation.primitive.bind(*arguments, **params)
            results = found if equation.primitive.multiple_results else [found]
        else:
            steps = [add("constant", array=_plain(value)) if _is_array(value) else value for value in arguments]
            results = [_step(name.removesuffix("_to"), params, equation, steps, add)]
        values |= zip(equation.outvars, results, strict=True)
    return [values[variable] for variable in traced.jaxpr.outvars]


def _is_array(value):
    return hasattr(value, "dtype")


def _plain(value):
    """On the host; whole numbers as int64."""
    array = np.asarray(value)
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def _step(name, params, equation, steps, add):
    after = equation.outvars[0].aval
    match name:
        case "broadcast_in_dim":  # new axes alone: ONNX and PyTorch repeat along them as they need
            (step,), axes = steps, {*range(after.ndim)} - {*params["broadcast_dimensions"]}
            for axis in sorted(axes):
                step = add("unsqueeze", step, axes=axis)
            return step
        case "squeeze":
            return add(name, *steps, axes=params["dimensions"])
        case "argmax":
            return add(name, *steps, axis=params["axes"][0], keepdims=False)
        case "reduce_max" | "reduce_min" | "reduce_sum":
            return add(name, *steps, axes=params["axes"], keepdims=False)
        case "gather":  # numbers of a table
            step = add(name, *steps)
            return step if params["dimension_numbers"].offset_dims else add("squeeze", step, axes=(-1,))
        case "select_n":
            which, no, yes = steps
            return add("where", which, yes, no)
        case "div" if after.dtype != np.float32:
            return add("floor_divide", *steps)
    return add(name, *steps)


def to_onnx(fitted, classifier: Any = None) -> Any:
    """An onnx.ModelProto from "logits", float32 [n, classes], to "log_probs" and "probabilities".

    Write it by onnx.save. It needs the extra onnx, and a method whose `apply` JAX can trace. Outputs are those of
    `predict_log_proba` to 1e-6 in probability. For isotonic maps a few rows in 1,000 differ by up to 1e-4, as float32
    meets a step earlier or later; for matrix scaling it holds while scores stay below 100
    (tests/calibration/test_exports.py). A row with NaN becomes NaN.

    classifier: an onnx.ModelProto, or the path of one, of opset 18 or later, whose first output is its logits, float32
    [n, classes]. The result is then a copy of the classifier with the two as further outputs.

    Example:
        >>> model = calibration.fit("temperature_scaling", scores, drawn).to_onnx()
        >>> [output.name for output in model.graph.output]
        ['log_probs', 'probabilities']
    """
    onnx = library("onnx")
    helper, model, source = onnx.helper, onnx.ModelProto(), "logits"
    rows = partial(helper.make_tensor_value_info, elem_type=1, shape=("n", fitted.num_classes))
    if classifier is None:
        graph = helper.make_graph([], fitted.method.name, [rows(source)], [])
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    else:
        with files.reading("the classifier", _GIVE):
            model.CopyFrom(classifier if isinstance(classifier, onnx.ModelProto) else onnx.load(classifier))
        checks.count("the number of the classifier's outputs", len(model.graph.output), 1)
        output = model.graph.output[0]
        source = output.name
        makers = [node.op_type for node in model.graph.node if source in node.output]
        if {*makers} & {"LogSoftmax", "Sigmoid", "Softmax"}:
            raise InputError(f"the classifier's first output is made by {makers[0]}: give one whose output is logits")
        tensor = output.type.tensor_type
        if [tensor.elem_type, *(dim.dim_value for dim in tensor.shape.dim[1:])] != [1, fitted.num_classes]:
            needed = f"FLOAT, [n, {fitted.num_classes}]"
            raise InputError(f"the classifier's first output is {helper.printable_value_info(output)}: give {needed}")
    graph = model.graph

    def add(name, *steps, output=None, **attributes):
        inputs = [*steps]
        if "axes" in attributes:
            inputs.append(add("constant", value_ints=np.ravel(attributes.pop("axes"))))
        if "array" in attributes:
            attributes = {"value": onnx.numpy_helper.from_array(attributes["array"])}
        output = output or f"calibrator/{name}_{len(graph.node)}"
        kind = _ONNX.get(name, name.title().replace("_", ""))
        graph.node.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    log_probs = _log_probs(fitted, source, add)
    for name, output in (("identity", "log_probs"), ("exp", "probabilities")):
        graph.output.append(rows(add(name, log_probs, output=output)))
    with files.reading("the classifier with these steps", _GIVE):
        onnx.checker.check_model(model, full_check=True)
    return model


def to_torch(fitted) -> Any:
    """A torch.nn.Module from logits [n, classes] to log-probabilities in float32, as near to ours as `to_onnx`.

    It is a torch.fx.GraphModule, whose numbers are buffers: without focalgeo it can be saved, compiled and moved to a
    device, and gradients pass. It needs the extra torch.

    Example:
        >>> import torch
        >>> module = calibration.fit("temperature_scaling", scores, drawn).to_torch()
        >>> tuple(module(torch.ones(2, 3)).shape)
        (2, 3)
    """
    torch = library("torch")
    buffers, graph = {}, torch.fx.Graph()

    def add(name, *steps, **attributes):
        if name == "constant":
            name = f"number_{len(buffers)}"
            buffers[name] = torch.tensor(attributes["array"])
            return graph.get_attr(name)
        if not (function := getattr(torch, _TORCH.get(name, name), None)):
            raise InputError(f"PyTorch has no step {name}, of {fitted.method.name}: take to_onnx")
        return graph.call_function(function, (*steps, *attributes.values()))

    logits = graph.call_method("float", (graph.placeholder("logits"),))
    graph.output(_log_probs(fitted, logits, add))
    return torch.fx.GraphModule(buffers, graph, fitted.method.name)


def to_numpy(fitted) -> str:
    """The text of a source file with predict_proba(logits, group=None), which needs NumPy alone.

    It computes in float64, so that from `predict_proba` it differs by what float32 rounds there: up to 1e-5.

    Example:
        >>> text = calibration.fit("temperature_scaling", scores, drawn).to_numpy()
        >>> known = {}
        >>> exec(text, known)  # as the file would be imported
        >>> print(known["predict_proba"](np.zeros((1, 3))).round(4))
        [[0.3333 0.3333 0.3333]]
    """
    name = fitted.method.name
    text = formulas.text(name, zeros=fitted.fills_zeros)
    if not text:
        raise InputError(f"{name} has no lines of NumPy alone: take to_onnx or to_torch")
    lines = textwrap.indent(text.replace(formulas.CALIBRATOR, "CALIBRATOR"), "    ")
    return _NUMPY.format(fitted.method.title, fitted.to_json(), lines, classes=fitted.num_classes)
