"""Means over seeds and paired differences with their intervals, and the tables."""

import itertools
from typing import Any

from experiments.curvature_rows import CHANCE
from experiments.intervals import interval, shown
from experiments.trace_penalty.runs import CURVATURE, FORMS, METRICS, TASKS
from experiments.writing import markdown

COLUMNS = {  # number -> heading, and what it is multiplied by
    "trace train": ("trace, train", 1),
    "trace val": ("trace, val", 1),
    "lambda_max train": ("λ_max, train", 1),
    "lambda_max val": ("λ_max, val", 1),
    "accuracy": ("accuracy, %", 100),
    "ece": ("ECE, 1/100", 100),
    "nll": ("NLL, 1/100 nat", 100),
}
ORDER = ("none", *FORMS)
assert COLUMNS.keys() == {*METRICS, *CURVATURE}


def all_tables(results: dict[str, Any]) -> dict[str, str]:
    """Markdown by heading: of every task means, differences and cost."""
    found = {}
    for name in (name for name in TASKS if name in results):
        task = results[name]
        of_cell = by_cell(task["runs"])
        found[f"{name}: means over seeds"] = _means(of_cell)
        found[f"{name}: paired differences"] = _differences(of_cell)
        if "cost" in task:
            found[f"{name}: cost and noise"] = _cost(task["cost"])
    return found


def by_cell(runs: list[dict]) -> dict[tuple[str, float], dict[int, dict]]:
    """(form, penalty) -> seed -> the run's numbers, in the order of the table."""
    cells: dict[tuple[str, float], dict[int, dict]] = {}
    for run in sorted(runs, key=lambda run: (run["penalty"], ORDER.index(run["form"]), run["seed"])):
        cells.setdefault((run["form"], run["penalty"]), {})[run["seed"]] = run
    return cells


def learned(runs: dict[int, dict]) -> dict[int, dict]:
    """The runs that are not at chance: of one that is, trace, ECE and NLL say nothing of the others."""
    return {seed: run for seed, run in runs.items() if run["accuracy"] >= CHANCE}


def differences(one: dict[int, dict], other: dict[int, dict], column: str) -> list[float]:
    """Of each seed that learned in both: one less other."""
    one, other = learned(one), learned(other)
    return [one[seed][column] - other[seed][column] for seed in one if seed in other]


def _means(cells: dict) -> str:
    heads, lines = ["penalty", "form", "seeds", "at chance", *(heading for heading, _ in COLUMNS.values())], []
    for (form, penalty), runs in cells.items():
        own = learned(runs).values()
        numbers = [shown(interval([scale * run[column] for run in own])) for column, (_, scale) in COLUMNS.items()]
        lines.append([f"{penalty:g}", form, str(len(runs)), str(len(runs) - len(own)), *numbers])
    return markdown(heads, lines)


def _differences(cells: dict) -> str:
    heads, lines = ["penalty", "form less other", "seeds", *(heading for heading, _ in COLUMNS.values())], []
    for penalty, group in itertools.groupby(cells, key=lambda cell: cell[1]):
        forms = [form for form, _ in group]
        bases = [("none", 0.0), ("hessian", penalty), ("gauss_newton", penalty)]
        pairs = [(form, base) for number, base in enumerate(bases) for form in forms if form not in ORDER[: number + 1]]
        for form, other in pairs:
            if other not in cells:
                continue
            both = [
                [scale * value for value in differences(cells[form, penalty], cells[other], column)]
                for column, (_, scale) in COLUMNS.items()
            ]
            numbers = [shown(interval(own), signed=True) for own in both]
            lines.append([f"{penalty:g}", f"{form} less {other[0]}", str(len(both[0])), *numbers])
    return markdown(heads, lines)


def _cost(cost: dict) -> str:
    heads = ("form", "ms a step", "times no penalty", "processor times", "when", "estimate", "sd")
    lines = []
    for form, seconds in cost["seconds"].items():
        taken = [f"{1e3 * seconds['wall']:.3g}", f"{seconds['times']:.2f}", f"{seconds['processor times']:.2f}"]
        for when, noise in cost["noise"].get(form, {"": None}).items():
            cells = ["", "", ""]
            if noise:
                relative = noise["gradient noise"]
                mean = f"{noise['mean']:.4g} ± {noise['error of mean']:.2g}"
                cells = [mean, f"{noise['sd']:.3g}", "over its mean" if relative is None else f"{relative:.2f}"]
            lines.append([form, *taken, when, *cells])
            form, taken = "", ["", "", ""]
    return markdown((*heads, "noise of the gradient"), lines)
