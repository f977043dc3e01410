"""Every table and figure of the three papers: the question that answers it, and what no run here can."""

from experiments.numbers import markdown
from experiments.question import HERE, QUESTIONS, stored

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
LACKS = {  # question -> what some of its tables and figures lack
    "calibration_of_losses": "cifar100, networks, glove",
    "during_training": "networks",
    "curvature_and_gamma": "cifar100, recipe",
    "trace_penalty": "recipe",
    "focal_temperature": "cifar100, networks, tiny",
}


def answers() -> dict[str, str]:
    """Table or figure -> the question that answers it."""
    return {name: question for question in QUESTIONS for name in stored(HERE / question)["about"]["answers"]}


def coverage() -> str:
    """What answers each table and figure, and what is missing with the command that would make it."""
    rows = [[name, f"`{question}`", LACKS.get(question, "")] for name, question in sorted(answers().items())]
    reasons = [[name, why, f"`{command}`"] for name, (why, command) in MISSING.items()]
    return (
        "K: Kimura & Naganuma, F: Komisarenko & Kull, M: Mukhoti et al.\n\n"
        + markdown(["table or figure", "answered by", "what no run here can"], rows)
        + "\n"
        + markdown(["what", "why", "command"], reasons)
    )
