"""Networks by name; the only package that imports flax.linen. A new network is one file and one line of MODELS.

The parameters of its constructor but those of GIVEN are its options, set in a config as config.model.options.NAME.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

from focalgeo.config import shown
from focalgeo.models.cnn import CNN, VGG
from focalgeo.models.densenet import DenseNet
from focalgeo.models.mlp import MLP, Logistic
from focalgeo.models.mobilenet import MobileNetV2
from focalgeo.models.resnet import Bottleneck, ResNet
from focalgeo.models.text import GPCNN, TreeLSTM
from focalgeo.models.vit import ViT
from focalgeo.types import InputError, Model

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
    "logistic": Logistic,
}
# what a job gives a network by other fields or by its data; the rest of a constructor's plain values are its options:
# those whose default a config file could write, so not the class of a ResNet's blocks
GIVEN = {"num_classes", "dtype", "axis_name", "vocabulary_size", "embedding_init"}
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

    Raises:
      InputError: unknown name, an option that this network does not have or of another kind, or words for a network
        that reads none, or none for one that does.
    """
    constructor = _constructor(name)
    fields = _fields(constructor)
    check_options(name, {option: value for option, value in options.items() if option not in GIVEN})
    if "vocabulary_size" in options and "vocabulary_size" not in fields:
        raise InputError(
            f"config.model.name: {name} does not read words, of which the data is made; choose gp_cnn for documents, "
            "tree_lstm for trees"
        )
    if "vocabulary_size" in fields and not options.get("vocabulary_size"):
        raise InputError(f"config.model.name: {name} reads words, the data has none; choose text or another network")
    given = {
        option: (value,) if fields[option].type == Sequence[int] and isinstance(value, Integral) else value
        for option, value in options.items()
        if option in fields and value is not None
    }
    module = constructor(num_classes=num_classes, **given)
    return Model(module.init, module.apply)


def _constructor(name: str):
    if name not in MODELS:
        raise InputError.of_choice("config.model.name", name, MODELS)
    return MODELS[name]


def _fields(constructor) -> dict:
    return getattr(constructor, "func", constructor).__dataclass_fields__


def _option_fields(constructor) -> dict:
    fields, plain = _fields(constructor), int | float | str | tuple | None
    taken = {*GIVEN, "parent", "name"}  # the last two are flax's own
    return {name: field for name, field in fields.items() if name not in taken and isinstance(field.default, plain)}


def _too_large(option: str, values: Sequence[Any]) -> str | None:
    """What an option must do that asks for too much; None for one that does not."""
    if any(isinstance(each, Integral) and each >= 2**31 for each in values):
        return "stay below 2^31"
    layers = sum(values) if option in COUNT_LAYERS else len(values)
    return f"ask for at most {MOST_LAYERS} layers" if layers > MOST_LAYERS else None


def _is_of_kind(value: Any, kind: Any) -> bool:
    if kind == Sequence[int]:
        return all(_is_of_kind(each, int) for each in (value if isinstance(value, list | tuple) else (value,)))
    if kind in (int, int | None):
        return isinstance(value, Integral) and not isinstance(value, bool) and value >= 1
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind)
