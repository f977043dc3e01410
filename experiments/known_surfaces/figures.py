"""Figures: the error that estimators claim against the true one, and the trace's at equal cost by surface."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from experiments.known_surfaces.verdicts import COST, NAMES, Rows

MARKS = {  # estimator -> colour, marker
    "hutchinson": ("#000000", "o"),
    "hutch++": ("#0072b2", "s"),
    "xtrace": ("#009e73", "^"),
    "lambda_max": ("#d55e00", "D"),
    "density": ("#cc79a7", "v"),
    "diagonal": ("#e69f00", "P"),
}
FLOOR = 1e-7  # of float32; what lies below is drawn here


def draw(rows: Rows, titles: dict[str, str], folder: Path) -> None:
    """Write claims.png and traces.png."""
    folder.mkdir(parents=True, exist_ok=True)
    _claims(rows, folder / "claims.png")
    _traces(rows, titles, folder / "traces.png")


def _claims(rows: Rows, path: Path) -> None:
    """Every estimator on every surface at every cost; above the line the error is larger than it says."""
    figure, axis = plt.subplots(figsize=(5.6, 4.6), layout="constrained")
    for name, (colour, marker) in MARKS.items():
        own = [(max(row["claimed"], FLOOR), max(row["error"], FLOOR)) for row in rows if row["estimator"] == name]
        label = {"lambda_max": "λ_max (claimed: residual)"}.get(name, NAMES.get(name, name))
        axis.scatter(*zip(*own, strict=True), s=22, color=colour, marker=marker, alpha=0.75, linewidths=0, label=label)
    ends = (FLOOR, 2.0)
    axis.plot(ends, ends, color="0.5", linewidth=0.8, zorder=0)
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axis.set(xlabel="claimed error, as a share", ylabel="true error (root mean square), as a share")
    axis.grid(color="0.9")
    axis.set_axisbelow(True)
    axis.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _traces(rows: Rows, titles: dict[str, str], path: Path) -> None:
    """The error of the three methods with as many products, surface by surface."""
    figure, axis = plt.subplots(figsize=(7.2, 0.34 * len(titles) + 1.2), layout="constrained")
    places = {surface: -place for place, surface in enumerate(titles)}
    for name in ("hutchinson", "hutch++", "xtrace"):
        colour, marker = MARKS[name]
        own = [row for row in rows if row["estimator"] == name and row["products"] == COST]
        errors = [100 * max(row["error"], FLOOR) for row in own]
        heights = [places[row["surface"]] for row in own]
        axis.scatter(errors, heights, s=36, color=colour, marker=marker, alpha=0.85, linewidths=0, label=NAMES[name])
    axis.set_yticks(list(places.values()), list(titles.values()))
    axis.set_xscale("log")
    draws = max(row["draws"] for row in rows)
    axis.set_xlabel(f"error of the trace with {COST} products, % of Σ|λ|")
    axis.grid(axis="x", color="0.9")
    axis.set_axisbelow(True)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, title=f"n = {draws} draws")
    figure.savefig(path, dpi=120)
    plt.close(figure)
