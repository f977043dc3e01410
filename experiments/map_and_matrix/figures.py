"""Figures: gains over temperature scaling by part of the NLL, and the fitted gamma against that of training."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from experiments.drawing import error_lengths
from experiments.intervals import interval
from experiments.map_and_matrix.answers import BOTH, CLASSES, FITTED, MAP, Runs, by_gamma, gain, over, sets

BARS = {MAP: ("#0072b2", "o", "γ"), CLASSES: ("#d55e00", "s", "class-wise scaling"), BOTH: ("#000000", "D", "both")}
COLOURS = ("#0072b2", "#d55e00", "#009e73")
MARKERS = ("o", "s", "^")


def draw(runs: Runs, cells: Mapping[str, Runs], folder: Path) -> None:
    """Write gains.png and gamma.png, as far as there are runs."""
    folder.mkdir(parents=True, exist_ok=True)
    if runs:
        _gains(runs, folder / "gains.png")
    if any(by_gamma(own) for own in cells.values()):
        _gamma(cells, folder / "gamma.png")


def _gains(runs: Runs, path: Path) -> None:
    """Sets of outputs below each other, the two parts of the NLL beside each other."""
    found = sets(runs)
    figure, axes = plt.subplots(
        1, 2, sharey=True, figsize=(8.2, 0.55 * len(found) + 1.5), layout="constrained", squeeze=False
    )
    for axis, part in zip(axes[0], ("right or wrong", "which else"), strict=True):
        for shift, (method, (colour, marker, label)) in zip((0.22, 0, -0.22), BARS.items(), strict=True):
            for place, own in enumerate(found.values()):
                mean, low, high = over(own, [1000 * gain(run, method, part) for run in own])
                ends = [[mean - low], [high - mean]] if np.isfinite(low + high) else None
                named = label if not place else None
                axis.errorbar(
                    mean, shift - place, xerr=ends, color=colour, marker=marker, markersize=5, capsize=2, label=named
                )
        axis.axvline(0, color="0.6", linewidth=0.8)
        axis.set_xlabel(f"gain in “{part}”, mnat")
        axis.grid(axis="x", color="0.9")
        axis.set_axisbelow(True)
    axes[0, 0].set_yticks(
        [-place for place in range(len(found))], [f"{name}, n = {len(own)}" for name, own in found.items()]
    )
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _gamma(cells: Mapping[str, Runs], path: Path) -> None:
    """Means over seeds with intervals, and the line on which the fitted gamma is that of training."""
    figure, axis = plt.subplots(figsize=(5.0, 4.0), layout="constrained")
    for colour, marker, (task, own) in zip(COLOURS, MARKERS, cells.items(), strict=False):
        by_seed = by_gamma(own)
        gammas = sorted({gamma for runs in by_seed.values() for gamma in runs})
        if not gammas:
            continue
        values = [
            [runs[at]["fits"][FITTED]["calibration_gamma"] for runs in by_seed.values() if at in runs] for at in gammas
        ]
        found = [interval(each) for each in values]
        means = np.array([each.mean for each in found])
        lengths = error_lengths(found)
        label = f"{task}, n = {len(by_seed)}"
        axis.errorbar(gammas, means, yerr=lengths, color=colour, marker=marker, markersize=5, capsize=2, label=label)
    axis.plot([0, 7], [0, 7], color="0.5", linewidth=0.8, linestyle="--", label="the same γ")
    axis.set(xlabel="γ of the training loss", ylabel="γ fitted on val with T, by NLL")
    axis.grid(color="0.9")
    axis.set_axisbelow(True)
    axis.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)
