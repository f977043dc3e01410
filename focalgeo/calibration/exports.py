"""Fitted methods for use without JAX: as an ONNX graph, a PyTorch module, or a source file of NumPy alone.

A method's formula is written once, in its map. JAX traces that for any number of rows, and what it traced is written
down as steps in ONNX's words, with NumPy's rules for shapes; ONNX and PyTorch take the steps one by one. All is
float32, as the maps are.
"""

import importlib
import json
import os
import textwrap
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend import core

from focalgeo import files, formulas
from focalgeo.types import InputError

_IR_VERSION, _OPSET, _OLDEST_OPSET = 10, 18, 13  # of ONNX
_FLOAT, _INT, _BOOL = np.dtype(np.float32), np.dtype(np.int64), np.dtype(bool)
_AS_INPUTS = ("shape", "starts", "ends", "axes")  # attributes here that ONNX has as arrays
_NUMPY = '''\
"""{}: calibrated probabilities of a classifier's logits, by NumPy alone."""

CALIBRATOR = {!r}


def predict_proba(logits, group=None):
    """Probabilities [examples, classes] of logits of that shape; where each group has numbers, group names them."""
{}    return probs
'''
_SAME = {  # JAX's primitives that ONNX has
    "abs": "Abs",
    "add": "Add",
    "and": "And",
    "eq": "Equal",
    "exp": "Exp",
    "gt": "Greater",
    "le": "LessOrEqual",
    "le_to": "LessOrEqual",
    "log": "Log",
    "lt": "Less",
    "lt_to": "Less",
    "max": "Max",
    "min": "Min",
    "mul": "Mul",
    "neg": "Neg",
    "not": "Not",
    "or": "Or",
    "sign": "Sign",
    "sub": "Sub",
}
_IN_TORCH = {  # of the steps' names that are not PyTorch's in small letters
    "And": "logical_and",
    "Concat": "cat",
    "Equal": "eq",
    "Gather": "take",
    "LessOrEqual": "less_equal",
    "Max": "maximum",
    "Min": "minimum",
    "Not": "logical_not",
    "Or": "logical_or",
    "ReduceMax": "amax",
    "ReduceSum": "sum",
    "Slice": "narrow",
    "Transpose": "permute",
}


class _Steps(dict):
    """Steps in order, each once: (name, numbers of the steps that it takes, attributes) -> its own number.

    Its methods take numbers of steps, or arrays for what does not depend on the input.
    """

    def add(self, name, *values, **attributes):
        """A step's number."""
        inputs = tuple(self.constant(value) if isinstance(value, np.ndarray) else value for value in values)
        return self.setdefault((name, inputs, tuple(attributes.items())), len(self))

    def constant(self, array):
        array = array.astype(_kind(array.dtype))
        return self.add("Constant", dtype=array.dtype, shape=array.shape, content=array.tobytes())

    def cast(self, value, dtype):
        return self.add("Cast", value, to=dtype)

    def reshaped(self, value, shape):
        """The axis of the rows, if there is one, is that whose size is no number."""
        shape = tuple(size if isinstance(size, int) else -1 for size in shape)
        return value.reshape(shape) if isinstance(value, np.ndarray) else self.add("Reshape", value, shape=shape)

    def traced(self, jaxpr, constants, inputs):
        """The results of a jaxpr; what depends on no input is computed at once."""
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*map(np.asarray, constants), *inputs], strict=True))
        for equation in jaxpr.eqns:
            arguments = [
                np.asarray(atom.val) if isinstance(atom, core.Literal) else values[atom] for atom in equation.invars
            ]
            values |= zip(equation.outvars, self.equation(equation, arguments), strict=True)
        return [values[variable] for variable in jaxpr.outvars]

    def equation(self, equation, arguments):
        name, params = equation.primitive.name, equation.params
        inner = params.get("jaxpr") or params.get("call_jaxpr")
        if name == "scan":  # a search among thresholds, halved a fixed number of times
            constants, carried = arguments[: params["num_consts"]], arguments[params["num_consts"] :]
            for _ in range(params["length"]):
                carried = self.traced(inner.jaxpr, inner.consts, [*constants, *carried])
            return carried
        if inner:
            return self.traced(inner.jaxpr, inner.consts, arguments)
        if name == "broadcast_in_dim":
            return [self.broadcast(equation, *arguments)]
        if all(isinstance(value, np.ndarray) for value in arguments):
            return [np.asarray(equation.primitive.bind(*arguments, **params))]
        if name in _SAME:
            return [self.add(_SAME[name], *arguments)]
        if name not in _RULES:
            raise InputError(f"the method takes {name!r}, which has no export: write its map without")
        return [_RULES[name](self, equation, *arguments)]

    def broadcast(self, equation, value):
        before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
        shape, full = [1] * len(after), [size if isinstance(size, int) else 1 for size in after]
        for axis, size in zip(equation.params["broadcast_dimensions"], before, strict=True):
            shape[axis] = size
        if isinstance(value, np.ndarray):  # along the rows one is enough
            return np.broadcast_to(value.reshape([size if isinstance(size, int) else 1 for size in shape]), full)
        value = self.reshaped(value, shape) if len(shape) > len(before) else value
        if shape == [*after]:
            return value
        ever = np.ones(full, bool)
        return (
            self.add("And", ever, value)
            if equation.outvars[0].aval.dtype == bool
            else self.add("Where", ever, value, value)
        )


def _kind(dtype):
    """Float32, or of what is not float int64 or bool."""
    return _FLOAT if np.issubdtype(dtype, np.floating) else _BOOL if dtype == bool else _INT


def _array(dtype, shape, content):
    return np.frombuffer(content, dtype).reshape(shape).copy()


def _reshape(steps, equation, value):
    return steps.reshaped(value, equation.outvars[0].aval.shape)


def _log1p(steps, equation, x):
    """Log(1 + x), without cancellation: log(u) x / (u - 1) with u = 1 + x rounded (Kahan)."""
    one = np.ones((), _FLOAT)
    u = steps.add("Add", x, one)
    quotient = steps.add("Div", x, steps.add("Sub", u, one))
    return steps.add("Where", steps.add("Equal", u, one), x, steps.add("Mul", steps.add("Log", u), quotient))


def _below(steps, equation, x, _):
    """The next number below a log-probability, or the next but one."""
    limits = np.finfo(_FLOAT)
    return steps.add("Sub", steps.add("Mul", x, np.array(1 + limits.eps)), np.array(limits.tiny))


def _divided(steps, equation, a, b):
    if _kind(equation.outvars[0].aval.dtype) == _FLOAT:
        return steps.add("Div", a, b)
    return steps.cast(steps.add("Div", steps.cast(a, _FLOAT), steps.cast(b, _FLOAT)), _INT)


def _any(steps, equation, value):
    return steps.cast(_reduced("ReduceMax", steps, equation, steps.cast(value, _FLOAT)), _BOOL)


def _all(steps, equation, value):
    return steps.add("Not", _any(steps, equation, steps.add("Not", value)))


def _reduced(name, steps, equation, value):
    return steps.add(name, value, axes=tuple(equation.params["axes"]), keepdims=False)


def _stacked(steps, equation, *values):
    """Along a new axis; a constant among the values gets as many rows as the others have."""
    axis, shape = equation.params["axis"], list(equation.outvars[0].aval.shape)
    (like, *_) = (value for value in values if not isinstance(value, np.ndarray))
    ever = steps.add("Equal", like, like)
    values = [steps.add("Where", ever, value, value) if isinstance(value, np.ndarray) else value for value in values]
    shape[axis] = 1
    return steps.add("Concat", *(steps.reshaped(value, shape) for value in values), axis=axis)


def _slice(steps, equation, value):
    for axis, (start, end) in enumerate(
        zip(equation.params["start_indices"], equation.params["limit_indices"], strict=True)
    ):
        if isinstance(end, int) and (start, end) != (0, equation.invars[0].aval.shape[axis]):
            value = steps.add("Slice", value, starts=(start,), ends=(end,), axes=(axis,))
    return value


def _gather(steps, equation, table, index):
    """A number of a table for each index, or one column of all rows."""
    if isinstance(table, np.ndarray):
        return steps.add("Gather", table, _reshape(steps, equation, index))
    (column,), (axis,) = index.tolist(), equation.params["dimension_numbers"].start_index_map
    return _reshape(steps, equation, steps.add("Slice", table, starts=(column,), ends=(column + 1,), axes=(axis,)))


def _product(steps, equation, left, right):
    ((_, (axis,)), _) = equation.params["dimension_numbers"]
    return steps.add("MatMul", left, right if axis == 0 else right.T)


_RULES: dict[str, Callable] = {
    "argmax": lambda steps, equation, x: steps.add("ArgMax", x, axis=equation.params["axes"][0], keepdims=False),
    "convert_element_type": lambda steps, equation, x: steps.cast(x, _kind(equation.outvars[0].aval.dtype)),
    "div": _divided,
    "dot_general": _product,
    "gather": _gather,
    "integer_pow": lambda steps, equation, x: reduce(partial(steps.add, "Mul"), [x] * equation.params["y"]),
    "is_finite": lambda steps, equation, x: steps.add("Less", steps.add("Abs", x), np.array(np.inf)),
    "log1p": _log1p,
    "ne": lambda steps, equation, a, b: steps.add("Not", steps.add("Equal", a, b)),
    "nextafter": _below,
    "reduce_and": _all,
    "reduce_max": partial(_reduced, "ReduceMax"),
    "reduce_or": _any,
    "reduce_sum": partial(_reduced, "ReduceSum"),
    "reshape": _reshape,
    "select_n": lambda steps, equation, which, no, yes: steps.add("Where", which, yes, no),
    "slice": _slice,
    "squeeze": _reshape,
    "stack": _stacked,
    "stop_gradient": lambda steps, equation, x: x,
    "transpose": lambda steps, equation, x: steps.add("Transpose", x, perm=tuple(equation.params["permutation"])),
}


def _steps(fitted):
    """The steps that lead from logits to log-probabilities, the last of them."""
    if fitted.groups is not None:
        mend = 'Fitted(METHODS["temperature_scaling"], "nll", {"temperature": T}, num_classes)'
        raise InputError(f"each group has numbers of its own: export those of one, {mend}")
    params = {name: np.asarray(value) for name, value in fitted.params.items() if name != "converged"}
    logits = jax.ShapeDtypeStruct((*jax.export.symbolic_shape("n"), _classes(fitted)), _FLOAT)
    traced = jax.make_jaxpr(partial(fitted.method.apply, params))(logits)
    steps = _Steps()
    needed = set(steps.traced(traced.jaxpr, traced.consts, [steps.add("Input")]))
    for (_, inputs, _), number in reversed(steps.items()):
        needed |= set(inputs) if number in needed else set()
    return [(step, number) for step, number in steps.items() if number in needed]


def _classes(fitted):
    if fitted.num_classes is None:
        raise InputError("the number of classes is not known: give num_classes to Fitted, or use calibration.fit")
    return fitted.num_classes


def _library(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{name} is not installed: pip install 'focalgeo[{name}]'") from error


def read_classifier(path: str | os.PathLike[str], num_classes: int) -> Any:
    """The ONNX model of a classifier, one of whose outputs can be logits of so many classes."""
    onnx = _library("onnx")
    files.check_regular(Path(path))
    try:
        model = onnx.load(path)
    except Exception as error:  # of protobuf, of the system, or of a file of weights beside it
        raise InputError(f"cannot read {path} as an ONNX model: {error}; write it anew") from error
    _output(model, num_classes)
    return model


def _output(model, num_classes):
    """The name of the one output that can be logits."""
    tensors = {output.name: output.type.tensor_type for output in model.graph.output}
    shapes = {name: [dim.dim_value or dim.dim_param for dim in tensor.shape.dim] for name, tensor in tensors.items()}
    names = [name for name, shape in shapes.items() if shape[1:] == [num_classes] and tensors[name].elem_type == 1]
    if len(names) != 1:
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError(f"the classifier's outputs are {found}: give one whose logits are float32 [n, {num_classes}]")
    return names[0]


def to_onnx(fitted, classifier=None):
    """`Fitted.to_onnx`."""
    onnx, steps, classes = _library("onnx"), _steps(fitted), _classes(fitted)
    helper, model = onnx.helper, onnx.ModelProto()
    rows = partial(helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT, shape=("n", classes))
    if classifier is None:
        graph = helper.make_graph([], fitted.method.name, [rows("logits")], [])
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, producer_name="focalgeo", ir_version=_IR_VERSION, opset_imports=opsets)
        source = "logits"
    else:
        model.CopyFrom(classifier if isinstance(classifier, onnx.ModelProto) else read_classifier(classifier, classes))
        source = _output(model, classes)
    graph, opset = model.graph, max(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    if opset < _OLDEST_OPSET:
        raise InputError(f"the classifier is of opset {opset}: give one of {_OLDEST_OPSET} or later")

    def stored(array, name):
        graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return name

    names = {}
    for (operation, inputs, attributes), number in steps:
        name, attributes, inputs = f"calibrator/{number}", dict(attributes), [names[each] for each in inputs]
        names[number] = source if operation == "Input" else name
        if operation == "Constant":
            stored(_array(**attributes), name)
        elif operation != "Input":
            for key in filter(attributes.__contains__, _AS_INPUTS):
                if operation != "ReduceMax" or opset >= _OPSET:
                    inputs.append(stored(np.array(attributes.pop(key)), f"{name}/{key}"))
            if operation == "Cast":
                attributes["to"] = helper.np_dtype_to_tensor_dtype(attributes["to"])
            graph.node.append(helper.make_node(operation, inputs, [name], name, **attributes))
    for operation, output in (("Identity", "log_probs"), ("Exp", "probabilities")):
        graph.node.append(helper.make_node(operation, [name], [output], f"calibrator/{output}"))
        graph.output.append(rows(output))
    try:
        onnx.checker.check_model(model, full_check=True)
    except onnx.checker.ValidationError as error:
        raise InputError(f"the classifier and the calibrator do not go together: {error}") from error
    return model


def to_torch(fitted):
    """`Fitted.to_torch`."""
    torch, steps = _library("torch"), _steps(fitted)
    root, graph, nodes = torch.nn.Module(), torch.fx.Graph(), {}
    for (operation, inputs, attributes), number in steps:
        values, attributes = [nodes[each] for each in inputs], dict(attributes)
        if operation == "Input":
            node = graph.call_method("float", (graph.placeholder("logits"),))
        elif operation == "Constant":
            root.register_buffer(f"constant_{number}", torch.from_numpy(_array(**attributes)))
            node = graph.get_attr(f"constant_{number}")
        elif operation == "Cast":
            node = graph.call_method("to", (*values, getattr(torch, attributes["to"].name)))
        elif operation == "Slice":
            ((start,), (end,), (axis,)) = attributes.values()
            node = graph.call_function(torch.narrow, (*values, axis, start, end - start))
        else:
            values = [values] if operation == "Concat" else values
            function = getattr(torch, _IN_TORCH.get(operation, operation.lower()))
            node = graph.call_function(function, (*values, *attributes.values()))
        nodes[number] = node
    graph.output(node)
    return torch.fx.GraphModule(root, graph, fitted.method.name)


def to_numpy(fitted):
    """`Fitted.to_numpy`."""
    lines = formulas.SNIPPETS[fitted.method.name].replace(formulas.CALIBRATOR, "CALIBRATOR")
    return _NUMPY.format(fitted.method.title, json.dumps(json.loads(fitted.to_json())), textwrap.indent(lines, "    "))
