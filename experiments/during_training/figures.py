"""Figures: curves over epochs by outcome, reliability and histograms at three epochs, norms."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.cells import LOSSES
from experiments.drawing import error_lengths, plain_ticks
from experiments.during_training import numbers
from experiments.during_training.numbers import FIRST, LAST, MIDDLE, Runs, band, epochs_of, losses_of
from experiments.intervals import clipped

STYLES = {
    "ce": {"color": "#000000", "linestyle": "-", "marker": "o"},
    "fl1": {"color": "#e69f00", "linestyle": "--", "marker": "s"},
    "fl2": {"color": "#56b4e9", "linestyle": "-.", "marker": "^"},
    "fl3": {"color": "#d55e00", "linestyle": ":", "marker": "D"},
}
BY_OUTCOME = (
    (("train", "nll", "NLL, nats"), ("test", "nll correct", ""), ("test", "nll wrong", "")),
    (("train", "entropy", "entropy, nats"), ("test", "entropy correct", ""), ("test", "entropy wrong", "")),
)
COLUMNS = ("train, all", "test, predicted right", "test, predicted wrong")
SHIFT = 0.12  # epochs between the bars of two losses
WHENS = (FIRST, MIDDLE, LAST)
MARKERS = {"ce": {"markersize": 7, "markerfacecolor": "none"}, "fl3": {"markersize": 4}}
OVERLAID = tuple(MARKERS)
LEAST_NORM = 1e-5  # the least gradient norm that is drawn
LEAST_SHARE = 1e-3  # of the examples: the accuracy of a bin of fewer says little


def draw(runs: Runs, folder: Path) -> None:
    """Write all figures but that of images."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in FIGURES.items():
        figure = make(runs)
        figure.savefig(folder / f"{name}.png", dpi=120, bbox_inches="tight", pil_kwargs={"optimize": True})
        plt.close(figure)


def by_outcome(runs: Runs) -> Figure:
    """M Figs. 1 and 3: NLL and entropy of training examples, and of test examples predicted right and wrong."""
    figure, axes = plt.subplots(2, 3, figsize=(8.2, 4.5), sharex=True)
    for row, panels in zip(axes, BY_OUTCOME, strict=True):
        for axis, (split, name, label) in zip(row, panels, strict=True):
            _curves(axis, runs, split, name)
            axis.set_ylabel(label)
            if name != "nll wrong":  # its growth is what the panel is for
                axis.set_ylim(bottom=0)
    for axis, title in zip(axes[0], COLUMNS, strict=True):
        axis.set_title(title, fontsize=10)
    return _finished(figure, axes, runs)


def error_and_ece(runs: Runs) -> Figure:
    """M Fig. 3: error and ECE on train and test."""
    figure, axes = plt.subplots(2, 2, figsize=(7.2, 5.2), sharex=True, sharey="row")
    for row, (name, label) in zip(axes, (("error", "error, %"), ("ece", "ECE (25 bins), %")), strict=True):
        for axis, split in zip(row, numbers.SPLITS, strict=True):
            _curves(axis, runs, split, name)
        row[0].set_ylabel(label)
        row[0].set_ylim(bottom=0)
    for axis, split in zip(axes[0], numbers.SPLITS, strict=True):
        axis.set_title(split, fontsize=10)
    return _finished(figure, axes, runs)


def norms(runs: Runs) -> Figure:
    """M Figs. 3 and 4: the norm of the last layer's weights, and the mean gradient norm of examples."""
    figure, axes = plt.subplots(1, 3, figsize=(10.2, 3.2), squeeze=False)
    panels = (("", "weight_norm"), ("train", "gradient_norm"), ("test", "gradient_norm"))
    titles = ("norm of the last layer's weights", "gradient norm, train", "gradient norm, test")
    for axis, (split, name), title in zip(axes[0], panels, titles, strict=True):
        _curves(axis, runs, split, name)
        axis.set_title(title, fontsize=10)
        if split:
            axis.set_yscale("log")
            plain_ticks(axis.yaxis)
    return _finished(figure, axes, runs)


def reliability(runs: Runs) -> Figure:
    """M Fig. 2: accuracy against confidence of training examples and the bins' shares, at three epochs."""
    figure, axes = plt.subplots(2, 3, figsize=(9.6, 5.4), sharex=True, sharey="row")
    for column, when in zip(axes.T, WHENS, strict=True):
        column[0].plot([0, 100], [0, 100], color="0.6", linewidth=0.8)
        for loss in _overlaid(runs):
            edges, share, accuracy = _bins(runs, loss, when)
            style = STYLES[loss] | {"linestyle": "none", "label": LOSSES[loss], **MARKERS[loss]}
            full = share >= LEAST_SHARE
            column[0].plot(100 * (edges[:-1] + 0.02)[full], accuracy[full], **style)
            _steps(column[1], 100 * share, 100 * edges, loss)
        column[0].set_title(_title(runs, when), fontsize=10)
        column[1].set_xlabel("confidence, %")
    axes[0, 0].set_ylabel("accuracy in the bin, %")
    axes[1, 0].set_ylabel("training examples, %")
    return _finished(figure, axes, runs, by_epoch=False)


def histograms(runs: Runs) -> Figure:
    """M Fig. 4, b to d: the gradient norms of training examples, and p_y, of two losses overlaid, at three epochs."""
    figure, axes = plt.subplots(2, 3, figsize=(9.6, 5.4), sharex="row", sharey="row")
    for column, when in zip(axes.T, WHENS, strict=True):
        for loss in _overlaid(runs):
            edges, share = _histogram(runs, loss, "gradient_norm", when)
            _steps(column[0], 100 * share, edges, loss)
            edges, share = _histogram(runs, loss, "true_class_probability", when)
            _steps(column[1], 100 * share, edges, loss)
        column[0].set_title(_title(runs, when), fontsize=10)
        column[0].set_xscale("log")
        column[0].set_xlim(left=LEAST_NORM)
        column[0].set_xlabel("gradient norm at the last layer")
        column[1].set_xlim(0, 1)
        column[1].set_xlabel("$p_y$, the probability of its own class")
    for axis in axes[:, 0]:
        axis.set_ylabel("training examples, %")
    return _finished(figure, axes, runs, by_epoch=False)


FIGURES = {
    "by_outcome": by_outcome,
    "error_and_ece": error_and_ece,
    "norms": norms,
    "reliability": reliability,
    "histograms": histograms,
}


def _curves(axis: Axes, runs: Runs, split: str, name: str) -> None:
    """Means with the bars of their intervals, each loss a little to the right of the one before."""
    epochs = np.asarray(epochs_of(runs), float)
    for number, loss in enumerate(losses_of(runs)):
        found = [clipped(one, 0, np.inf) for one in band(runs, loss, split, name)]
        style = STYLES[loss] | {"markersize": 3.5, "linewidth": 1.2, "elinewidth": 0.8, "label": LOSSES[loss]}
        means = [one.mean for one in found]
        axis.errorbar(epochs + SHIFT * number, means, error_lengths(found), **style)
    axis.xaxis.set_major_locator(MaxNLocator(steps=(1, 2, 5, 10), integer=True))


def _steps(axis: Axes, share: np.ndarray, edges: np.ndarray, loss: str) -> None:
    """A histogram as an outline; cross-entropy's is filled too."""
    colour = STYLES[loss]["color"]
    axis.stairs(share, edges, color=colour, linewidth=1.4, label=LOSSES[loss])
    if loss == "ce":
        axis.stairs(share, edges, color=colour, fill=True, alpha=0.2)


def _overlaid(runs: Runs) -> list[str]:
    return [loss for loss in OVERLAID if loss in losses_of(runs)]


def _title(runs: Runs, when: str) -> str:
    return f"after epoch {numbers.epoch(runs[0], when):g}"


def _bins(runs: Runs, loss: str, when: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edges of the 25 bins, mean share over seeds, and accuracy in % of all seeds' examples in the bin."""
    share, right = np.zeros((2, 25))
    own = [run for run in runs if run["loss"] == loss]
    for run in own:
        for lower, _, part, _, accuracy in numbers.bins(run, "reliability", "train", when):
            share[round(25 * lower)] += part / len(own)
            right[round(25 * lower)] += part * accuracy / len(own)
    return np.arange(26) / 25, share, 100 * right / np.where(share > 0, share, 1)


def _histogram(runs: Runs, loss: str, name: str, when: str) -> tuple[np.ndarray, np.ndarray]:
    """Edges and mean shares over seeds; gaps are bins of share 0. A first bin from 0 is left out of logarithms."""
    own = [run for run in runs if run["loss"] == loss]
    shares: dict[tuple[float, float], float] = {}
    for run in own:
        for lower, upper, share in numbers.bins(run, name, "train", when):
            shares[lower, upper] = shares.get((lower, upper), 0) + share / len(own)
    kept = [pair for pair in shares if name == "true_class_probability" or pair[0] > 0]
    edges = sorted({edge for pair in kept for edge in pair})
    found = [shares.get(pair, 0.0) for pair in itertools.pairwise(edges)]
    return np.array(edges), np.array(found)


def _finished(figure: Figure, axes: Sequence, runs: Runs, *, by_epoch: bool = True) -> Figure:
    """One legend above all panels, grids, and epochs below the last row."""
    for axis in np.ravel(axes):
        axis.grid(color="0.9")
        axis.set_axisbelow(True)
    for axis in np.atleast_2d(axes)[-1] if by_epoch else ():
        axis.set_xlabel("epoch")
    handles, labels = np.ravel(axes)[0].get_legend_handles_labels()
    seeds = len({run["seed"] for run in runs})
    examples = runs[0]["diagnostics"]["examples"]["test"]
    figure.tight_layout()
    figure.legend(
        handles,
        labels,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=len(labels),
        frameon=False,
        title=f"CIFAR-10 (JPEG), {numbers.network(runs[0])}, {examples:,} images a split, n = {seeds} seeds",
    )
    return figure
