"""Figures: curvature against gamma by network, and ECE against the trace over all runs."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.curvature_and_gamma.runs import NETWORKS, with_own
from experiments.curvature_and_gamma.statistics import Runs, by_seed, gammas_of
from experiments.intervals import interval

SURFACES = {"CE": ("#0072b2", "o", "cross-entropy"), "own": ("#d55e00", "s", "the trained loss")}
COLOURS = ("#000000", "#0072b2", "#009e73", "#d55e00", "#cc79a7", "#e69f00")


def draw(runs: dict[str, Runs], folder: Path) -> None:
    """Write curvature.png and trace_and_ece.png."""
    folder.mkdir(parents=True, exist_ok=True)
    _curvature(runs, folder / "curvature.png")
    _scatter(runs, folder / "trace_and_ece.png")


def _curvature(runs: dict[str, Runs], path: Path) -> None:
    figure, axes = plt.subplots(2, len(runs), figsize=(2.9 * len(runs) + 0.8, 5.2), squeeze=False, sharex="col")
    for column, (network, own) in enumerate(runs.items()):
        full = [with_own(run) for run in own]
        for axis, name in zip(axes[:, column], ("lambda_max", "trace"), strict=True):
            for surface, (colour, marker, label) in SURFACES.items():
                _line(axis, full, f"{name} {surface} val", colour, marker, label)
            axis.set_yscale("log")
            _plain(axis.yaxis)
            axis.grid(color="0.9")
        axes[0, column].set_title(NETWORKS[network], fontsize=10)
        axes[1, column].set_xlabel("γ of the training loss")
    axes[0, 0].set_ylabel("λ_max on val")
    axes[1, 0].set_ylabel("trace on val")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.tight_layout()
    figure.legend(
        handles,
        [f"Hessian of {label}" for label in labels],
        loc="lower center",
        ncols=2,
        frameon=False,
        bbox_to_anchor=(0.5, 1.0),
    )
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)


def _plain(axis) -> None:
    """Ticks at 1, 2 and 5 of each decade, as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _line(axis, own: Runs, name: str, colour: str, marker: str, label: str) -> None:
    gammas = gammas_of(own)
    found = [interval(list(by_seed(own, gamma, name).values())) for gamma in gammas]
    means = [one.mean for one in found]
    lengths = np.array([[one.mean - one.low, one.high - one.mean] for one in found]).T
    lengths[~np.isfinite(lengths)] = 0
    axis.errorbar(gammas, means, yerr=lengths, color=colour, marker=marker, markersize=4, capsize=2, label=label)


def _scatter(runs: dict[str, Runs], path: Path) -> None:
    figure, axis = plt.subplots(figsize=(6.2, 4.4))
    for colour, (network, own) in zip(COLOURS, runs.items(), strict=False):
        traces, errors = np.array([(run["trace CE val"], 100 * run["ece"]) for run in own]).T
        axis.scatter(traces, errors, s=14, color=colour, alpha=0.35, linewidths=0)
        means = [
            [np.mean([run[name] for run in own if run["gamma"] == gamma]) for name in ("trace CE val", "ece")]
            for gamma in gammas_of(own)
        ]
        axis.plot(
            [one for one, _ in means],
            [100 * one for _, one in means],
            "-o",
            color=colour,
            markersize=5,
            label=NETWORKS[network],
        )
        axis.annotate(
            "γ = 0",
            (means[0][0], 100 * means[0][1]),
            textcoords="offset points",
            xytext=(6, 6),
            fontsize=8,
            color=colour,
        )
    axis.set_xscale("log")
    _plain(axis.xaxis)
    axis.set_xlabel("trace of cross-entropy's Hessian on val")
    axis.set_ylabel("test ECE as trained, %")
    axis.legend(frameon=False, fontsize=8)
    axis.grid(color="0.9")
    axis.set_axisbelow(True)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)
