"""Networks by name; the only package that imports flax.linen. A new network is one file and one line of MODELS.

The parameters of its constructor but those of GIVEN are its options, set in a config as config.model.options.NAME.
"""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError

from focalgeo.models.cnn import CNN, VGG
from focalgeo.models.densenet import DenseNet
from focalgeo.models.mlp import MLP, Logistic
from focalgeo.models.mobilenet import MobileNetV2
from focalgeo.models.resnet import Bottleneck, ResNet
from focalgeo.models.text import GPCNN, TreeLSTM
from focalgeo.models.transformer import Transformer
from focalgeo.models.vit import ViT
from focalgeo.types import InputError, Model, shown

MODELS = {
    "linear": partial(MLP, hidden=()),
    "mlp": MLP,
    "cnn": CNN,
    "resnet18": ResNet,
    "resnet18_2w": partial(ResNet, widths=(128, 256, 512, 1024)),
    "resnet20": partial(ResNet, blocks=(3, 3, 3), widths=(16, 32, 64)),
    "resnet50": partial(ResNet, blocks=(3, 4, 6, 3), block=Bottleneck),
    "resnet110": partial(ResNet, blocks=(18, 18, 18), widths=(16, 32, 64)),
    "resnet110_bottleneck": partial(ResNet, blocks=(3, 4, 26, 3), block=Bottleneck),  # the papers' published code
    "wide_resnet26_10": partial(ResNet, blocks=(4, 4, 4), widths=(160, 320, 640), stem_width=16),
    "densenet121": DenseNet,
    "mobilenet_v2": MobileNetV2,
    "vgg19": VGG,
    "vit": ViT,
    "gp_cnn": GPCNN,
    "tree_lstm": TreeLSTM,
    "transformer": Transformer,
    "logistic": Logistic,
}
# what a job gives a network by other fields or by its data; the rest of a constructor's plain values are its options:
# those whose default a config file could write, so not the class of a ResNet's blocks
GIVEN = {"num_classes", "dtype", "axis_name", "vocabulary_size", "embedding_init"}
MOST_CLASSES = 2**20  # a layer's weights for so many fill memory
MOST_LAYERS = 500  # of any kind: more take minutes to compile
COUNT_LAYERS = {"blocks", "depth"}  # options whose numbers are layers; of any other tuple each entry is one
_WORDS = {
    int: "be a whole number of 1 or more",
    int | None: "be a whole number of 1 or more",
    float: "be a finite number",
    bool: "be true or false",
    str: "be text",
    Sequence[int]: "hold whole numbers of 1 or more",
}


def options(name: str) -> dict[str, Any]:
    """The options of the network `name` with their own values, in its constructor's order.

    Raises:
      InputError: unknown name.
    """
    constructor = _constructor(name)
    own = getattr(constructor, "keywords", {})
    return {option: own.get(option, field.default) for option, field in _option_fields(constructor).items()}


def check_options(name: str, values: Mapping[str, Any]) -> None:
    """Refuse options that the network `name` does not have, or values that are not of their kind; None sets nothing.

    Raises:
      InputError: the first of them, with what the network has.
    """
    fields = _option_fields(_constructor(name))
    for option, value in values.items():
        if value is None:
            continue
        if option not in fields:
            near = difflib.get_close_matches(option, fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "set it to None"
            offered = ", ".join(fields) or "none"
            raise InputError(f"config.model.options.{option}: {name} has no such option (it has: {offered}); {hint}")
        kind = fields[option].type
        if kind in _WORDS and not _is_of_kind(value, kind):
            raise InputError(f"config.model.options.{option} is {shown(value)}: it must {_WORDS[kind]}, or None")
        if reason := _too_large(option, value if isinstance(value, list | tuple) else (value,)):
            raise InputError(f"config.model.options.{option} is {shown(value)}: it must {reason}")


def build(name: str, num_classes: int = 10, **options) -> Model:
    """The network `name` as Model(init, apply); options go to its constructor (widths, dtype, axis_name ...).

    axis_name: the device axis over which batch statistics are summed in training; None outside of a parallel step, and
    left aside by networks without batch norm. vocabulary_size: number of token ids, for networks on words alone.
    embedding_init: their first word vectors, as flax's (key, shape, dtype) -> array.

    init and apply refuse inputs that the network does not read: images are floating-point [examples, height, width,
    channels], features [examples, ...], words whole numbers of the shapes that `text` says.

    Raises:
      InputError: unknown name, an option that this network does not have or of another kind, a number of classes below
        2, or words for a network that reads none, or none for one that does.
    """
    constructor = _constructor(name)
    fields = _fields(constructor)
    check_options(name, {option: value for option, value in options.items() if option not in GIVEN})
    _check_given(num_classes, options)
    if "vocabulary_size" in options and "vocabulary_size" not in fields:
        raise InputError(
            f"config.model.name: {name} does not read words, of which the data is made; choose gp_cnn for documents, "
            "tree_lstm for trees, transformer for both"
        )
    if "vocabulary_size" in fields and not options.get("vocabulary_size"):
        raise InputError(f"config.model.name: {name} reads words, the data has none; choose text or another network")
    given = {
        option: (value,) if fields[option].type == Sequence[int] and isinstance(value, Integral) else value
        for option, value in options.items()
        if option in fields and value is not None
    }
    module = constructor(num_classes=num_classes, **given)
    return Model(_checked(module.init, name, fields), _checked(module.apply, name, fields))


def _check_given(num_classes: int, options: Mapping[str, Any]) -> None:
    """Refuse what a job gives by other fields, where it is of another kind."""
    if not _is_of_kind(num_classes, int) or not 2 <= num_classes <= MOST_CLASSES:
        raise InputError(f"num_classes is {shown(num_classes)}: it must be a whole number from 2 to {MOST_CLASSES}")
    size = options.get("vocabulary_size")
    fits = (_is_of_kind(size, int) and size < 2**31) or (type(size) is int and size == 0)
    if size is not None and not fits:
        raise InputError(f"vocabulary_size is {shown(size)}: it must be a whole number below 2^31")
    if not isinstance(options.get("axis_name"), str | None):
        raise InputError(f"axis_name is {shown(options['axis_name'])}: it must be text, or None")
    if not (options.get("embedding_init") is None or callable(options["embedding_init"])):
        raise InputError("embedding_init is no function: it must be one, (key, shape, dtype) -> array, or None")
    if not _is_floating(options.get("dtype")):
        raise InputError(f"dtype is {shown(options['dtype'])}: it must be a floating-point type, such as float32")


def _is_floating(dtype: Any) -> bool:
    """Whether it names a floating-point type, as None does: a network's own is float32."""
    try:
        return dtype is None or jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        return False


def _checked(function: Callable, name: str, fields: Mapping[str, Any]) -> Callable:
    """A module's init or apply, whose second argument is the input: what it does not read is refused in one line."""

    def call(first: Any, x: Any, **options: Any) -> Any:
        _check_input(name, fields, x, options.get("mask"))
        try:
            return function(first, x, **options)
        except FlaxError as error:
            said = " ".join(str(error).split())
            raise InputError(f"{name} does not fit its variables, its input or its options: {said:.300}") from error

    return call


def _check_input(name: str, fields: Mapping[str, Any], x: Any, mask: Any) -> None:
    """Refuse an input by its shape and dtype alone; `fields` of the network's constructor tell its kind."""
    words = "vocabulary_size" in fields
    shape, dtype = np.shape(x), getattr(x, "dtype", None)
    kind = jnp.integer if words else jnp.floating
    if dtype is None or not jnp.issubdtype(dtype, kind):
        given = type(x).__name__ if dtype is None else dtype
        wanted = "whole numbers, as token ids" if words else "floating-point numbers, as normalised images"
        raise InputError(f"x is {given}: {name} reads {wanted}")
    if 0 in shape:
        raise InputError(f"x has shape {list(shape)}, which holds nothing: {name} reads one example or more")
    if "axis_name" in fields or "patch" in fields:
        if len(shape) != 4:
            raise InputError(f"x has {len(shape)} axes: {name} reads images [examples, height, width, channels]")
    elif len(shape) < 2:
        raise InputError(f"x has {len(shape)} axes: {name} reads [examples, ...]")
    if mask is not None and (np.shape(mask)[:1] != shape[:1] or getattr(mask, "dtype", None) != np.bool_):
        raise InputError(f"mask has shape {list(np.shape(mask))}: it must be bool, one for each of {shape[0]} examples")


def _constructor(name: str):
    if not isinstance(name, str) or name not in MODELS:
        raise InputError.of_choice("config.model.name", str(name), MODELS)
    return MODELS[name]


def _fields(constructor) -> dict:
    return getattr(constructor, "func", constructor).__dataclass_fields__


def _option_fields(constructor) -> dict:
    fields, plain = _fields(constructor), int | float | str | tuple | None
    taken = {*GIVEN, "parent", "name"}  # the last two are flax's own
    return {name: field for name, field in fields.items() if name not in taken and isinstance(field.default, plain)}


def _too_large(option: str, values: Sequence[Any]) -> str | None:
    """Words for the mend of an option that asks for too much; None for others."""
    if any(isinstance(each, Integral) and each >= 2**31 for each in values):
        return "stay below 2^31"
    layers = sum(values) if option in COUNT_LAYERS else len(values)
    return f"ask for at most {MOST_LAYERS} layers" if layers > MOST_LAYERS else None


def _is_of_kind(value: Any, kind: Any) -> bool:
    if kind == Sequence[int]:
        values = value if isinstance(value, list | tuple) else (value,)
        return all(_is_of_kind(each, int) for each in values)
    if kind in (int, int | None):
        return isinstance(value, Integral) and not isinstance(value, bool | np.bool_) and value >= 1
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool | np.bool_) and math.isfinite(value)
    return isinstance(value, kind)
