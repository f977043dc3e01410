"""Figure: the best T against gamma_ev, for each training loss and file, as the paper's Fig. 8."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from experiments.cells import LOSSES, TASKS
from experiments.focal_temperature.answers import OTHERS, Runs, groups

COLOURS = ("#000000", "#0072b2", "#009e73", "#d55e00", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = "os^vDP*X<>hp"


def draw(runs: Runs, folder: Path) -> None:
    """Write temperatures.png, a panel for each data set."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    losses = [loss for loss in LOSSES if any(run["loss"] == loss for run in runs)]
    losses += [loss for loss in dict.fromkeys(run["loss"] for run in runs) if loss not in LOSSES]  # others' files
    looks = {loss: _look(number) for number, loss in enumerate(losses)}
    figure, axes = plt.subplots(
        1, len(tasks), figsize=(4.1 * len(tasks) + 0.4, 4.2), squeeze=False, layout="constrained"
    )
    for axis, task in zip(axes[0], tasks, strict=True):
        for (_, loss), cell in groups([run for run in runs if run["task"] == task]).items():
            temperatures = np.mean([run["temperatures"]["val"]["ece"] for run in cell], axis=0)
            gammas = np.array(cell[0]["temperatures"]["gammas"])
            near = gammas <= 1
            axis.plot(gammas[near], temperatures[near], label=LOSSES.get(loss, loss), linewidth=1.2, **looks[loss])
        axis.set_title("others' outputs, CIFAR-100" if task == OTHERS else TASKS[task].title, fontsize=10)
        axis.set_xlabel("γ_ev")
        axis.grid(color="0.9")
    lines = {line.get_label(): line for axis in axes[0] for line in axis.lines}
    names = [LOSSES.get(loss, loss) for loss in losses]
    figure.legend(
        [lines[name] for name in names], names, loc="outside lower center", ncols=7, frameon=False, fontsize=8
    )
    axes[0, 0].set_ylabel("best T on val by ECE")
    figure.savefig(folder / "temperatures.png", dpi=120)
    plt.close(figure)


def _look(number: int) -> dict[str, Any]:
    """Colour and marker of a loss or file, the same in every panel."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 4}
