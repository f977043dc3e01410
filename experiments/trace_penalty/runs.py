"""The training runs: jobs of focalgeo.run, one workdir for each form of the penalty, and the numbers in their rows."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from focalgeo import records
from focalgeo.config import load_config, with_values
from focalgeo.rows import Eigenvalue, Metric, Trace, select

ROOT = Path(__file__).parent.parent.parent
QUARTER = "gauss_newton, quarter"
FORMS = {"hessian": ("hessian", 1), "gauss_newton": ("gauss_newton", 1), QUARTER: ("gauss_newton", 4)}  # 1 / part
METRICS = ("accuracy", "ece", "nll")  # of the test images, by the outputs as trained
CURVATURE = ("trace val", "trace train", "lambda_max val", "lambda_max train")  # of the mean cross-entropy


class Task(NamedTuple):
    """Data, network and recipe of a config, with the penalties that are compared."""

    config: str
    words: str
    penalties: tuple[float, ...]  # above 0
    changes: dict[str, Any]
    seeds_at_once: int  # trained in one call of the job; more seeds extend it

    def fields(self, form: str, seeds: int) -> dict[str, Any]:
        """What the job of a form differs in from the config. Runs without penalty are part of the Hessian's job."""
        of, parts = FORMS[form]
        batch_size = load_config(ROOT / self.config, self.words).optimizer.batch_size
        return self.changes | {
            "loss.trace_of": of,
            "loss.trace_examples": batch_size // parts if parts > 1 else 0,
            "sweep.trace_penalty": ((0.0,) if form == "hessian" else ()) + self.penalties,
            "sweep.seed": tuple(range(seeds)),
        }


TASKS = {
    "digits": Task("configs/digits_trace_sweep.py", "", (0.001, 0.004), {}, 5),
    "cifar10": Task(
        "configs/cifar10_trace.py",
        "quick",
        (0.0003,),
        {"curvature.splits": ("val", "train"), "evaluation.num_resamples": 200},
        1,
    ),
}


def make_config(name: str, form: str, seeds: int) -> ConfigDict:
    """The config of a task's job, as the command line makes it."""
    task = TASKS[name]
    return with_values(load_config(ROOT / task.config, task.words), task.fields(form, seeds))


def workdir(out: Path, name: str, form: str) -> Path:
    """Where the job of a form leaves its rows."""
    return out / f"{name}-{form.replace(', ', '-')}"


def train(out: Path, name: str, seeds: int, data: str | None) -> None:
    """Run what is missing: all forms for the first seeds, then for more. A job that was stopped goes on.

    Raises:
        CalledProcessError: a job failed; it has said why.
    """
    task = TASKS[name]
    for count in sorted({*range(task.seeds_at_once, seeds, task.seeds_at_once), seeds}):
        for form in FORMS:
            fields = task.fields(form, count) | ({"data.name": data} if data else {})
            config = f"--config={ROOT / task.config}" + (f":{task.words}" if task.words else "")
            flags = [f"--config.{field}={value}" for field, value in fields.items()]
            command = [sys.executable, "-m", "focalgeo.run", config, f"--workdir={workdir(out, name, form)}", *flags]
            print(f"{name}, {form}, {count} seeds", file=sys.stderr, flush=True)
            subprocess.run(command, check=True, cwd=ROOT)


def measured(out: Path, name: str) -> list[dict[str, Any]]:
    """The numbers of every run that is evaluated: form, penalty, seed and each of METRICS and CURVATURE."""
    found = []
    for form in FORMS:
        folder = workdir(out, name, form)
        rows = records.read_rows(folder) if (folder / "metrics.jsonl").exists() else []
        for tags in dict.fromkeys((row.trace_penalty, row.seed) for row in select(rows, Trace, name="trace")):
            numbers = dict(_numbers([row for row in rows if (row.trace_penalty, row.seed) == tags]))
            if numbers.keys() == {*METRICS, *CURVATURE}:
                penalty, seed = tags
                found.append({"form": form if penalty else "none", "penalty": penalty, "seed": seed} | numbers)
    return found


def _numbers(rows: list) -> Iterator[tuple[str, float]]:
    for row in select(rows, Metric, split="test", method="uncalibrated"):
        if row.name in METRICS:
            yield row.name, row.value
    for kind, name in ((Trace, "trace"), (Eigenvalue, "lambda_max")):
        for row in select(rows, kind, name=name, loss="cross_entropy"):
            if row.epoch is None:
                yield f"{name} {row.split}", row.value
