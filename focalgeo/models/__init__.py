"""Networks by name; the only package that imports flax.linen. A new network is one class and one line of MODELS.

The parameters of its constructor but those of GIVEN are its options, set in a config as config.model.options.NAME.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np

from focalgeo import checks
from focalgeo.types import InputError, Model, shown

try:
    from flax.errors import FlaxError
except ModuleNotFoundError as error:
    raise InputError("training needs flax: pip install 'focalgeo[train]', or '.[train]' in a clone") from error

from focalgeo.models import cnn, graph, mlp, text, transformer
from focalgeo.models.cnn import Bottleneck, ResNet

MODELS = {
    "linear": partial(mlp.MLP, hidden=()),
    "mlp": mlp.MLP,
    "cnn": cnn.CNN,
    "resnet18": ResNet,
    "resnet18_2w": partial(ResNet, widths=(128, 256, 512, 1024)),
    "resnet20": partial(ResNet, blocks=(3, 3, 3), widths=(16, 32, 64)),
    "resnet50": partial(ResNet, blocks=(3, 4, 6, 3), block=Bottleneck),
    "resnet110": partial(ResNet, blocks=(18, 18, 18), widths=(16, 32, 64)),
    # the papers' published code
    "resnet110_bottleneck": partial(ResNet, blocks=(3, 4, 26, 3), block=Bottleneck),
    "wide_resnet26_10": partial(ResNet, blocks=(4, 4, 4), widths=(160, 320, 640), stem_width=16),
    "densenet121": cnn.DenseNet,
    "mobilenet_v2": cnn.MobileNetV2,
    "vgg19": cnn.VGG,
    "vit": transformer.ViT,
    "gp_cnn": text.GPCNN,
    "tree_lstm": text.TreeLSTM,
    "transformer": transformer.Transformer,
    "gcn": graph.GCN,
    "logistic": mlp.Logistic,
}
# what a job gives a network by other fields or by its data; the rest of a constructor's plain values are its options:
# those whose default a config file could write, so not the class of a ResNet's blocks
GIVEN = {"num_classes", "dtype", "axis_name", "vocabulary_size", "embedding_init"}
# A layer's weights for more fill the memory.
MOST_CLASSES = 2**20
# More layers, of any kind, take minutes to compile.
MOST_LAYERS = 500
COUNT_LAYERS = {"blocks", "depth"}  # options whose numbers are layers; of any other tuple each entry is one


def options(name: str) -> dict[str, Any]:
    """The options of the network `name` with their own values, in its constructor's order.

    Example:
        >>> models.options("vit")
        {'patch': 4, 'depth': 6, 'width': 192, 'heads': 3}
    """
    values = getattr(_constructor(name), "keywords", {})
    return {option: values.get(option, field.default) for option, field in _option_fields(name).items()}


def check_options(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the network `name` in its constructor's kinds; one number is a list of one, None sets nothing.

    Raises:
      InputError: the first that it does not have, or whose value is of another kind.

    Example:
        >>> models.check_options("mlp", {"hidden": 32})
        {'hidden': (32,)}
    """
    fields, checked = _option_fields(name), {}
    for option, value in values.items():
        if value is None:
            continue
        if option not in fields:
            raise InputError.of_choice(f"the option of {name} in config.model.options", option, fields)
        numbers = value if isinstance(value, list | tuple) else (value,)
        try:
            takes_list = isinstance(fields[option].default, tuple)
            checked[option] = msgspec.convert(numbers if takes_list else value, fields[option].type)
        except msgspec.ValidationError as error:
            raise InputError(f"config.model.options.{option} is {shown(value)}: {error}") from error
        if (sum(numbers) if option in COUNT_LAYERS else len(numbers)) > MOST_LAYERS:
            raise InputError(f"config.model.options.{option} is {shown(value)}: give at most {MOST_LAYERS} layers")
    return checked


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

    Example:
        >>> network = models.build("mlp", 10, hidden=(32,))
        >>> variables = network.init(key, jnp.zeros((1, 8, 8, 1)))
        >>> network.apply(variables, jnp.zeros((5, 8, 8, 1))).shape
        (5, 10)
    """
    fields = _fields(name)
    checked = check_options(name, {option: value for option, value in options.items() if option not in GIVEN})
    num_classes = checks.count("num_classes", num_classes, 2, MOST_CLASSES)
    has_words, reads_words = bool(options.get("vocabulary_size")), "vocabulary_size" in fields
    if has_words != reads_words:
        wrong = "does not read words, of which the data is made" if has_words else "reads words, the data has none"
        choose = "choose gp_cnn for documents, tree_lstm for trees, transformer for both, others for images"
        raise InputError(f"config.model.name: {name} {wrong}; {choose}")
    others = {option: options[option] for option in GIVEN & fields.keys() if options.get(option) is not None}
    module = _constructor(name)(num_classes=num_classes, **others, **checked)
    return Model(_checked(module.init, name, fields), _checked(module.apply, name, fields))


def _checked(function, name, fields):
    """A module's init or apply, whose second argument is the input: what it does not read is refused in one line."""
    dtype = np.integer if "vocabulary_size" in fields else np.floating
    shape = (None,) * 4 if {"axis_name", "patch"} & fields.keys() else (None, None, ...)

    def call(first, x, **options):
        checks.check_array(f"x for {name}", checks.array_of("x", x), shape=shape, dtype=dtype)
        try:
            return function(first, x, **options)
        except InputError:
            raise
        except (FlaxError, AssertionError, TypeError, ValueError) as error:
            message = " ".join(str(error).split())
            raise InputError(f"{name} does not fit its variables, its input or its options: {message:.300}") from error

    return call


def _constructor(name):
    if name not in MODELS:
        raise InputError.of_choice("config.model.name", str(name), MODELS)
    return MODELS[name]


def _fields(name):
    constructor = _constructor(name)
    return getattr(constructor, "func", constructor).__dataclass_fields__


def _option_fields(name):
    plain = int | float | str | tuple | None
    taken = {*GIVEN, "parent", "name"}  # the last two are flax's own
    return {key: field for key, field in _fields(name).items() if key not in taken and isinstance(field.default, plain)}
