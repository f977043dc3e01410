"""Every table and figure of the three papers: the experiment that answers it, and what no run here can."""

from typing import NamedTuple

from experiments.writing import markdown


class Part(NamedTuple):
    """A table or figure: the question that answers it, and what of it is missing (a key of MISSING) or ""."""

    question: str
    missing: str = ""


MISSING = {
    "cifar100": (
        "CIFAR-100 has no files here",
        "python -m focalgeo.run --config=configs/cifar.py:cifar100,resnet50,flsd53 --workdir=runs/cifar100-flsd53",
    ),
    "networks": (
        "ResNet-50, ResNet-110, Wide ResNet and DenseNet need a GPU or TPU; a small ResNet stands in",
        "python -m experiments.cells --tasks cifar10 --scale=paper",
    ),
    "tiny": (
        "Tiny ImageNet with 100,000 images and ResNet-50 needs the full files and a GPU or TPU",
        "python -m focalgeo.run --config=configs/tiny_imagenet.py:resnet50,fl3 --workdir=runs/tiny-fl3",
    ),
    "glove": (
        "GloVe's vectors have no files here; random ones stand in (configs/newsgroups.py takes them alike)",
        "python -m focalgeo.run --config=configs/sst.py:fl3 --config.data.embeddings=glove.txt --workdir=runs/sst-fl3",
    ),
    "recipe": (
        "the paper states no recipe, data set or network sizes; ours are named in the README",
        "python -m experiments curvature_and_gamma --scale=paper",
    ),
}
_TABLE = Part("calibration_of_losses", "cifar100 networks glove")

ANSWERS = {
    "K Fig. 1": Part("theory"),
    "K Fig. 2": Part("curvature_and_gamma", "recipe"),
    "K Fig. 3": Part("curvature_and_gamma", "cifar100 recipe"),
    "K Fig. 4": Part("trace_penalty", "recipe"),
    "F Fig. 1": Part("theory"),
    "F Fig. 2": Part("theory"),
    "F Fig. 2, right": Part("focal_temperature"),
    "F Fig. 3": Part("theory"),
    "F Fig. 4": Part("theory"),
    "F Fig. 5": Part("theory"),
    "F Fig. 6": Part("theory"),
    "F Fig. 7": Part("theory"),
    "F Fig. 8": Part("focal_temperature", "cifar100 networks"),
    "F Table 1": Part("focal_temperature", "cifar100 networks tiny"),
    "M Fig. 1": Part("during_training", "networks"),
    "M Fig. 2": Part("during_training", "networks"),
    "M Fig. 3": Part("during_training", "networks"),
    "M Fig. 4, a": Part("theory"),
    "M Fig. 4, b to d": Part("during_training", "networks"),
    "M Fig. 5": Part("two_parameters"),
    "M Fig. 6": Part("two_parameters"),
    "M Fig. 7": Part("theory"),
    "M Fig. 8": Part("during_training", "networks"),
    **{f"M Table {number}": _TABLE for number in (1, 2, 3, 4, 5)},
    "M Table 6": Part("during_training", "networks"),
    **{f"M Table {number}": _TABLE for number in (7, 8, 9, 10, 11, 12, 13)},
}


def coverage() -> str:
    """What answers each table and figure, and what is missing with the command that would make it."""
    rows = [[name, f"`{part.question}`", part.missing.replace(" ", ", ")] for name, part in ANSWERS.items()]
    reasons = [[name, why, f"`{command}`"] for name, (why, command) in MISSING.items()]
    return (
        "K: Kimura & Naganuma, F: Komisarenko & Kull, M: Mukhoti et al.\n\n"
        + markdown(["table or figure", "answered by", "what no run here can"], rows)
        + "\n"
        + markdown(["what", "why", "command"], reasons)
    )
