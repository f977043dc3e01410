"""The figure: Theorem 2 at growing distances, and T and the trace of both losses against gamma."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullFormatter

from experiments.bounds.answers import Runs, gammas, of, ratios
from experiments.bounds.measured import DISTANCES
from experiments.drawing import error_lengths, plain_ticks
from experiments.intervals import interval

KINDS = {"random": ("random directions", "#0072b2", "o", "-"), "uphill": ("up the gradient", "#d55e00", "s", "--")}
LOSSES = {"focal": ("focal loss", "#d55e00", "o", "-"), "penalised": ("confidence penalty", "#0072b2", "s", "--")}


def draw(runs: Runs, folder: Path) -> None:
    """Write bounds.png: means over seeds with intervals."""
    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(1, 3, figsize=(10.2, 3.4), layout="constrained")
    for kind, (words, colour, marker, style) in KINDS.items():
        found = [ratios(runs, kind, distance) for distance in DISTANCES]
        means, low, high = (np.exp([each[place] for each in found]) for place in range(3))
        lengths = np.where(np.isfinite([means - low, high - means]), [means - low, high - means], 0)
        percent = 100 * np.array(DISTANCES)
        axes[0].errorbar(percent, means, yerr=lengths, color=colour, marker=marker, linestyle=style, label=words)
    axes[0].axhline(1, color="0.5", linewidth=0.8)
    axes[0].set(xscale="log", yscale="log", xlabel="distance, % of the parameters' norm", ylabel="KL over half d'Fd")
    axes[0].set_xticks(percent, [f"{each:g}" for each in percent], minor=False)
    axes[0].xaxis.set_minor_formatter(NullFormatter())
    plain_ticks(axes[0].yaxis)
    axes[0].legend(frameon=False, fontsize=9)
    for axis, (number, words) in zip(
        axes[1:],
        (("temperature", "T by val's NLL"), ("trace CE val", "trace, cross-entropy's Hessian, val")),
        strict=True,
    ):
        for loss, (title, colour, marker, style) in LOSSES.items():
            own = gammas(runs, loss)
            found = [interval([run[number] for run in of(runs, loss, gamma).values()]) for gamma in own]
            means = [each.mean for each in found]
            lengths = error_lengths(found)
            axis.errorbar(own, means, yerr=lengths, color=colour, marker=marker, linestyle=style, label=title)
        axis.set(xlabel="γ", ylabel=words)
    axes[1].legend(frameon=False, fontsize=9)
    axes[1].set_title(f"n = {len(of(runs, 'focal', gammas(runs)[0]))} seeds", fontsize=9, loc="left")
    for axis in axes:
        axis.grid(color="0.9")
        axis.set_axisbelow(True)
    figure.savefig(folder / "bounds.png", dpi=120)
    plt.close(figure)
