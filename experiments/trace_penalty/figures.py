"""Figure: ECE, accuracy and trace against the weight of the penalty, by task and form."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.intervals import interval
from experiments.trace_penalty import weights

LOOKS = {"hessian": ("#0072b2", "o", "Hessian", -0.06), "gauss_newton": ("#d55e00", "s", "Gauss-Newton", 0.06)}
PANELS = {"ece": ("test ECE, %", 100), "accuracy": ("test accuracy, %", 100), "trace train": ("trace on train", 1)}


def draw(runs: weights.Runs, folder: Path) -> None:
    """Write weights.png: a row for each task."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    figure, axes = plt.subplots(len(tasks), len(PANELS), figsize=(10.5, 3.2 * len(tasks)), squeeze=False)
    for row, task in zip(axes, tasks, strict=True):
        own = [run for run in runs if run["task"] == task]
        for axis, (name, (title, scale)) in zip(row, PANELS.items(), strict=True):
            _panel(axis, own, name, scale)
            axis.set_ylabel(title)
        row[1].set_title(weights.TASKS[task].title, fontsize=10)
        row[2].set_yscale("log")
        row[2].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        row[2].yaxis.set_major_formatter("{x:g}")
        row[2].yaxis.set_minor_formatter(NullFormatter())
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(folder / "weights.png", dpi=120)
    plt.close(figure)


def _panel(axis, own: weights.Runs, name: str, scale: float) -> None:
    for form, (colour, marker, label, shift) in LOOKS.items():
        cells = weights.at_chosen(own, form)
        found = [interval(list(weights.column(cell, name).values())) for cell in cells.values()]
        means = np.array([scale * one.mean for one in found])
        lengths = scale * np.array([[one.mean - one.low, one.high - one.mean] for one in found]).T
        lengths[~np.isfinite(lengths)] = 0
        places = np.arange(len(cells)) + shift
        axis.errorbar(places, means, yerr=lengths, color=colour, marker=marker, markersize=4, capsize=2, label=label)
        axis.set_xticks(range(len(cells)), [f"{penalty:g}" for penalty in cells], fontsize=8)
    axis.set_xlabel("λ")
    axis.grid(color="0.9")
