"""The figure: ECE as trained against the trace of cross-entropy's Hessian and of the trained loss's, on val."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from experiments.curvature_of_losses.answers import Runs, by_training
from experiments.curvature_of_losses.runs import TRAININGS
from experiments.drawing import plain_ticks

PANELS = {"trace CE val": "trace of cross-entropy's Hessian on val", "trace own val": "trace of the own loss's Hessian"}
MARKERS = "osD^v<>PXph*dH"


def draw(runs: Runs, folder: Path) -> None:
    """Write trace_and_ece.png: each run faint, the mean of each way of training, named in the legend."""
    folder.mkdir(parents=True, exist_ok=True)
    own = by_training(runs)
    figure, axes = plt.subplots(1, 2, sharey=True, figsize=(9.4, 4.6), layout="constrained")
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(TRAININGS)))
    for axis, (name, words) in zip(axes, PANELS.items(), strict=True):
        for colour, marker, (training, each) in zip(colours, MARKERS, own.items(), strict=False):
            points = np.array([(run[name], 100 * run["ece"]) for run in each])
            axis.scatter(*points.T, s=8, color=colour, marker=marker, alpha=0.25, linewidths=0)
            axis.scatter(*points.mean(0), s=46, color=colour, marker=marker, edgecolor="white", linewidth=0.6, zorder=3)
            label = TRAININGS[training].title
            axis.scatter([], [], color=colour, marker=marker, s=30, label=label)
        axis.set_xscale("log")
        axis.set_yscale("log")
        plain_ticks(axis.xaxis)
        plain_ticks(axis.yaxis)
        axis.set_xlabel(words)
        axis.grid(color="0.9")
        axis.set_axisbelow(True)
    seeds = max(len(each) for each in own.values())
    axes[0].set_ylabel(f"test ECE as trained, %, n = {seeds} seeds")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    figure.savefig(folder / "trace_and_ece.png", dpi=120)
    plt.close(figure)
