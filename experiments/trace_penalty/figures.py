"""Figure: ECE, accuracy and trace against the weight of the penalty, by task and form."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from experiments.drawing import error_lengths, plain_ticks
from experiments.intervals import interval
from experiments.trace_penalty import choice, weights
from experiments.trace_penalty.choice import Runs

LOOKS = {"hessian": ("#0072b2", "o", "-", -0.07), "gauss_newton": ("#d55e00", "s", "--", 0.07)}
PANELS = {"ece": ("test ECE, %", 100), "accuracy": ("test accuracy, %", 100), "trace train": ("trace on train", 1)}


def draw(runs: Runs, folder: Path) -> None:
    """Write weights.png: a row for each task. Hollow: another rate is chosen than without penalty."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = choice.by_task(runs)
    figure, axes = plt.subplots(len(tasks), len(PANELS), figsize=(10.5, 3.3 * len(tasks)), squeeze=False)
    for row, (task, own) in zip(axes, tasks.items(), strict=True):
        for axis, (name, (title, scale)) in zip(row, PANELS.items(), strict=True):
            _panel(axis, own, name, scale)
            axis.set_ylabel(title, fontsize=11)
        seeds = len({run["seed"] for run in own})
        row[1].set_title(f"{weights.TASKS[task].title}, n = {seeds}, 95% intervals", fontsize=11)
        row[2].set_yscale("log")
        plain_ticks(row[2].yaxis)
    if any(_moved(choice.at_chosen(own, form)) for own in tasks.values() for form in LOOKS):
        axes[0, 0].plot([], [], "ko", markerfacecolor="white", markersize=6, label="another rate than at λ = 0")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=3, frameon=False, fontsize=11)
    figure.tight_layout(rect=(0, 0.09 / len(tasks), 1, 1))
    figure.savefig(folder / "weights.png", dpi=120)
    plt.close(figure)


def _moved(cells: choice.Cells) -> list[int]:
    """The places along the weights where another rate is chosen than for the first."""
    rates = [next(iter(cell.values()))["rate"] for cell in cells.values()]
    return [place for place, rate in enumerate(rates) if rate != rates[0]]


def _panel(axis, own: Runs, name: str, scale: float) -> None:
    penalties = sorted({run["penalty"] for run in own})
    for form, (colour, marker, line, shift) in LOOKS.items():
        cells = choice.at_chosen(own, form)
        found = [interval(list(choice.column(cell, name).values())) for cell in cells.values()]
        means = np.array([scale * one.mean for one in found])
        lengths = scale * error_lengths(found)
        places = np.array([penalties.index(penalty) for penalty in cells]) + shift
        looks = {"color": colour, "marker": marker, "markersize": 6}
        axis.errorbar(places, means, lengths, linestyle=line, capsize=3, label=weights.FORMS[form], **looks)
        moved = _moved(cells)
        axis.plot(places[moved], means[moved], linestyle="", markerfacecolor="white", zorder=3, **looks)
    axis.set_xticks(range(len(penalties)), [f"{1e3 * penalty:g}" for penalty in penalties])
    axis.set_xlabel("weight of the penalty, 1000 λ", fontsize=11)
    axis.grid(color="0.9")
