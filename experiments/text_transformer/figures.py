"""The figure: ECE as trained and after T, and NLL, of each way of training."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from experiments.drawing import error_lengths
from experiments.intervals import clipped, interval
from experiments.text_transformer.answers import NUMBERS, Runs, of
from experiments.text_transformer.runs import TRAININGS

PANELS = ("ece", "ece after T", "nll")


def draw(runs: Runs, folder: Path) -> None:
    """Write calibration.png: each seed a point, the mean with its interval."""
    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(1, len(PANELS), sharey=True, figsize=(9.4, 2.6), layout="constrained")
    rows = np.arange(len(TRAININGS))
    for axis, number in zip(axes, PANELS, strict=True):
        title, scale = NUMBERS[number]
        found = []
        for row, name in zip(rows, TRAININGS, strict=True):
            values = [scale * run[number] for run in of(runs, name).values()]
            found.append(clipped(interval(values), 0, np.inf))
            axis.plot(values, np.full(len(values), row), "o", color="0.6", markersize=4)
        means = [each.mean for each in found]
        axis.errorbar(means, rows, xerr=error_lengths(found), color="#0072b2", marker="D", linestyle="", capsize=3)
        axis.set(xlabel=title)
        axis.grid(color="0.9")
        axis.set_axisbelow(True)
    axes[0].set_yticks(rows, [training.title for training in TRAININGS.values()])
    axes[0].invert_yaxis()
    axes[0].set_title(f"n = {len(of(runs, 'ce'))} seeds", fontsize=9, loc="left")
    figure.savefig(folder / "calibration.png", dpi=120)
    plt.close(figure)
