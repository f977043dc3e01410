"""The tables over weights of the penalty: at the chosen rates, the choice itself, and at one rate throughout."""

import numpy as np

from experiments.intervals import interval, paired, shown
from experiments.trace_penalty import choice
from experiments.trace_penalty.choice import Cells, Runs
from experiments.trace_penalty.weights import COLUMNS, FORMS
from experiments.writing import markdown

ALONG = ("ece", "trace train", "trace val")


def all_tables(runs: Runs) -> dict[str, str]:
    """Markdown by name: of every task a table for each form, one of the rates, and one at one rate."""
    found = {}
    for task, own in choice.by_task(runs).items():
        found |= {f"{task} {form}": table(own, form) for form in FORMS}
        found |= {f"{task} rates": rates_table(own), f"{task} one rate": one_rate_table(own)}
    return found


def table(runs: Runs, form: str) -> str:
    """Means over seeds for each penalty at the rate chosen on val, with differences of ECE and accuracy to none."""
    rows = []
    cells = choice.at_chosen(runs, form)
    for penalty, cell in cells.items():
        means = {name: interval(list(choice.column(cell, name).values())) for name in COLUMNS}
        numbers = [shown(means[name], scale=scale) for name, (_, scale) in COLUMNS.items()]
        at_chance = sum(not choice.learned(run) for run in cell.values())
        rate = next(iter(cell.values()))["rate"]
        less = [_less(cells, penalty, name) for name in ("ece", "accuracy")]
        rows.append([f"{penalty:g}", f"{rate:g}", str(len(cell)), str(at_chance), *numbers, *less])
    heads = ["λ", "rate", "seeds", "at chance", *(title for title, _ in COLUMNS.values())]
    return markdown([*heads, "ECE less that of λ = 0", "accuracy less"], rows)


def _less(cells: Cells, penalty: float, name: str) -> str:
    if not penalty or 0.0 not in cells:
        return ""
    return shown(paired(choice.column(cells[penalty], name), choice.column(cells[0.0], name)), scale=100, signed=True)


def rates_table(runs: Runs) -> str:
    """Mean NLL on val by rate, the chosen one in bold, and how many of its runs are at chance or stopped."""
    rates, rows = sorted({run["rate"] for run in runs}), []
    for form in FORMS:
        for penalty in sorted({run["penalty"] for run in runs}):
            means, best = choice.criterion(runs, form, penalty), choice.chosen_rate(runs, form, penalty)
            cells = [_criterion(runs, form, penalty, rate, means, best) for rate in rates]
            rows.append([FORMS[form], f"{penalty:g}", *cells])
    return markdown(["form", "λ", *(f"rate {rate:g}" for rate in rates)], rows)


def _criterion(runs: Runs, form: str, penalty: float, rate: float, means: dict, best: float | None) -> str:
    if rate not in means:
        return ""
    cell = choice.at_rate(runs, form, rate)[penalty].values()
    lost = sum(not choice.learned(run) for run in cell)
    text = f"{100 * means[rate]:.4g}" if np.isfinite(means[rate]) else "stopped"
    return (f"**{text}**" if rate == best else text) + (f" ({lost} at chance)" if lost else "")


def one_rate_table(runs: Runs) -> str:
    """Rank correlations with the penalty at one rate, over the seeds that learned with every penalty."""
    rows = []
    for form in FORMS:
        for rate in sorted({run["rate"] for run in runs}):
            cells = choice.at_rate(runs, form, rate)
            numbers = [shown(choice.slope(cells, name), signed=True) for name in ALONG]
            rows.append([FORMS[form], f"{rate:g}", str(len(choice.complete(cells))), *numbers])
    return markdown(["form", "rate", "seeds", *(COLUMNS[name][0].removesuffix(", %") for name in ALONG)], rows)
