"""One sweep over gamma, learning rate and seed for each optimiser and batch size, and the numbers of each run."""

from pathlib import Path
from typing import Any

from experiments import jobs
from experiments.curvature_rows import numbers, train_accuracy
from focalgeo.rows import Seconds, Trace, select

CONFIG = "configs/digits_gamma.py"
GAMMAS = (0.0, 2.0, 5.0)
RATES = {"sgd": (0.01, 0.03, 0.1), "adam": (0.001, 0.003, 0.01)}  # low, middle, high
BATCHES = (16, 64, 256)
JOBS = tuple((name, batch) for name in RATES for batch in BATCHES)
SECONDS = 5  # of a core, for one run
KEPT = ("lambda_max", "trace ", "accuracy", "ece", "nll", "temperature")  # how the names of stored numbers begin


def train(out: Path, name: str, batch: int, seeds: int, fields: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Run a job, or go on with it, and return its runs. fields: what it has beside, as for a quick test.

    Raises:
        CalledProcessError: the job failed; it has said why.
    """
    workdir = out / f"{name},batch={batch},seeds={seeds}"
    own = {
        "optimizer.name": name,
        "optimizer.batch_size": batch,
        "sweep.gamma": GAMMAS,
        "sweep.learning_rate": RATES[name],
        "sweep.seed": tuple(range(seeds)),
        "evaluation.methods": ("temperature_scaling",),
        "evaluation.num_resamples": 100,
    }
    if not jobs.finished(workdir):
        jobs.run(CONFIG, workdir, own | (fields or {}))
    return measured(workdir, name, batch)


def measured(workdir: Path, name: str, batch: int) -> list[dict[str, Any]]:
    """The runs of a finished job; "rate" is 0, 1 or 2, the place of the learning rate among the optimiser's own.

    The record's seconds are those of the whole job, all its runs together, with the curvature's measurement.
    """
    rows = jobs.rows_of(workdir)
    record = jobs.record(workdir, CONFIG) | {"seconds": round(sum(row.value for row in select(rows, Seconds)), 1)}
    members: dict[tuple, list] = {}
    for row in rows:
        members.setdefault((row.gamma, row.learning_rate, row.seed), []).append(row)
    found = []
    for gamma, rate, seed in dict.fromkeys(_member(row) for row in select(rows, Trace, name="trace")):
        own = members[gamma, rate, seed]
        run = {"optimiser": name, "batch": batch, "rate": _place(rate, RATES[name]), "gamma": gamma, "seed": seed}
        kept = {key: value for key, value in numbers(own) if key.startswith(KEPT)}
        found.append(run | {"train accuracy": train_accuracy(own)} | kept | {"record": record})
    return found


def _member(row: Trace) -> tuple:
    return row.gamma, row.learning_rate, row.seed


def _place(rate: float, rates: tuple[float, ...]) -> int:
    return min(range(len(rates)), key=lambda place: abs(rates[place] - rate))
