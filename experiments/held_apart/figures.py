"""The figure: lambda_max of both Hessians on val against gamma, at each learning rate, batch size and optimiser."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from experiments.drawing import plain_ticks
from experiments.held_apart.answers import Runs, table_of
from experiments.held_apart.runs import BATCHES, GAMMAS, RATES

ROWS = {"lambda_max CE val": "λ_max, cross-entropy, val", "lambda_max own val": "λ_max, trained loss, val"}
COLOURS = ("#0072b2", "#009e73", "#d55e00")
MARKERS = ("o", "s", "^")
STYLES = ("-", "--", ":")


def draw(runs: Runs, folder: Path) -> None:
    """Write lambda_max.png: geometric means over seeds."""
    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(
        len(ROWS), len(RATES), sharex=True, sharey="row", figsize=(8.2, 5.6), layout="constrained"
    )
    for axis, (optimiser, rates) in zip(axes[0], RATES.items(), strict=True):
        axis.set_title(f"{optimiser}, rates {', '.join(f'{rate:g}' for rate in rates)}", fontsize=10)
    for row, (name, words) in zip(axes, ROWS.items(), strict=True):
        means = np.exp(table_of(runs, name).mean(0))  # [gammas, rates, batches, optimisers]
        for place, axis in enumerate(row):
            for rate, (colour, marker) in enumerate(zip(COLOURS, MARKERS, strict=True)):
                for batch, style in enumerate(STYLES):
                    label = f"rate {('low', 'middle', 'high')[rate]}, batch {BATCHES[batch]}"
                    own = means[:, rate, batch, place]
                    axis.plot(GAMMAS, own, style, color=colour, marker=marker, markersize=4, linewidth=1.2, label=label)
            axis.set_yscale("log")
            plain_ticks(axis.yaxis)
            axis.grid(color="0.9")
        row[0].set_ylabel(words)
    for axis in axes[-1]:
        axis.set_xlabel("γ of the training loss")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    seeds = len(table_of(runs, next(iter(ROWS))))
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9, title=f"n = {seeds} seeds")
    figure.savefig(folder / "lambda_max.png", dpi=120)
    plt.close(figure)
