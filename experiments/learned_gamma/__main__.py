"""Train what is not stored, and write results.json, the figure and the README's tables.

python -m experiments.learned_gamma --store
"""

import argparse
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

from experiments import jobs
from experiments.claims import about
from experiments.flags import Parser, at_least
from experiments.learned_gamma import answers, figures, training
from experiments.results import read, write_answers
from experiments.writing import rounded
from focalgeo.types import InputError

HERE = Path(__file__).parent
QUESTION = "Can gamma be learned in one run, from val's gradient through a step, in place of a sweep?"


def main() -> None:
    """Train task by task; what is there is written after each."""
    asked = parse()
    with jobs.reported():
        folder = HERE if asked.store else asked.out
        results = read(folder)
        if asked.tables and not results:
            raise InputError(f"{folder} holds no results: run without --tables")
        results = results or {"runs": [], "seconds": 0.0, "cost": rounded(training.cost(str(jobs.ROOT)), 4)}
        for task in [] if asked.tables else _missing(asked, results["runs"]):
            print(f"{training.TASKS[task][0]}, {asked.seeds} seeds", file=sys.stderr, flush=True)
            began = time.perf_counter()
            new = rounded(training.measure(task, asked.seeds, str(jobs.ROOT)), 5)
            runs = [run for run in results["runs"] if run["task"] != task] + new
            seconds = round(results["seconds"] + time.perf_counter() - began, 1)
            results |= {"runs": runs, "seconds": seconds, "date": str(date.today())}
            write(results, folder)
        write(results, folder)


def _missing(asked: argparse.Namespace, known: list[dict[str, Any]]) -> list[str]:
    seeds = {task: len({run["seed"] for run in known if run["task"] == task}) for task in training.TASKS}
    return [task for task in training.TASKS if asked.again or seeds[task] < asked.seeds]


def write(results: dict[str, Any], folder: Path) -> None:
    """Write results.json, the figure and the README's tables."""
    runs = results["runs"]
    found = answers.claims(runs)
    head = about(
        QUESTION,
        command="python -m experiments.learned_gamma --store",
        cost=f"{len(runs)} runs, {results['seconds']:g} s of 2 cores",
        date=results["date"],
    )
    figures.draw(runs, folder / "figures")
    texts = {task: answers.table(runs, task) for task in answers.tasks(runs)}
    parts = {name: part for name, part in results.items() if name not in ("about", "claims")}
    write_answers(folder, head, found, parts, texts)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("learned_gamma", __doc__)
    parser.add_argument("--seeds", type=at_least(2), default=20, help="0, 1, ... (default 20)")
    parser.add_argument("--again", action="store_true", help="train what is stored too")
    parser.add_argument("--tables", action="store_true", help="train nothing, write what is stored")
    parser.add_store()
    parser.add_out("runs/learned_gamma", "folder of tables and figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
