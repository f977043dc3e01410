"""Figures: gamma over training, and test NLL by gamma with the learned ones beside."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from experiments.drawing import error_lengths
from experiments.intervals import interval
from experiments.learned_gamma.answers import Runs, of, tasks
from experiments.learned_gamma.training import GAMMAS, STARTS, TASKS

COLOURS, MARKERS = ("#0072b2", "#d55e00"), ("s", "^")


def draw(runs: Runs, folder: Path) -> None:
    """Write gamma.png: above gamma over training by seed, below test NLL against gamma."""
    folder.mkdir(parents=True, exist_ok=True)
    found = tasks(runs)
    figure, axes = plt.subplots(2, len(found), squeeze=False, figsize=(3.3 * len(found), 5.6), layout="constrained")
    for column, task in enumerate(found):
        _paths(axes[0, column], runs, task)
        _scores(axes[1, column], runs, task)
        seeds = len(of(runs, task, "fixed", 0.0))
        title = TASKS[task][0].replace(", ", ",\n", 1)
        axes[0, column].set_title(f"{title}\nn = {seeds}", fontsize=10)
    axes[0, 0].set_ylabel("learned γ")
    axes[1, 0].set_ylabel("test NLL as trained, nats")
    handles, labels = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(folder / "gamma.png", dpi=120)
    plt.close(figure)


def _paths(axis, runs: Runs, task: str) -> None:
    for start, colour in zip(STARTS, COLOURS, strict=True):
        paths = np.array([[start, *run["path"]] for run in of(runs, task, "learned", start).values()])
        share = np.linspace(0, 100, paths.shape[1])
        axis.plot(share, paths.T, color=colour, alpha=0.2, linewidth=0.7)
        axis.plot(share, paths.mean(0), color=colour, linewidth=2)
    axis.set_xlabel("training, %")
    axis.grid(color="0.9")


def _scores(axis, runs: Runs, task: str) -> None:
    means, lengths = _errors([of(runs, task, "fixed", gamma) for gamma in GAMMAS])
    axis.errorbar(GAMMAS, means, yerr=lengths, color="black", marker="o", markersize=4, capsize=2, label="γ fixed")
    for start, colour, marker in zip(STARTS, COLOURS, MARKERS, strict=True):
        own = of(runs, task, "learned", start)
        mean, length = _errors([own])
        end = np.mean([run["path"][-1] for run in own.values()])
        label = f"learned from {start:g}, at its end"
        axis.errorbar(
            end, mean, yerr=length, color=colour, marker=marker, markersize=7, capsize=2, label=label, linestyle=""
        )
    axis.set_xlabel("γ")
    axis.grid(color="0.9")
    axis.set_axisbelow(True)


def _errors(groups: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    found = [interval([run["nll"] for run in own.values()]) for own in groups]
    return np.array([each.mean for each in found]), error_lengths(found)
