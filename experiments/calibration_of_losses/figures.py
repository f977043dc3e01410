"""Figures: ECE before and after temperature scaling by loss, and the losses' order here against the paper's."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from experiments.calibration_of_losses.quantities import PAPERS, by_seed, losses_of, mean
from experiments.calibration_of_losses.tables import Runs
from experiments.cells import LOSSES, TASKS
from experiments.drawing import error_lengths

BEFORE, AFTER, PAPER = "#0072b2", "#d55e00", "0.45"


def draw(runs: Runs, folder: Path) -> None:
    """Write ece.png, a panel for each data set that has runs."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = {task: own for task, own in runs.items() if own}
    figure, axes = plt.subplots(
        1, len(shown), figsize=(4.2 * len(shown) + 0.6, 4.4), squeeze=False, layout="constrained"
    )
    for axis, (task, own) in zip(axes[0], shown.items(), strict=True):
        _panel(axis, task, own)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(folder / "ece.png", dpi=120, bbox_inches="tight")
    plt.close(figure)


def _panel(axis, task: str, own: list) -> None:
    losses = losses_of(own)
    heights = np.arange(len(losses))[::-1]
    for name, colour, mark, shift, label in (
        ("ece", BEFORE, "o", 0.14, "as trained"),
        ("ece after T", AFTER, "s", -0.14, "after T, by ECE on val"),
    ):
        found = [mean(own, loss, name) for loss in losses]
        middles = [one.mean for one in found]
        axis.errorbar(
            middles,
            heights + shift,
            xerr=error_lengths(found),
            fmt=mark,
            color=colour,
            label=label,
            capsize=2,
            markersize=5,
        )
    networks = PAPERS["ece"][task].values()
    theirs = [
        np.mean([network[loss] for network in networks]) if loss in next(iter(networks)) else np.nan for loss in losses
    ]
    axis.plot(theirs, heights + 0.14, "x", color=PAPER, label="as trained, Mukhoti et al.")
    axis.set_yticks(heights, [LOSSES[loss] for loss in losses])
    axis.set_xlim(left=0)
    axis.set_xlabel("test ECE, %")
    seeds = sorted({len(by_seed(own, loss, "ece")) for loss in losses})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    axis.set_title(f"{TASKS[task].title}, n = {count}", fontsize=10)
    axis.grid(axis="x", color="0.9")
    axis.set_axisbelow(True)
