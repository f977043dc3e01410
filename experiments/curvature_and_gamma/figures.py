"""Figures: curvature against gamma by network, and ECE against the trace over all runs."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from experiments.curvature_and_gamma.runs import DIGITS, NETWORKS
from experiments.curvature_and_gamma.statistics import Runs, by_seed, gammas_of, has_log
from experiments.curvature_rows import with_own
from experiments.drawing import plain_ticks
from experiments.intervals import interval

SURFACES = {  # shift of gamma, so that the bars of both can be seen, colour, marker, words
    "CE": (-0.06, "#0072b2", "o", "cross-entropy"),
    "own": (0.06, "#d55e00", "s", "the trained loss"),
}
COLOURS = ("#000000", "#0072b2", "#009e73", "#d55e00", "#cc79a7", "#e69f00")
MARKERS = ("o", "s", "^", "D", "v", "P")
MEASURES = {"lambda_max": "λ_max on val", "trace": "trace on val"}
COLUMNS = 3


def draw(runs: dict[str, Runs], folder: Path) -> None:
    """Write curvature.png and trace_and_ece.png."""
    folder.mkdir(parents=True, exist_ok=True)
    _curvature(runs, folder / "curvature.png")
    _scatter(runs, folder / "trace_and_ece.png")


def _curvature(runs: dict[str, Runs], path: Path) -> None:
    """Two panels for each network, one below the other; at most three networks side by side."""
    columns, height = min(COLUMNS, len(runs)), -(-len(runs) // COLUMNS)
    figure, axes = plt.subplots(
        2 * height, columns, squeeze=False, figsize=(2.5 * columns + 0.6, 3.5 * height + 0.4), layout="constrained"
    )
    for axis in axes.flat:
        axis.set_axis_off()
    for place, (network, own) in enumerate(runs.items()):
        full = [with_own(run) for run in own]
        column = place % columns
        for row, (name, words) in enumerate(MEASURES.items(), start=2 * (place // columns)):
            _panel(axes[row, column], full, name)
            axes[row, column].set_ylabel("" if column else words)
        axes[row - 1, column].set_title(f"{NETWORKS[network]}, n = {_seeds(own)}", fontsize=9)
        axes[row, column].set_xlabel("γ of the training loss")
        axes[row - 1, column].tick_params(labelbottom=False)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    words = [f"Hessian of {label}" for label in labels]
    figure.legend(handles, words, loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)


def _panel(axis, full: Runs, name: str) -> None:
    axis.set_axis_on()
    logs = all(has_log(full, f"{name} {surface} val") for surface in SURFACES)
    for surface, look in SURFACES.items():
        _line(axis, full, f"{name} {surface} val", logs, *look)
    if logs:
        axis.set_yscale("log")
        plain_ticks(axis.yaxis)
    else:
        axis.axhline(0, color="0.6", linewidth=0.8)
    axis.grid(color="0.9")


def _seeds(own: Runs) -> int:
    return len({run["seed"] for run in own})


def _line(axis, own: Runs, name: str, logs: bool, shift: float, colour: str, marker: str, label: str) -> None:
    """Means with their intervals: geometric ones where there are logarithms, which lie evenly and never below 0."""
    measure, back = (np.log, np.exp) if logs else (np.asarray, np.asarray)
    gammas = gammas_of(own)
    found = [interval(measure(list(by_seed(own, at, name).values()))) for at in gammas]
    means = back([one.mean for one in found])
    ends = back([[one.low, one.high] for one in found]).T
    lengths = np.abs(ends - means)
    lengths[:, ~np.isfinite(ends).all(0)] = 0  # one seed has no interval
    at = np.array(gammas) + shift
    axis.errorbar(at, means, yerr=lengths, color=colour, marker=marker, markersize=4, capsize=2, label=label)


def _scatter(runs: dict[str, Runs], path: Path) -> None:
    """ECE against the trace of both Hessians: each run faint, the means of a network joined in the order of gamma.

    A row of panels for CIFAR-10 and one for digits, where there are runs of both.
    """
    images = [network for network in runs if network != DIGITS]
    digits = [network for network in runs if network == DIGITS]
    rows = [group for group in (images, digits) if group]
    figure, axes = plt.subplots(len(rows), 2, squeeze=False, figsize=(9.4, 3.9 * len(rows)), sharey="row")
    looks = dict(zip(runs, zip(COLOURS, MARKERS, strict=True), strict=False))
    for line, group in zip(axes, rows, strict=True):
        for axis, (surface, (*_, words)) in zip(line, SURFACES.items(), strict=True):
            _clouds(axis, {network: runs[network] for network in group}, f"trace {surface} val", looks)
            axis.set_xlabel(f"trace of the Hessian of {words} on val")
        line[0].set_ylabel("test ECE as trained, %")
    figure.tight_layout()
    named = [pair for line in axes for pair in zip(*line[0].get_legend_handles_labels(), strict=True)]
    handles, labels = map(list, zip(*named, strict=True))
    handles.append(plt.Line2D([], [], color="0.3", marker="o", markerfacecolor="white", linestyle="", markersize=6))
    columns = min(3, len(handles))
    figure.legend(
        handles, [*labels, "open: γ = 0"], loc="lower center", ncols=columns, frameon=False, bbox_to_anchor=(0.5, 1.0)
    )
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)


def _clouds(axis, runs: dict[str, Runs], trace: str, looks: dict[str, tuple[str, str]]) -> None:
    """The networks of one panel, over a logarithmic axis where all traces have one."""
    full = {network: [with_own(run) for run in own] for network, own in runs.items()}
    for network, own in full.items():
        _cloud(axis, own, trace, *looks[network], f"{NETWORKS[network]}, n = {_seeds(own)}")
    if all(has_log(own, trace) for own in full.values()):
        axis.set_xscale("log")
        plain_ticks(axis.xaxis)
    else:
        axis.axvline(0, color="0.6", linewidth=0.8)
    axis.grid(color="0.9")
    axis.set_axisbelow(True)


def _cloud(axis, full: Runs, trace: str, colour: str, marker: str, label: str) -> None:
    points = np.array([(run[trace], 100 * run["ece"]) for run in full if trace in run])
    axis.scatter(*points.T, s=16, color=colour, marker=marker, alpha=0.55, linewidths=0)
    gammas = gammas_of(full)
    means = np.array([[np.mean(list(by_seed(full, at, name).values())) for name in (trace, "ece")] for at in gammas])
    means[:, 1] *= 100
    axis.plot(*means.T, color=colour, marker=marker, markersize=5, linewidth=1.2, label=label)
    if gammas[0] == 0:
        axis.plot(*means[0], color=colour, marker=marker, markersize=6, markerfacecolor="white", zorder=3)
