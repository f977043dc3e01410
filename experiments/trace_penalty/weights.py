"""ECE, accuracy and trace against the weight of the penalty, the learning rate chosen on val for each weight."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments import jobs
from experiments.intervals import interval, paired, shown
from experiments.trace_penalty.runs import CHANCE
from experiments.writing import Interval, markdown
from focalgeo.rows import Eigenvalue, Metric, Trace, select

FORMS = ("hessian", "gauss_newton")
CRITERION = "val nll"  # least over the rates, mean over seeds
COLUMNS = {  # number -> heading, and what it is multiplied by
    "ece": ("ECE, %", 100),
    "ece after T": ("ECE after T, %", 100),
    "accuracy": ("accuracy, %", 100),
    "nll": ("NLL, 1/100 nat", 100),
    "trace train": ("trace, train", 1),
    "trace val": ("trace, val", 1),
    "lambda_max val": ("λ_max, val", 1),
}


class Task(NamedTuple):
    """A config with the weights and rates that are swept; seconds of a core for one run."""

    title: str
    config: str
    weights: tuple[float, ...]
    rates: tuple[float, ...]
    seeds: int
    seconds: float
    changes: dict[str, Any]


TASKS = {
    "digits": Task(
        "digits",
        "configs/digits_trace_sweep.py",
        (0.0, 0.0002, 0.0005, 0.001, 0.002, 0.004),
        (0.03, 0.1, 0.3),
        10,
        4,
        {},
    ),
    "cifar10": Task(
        "CIFAR-10 (JPEG)",
        "configs/cifar10_trace.py:quick",
        (0.0, 0.0001, 0.0003, 0.001),
        (0.01, 0.02, 0.05),
        3,
        90,
        {"curvature.splits": ("val", "train"), "data.train_size": 10_000},
    ),
}


def config_of(name: str, scale: str) -> str:
    """The config with its words; at the papers' scale cifar10_trace's own network and recipe."""
    return TASKS[name].config.removesuffix(":quick") if scale == "paper" else TASKS[name].config


def pieces(name: str, seeds: int | None) -> list[tuple[str, tuple[int, ...]]]:
    """Form and seeds of each job: digits by form, CIFAR-10 seed by seed."""
    count = seeds or TASKS[name].seeds
    if name == "digits":
        return [(form, tuple(range(count))) for form in FORMS]
    return [(form, (seed,)) for seed in range(count) for form in FORMS]


def train(
    out: Path, name: str, form: str, seeds: tuple[int, ...], data: str | None, scale: str
) -> list[dict[str, Any]]:
    """Run the job of a form and seeds, or go on with it, and return its runs; those without penalty are the Hessian's.

    Raises:
        CalledProcessError: the job failed; it has said why.
    """
    task = TASKS[name]
    workdir = out / f"weights-{name}-{scale}-{form}-seeds={seeds[0]}-{seeds[-1]}"
    fields = (task.changes if scale == "small" else {"curvature.splits": ("val", "train")}) | {
        "loss.trace_of": form,
        "sweep.trace_penalty": task.weights if form == "hessian" else task.weights[1:],
        "sweep.learning_rate": task.rates,
        "sweep.seed": seeds,
        "evaluation.methods": ("temperature_scaling",),
        "evaluation.num_resamples": 100,
    }
    if data and name == "cifar10":
        fields["data.name"] = data
    if not jobs.finished(workdir):
        jobs.run(config_of(name, scale), workdir, fields)
    return measured(workdir, name, form, config_of(name, scale))


def measured(workdir: Path, name: str, form: str, config: str) -> list[dict[str, Any]]:
    """The runs of a finished job that have all their numbers."""
    rows = [row for row in jobs.rows_of(workdir) if row.tags.epoch is None]
    record, found = jobs.record(workdir, config), []
    tags = dict.fromkeys(_tags(row) for row in select(rows, Trace, name="trace"))
    for penalty, rate, seed in tags:
        own = [row for row in rows if _tags(row) == (penalty, rate, seed)]
        run = {"task": name, "form": form if penalty else "none", "penalty": penalty, "rate": rate, "seed": seed}
        run |= _numbers(own)
        if run.keys() >= {*COLUMNS, CRITERION}:
            found.append(run | {"record": record})
    return found


def _tags(row: Any) -> tuple[float, float, int]:
    return row.tags.trace_penalty, row.tags.learning_rate, row.tags.seed


def _numbers(rows: list) -> dict[str, float]:
    found = {}
    for split, prefix in (("test", ""), ("val", "val ")):
        for row in select(rows, Metric, split=split, method="uncalibrated"):
            found[f"{prefix}{row.name}"] = row.value
        for row in select(rows, Metric, split=split, method="temperature_scaling", criterion="nll"):
            found[f"{prefix}{row.name} after T"] = row.value
    for kind, name in ((Trace, "trace"), (Eigenvalue, "lambda_max")):
        for row in select(rows, kind, name=name, loss="cross_entropy"):
            found[f"{name} {row.split}"] = row.value
    return found


Runs = Sequence[dict[str, Any]]


def chosen_rate(runs: Runs, form: str, penalty: float) -> float | None:
    """The learning rate of least mean NLL on val, over the seeds that every rate has; None where nothing is run."""
    cell = [run for run in runs if (run["form"], run["penalty"]) == (form, penalty)]
    by_rate = {rate: {run["seed"]: run[CRITERION] for run in cell if run["rate"] == rate} for rate in _rates(cell)}
    shared = set.intersection(*map(set, by_rate.values())) if by_rate else set()
    means = {rate: np.mean([own[seed] for seed in shared]) for rate, own in by_rate.items()} if shared else {}
    return min(means, key=means.__getitem__) if means else None


def _rates(runs: Runs) -> list[float]:
    return sorted({run["rate"] for run in runs})


def at_chosen(runs: Runs, form: str) -> dict[float, dict[int, dict[str, Any]]]:
    """Penalty -> seed -> run at the rate chosen for that penalty; penalty 0 is the same for all forms."""
    found = {}
    for penalty in sorted({run["penalty"] for run in runs}):
        own = form if penalty else "none"
        rate = chosen_rate(runs, own, penalty)
        cell = [run for run in runs if (run["form"], run["penalty"], run["rate"]) == (own, penalty, rate)]
        if cell:
            found[penalty] = {run["seed"]: run for run in cell}
    return found


def column(cell: dict[int, dict[str, Any]], name: str) -> dict[int, float]:
    """Seed -> number, of the runs that are not at chance: of one that is, ECE and trace say nothing."""
    return {seed: run[name] for seed, run in cell.items() if run["accuracy"] >= CHANCE}


def slope(cells: dict[float, dict[int, dict[str, Any]]], name: str) -> Interval:
    """Rank correlation of the number with the penalty, by seed, over seeds with all penalties: -1 falls throughout."""
    shared = set.intersection(*(set(column(cell, name)) for cell in cells.values())) if len(cells) > 2 else set()
    found = []
    for seed in sorted(shared):
        ranks = np.argsort(np.argsort([column(cell, name)[seed] for cell in cells.values()]))
        found.append(float(np.corrcoef(np.arange(len(ranks)), ranks)[0, 1]))
    return interval(found)


def table(runs: Runs, form: str) -> str:
    """Means over seeds for each penalty at the rate chosen on val, with the differences of ECE and trace to none."""
    rows = []
    cells = at_chosen(runs, form)
    for penalty, cell in cells.items():
        means = {name: interval(list(column(cell, name).values())) for name in COLUMNS}
        numbers = [shown(means[name], scale=scale) for name, (_, scale) in COLUMNS.items()]
        at_chance = sum(run["accuracy"] < CHANCE for run in cell.values())
        rate = next(iter(cell.values()))["rate"]
        less = [_less(cells, penalty, name) for name in ("ece", "accuracy")]
        rows.append([f"{penalty:g}", f"{rate:g}", str(len(cell)), str(at_chance), *numbers, *less])
    heads = ["λ", "rate", "seeds", "at chance", *(title for title, _ in COLUMNS.values())]
    return markdown([*heads, "ECE less that of λ = 0", "accuracy less"], rows)


def _less(cells: dict[float, dict[int, dict[str, Any]]], penalty: float, name: str) -> str:
    if not penalty or 0.0 not in cells:
        return ""
    return shown(paired(column(cells[penalty], name), column(cells[0.0], name)), scale=100, signed=True)
