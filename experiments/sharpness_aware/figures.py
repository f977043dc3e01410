"""The figure: ECE and NLL as trained against the trace of cross-entropy's Hessian, a line of strengths each."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from experiments.drawing import error_lengths, plain_ticks
from experiments.intervals import interval
from experiments.sharpness_aware.answers import FLATTENING, TRACE, Runs, level, strengths
from experiments.sharpness_aware.runs import METHODS

COLOURS = ("#0072b2", "#3aa0d8", "#d55e00", "#b58900")
MARKERS, STYLES = ("o", "s", "^", "D"), ("-", "--", "-", "--")
PANELS = {"ece": ("test ECE as trained, %", 100), "ece after T": ("test ECE after T, %", 100), "nll": ("test NLL", 1)}


def draw(runs: Runs, folder: Path) -> None:
    """Write trace.png: means over seeds with intervals; each line begins at plain cross-entropy."""
    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(1, len(PANELS), figsize=(10.2, 3.6), layout="constrained")
    plain = strengths(runs, "plain")[0.0]
    for axis, (name, (words, scale)) in zip(axes, PANELS.items(), strict=True):
        for method, colour, marker, style in zip(FLATTENING, COLOURS, MARKERS, STYLES, strict=True):
            own = [plain, *(each for each in strengths(runs, method).values() if each)]
            traces = [np.exp(np.mean(np.log([max(run[TRACE], 1e-9) for run in each.values()]))) for each in own]
            found = [interval([scale * run[name] for run in each.values()]) for each in own]
            axis.errorbar(
                traces,
                [each.mean for each in found],
                yerr=error_lengths(found),
                color=colour,
                marker=marker,
                linestyle=style,
                markersize=4,
                linewidth=1.1,
                elinewidth=0.7,
                label=METHODS[method].title,
            )
        axis.axvline(np.exp(level(runs)), color="0.6", linewidth=0.8, linestyle=":")
        axis.set_xscale("log")
        plain_ticks(axis.xaxis)
        axis.set(xlabel="trace of cross-entropy's Hessian on val", ylabel=words)
        axis.grid(color="0.9")
        axis.set_axisbelow(True)
    handles, labels = axes[0].get_legend_handles_labels()
    title = f"n = {len(plain)} seeds; dotted: half the trace"
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9, title=title)
    figure.savefig(folder / "trace.png", dpi=120)
    plt.close(figure)
