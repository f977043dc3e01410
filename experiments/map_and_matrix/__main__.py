"""Measure outputs with every method, and write results.json, figures and the README's tables.

python -m experiments.map_and_matrix --logits=FOLDER --cells=runs/cells --store
"""

import argparse
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from experiments import cells, jobs
from experiments.claims import about
from experiments.flags import Parser, at_least
from experiments.map_and_matrix import answers, figures
from experiments.results import read, write_answers
from focalgeo.types import InputError

HERE = Path(__file__).parent
QUESTION = "Do focal temperature scaling and class-wise scaling add up, and what does the fitted gamma say?"


def main() -> None:
    """Measure what is asked for, keep what is stored, and write."""
    asked = parse()
    with jobs.reported():
        folder = HERE if asked.store else asked.out
        known = read(folder)
        runs, measured_on = known.get("runs", []), known.get("about", {}).get("date", "")
        for new in _measured(asked):
            print(f"{new['set']}, {new['seed']}", file=sys.stderr, flush=True)
            runs, measured_on = merged(runs, new), str(date.today())
        trained = {cells.TASKS[task].title: found for task in cells.TASKS if (found := cells.compared(task))}
        if not runs and not trained:
            raise InputError("nothing is stored: name outputs by --logits or --cells")
        newest = max((run["record"]["date"] for own in trained.values() for run in own), default="")
        write(runs, trained, folder, max(measured_on, newest))


def _measured(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from experiments.map_and_matrix import parts

    if asked.logits:
        paths = sorted(asked.logits.glob("*.npz"))
        if not paths:
            raise InputError(f"{asked.logits}: holds no .npz file: name a folder of outputs")
        for path in paths:
            yield from parts.of_halves(path, asked.splits)
    if asked.cells:
        yield from parts.of_cells(asked.cells)


def merged(known: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs with a new one in its place."""
    found = {(run["set"], run["seed"]): run for run in [*known, new]}
    return list(found.values())


def write(runs: list[dict[str, Any]], trained: dict[str, answers.Runs], folder: Path, day: str) -> None:
    """Write results.json, figures and the README's tables."""
    told = {task: own for task, own in trained.items() if answers.by_gamma(own)}
    found = answers.claims(runs, told)
    head = about(
        QUESTION,
        command="python -m experiments.map_and_matrix --logits=FOLDER --cells=runs/cells --store",
        cost=f"{len(runs)} fits of five methods, minutes of one core; the cells' training is of calibration_of_losses",
        date=day,
    )
    figures.draw(runs, told, folder / "figures")
    texts = {
        "gains": answers.gains_table(runs),
        "errors": answers.errors_table(runs),
        "gammas": answers.gamma_table(told),
    }
    write_answers(folder, head, found, {"runs": runs}, texts)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("map_and_matrix", __doc__)
    parser.add_argument("--logits", type=Path, help="folder of others' outputs, .npz files")
    parser.add_argument("--splits", type=at_least(2), default=20, help="random halves of each file (default 20)")
    parser.add_argument("--cells", type=Path, help="folder into which python -m experiments.cells trained")
    parser.add_store()
    parser.add_out("runs/map_and_matrix", "folder of tables and figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
