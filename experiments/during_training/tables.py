"""Tables of the README: the end of training by loss, and Mukhoti et al.'s Table 6 beside ours."""

from collections.abc import Sequence
from functools import partial

from experiments.cells import LOSSES
from experiments.during_training import numbers
from experiments.during_training.numbers import Runs, at, by_seed, diagnosed, losses_of
from experiments.intervals import clipped, interval, shown
from experiments.writing import markdown

END = {
    "train error, %": at("train", "error"),
    "test error, %": at("test", "error"),
    "train ECE, %": at("train", "ece"),
    "test ECE, %": at("test", "ece"),
    "test NLL": at("test", "nll"),
    "test NLL of right": at("test", "nll correct"),
    "test NLL of wrong": at("test", "nll wrong"),
    "test entropy of right, nats": at("test", "entropy correct"),
    "test entropy of wrong, nats": at("test", "entropy wrong"),
    "weight norm": at("", "weight_norm"),
    "gradient norm, train": at("train", "gradient_norm"),
    "train, confidence above 96%, %": numbers.surest(),
    "train, p_y above p0, %": numbers.beyond_threshold,
}
# M Table 6: network -> loss -> (share of S99, accuracy in it) as trained and after T; their FLA-53 is FLSD-53
TABLE_6 = {
    "ResNet-110": {
        "ce": (97.11, 96.33, 11.5, 97.39),
        "mmce": (97.65, 96.72, 10.62, 99.83),
        "flsd53": (61.41, 99.51, 31.1, 99.68),
    },
    "ResNet-50": {
        "ce": (95.93, 96.72, 7.33, 99.73),
        "mmce": (92.33, 98.24, 4.21, 100.0),
        "flsd53": (46.31, 99.57, 14.27, 99.93),
    },
}
S99 = {
    "S99, %": partial(numbers.s99, scaled=False),
    "accuracy in it, %": partial(numbers.s99_accuracy, scaled=False),
    "S99 after T, %": partial(numbers.s99, scaled=True),
    "accuracy in it after T, %": partial(numbers.s99_accuracy, scaled=True),
}


def all_tables(runs: Runs) -> dict[str, str]:
    """The tables by their marks."""
    return {"end of training": end(diagnosed(runs)), "s99": s99(runs), "images": images(diagnosed(runs))}


def end(runs: Runs) -> str:
    """Means over seeds at the last epoch, one row a quantity."""
    losses = losses_of(runs)
    seeds = [len(by_seed(runs, loss, at("train", "nll"))) for loss in losses]
    heads = ["at the last epoch", *[f"{LOSSES[loss]}, n = {count}" for loss, count in zip(losses, seeds, strict=True)]]
    rows = [
        [title, *[_level(title, list(by_seed(runs, loss, number).values())) for loss in losses]]
        for title, number in END.items()
    ]
    return markdown(heads, rows)


def s99(runs: Runs) -> str:
    """Table 6: all losses that have runs, and the paper's two networks for its three."""
    rows = []
    for loss in losses_of(runs):
        found = [_level(title, list(by_seed(runs, loss, number).values())) for title, number in S99.items()]
        rows.append([f"{numbers.network(runs[0])}, here", LOSSES[loss], *found])
    for network, losses in TABLE_6.items():
        rows += [
            [f"{network}, Mukhoti et al.", LOSSES[loss], *[f"{number:g}" for number in own]]
            for loss, own in losses.items()
        ]
    return markdown(["network", "loss", *S99], rows)


def images(runs: Runs) -> str:
    """The stored test images that are predicted wrong: their mean confidence before and after T."""
    rows = []
    for loss in losses_of(runs):
        found = [by_seed(runs, loss, numbers.wrong_confidence(key)) for key in ("confidence", "after")]
        rows.append([LOSSES[loss], *[_level("%", list(own.values())) for own in found]])
    return markdown(["loss", "mean confidence of wrong ones of 100 images, %", "after T, %"], rows)


def _level(title: str, values: Sequence[float]) -> str:
    """The mean with its interval, cut where the range of its number ends: at 0, and shares at 100%."""
    return shown(clipped(interval(values), 0, 100 if title.endswith("%") else float("inf")))
