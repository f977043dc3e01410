"""Jobs over weights of the penalty, learning rates and seeds, and the numbers of their runs."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from experiments import jobs
from experiments.writing import rounded
from focalgeo.rows import Eigenvalue, Metric, Scalar, Trace, select

FORMS = {"hessian": "Hessian", "gauss_newton": "Gauss-Newton"}
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
    """A config with the weights and rates that are swept; what a run costs: seconds of a core, or operations."""

    title: str
    config: str
    weights: tuple[float, ...]
    rates: tuple[float, ...]
    seeds: int
    seconds: float
    changes: dict[str, Any]
    operations: float = 0.0


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
        (0.0, 0.00003, 0.0001, 0.0003),
        (0.01, 0.02, 0.05),
        3,
        90,
        {  # few images without augmentation, so that the network fits them and becomes overconfident
            "curvature.splits": ("val", "train"),
            "data.train_size": 2_000,
            "data.augment": "none",
            "optimizer.epochs": 25,
            "optimizer.decay_epochs": (18, 23),
        },
    ),
}


PAPER = TASKS["cifar10"]._replace(  # the config's own network, recipe and weights
    config="configs/cifar10_trace.py",
    weights=(0.0, 0.00001, 0.00003, 0.0001, 0.0003),
    rates=(0.05, 0.1, 0.2),
    changes={"curvature.splits": ("val", "train")},
    operations=1.1e15,
)


def task_of(name: str, scale: str) -> Task:
    """The task at a scale; digits are the same at both."""
    return PAPER if (name, scale) == ("cifar10", "paper") else TASKS[name]


def pieces(name: str, seeds: int | None) -> list[tuple[str, tuple[int, ...]]]:
    """Form and seeds of each job: digits by form, CIFAR-10 seed by seed."""
    count = seeds or TASKS[name].seeds
    if name == "digits":
        return [(form, tuple(range(count))) for form in FORMS]
    return [(form, (seed,)) for seed in range(count) for form in FORMS]


def fields(name: str, form: str, seeds: tuple[int, ...], scale: str) -> dict[str, Any]:
    """What the job of a form and seeds has beside the config; runs without penalty are part of the Hessian's."""
    task = task_of(name, scale)
    return task.changes | {
        "loss.trace_of": form,
        "sweep.trace_penalty": task.weights if form == "hessian" else task.weights[1:],
        "sweep.learning_rate": task.rates,
        "sweep.seed": seeds,
        "evaluation.methods": ("temperature_scaling",),
        "evaluation.num_resamples": 100,
    }


def train(
    out: Path, name: str, form: str, seeds: tuple[int, ...], data: str | None, scale: str
) -> list[dict[str, Any]]:
    """Run the job of a form and seeds, or go on with it, and return its runs.

    Raises:
        CalledProcessError: the job failed; it has said why.
    """
    workdir = out / f"weights-{name}-{scale}-{form}-seeds={seeds[0]}-{seeds[-1]}"
    own = fields(name, form, seeds, scale) | ({"data.name": data} if data and name == "cifar10" else {})
    if not jobs.finished(workdir):
        jobs.run(task_of(name, scale).config, workdir, own)
    return measured(workdir, name, form, task_of(name, scale).config)


def measured(workdir: Path, name: str, form: str, config: str) -> list[dict[str, Any]]:
    """The runs of a finished job; one that stopped, its loss no longer finite, has None for each number.

    The record's seconds are the training of the whole job, all its runs together.
    """
    rows = [row for row in jobs.rows_of(workdir) if row.epoch is None]
    record, found = jobs.record(workdir, config), []
    ended = [*select(rows, Trace, name="trace"), *select(rows, Scalar, name="stopped")]
    for penalty, rate, seed in dict.fromkeys(map(_tags, ended)):
        own = _numbers([row for row in rows if _tags(row) == (penalty, rate, seed)])
        if not own.keys() >= {*COLUMNS, CRITERION} or not all(map(math.isfinite, own.values())):
            own = dict.fromkeys(("accuracy", *COLUMNS, CRITERION))
        of = {"task": name, "form": form if penalty else "none", "penalty": penalty, "rate": rate, "seed": seed}
        found.append(of | rounded(own, 5) | {"record": record})
    return found


def _tags(row: Any) -> tuple[float, float, int]:
    return row.trace_penalty, row.learning_rate, row.seed


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
