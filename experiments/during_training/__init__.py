"""What cross-entropy and focal loss do to right and wrong examples while a network trains."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import cells as stored
from experiments import figures, jobs, numbers
from experiments.cells import DIAGNOSED, LOSSES, SAME_ERROR
from experiments.numbers import Claim, Interval, column, interval, rows_where, shown
from experiments.question import Flags, Parts, Question
from focalgeo import job
from focalgeo.config import load_config, with_values
from focalgeo.job.preparation import prepare
from focalgeo.types import InputError, Split

SPLITS = ("train", "test")
NAMES = (
    *("error", "ece", "nll", "nll correct", "nll wrong", "entropy", "entropy correct", "entropy wrong"),
    *("true_class_probability", "gradient_norm"),
)
PERCENT = ("error", "ece")
# gamma's p0, above which focal loss has the smaller gradient at equal p_y (M, Prop. 1), up to an edge of the histogram
THRESHOLDS = {"fl1": 0.4, "fl2": 0.32, "fl3": 0.28}
S99 = {  # title -> method, metric
    "S99, %": ("uncalibrated", "high_confidence"),
    "accuracy in it, %": ("uncalibrated", "high_confidence_accuracy"),
    "S99 after T, %": ("temperature_scaling/ece", "high_confidence"),
    "accuracy in it after T, %": ("temperature_scaling/ece", "high_confidence_accuracy"),
}
# M Table 6: network -> loss -> the same four; their FLA-53 is FLSD-53
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
END = {
    "train error, %": "train error",
    "test error, %": "test error",
    "train ECE, %": "train ece",
    "test ECE, %": "test ece",
    "test NLL": "test nll",
    "test NLL of right": "test nll correct",
    "test NLL of wrong": "test nll wrong",
    "test entropy of right, nats": "test entropy correct",
    "test entropy of wrong, nats": "test entropy wrong",
    "weight norm": "weight norm",
    "gradient norm, train": "train gradient_norm",
    "train, confidence above 96%, %": "train, surest bin",
    "train, p_y above p0, %": "train, p_y above p0",
}
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
    ("M Fig. 4", "gradients of training examples are smaller midway", "train gradient_norm, midway", True),
    ("M Fig. 4", "gradients of training examples are smaller at the end", "train gradient_norm", True),
    ("M Fig. 2", "fewer training examples have a confidence above 96% at the end", "train, surest bin", True),
    ("M Fig. 8", "wrong ones of 100 images are less sure as trained", "sureness of wrong", True),
    ("M Fig. 8", "wrong ones of 100 images are less sure after T", "sureness of wrong after T", True),
)


def read(flags: Flags) -> Parts:
    """The runs that were measured at every epoch; all cells of CIFAR-10; with --data, its test images."""
    cells = stored.compared("cifar10", scale=flags.scale)
    runs = [run for run in cells if run["loss"] in DIAGNOSED and "diagnostics" in run]
    parts = {"runs": runs, "cells": pd.DataFrame(cells)}
    if flags.data:
        config = load_config(jobs.ROOT / "configs" / "cifar.py", f"{stored.TASKS['cifar10'].small},ce")
        parts["split"] = prepare(job.check_config(with_values(config, {"data.name": flags.data}))).dataset.test
    return parts


# ---- numbers


def whens(run: Any) -> dict[str, int]:
    """The places of the epochs whose histograms are stored."""
    count = len(run.diagnostics["epochs"])
    return {"first": 0, "midway": count // 2, "": count - 1}


def curves(run: Any) -> dict[str, np.ndarray]:
    """Split and name -> values by epoch, NaN where no example has that outcome; error and ECE in %."""
    found = {"weight norm": np.array(run.diagnostics["weight_norm"])}
    for split in SPLITS:
        for name in NAMES:
            values = np.array(run.diagnostics["means"][split][name], float)
            found[f"{split} {name}"] = values * (100 if name in PERCENT else 1)
    return found


def bins(run: Any, name: str, when: int) -> np.ndarray:
    """Stored bins of the training examples, "reliability" or a histogram's: lower and upper edge, share, and more."""
    stored_bins = run.diagnostics if name == "reliability" else run.diagnostics["histograms"]
    return np.array(stored_bins[name]["train"][f"{run.diagnostics['epochs'][when]:g}"])


def measured(runs) -> pd.DataFrame:
    """The runs with the numbers that claims are of: a curve's end, "NAME, midway", and "NAME, late", the change since.

    "train, surest bin": the share of examples in the highest of 25 bins of confidence, "train, p_y above p0" of those
    above gamma's p0, "sureness of wrong" the mean confidence of the wrong ones of the stored images, all in %.
    """
    rows = []
    for run in runs.itertuples():
        at, found = whens(run), {}
        every = curves(run)
        every["train, surest bin"] = np.full(len(every["weight norm"]), np.nan)
        for when in at.values():
            own = bins(run, "reliability", when)
            every["train, surest bin"][when] = 100 * own[own[:, 0] > 0.959, 2].sum()
        for name, curve in every.items():
            found |= {(f"{name}, {when}" if when else name): curve[place] for when, place in at.items()}
            found[f"{name}, late"] = curve[at[""]] - curve[at["midway"]]
        own = bins(run, "true_class_probability", at[""])
        above = own[:, 0] > THRESHOLDS.get(run.loss, np.inf) - 1e-3
        found["train, p_y above p0"] = 100 * own[above, 2].sum() if run.loss in THRESHOLDS else np.nan
        images = {name: np.array(values) for name, values in run.diagnostics["images"].items()}
        wrong = images["label"] != images["predicted"]
        for name, key in (("sureness of wrong", "confidence"), ("sureness of wrong after T", "after")):
            found[name] = 100 * images[key][wrong].mean() if wrong.any() else np.nan
        rows.append(found)
    return pd.concat([s99_of(runs), pd.DataFrame(rows, index=runs.index)], axis=1)


def s99_of(cells) -> pd.DataFrame:
    """Loss, seed, error and Table 6's numbers of runs, in %; NaN where S99 is empty."""
    test = [metrics["test"] for metrics in cells.metrics]
    found = {
        title: [100 * own.get(method, {}).get(name, np.nan) for own in test] for title, (method, name) in S99.items()
    }
    error = [100 - 100 * own["uncalibrated"]["accuracy"] for own in test]
    return cells[["loss", "seed", "record"]].assign(error=error, **found)


def band(runs, loss: str, name: str) -> list[Interval]:
    """The interval over the seeds at each epoch, of those seeds that have a value."""
    values = np.array([curves(run)[name] for run in rows_where(runs, loss=loss).itertuples()])
    return [interval(at[np.isfinite(at)]) for at in values.T]


def losses_of(runs) -> list[str]:
    """The losses that have runs, in the order of the papers' tables."""
    return [loss for loss in LOSSES if (runs.loss == loss).any()]


def network(runs):
    """The network of the runs, by the words of their config."""
    return "small ResNet" if "small" in runs.record.iloc[0]["config"] else "ResNet-50"


# ---- claims and tables


def claims(runs, cells):
    """Every statement with its verdict; those of several losses one by one."""
    own, every = measured(runs), s99_of(cells)

    def say(source: str, words: str, found: Interval, what: str = "difference", **how: Any) -> Claim:
        claim = numbers.told(source, words, found, what=what, **how)
        return claim if np.isfinite(found.mean) else claim._replace(because="no runs to compare")

    def beside(table: pd.DataFrame, loss: str, name: str) -> Interval:
        return numbers.paired(column(table, name, loss=loss), column(table, name, loss="ce"))

    told = []
    for source, words, name, falls in LATE:
        what = "change of the share in %" if name == "train, surest bin" else "change"
        late = numbers.level(own, f"{name}, late", loss="ce")
        told.append(say(source, f"CE, late in training: {words}", late, what, falls=falls))
    for source, words, name, lower in BESIDE:
        told += [
            say(source, f"{LOSSES[loss]} beside CE: {words}", beside(own, loss, name), falls=lower)
            for loss in THRESHOLDS
        ]
    words = f"error on all test examples is at most {SAME_ERROR:g} point higher"
    for loss in THRESHOLDS:
        less = beside(own, loss, "error")
        told.append(say("M Fig. 3", f"{LOSSES[loss]} beside CE: {words}", less, margin=SAME_ERROR))
    statements = {
        "S99, %": ("S99 holds fewer test images as trained", True),
        "accuracy in it, %": ("what S99 holds is more often right as trained", False),
        "S99 after T, %": ("after T S99 holds more test images", False),
    }
    for name, (words, lower) in statements.items():
        less = beside(every, "flsd53", name)
        told.append(say("M Table 6", f"{LOSSES['flsd53']} beside CE: {words}", less, falls=lower))
    return told


def _percent(runs, loss: str, names: Iterable[str]) -> list[str]:
    return [shown(numbers.level(runs, name, loss=loss).clipped(0, 100)) for name in names]


def s99(cells):
    """Table 6: all losses that have runs, and the paper's two networks for its three."""
    every = s99_of(cells)
    rows = [[f"{network(cells)}, here", LOSSES[loss], *_percent(every, loss, S99)] for loss in losses_of(cells)]
    for name, losses in TABLE_6.items():
        rows += [
            [f"{name}, Mukhoti et al.", LOSSES[loss], *(f"{number:g}" for number in own)]
            for loss, own in losses.items()
        ]
    return numbers.markdown(["network", "loss", *S99], rows)


def end(runs):
    """Means over seeds at the last epoch, one row a quantity; shares are cut at 100%."""
    own, losses = measured(runs), losses_of(runs)
    rows = []
    for title, name in END.items():
        most = 100 if title.endswith("%") else np.inf
        rows.append([title, *(shown(numbers.level(own, name, loss=loss).clipped(0, most)) for loss in losses)])
    counts = [f"{LOSSES[loss]}, n = {len(rows_where(runs, loss=loss))}" for loss in losses]
    return numbers.markdown(["at the last epoch", *counts], rows)


def images_table(runs):
    """The stored test images that are predicted wrong: their mean confidence before and after T."""
    own, names = measured(runs), ("sureness of wrong", "sureness of wrong after T")
    rows = [[LOSSES[loss], *_percent(own, loss, names)] for loss in losses_of(runs)]
    return numbers.markdown(["loss", "mean confidence of wrong ones of 100 images, %", "after T, %"], rows)


# ---- what results.json holds


def all_curves(runs) -> dict[str, Any]:
    """Loss -> split and name -> mean, low and high over seeds at each epoch."""
    names = {name.replace("weight norm", "weight_norm"): name for name in curves(next(runs.itertuples()))}
    return {
        loss: {
            title: [list(numbers.rounded(value, 17).values()) for value in band(runs, loss, name)]
            for title, name in names.items()
        }
        for loss in losses_of(runs)
    }


def all_s99(cells) -> dict[str, dict]:
    """Table 6's numbers of each loss over seeds."""
    every = s99_of(cells)
    return {loss: {title: numbers.level(every, title, loss=loss) for title in S99} for loss in losses_of(cells)}


def brief(runs) -> list[dict[str, Any]]:
    """The numbers of each run at its end."""
    kept = ["loss", "seed", "record", *(f"{split} {name}" for split in SPLITS for name in NAMES)]
    kept += ["weight norm", "train, surest bin", "train, p_y above p0", *S99]
    rows = measured(runs)[kept].to_dict("records")
    return [{name: value for name, value in run.items() if value == value} for run in rows]


# ---- figures

LINES = {
    "ce": ("#000000", "-", "o"),
    "fl1": ("#e69f00", "--", "s"),
    "fl2": ("#56b4e9", "-.", "^"),
    "fl3": (figures.RED, ":", "D"),
}
OVERLAID = {"ce": {"markersize": 7, "markerfacecolor": "none"}, "fl3": {"markersize": 4}}
LEAST_NORM = 1e-5  # the least gradient norm that is drawn
LEAST_SHARE = 1e-3  # of the examples: the accuracy of a bin of fewer says little
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
EACH = 4  # right and wrong images, as in the paper


def _finished(figure: Figure, runs) -> Figure:
    examples = runs.diagnostics.iloc[0]["examples"]["test"]
    title = f"CIFAR-10 (JPEG), {network(runs)}, {examples:,} images a split, n = {runs.seed.nunique()} seeds"
    figures.legend(figure, "upper center", title=title)
    return figure


def _curves(runs, names: Sequence[Sequence[str]], width: float, height: float, **shared: Any):
    """A panel for each curve: means with the bars of their intervals, each loss a little to the right of the last."""
    figure, axes = figures.panels(len(names), len(names[0]), width, height, sharex=True, **shared)
    epochs = np.array(runs.diagnostics.iloc[0]["epochs"])
    for axis, name in zip(axes.flat, np.ravel(names), strict=True):
        for number, loss in enumerate(losses_of(runs)):
            colour, line, marker = LINES[loss]
            look = {"color": colour, "linestyle": line, "marker": marker, "label": LOSSES[loss], "capsize": 0}
            found = [value.clipped(0) for value in band(runs, loss, name)]
            figures.intervals(
                axis, epochs + 0.12 * number, found, markersize=3.5, linewidth=1.2, elinewidth=0.8, **look
            )
        axis.xaxis.get_major_locator().set_params(integer=True, steps=(1, 2, 5, 10))
    for axis in axes[-1]:
        axis.set_xlabel("epoch")
    return figure, axes


def by_outcome(runs):
    """M Figs. 1 and 3: NLL and entropy of training examples, and of test examples predicted right and wrong."""
    names = [[f"train {name}", f"test {name} correct", f"test {name} wrong"] for name in ("nll", "entropy")]
    figure, axes = _curves(runs, names, 8.2, 5.1)
    for axis, name in zip(axes.flat, np.ravel(names), strict=True):
        if name != "test nll wrong":  # its growth is what the panel is for
            axis.set_ylim(bottom=0)
    for axis, title in zip(axes[0], ("train, all", "test, predicted right", "test, predicted wrong"), strict=True):
        axis.set_title(title, fontsize=10)
    axes[0, 0].set_ylabel("NLL, nats")
    axes[1, 0].set_ylabel("entropy, nats")
    return _finished(figure, runs)


def error_and_ece(runs):
    """M Fig. 3: error and ECE on train and test."""
    names = [[f"{split} {name}" for split in SPLITS] for name in PERCENT]
    figure, axes = _curves(runs, names, 7.2, 5.8, sharey="row")
    for row, label in zip(axes, ("error, %", "ECE (25 bins), %"), strict=True):
        row[0].set(ylabel=label, ylim=(0, None))
    for axis, split in zip(axes[0], SPLITS, strict=True):
        axis.set_title(split, fontsize=10)
    return _finished(figure, runs)


def norms(runs):
    """M Figs. 3 and 4: the norm of the last layer's weights, and the mean gradient norm of examples."""
    figure, axes = _curves(runs, [["weight norm", "train gradient_norm", "test gradient_norm"]], 10.2, 3.8)
    titles = ("norm of the last layer's weights", "gradient norm, train", "gradient norm, test")
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=10)
        if "gradient" in title:
            figures.logarithmic(axis, "y")
    return _finished(figure, runs)


def _shares(runs, loss: str, name: str, when: str) -> pd.DataFrame:
    """By edges of a bin: the share of the training examples, and of those right, means over seeds."""
    own = rows_where(runs, loss=loss)
    tables = [pd.DataFrame(bins(run, name, whens(run)[when])) for run in own.itertuples()]
    every = pd.concat(tables).set_index([0, 1])
    every["right"] = every[2] * every[4] if 4 in every else np.nan
    return every.groupby(level=[0, 1])[[2, "right"]].sum() / len(own)


def _steps(axis: Axes, shares: pd.DataFrame, loss: str, scale: float = 1.0) -> None:
    """A histogram as an outline, gaps as bins of share 0; cross-entropy's is filled too."""
    edges = sorted({edge for ends in shares.index for edge in ends})
    heights = [100 * shares[2].get(ends, 0.0) for ends in pairwise(edges)]
    for how in ({"linewidth": 1.4, "label": LOSSES[loss]}, {"fill": True, "alpha": 0.2})[: 2 if loss == "ce" else 1]:
        axis.stairs(heights, scale * np.array(edges), color=LINES[loss][0], **how)


def _by_epoch(runs, **shared: Any):
    """Two rows of panels, a column for each of the three epochs, with the losses that are overlaid."""
    figure, axes = figures.panels(2, 3, 9.6, 6, sharey="row", **shared)
    places = whens(next(runs.itertuples()))
    drawn = []
    for (above, below), (when, place) in zip(axes.T, places.items(), strict=True):
        above.set_title(f"after epoch {runs.diagnostics.iloc[0]['epochs'][place]:g}", fontsize=10)
        drawn += [(above, below, loss, when) for loss in losses_of(runs) if loss in OVERLAID]
    return figure, drawn


def reliability(runs):
    """M Fig. 2: accuracy against confidence of training examples and the bins' shares, at three epochs."""
    figure, panels = _by_epoch(runs, sharex=True)
    for above, below, loss, when in panels:
        shares = _shares(runs, loss, "reliability", when)
        full = shares[shares[2] >= LEAST_SHARE]
        look = {"color": LINES[loss][0], "marker": LINES[loss][2], "linestyle": "none", **OVERLAID[loss]}
        look["label"] = LOSSES[loss]
        above.plot(100 * (full.index.get_level_values(0) + 0.02), 100 * full.right / full[2], **look)
        above.plot([0, 100], [0, 100], color="0.6", linewidth=0.8)
        _steps(below, shares, loss, 100)
        below.set_xlabel("confidence, %")
    figure.axes[0].set_ylabel("accuracy in the bin, %")
    figure.axes[3].set_ylabel("training examples, %")
    return _finished(figure, runs)


def histograms(runs):
    """M Fig. 4, b to d: the gradient norms of training examples, and p_y, of two losses overlaid, at three epochs."""
    figure, panels = _by_epoch(runs, sharex="row")
    for above, below, loss, when in panels:
        gradients = _shares(runs, loss, "gradient_norm", when)
        _steps(above, gradients[gradients.index.get_level_values(0) > 0], loss)  # a bin from 0 has no logarithm
        _steps(below, _shares(runs, loss, "true_class_probability", when), loss)
        above.set(xscale="log", xlim=(LEAST_NORM, None), xlabel="gradient norm at the last layer")
        below.set(xlim=(0, 1), xlabel="$p_y$, the probability of its own class")
    for axis in (figure.axes[0], figure.axes[3]):
        axis.set_ylabel("training examples, %")
    return _finished(figure, runs)


def images(runs, split: Split | None = None) -> Figure | None:
    """M Fig. 8: the first stored test images, one a class, that both networks of the first seed get right, and wrong.

    With confidences before and after T; only where the test images are given.

    Raises:
        InputError: they are not those of the runs.
    """
    if split is None:
        return None
    both = runs[runs.loss.isin(OVERLAID)]
    both = both[both.seed == both.groupby("seed").size().eq(2).idxmax()]
    found = {
        run.loss: {name: np.array(own) for name, own in run.diagnostics["images"].items()} for run in both.itertuples()
    }
    index, label = (found["ce"][name] for name in ("index", "label"))
    if len(split.y) <= index.max() or (split.y[index] != label).any():
        raise InputError("--data: its test images are not those of the stored runs: give the same files")
    right = np.array([own["predicted"] == label for own in found.values()])
    figure, axes = figures.panels(2, EACH, 9.6, 5.6)
    for row, wanted in zip(axes, (right.all(0), ~right.any(0)), strict=True):
        firsts = sorted({label[place]: place for place in np.flatnonzero(wanted)[::-1]}.values())
        for axis, place in zip(row, firsts, strict=False):
            lines = [
                f"{LOSSES[loss]}: {CLASSES[own['predicted'][place]]} {100 * own['confidence'][place]:.1f} → "
                f"{100 * own['after'][place]:.1f}%"
                for loss, own in found.items()
            ]
            axis.imshow(split.x[index[place]], interpolation="nearest")
            axis.set_title(CLASSES[label[place]], fontsize=10)
            axis.text(0.5, -0.04, "\n".join(lines), transform=axis.transAxes, ha="center", va="top", fontsize=9)
    for axis in axes.flat:
        axis.axis("off")
    return figure


QUESTION = Question(
    "during_training",
    "Does cross-entropy grow sure of the test images that it gets wrong while it trains, and focal loss less?",
    claims,
    tables={"end of training": end, "s99": s99, "images": images_table},
    figures={
        "by_outcome": by_outcome,
        "error_and_ece": error_and_ece,
        "norms": norms,
        "reliability": reliability,
        "histograms": histograms,
        "images": images,
    },
    numbers={
        "epochs": lambda runs: runs.diagnostics.iloc[0]["epochs"],
        "curves": all_curves,
        "s99": all_s99,
        "runs": brief,
    },
    read=read,
    before=f"python -m experiments.cells --tasks cifar10 --losses {' '.join(DIAGNOSED)}; ",
    cores="one core for their training",
    answers=("M Fig. 1", "M Fig. 2", "M Fig. 3", "M Fig. 4, b to d", "M Fig. 8", "M Table 6"),
)
