"""Networks by name; the only room that imports flax.linen. A new network is one file and one line of MODELS."""

from functools import partial

from focalgeo.models.cnn import CNN
from focalgeo.models.densenet import DenseNet
from focalgeo.models.gp_cnn import GPCNN
from focalgeo.models.logistic import Logistic
from focalgeo.models.mlp import MLP
from focalgeo.models.mobilenet import MobileNetV2
from focalgeo.models.resnet import Bottleneck, ResNet
from focalgeo.models.tree_lstm import TreeLSTM
from focalgeo.models.vgg import VGG
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
# what a job gives, beside what a config may set
GIVEN = {"axis_name", "vocabulary_size", "embedding_init"}


def build(name: str, num_classes: int = 10, **options) -> Model:
    """The network `name` as Model(init, apply); options go to its constructor (widths, dtype, axis_name ...).

    axis_name: the device axis over which batch statistics are summed in training; None outside of a parallel step, and
    left aside by networks without batch norm. vocabulary_size: number of token ids, for networks on words alone.
    embedding_init: their first word vectors, as flax's (key, shape, dtype) -> array.

    Raises:
      InputError: unknown name, an option that this network does not have, or words for a network that reads none, or
        none for one that does.
    """
    if name not in MODELS:
        raise InputError.of_choice("config.model.name", name, MODELS)
    constructor = MODELS[name]
    known = {
        f
        for f in getattr(constructor, "func", constructor).__dataclass_fields__
        if f not in ("parent", "name", "block")
    }
    if "vocabulary_size" in options and "vocabulary_size" not in known:
        raise InputError(
            f"config.model.name: {name} does not read words, of which the data is made; choose gp_cnn for documents, "
            "tree_lstm for trees"
        )
    options = {key: value for key, value in options.items() if key in known or key != "axis_name"}
    unknown = sorted(set(options) - known)
    if unknown:
        offered = ", ".join(sorted(known - GIVEN - {"num_classes", "dtype"})) or "none"
        raise InputError(
            f"config.model.{unknown[0]}: {name} has no such option; set it to None ({name} has: {offered})"
        )
    if "vocabulary_size" in known and not options.get("vocabulary_size"):
        raise InputError(f"config.model.name: {name} reads words, the data has none; choose text or another network")
    module = constructor(num_classes=num_classes, **options)
    return Model(module.init, module.apply)
