"""Train both losses on samples of the four clusters, and write results.json, figures and the README's tables.

python -m experiments.two_parameters --store
"""

import argparse
import time
from datetime import date
from pathlib import Path
from typing import Any

from experiments import jobs
from experiments.claims import about
from experiments.flags import Parser, at_least
from experiments.results import read, write_answers
from experiments.two_parameters import answers, descent, figures
from experiments.writing import rounded
from focalgeo.types import InputError

HERE = Path(__file__).parent
QUESTION = "With two parameters: are the weights of focal loss smaller, and its errors less sure?"


def main() -> None:
    """Measure, unless only tables are asked for, and write."""
    asked = parse()
    with jobs.reported():
        folder = HERE if asked.store else asked.out
        stored = read(folder)
        if asked.tables and not stored:
            raise InputError(f"{folder} holds no results: run without --tables")
        began = time.perf_counter()
        runs = stored["runs"] if asked.tables else rounded(descent.measure(asked.seeds), 5)
        seconds = stored["seconds"] if asked.tables else round(time.perf_counter() - began, 1)
        write(runs, folder, seconds, stored["about"]["date"] if asked.tables else str(date.today()))


def write(runs: list[dict[str, Any]], folder: Path, seconds: float, when: str) -> None:
    """Write results.json, figures and the README's tables."""
    found = answers.claims(runs)
    samples = len({run["seed"] for run in runs})
    head = about(
        QUESTION,
        command="python -m experiments.two_parameters --store",
        cost=f"{len(runs)} runs, {samples} samples for each deviation and loss, {seconds:g} s of 2 cores",
        date=when,
        answers=["M Fig. 5", "M Fig. 6"],
    )
    figures.draw(runs, folder / "figures")
    write_answers(folder, head, found, {"seconds": seconds, "runs": runs}, {"norms": answers.table(runs)})


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("two_parameters", __doc__)
    parser.add_argument("--seeds", type=at_least(2), default=20, help="samples of the points (default 20)")
    parser.add_argument("--tables", action="store_true", help="measure nothing, write what is stored")
    parser.add_store()
    parser.add_out("runs/two_parameters", "folder of tables and figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
