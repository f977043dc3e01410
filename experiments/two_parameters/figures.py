"""Figures: norms over training and confidences of wrong points; the planes of both losses."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from experiments.two_parameters.answers import Runs
from experiments.two_parameters.descent import BINS, EVERY, STEPS, TITLES, sample

COLOURS = {"ce": "#0072b2", "fl1": "#d55e00"}
DEVIATION = 0.5


def draw(runs: Runs, folder: Path) -> None:
    """Write norms.png (Fig. 5) and planes.png (Fig. 6), at one deviation."""
    folder.mkdir(parents=True, exist_ok=True)
    own = [run for run in runs if run["deviation"] == DEVIATION]
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4))
    for loss, title in TITLES.items():
        cell = [run for run in own if run["loss"] == loss]
        for axis, name in zip(axes, ("norms", "logits"), strict=False):
            _band(axis, np.array([run[name] for run in cell]), COLOURS[loss], title)
        shares = np.array([run["histogram of wrong"] for run in cell])
        axes[2].stairs(100 * shares.mean(0), BINS, color=COLOURS[loss], label=title, linewidth=1.8)
    for axis, label in zip(axes, ("‖w‖", "mean size of test logits"), strict=False):
        axis.set_xlabel("steps of gradient descent")
        axis.set_ylabel(label)
    axes[2].set_xlabel("confidence of misclassified test points")
    axes[2].set_ylabel("share, %")
    axes[0].legend(frameon=False)
    for axis in axes:
        axis.grid(color="0.9")
    figure.tight_layout()
    figure.savefig(folder / "norms.png", dpi=120)
    plt.close(figure)
    _planes(own, folder / "planes.png")


def _band(axis, values: np.ndarray, colour: str, label: str) -> None:
    steps = np.linspace(0, STEPS, values.shape[1])
    axis.plot(steps, values.mean(0), color=colour, label=label)
    axis.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
    axis.set_xlim(0, 20 * EVERY * 2)


def _planes(own: Runs, path: Path) -> None:
    points, labels = sample(DEVIATION, 0)["test"]
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.9), sharey=True, layout="constrained")
    across = np.linspace(-2.8, 2.8, 200)
    plane = np.stack(np.meshgrid(across, across), axis=-1)
    for axis, (loss, title) in zip(axes, TITLES.items(), strict=True):
        weights = next(np.array(run["weights"]) for run in own if run["loss"] == loss and run["seed"] == 0)
        probability = 1 / (1 + np.exp(-plane @ weights))
        shades = axis.contourf(across, across, probability, np.linspace(0, 1, 11), cmap="RdBu_r", alpha=0.75)
        wrong = (points @ weights > 0) != (labels > 0)
        for label, marker in ((0, "o"), (1, "^")):
            right = ~wrong & (labels == label)
            axis.scatter(*points[right].T, s=7, marker=marker, color="0.35", linewidths=0)
            axis.scatter(*points[wrong & (labels == label)].T, s=16, marker=marker, color="black", linewidths=0)
        axis.set(title=f"{title}: ‖w‖ = {np.linalg.norm(weights):.2f}", xlabel="x1", xlim=(-2.8, 2.8), ylim=(-2.8, 2.8))
    axes[0].set_ylabel("x2")
    figure.colorbar(shades, ax=axes, label="probability of class 1", shrink=0.9)
    figure.savefig(path, dpi=110)
    plt.close(figure)
