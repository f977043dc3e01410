"""Cells of the papers' tables: task x loss x seed, trained by jobs, and what four questions need of each run.

python -m experiments.cells --tasks newsgroups --data newsgroups=newsgroups:PATH --seeds 3

trains what experiments/rows does not hold yet and adds a row for each run there.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from experiments import jobs
from experiments.diagnosed import FIELDS as DIAGNOSTICS
from experiments.diagnosed import diagnosed
from experiments.flags import Parser, at_least
from experiments.outputs import temperatures, train_outputs
from experiments.writing import rounded
from focalgeo import records
from focalgeo.rows import Fit, Metric, select
from focalgeo.types import InputError

ROWS = Path(__file__).parent / "rows"
LOSSES = {  # word of configs/ -> title as the papers have it
    "ce": "CE",
    "brier": "Brier",
    "mmce": "MMCE",
    "ls": "LS-0.05",
    "fl1": "FL-1",
    "fl2": "FL-2",
    "fl3": "FL-3",
    "fl7": "FL-7",
    "flsd53": "FLSD-53",
    "fls532": "FLS-532",
    "adafocal": "AdaFocal",
    "dual": "Dual focal",
}
SAME_ERROR = 1.0  # points of error that count as none: the papers' networks differ by as much
DIAGNOSED = ("ce", "fl1", "fl2", "fl3")  # on images: experiments/during_training
GAMMAS = (-0.5, -0.25, 0.0, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)  # of evaluation: Komisarenko & Kull's, and 0


class Task(NamedTuple):
    """Data with the network of its config, at both scales."""

    title: str
    config: str
    small: str  # words of the config, before the loss
    paper: str
    seeds: int
    minutes: float  # of one core, for one run at small scale


TASKS = {
    "cifar10": Task("CIFAR-10 (JPEG)", "configs/cifar.py", "small", "resnet50", 5, 11),
    "newsgroups": Task("20 Newsgroups", "configs/newsgroups.py", "small", "", 3, 4.5),
    "sst": Task("SST, two classes", "configs/sst.py", "small", "", 3, 5),
}


class Cell(NamedTuple):
    """One run: a task, a loss, a seed and a scale, "small" or "paper"."""

    task: str
    loss: str
    seed: int
    scale: str = "small"

    @property
    def config(self) -> str:
        """The config file with its words."""
        task = TASKS[self.task]
        words = (task.small if self.scale == "small" else task.paper, self.loss)
        return f"{task.config}:{','.join(filter(None, words))}"

    def workdir(self, out: Path) -> Path:
        """Where its job leaves its rows."""
        return out / f"{self.task}-{self.scale}" / f"{self.loss},seed={self.seed}"

    def fields(self, data: str | None) -> dict[str, Any]:
        """What its job has beside the config."""
        own = DIAGNOSTICS if self.task == "cifar10" and self.loss in DIAGNOSED else {}
        return {"seed": self.seed, **own, **({"data.name": data} if data else {})}


def cells(tasks: Iterable[str], losses: Iterable[str], seeds: int | None, scale: str = "small") -> list[Cell]:
    """The cells in the order of training: all losses of the first seed, then of the next."""
    found = []
    for task in tasks:
        found += [Cell(task, loss, seed, scale) for seed in range(seeds or TASKS[task].seeds) for loss in losses]
    return found


def rows_file(task: str, scale: str = "small") -> Path:
    """Where the rows of a task lie, one run a line."""
    return ROWS / f"{task}{'' if scale == 'small' else '_' + scale}.jsonl"


def stored(task: str, scale: str = "small") -> list[dict[str, Any]]:
    """The runs of a task that are stored, in the order of LOSSES and seeds."""
    path = rows_file(task, scale)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    order = list(LOSSES)
    return sorted(map(json.loads, lines), key=lambda run: (order.index(run["loss"]), run["seed"]))


def compared(task: str, scale: str = "small") -> list[dict[str, Any]]:
    """The stored runs of a task that questions compare: those of the seeds that all its stored losses have.

    A seed of which some losses are not trained yet waits, so that every mean and difference is over the same seeds.
    """
    runs = stored(task, scale)
    losses, seeds = len({run["loss"] for run in runs}), Counter(run["seed"] for run in runs)
    return [run for run in runs if seeds[run["seed"]] == losses]


def store(runs: Iterable[dict[str, Any]], task: str, scale: str = "small") -> None:
    """Add runs to those stored; a run of the same loss and seed is replaced."""
    kept = {(run["loss"], run["seed"]): run for run in [*stored(task, scale), *runs]}
    ROWS.mkdir(exist_ok=True)
    lines = [json.dumps(run, separators=(",", ":")) for run in kept.values()]
    path = rows_file(task, scale)
    part = path.with_suffix(".part")
    part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    part.replace(path)


def train(cell: Cell, out: Path, data: str | None) -> dict[str, Any]:
    """Train and evaluate a cell, or go on with it, and measure it.

    Raises:
        InputError: as the job.
        CalledProcessError: the job failed; it has said why.
    """
    workdir = cell.workdir(out)
    if not jobs.finished(workdir):
        jobs.run(cell.config, workdir, cell.fields(data))
    return measured(cell, workdir)


def measured(cell: Cell, workdir: Path) -> dict[str, Any]:
    """All that is stored of a finished run."""
    rows = jobs.rows_of(workdir)
    outputs = {split: records.read_predictions(workdir, split) for split in ("val", "test")}
    pairs = {split: (found.logits, found.labels) for split, found in outputs.items()}
    pairs["train"] = train_outputs(workdir)
    found = {
        "task": cell.task,
        "loss": cell.loss,
        "seed": cell.seed,
        "record": jobs.record(workdir, cell.config),
        "classes": int(pairs["test"][0].shape[-1]),
        "metrics": {split: metrics(rows, split) for split in ("val", "test")},
        "train_accuracy": float((pairs["train"][0].argmax(-1) == pairs["train"][1]).mean()),
        "fits": fits(rows),
        "temperatures": {
            "gammas": GAMMAS,
            **{split: temperatures(*pair, GAMMAS) for split, pair in pairs.items()},
        },
    }
    if cell.task == "cifar10" and cell.loss in DIAGNOSED:
        found["diagnostics"] = diagnosed(workdir)
    return rounded(found, 5)


def metrics(rows: list, split: str) -> dict[str, dict[str, float]]:
    """Method and criterion, as "temperature_scaling/ece" -> metric -> value."""
    found: dict[str, dict[str, float]] = {}
    for row in select(rows, Metric, split=split):
        found.setdefault(_method(row), {})[row.name] = row.value
    return found


def fits(rows: list) -> dict[str, dict[str, float]]:
    """Method and criterion -> fitted number -> value."""
    found: dict[str, dict[str, float]] = {}
    for row in select(rows, Fit):
        found.setdefault(_method(row), {})[row.name] = row.value
    return found


def _method(row: Any) -> str:
    return f"{row.method}/{row.criterion}" if row.criterion else row.method


def main() -> None:
    """Train the cells asked for that are not stored, and store each."""
    asked = parse()
    with jobs.reported():
        data = dict(_named(asked.data))
        for cell in cells(asked.tasks, asked.losses, asked.seeds, asked.scale):
            known = {(run["loss"], run["seed"]) for run in stored(cell.task, cell.scale)}
            if asked.again or (cell.loss, cell.seed) not in known:
                print(f"{cell.task}, {cell.loss}, seed {cell.seed}", file=sys.stderr, flush=True)
                store([train(cell, asked.out, data.get(cell.task))], cell.task, cell.scale)


def _named(data: Iterable[str]) -> Iterable[tuple[str, str | None]]:
    for text in data:
        task, equals, name = text.partition("=")
        if task not in TASKS or not equals:
            raise InputError(f"--data {text}: give it as TASK=NAME, as in cifar10=folder:cifar10.tar.xz")
        yield task, jobs.absolute(name)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("cells", __doc__)
    add = parser.add_argument
    add("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    add("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    add("--seeds", type=at_least(1), help="0, 1, ... of every loss (default 5 on images, 3 on text)")
    add("--data", nargs="+", default=[], metavar="TASK=NAME", help="config.data.name of a task")
    add("--again", action="store_true", help="what is stored too; jobs finished in --out are read, not trained")
    parser.add_scale()
    parser.add_out("runs/cells", "folder of the runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
