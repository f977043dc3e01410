"""Train what is not stored, and write results.json, the figure and the README's tables.

python -m experiments.curvature_of_losses --store
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from experiments import jobs
from experiments.claims import about
from experiments.curvature_of_losses import answers, figures, runs
from experiments.flags import Parser
from experiments.results import read, write_answers
from experiments.writing import rounded
from focalgeo.types import InputError

HERE = Path(__file__).parent
QUESTION = "Does calibration follow the curvature of any surface, once accuracy and confidence are held fixed?"


def main() -> None:
    """Train way by way; what is there is written after each."""
    asked = parse()
    with jobs.reported():
        folder = HERE if asked.store else asked.out
        known = read(folder).get("runs", [])
        planned = [] if asked.tables else _missing(asked, known)
        if asked.cost:
            seconds = runs.SECONDS * asked.seeds * len(planned)
            return print(
                f"{len(planned)} jobs x {asked.seeds} seeds x {runs.SECONDS} s: {seconds / 60:.0f} minutes of a core"
            )
        for name in planned:
            print(f"{name}, {asked.seeds} seeds", file=sys.stderr, flush=True)
            new = rounded(runs.train(asked.out, name, asked.seeds), 5)
            known = [run for run in known if run["training"] != name] + new
            write(known, folder)
        if not planned:
            write(known, folder)


def _missing(asked: argparse.Namespace, known: list[dict[str, Any]]) -> list[str]:
    there = {name: sum(run["training"] == name for run in known) for name in runs.TRAININGS}
    return [name for name in asked.trainings if asked.again or there[name] < asked.seeds]


def write(known: list[dict[str, Any]], folder: Path) -> None:
    """Write results.json, the figure and the README's tables."""
    if not known:
        raise InputError("no run is stored: leave --tables out to train some")
    order = list(runs.TRAININGS)
    known = sorted(known, key=lambda run: (order.index(run["training"]), run["seed"]))
    found = answers.claims(known)
    seconds = {(run["training"], run["record"]["seconds"]) for run in known}  # one of each job
    head = about(
        QUESTION,
        command="python -m experiments.curvature_of_losses --store",
        cost=f"{len(known)} runs, {sum(own for _, own in seconds) / 60:.0f} minutes of 2 cores",
        date=max(run["record"]["date"] for run in known),
    )
    figures.draw(known, folder / "figures")
    texts = {
        "between": answers.correlations_table(known, answers.between),
        "within": answers.correlations_table(known, answers.within),
        "curvature": answers.curvature_table(known),
        "changes": answers.changes_table(known),
        "outputs": answers.outputs_table(known),
    }
    write_answers(folder, head, found, {"runs": known}, texts)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("curvature_of_losses", __doc__)
    add = parser.add_argument
    add("--trainings", nargs="+", choices=runs.TRAININGS, default=list(runs.TRAININGS))
    parser.add_jobs(seeds=20, least=2)
    parser.add_store()
    parser.add_out("runs/curvature_of_losses", "folder of the runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
