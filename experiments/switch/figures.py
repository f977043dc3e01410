"""The figure: ECE and the trace of cross-entropy's Hessian on val by epoch, of networks that switch and that do not."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from experiments.switch.answers import LOSS, Runs, of, throughout
from experiments.switch.runs import EPOCHS, GAMMAS, HALF, Way

COLOURS = {0.0: "#0072b2", 3.0: "#d55e00"}  # of the loss that is trained with
POINTS = {(HALF, "kept"): ("--", "from half way"), (EPOCHS, "fresh"): (":", "after the end")}
ROWS = {"ece": ("ECE on val, %", 100), "trace": ("trace of cross-entropy's\nHessian on val", 1)}


def draw(runs: Runs, folder: Path) -> None:
    """Write paths.png: means over seeds against the epochs of both trainings together."""
    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(len(ROWS), 2, sharex=True, sharey="row", figsize=(8.6, 5.4), layout="constrained")
    for column, source in enumerate(GAMMAS):
        other = GAMMAS[1 - column]
        for row, (name, (_, scale)) in enumerate(ROWS.items()):
            axis = axes[row, column]
            for gamma in GAMMAS:
                own = throughout(runs, gamma).values()
                _line(axis, own, name, scale, 0, color=COLOURS[gamma], label=f"{LOSS[gamma]} throughout", linewidth=1.6)
            for point, (style, _) in POINTS.items():
                own = of(runs, Way(source, *point, other)).values()
                _line(axis, own, name, scale, point[0], color=COLOURS[other], linestyle=style, marker="o")
                stayed = of(runs, Way(source, *point, source)).values()
                _line(axis, stayed, name, scale, point[0], color=COLOURS[source], linestyle=style, linewidth=1)
            axis.grid(color="0.9")
        count = len(throughout(runs, source))
        axes[0, column].set_title(f"{LOSS[source]} to {LOSS[other]}, n = {count} seeds", fontsize=10)
        axes[-1, column].set_xlabel("epoch")
    for row, (words, _) in enumerate(ROWS.values()):
        axes[row, 0].set_ylabel(words)
    for style, words in POINTS.values():
        axes[0, 0].plot([], [], color="0.35", linestyle=style, marker="o", markersize=3, label=f"switched {words}")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(folder / "paths.png", dpi=120)
    plt.close(figure)


def _line(axis, own, name: str, scale: float, begin: int, **style) -> None:
    if not own:
        return
    epochs = begin + np.array(next(iter(own))["path"]["epoch"])
    means = scale * np.mean([run["path"][name] for run in own], 0)
    axis.plot(epochs, means, markersize=3, **style)
