"""What cross-entropy and focal loss do to right and wrong examples while a network trains.

A small ResNet on CIFAR-10 (JPEG, re-encoded images), without augmentation. After each epoch training and test images
are measured, at even distances in their split, by the network of that epoch. The gradient norm of an example is that
of its own training loss in the last layer's kernel, without the bias. ECE has 25 bins in these measurements, 15 in
Table 6's fit of T, which is by ECE on val. "Late in training" is from the middle epoch to the last, set before any
run was seen. p_y is the probability of an image's own class, p0 the p_y above which focal loss has the smaller
gradient at equal p_y; the share above it is counted from the next edge of a bin of 0.04. S99: test images with a
confidence of at least 0.99.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments import cells as stored
from experiments import figures, numbers
from experiments.cells import DIAGNOSED, LOSSES, SAME_ERROR
from experiments.numbers import Number, means, rows_where, told
from experiments.question import Flags, Parts, Question

# gamma's p0, above which focal loss has the smaller gradient at equal p_y (M, Prop. 1), up to an edge of the histogram
THRESHOLDS = {"fl1": 0.4, "fl2": 0.32, "fl3": 0.28}
S99 = {  # title -> method, metric
    "S99, %": ("uncalibrated", "high_confidence"),
    "accuracy in it, %": ("uncalibrated", "high_confidence_accuracy"),
    "S99 after T, %": ("temperature_scaling/ece", "high_confidence"),
    "accuracy in it after T, %": ("temperature_scaling/ece", "high_confidence_accuracy"),
}
END = {
    "train error": Number("train error, %"),
    "test error": Number("test error, %"),
    "train ece": Number("train ECE, %"),
    "test ece": Number("test ECE, %"),
    "train error, dropped": Number("train error, an epoch after the first drop, %"),
    "epochs above 1%": Number("epochs with a train error above 1%"),
    "test true_class_probability correct": Number("p_y of right held-out images"),
    "test true_class_probability wrong": Number("p_y of wrong held-out images"),
    "test nll": Number("test NLL"),
    "test nll correct": Number("test NLL of right"),
    "test nll wrong": Number("test NLL of wrong"),
    "test entropy correct": Number("test entropy of right, nats"),
    "test entropy wrong": Number("test entropy of wrong, nats"),
    "weight norm": Number("weight norm"),
    "train gradient_norm": Number("gradient norm, train"),
    "train, surest bin": Number("train, confidence above 96%, %"),
    "train, p_y above p0": Number("train, p_y above p0, %"),
}
OUTCOMES = {"wrong": "label != predicted", "right": "label == predicted"}
CONFIDENCES = {
    f"{name} {outcome}": Number(f"mean confidence of {outcome} ones of 100 images{words}, %")
    for outcome in OUTCOMES
    for name, words in {"confidence": "", "after": ", after T"}.items()
}
DROPS = (150 / 350, 250 / 350)  # shares of the epochs after which the recipe lowers the rate
# where, statement of cross-entropy late in training, curve, whether it falls.
# "Late in training" is from the middle epoch to the last, which was set before any run was seen.
LATE = (
    ("M Fig. 1", "NLL of the training examples goes on to fall", "train nll", True),
    ("M Fig. 1", "NLL of test examples grows", "test nll", False),
    ("M Fig. 1", "NLL of test examples predicted wrong grows", "test nll wrong", False),
    ("M Fig. 1", "NLL of test examples predicted right does not grow: it falls", "test nll correct", True),
    ("M Fig. 1", "entropy of test examples predicted wrong falls", "test entropy wrong", True),
    ("M Fig. 1", "entropy of test examples predicted right falls", "test entropy correct", True),
    ("M Fig. 1", "test ECE grows", "test ece", False),
    ("M Fig. 1", "test error does not grow: it falls", "test error", True),
    ("M Fig. 3", "the norm of the last layer's weights grows", "weight norm", False),
    ("M Fig. 2", "training examples move into the highest of 25 bins of confidence", "train, surest bin", False),
)
# where, statement of a focal loss beside cross-entropy, number, whether it is lower
BESIDE = (
    ("M Fig. 3", "NLL of test examples predicted wrong is lower at the end", "test nll wrong", True),
    ("M Fig. 3", "NLL of test examples predicted wrong grows less late in training", "test nll wrong, late", True),
    (
        "M Fig. 3",
        "entropy of test examples predicted wrong falls less late in training",
        "test entropy wrong, late",
        False,
    ),
    ("M Fig. 3", "test NLL is lower at the end", "test nll", True),
    ("M Fig. 3", "entropy of test examples predicted wrong is higher at the end", "test entropy wrong", False),
    ("M Fig. 3", "entropy of test examples predicted right is higher at the end", "test entropy correct", False),
    ("M Fig. 3", "test ECE is lower at the end", "test ece", True),
    ("M Fig. 3", "the last layer's weights are larger after epoch 1", "weight norm, first", False),
    ("M Fig. 3", "the last layer's weights are smaller at the end", "weight norm", True),
    ("M Fig. 3", "p_y of test images predicted right is lower at the end", "test true_class_probability correct", True),
    ("M Fig. 3", "p_y of test images predicted wrong is higher at the end", "test true_class_probability wrong", False),
    ("N, convergence", "training error is higher an epoch after the rate's first drop", "train error, dropped", False),
    ("N, convergence", "training error is above 1% for more epochs", "epochs above 1%", False),
    ("M Fig. 4", "gradients of training examples are smaller midway", "train gradient_norm, midway", True),
    ("M Fig. 4", "gradients of training examples are smaller at the end", "train gradient_norm", True),
    ("M Fig. 2", "fewer training examples have a confidence above 96% at the end", "train, surest bin", True),
    ("M Fig. 3", f"error on all test examples is at most {SAME_ERROR:g} point higher", "error", True),
)
IMAGES = (  # the same of the losses whose single images are kept
    ("M Fig. 8", "wrong ones of 100 images are less confident as trained", "confidence wrong", True),
    ("M Fig. 8", "wrong ones of 100 images are less confident after T", "after wrong", True),
)
RIGHT = (("M Fig. 8", "right ones of 100 images are more confident after T", "after right", False),)  # of focal losses
SURER = (  # the same of FLA-53
    ("M Table 6", "S99 holds fewer test images as trained", "S99, %", True),
    ("M Table 6", "what S99 holds is more often right as trained", "accuracy in it, %", False),
    ("M Table 6", "after T S99 holds more test images", "S99 after T, %", False),
)


def read(flags: Flags) -> Parts:
    """All cells of CIFAR-10, and those that were measured at every epoch."""
    cells = stored.compared("cifar10", scale=flags.scale)
    return {"runs": [run for run in cells if "diagnostics" in run], "cells": pd.DataFrame(cells)}


# ---- numbers


def by_epoch(runs) -> pd.DataFrame:
    """A row for each run and epoch: its curves by split and name, error and ECE in %."""
    tables = []
    for run in runs.itertuples():
        curves = pd.json_normalize(run.diagnostics["means"], sep=" ")
        curves["weight norm"], curves["epoch"] = [run.diagnostics["weight_norm"]], [run.diagnostics["epochs"]]
        tables.append(curves.explode(list(curves)).astype(float).assign(loss=run.loss, seed=run.seed))
    table = pd.concat(tables, ignore_index=True)
    table[[name for name in table if name.endswith(("error", "ece"))]] *= 100
    return table


def bins(runs, name: str) -> pd.DataFrame:
    """Stored bins of the training examples, "reliability" or a histogram's, a row each; shares in %."""
    rows = [
        (run.loss, run.seed, float(epoch), *row)
        for run in runs.itertuples()
        for epoch, every in (run.diagnostics | run.diagnostics["histograms"])[name]["train"].items()
        for row in every
    ]
    names = ["loss", "seed", "epoch", "lower", "upper", "share", "confidence", "accuracy"]
    table = pd.DataFrame(rows, columns=names[: len(rows[0])])
    return table.assign(share=100 * table.share)


def whens(runs) -> list[float]:
    """The epochs whose histograms are stored: the first, the middle one, the last."""
    epochs = runs.diagnostics.iloc[0]["epochs"]
    return [epochs[0], epochs[len(epochs) // 2], epochs[-1]]


def measured(runs) -> pd.DataFrame:
    """The runs with the numbers that claims are of: a curve's end, "NAME, midway", and "NAME, late", the change since.

    "train, surest bin": the share of examples in the highest of 25 bins of confidence, "train, p_y above p0" of those
    above gamma's p0, in %.
    """
    keys = ["epoch", "loss", "seed"]
    table, sure = by_epoch(runs).set_index(keys), bins(runs, "reliability")
    sure["share"] *= sure.lower > 0.959
    table["train, surest bin"] = sure.groupby(keys).share.sum()
    high = bins(runs, "true_class_probability")
    high = high[high.lower > high.loss.map(THRESHOLDS) - 1e-3]
    table["train, p_y above p0"] = high.groupby(keys).share.sum()
    first, midway, end = (table.loc[epoch] for epoch in whens(runs))
    epochs = runs.diagnostics.iloc[0]["epochs"]
    dropped, lower = (table.loc[epochs[round(share * len(epochs)) - before]] for before, share in enumerate(DROPS))
    others = {"first": first, "midway": midway, "late": end - midway, "dropped": dropped, "between": lower - dropped}
    every = end.join([other.add_suffix(f", {when}") for when, other in others.items()])
    every["epochs above 1%"] = (table["train error"] > 1).groupby(["loss", "seed"]).sum()
    return s99_of(runs).merge(every, left_on=["loss", "seed"], right_index=True)


def images_of(cells) -> pd.DataFrame:
    """Loss, seed and means of the confidence of the stored images by outcome, also after T, in %, of runs with some."""
    kept = cells[cells.images.notna()]

    def of_run(images):
        table = pd.DataFrame(images)
        return {f"{name} {outcome}": table.query(of)[name].mean() for name, (outcome, of) in product(*named)}

    named = ("confidence", "after"), OUTCOMES.items()
    return kept[["loss", "seed"]].join(100 * pd.DataFrame([*map(of_run, kept.images)], kept.index))


def s99_of(cells) -> pd.DataFrame:
    """Loss, seed, error and Table 6's numbers of runs, in %; NaN where S99 is empty."""
    shares = {title: 100 * stored.metric(cells, *metric) for title, metric in S99.items()}
    error = 100 - 100 * stored.metric(cells, "uncalibrated", "accuracy")
    return cells[["loss", "seed", "record"]].assign(error=error, **shares)


def network(runs) -> str:
    """The network of the runs, by the words of their config."""
    return "ResNet-50" if "resnet50" in runs.record.iloc[0]["config"] else "small ResNet"


# ---- claims and tables


def claims(runs, cells):
    """Every statement with its verdict; those of several losses one by one."""
    curves = measured(runs)
    for source, words, name, falls in LATE:
        what = "change of the share in %" if name == "train, surest bin" else "change"
        late = numbers.level(curves, f"{name}, late", loss="ce")
        yield told(source, f"CE, late in training: {words}", late, what=what, falls=falls)
    between = numbers.level(curves, "train error, between", loss="ce")
    claim = "CE, between the drops of the rate: training error rises"
    yield told("M Fig. 1", claim, between, what="change", unit="points", falls=False)
    focal, images = ("fla53", *THRESHOLDS), images_of(cells)
    groups = [(curves, THRESHOLDS, BESIDE), (images, (*focal, "brier", "mmce"), IMAGES), (images, focal, RIGHT)]
    groups.append((s99_of(cells), ("fla53",), SURER))
    for table, losses, statements in groups:
        for (source, words, name, falls), loss in product(statements, losses):
            less = numbers.change(rows_where(table, loss=loss), rows_where(table, loss="ce"), name)
            margin = SAME_ERROR if name == "error" else 0.0
            yield told(source, f"{LOSSES[loss]} beside CE: {words}", less, falls=falls, margin=margin)


def s99(cells):
    """Table 6: all losses that have runs."""
    return numbers.table(["loss"], stored.by_loss(s99_of(cells)), means({title: Number(title) for title in S99}))


def end(runs):
    """Means over seeds at the last epoch, one row a quantity."""
    losses = stored.by_loss(measured(runs))
    yield "at the last epoch", *(f"{loss}, n = {len(group)}" for loss, group in losses.items())
    for title, cell in means(END).items():
        yield title, *map(cell, losses.values())


# ---- what results.json holds


def all_curves(runs) -> dict[str, Any]:
    """Loss -> split and name -> epoch -> the interval over seeds."""
    return {
        loss: {name: numbers.levels(group, "epoch", name) for name in group if name not in ("loss", "seed", "epoch")}
        for loss, group in by_epoch(runs).groupby("loss", sort=False)
    }


def brief(runs) -> pd.DataFrame:
    """The numbers of each run at its end."""
    table = measured(runs)
    return table[[*table.columns[: 4 + len(S99)], *END]]


# ---- figures

DRAWN = ("reliability", "gradient_norm", "true_class_probability")
OVERLAID = {"ce": figures.BLUE, "fl3": figures.RED}
LEAST_NORM = 1e-5  # the least gradient norm that is drawn
LEAST_SHARE = 0.1  # % of the examples: the accuracy of a bin of fewer says little


def _finished(figure: Figure, runs) -> Figure:
    examples = runs.diagnostics.iloc[0]["examples"]["test"]
    title = f"CIFAR-10 (JPEG), {network(runs)}, {examples:,} images a split, n = {runs.seed.nunique()} seeds"
    return figures.legend(figure, "upper center", title=title)


def curves(runs, names: Sequence[Sequence[str]]):
    """A panel for each curve: means over seeds with intervals. Error and ECE in %, NLL and entropy in nats."""
    rows, columns = np.shape(names)
    figure, axes = figures.panels(rows, columns, 3.2 * columns, 2.8 * rows, sharex=True)
    losses = stored.by_loss(by_epoch(runs))
    for axis, name in zip(axes.flat, np.ravel(names), strict=True):
        figures.lines(axis, {loss: numbers.levels(group, "epoch", name) for loss, group in losses.items()})
        axis.set(title=name.replace("_", " "), xlabel="epoch")
        if "gradient" in name:
            figures.logarithmic(axis, "y")
    return _finished(figure, runs)


def examples(runs):
    """M Figs. 2 and 4, b to d: training examples by confidence, gradient norm and p_y, at three epochs, over seeds.

    The first row has the accuracy by confidence, the others histograms.
    """
    figure, axes = figures.panels(4, 3, 9.6, 11, sharex="row", sharey="row")
    sure, norms, probabilities = (bins(runs, name) for name in DRAWN)
    norms = norms[norms.lower > 0]  # a bin from 0 has no logarithm
    for column, epoch in zip(axes.T, whens(runs), strict=True):
        column[0].set_title(f"after epoch {epoch:g}")
        column[0].plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
        column[2].set(xscale="log", xlim=(LEAST_NORM, None))
        for loss, colour in OVERLAID.items():
            group, *others = (rows_where(table, loss=loss, epoch=epoch) for table in (sure, norms, probabilities))
            seeds = group.seed.nunique()
            sums = group.assign(right=group.share * group.accuracy).groupby("lower")[["share", "right"]].sum()
            sums = sums[sums.share >= LEAST_SHARE * seeds]
            column[0].plot(sums.index + 0.02, sums.right / sums.share, "o", color=colour, fillstyle="none")
            style = {"histtype": "step", "linewidth": 1.4, "color": colour, "label": LOSSES[loss]}
            for axis, of in zip(column[1:], (group, *others), strict=True):
                axis.hist(
                    (of.lower + of.upper) / 2, np.unique(of[["lower", "upper"]]), weights=of.share / seeds, **style
                )
    for row, label in zip(axes, ("confidence", "confidence", "gradient norm at the last layer", "$p_y$"), strict=True):
        row[1].set_xlabel(label)
        row[0].set_ylabel("training examples, %")
    axes[0, 0].set_ylabel("accuracy in the bin")
    return _finished(figure, runs)


BY_OUTCOME = [[f"train {name}", f"test {name} correct", f"test {name} wrong"] for name in ("nll", "entropy")]
QUESTION = Question(
    "during_training",
    "Does cross-entropy grow confident in the test images that it gets wrong while it trains, and focal loss less?",
    claims,
    tables={
        "end of training": end,
        "s99": s99,
        "images": lambda cells: numbers.table(["loss"], stored.by_loss(images_of(cells)), means(CONFIDENCES)),
    },
    figures={
        "by_outcome": partial(curves, names=BY_OUTCOME),
        "error_and_ece": partial(curves, names=[["train error", "test error"], ["train ece", "test ece"]]),
        "p_of_label": partial(curves, names=[[f"test true_class_probability {name}" for name in ("correct", "wrong")]]),
        "norms": partial(curves, names=[["weight norm", "train gradient_norm", "test gradient_norm"]]),
        "training_examples": examples,
    },
    numbers={"curves": all_curves, "runs": brief},
    read=read,
    before=f"python -m experiments.cells --tasks cifar10 --losses {' '.join(DIAGNOSED)}; ",
    cores="one core for their training",
    answers=("M Fig. 1", "M Fig. 2", "M Fig. 3", "M Fig. 4, b to d", "M Fig. 8", "M Table 6"),
)
