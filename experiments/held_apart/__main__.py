"""Train what is not stored, and write results.json, the figure and the README's tables.

python -m experiments.held_apart --store
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from experiments import jobs
from experiments.claims import about
from experiments.flags import Parser
from experiments.held_apart import answers, figures, runs
from experiments.results import read, write_answers
from experiments.writing import rounded
from focalgeo.types import InputError

HERE = Path(__file__).parent
QUESTION = "Which moves the curvature more: gamma, or learning rate, batch size and optimiser?"


def main() -> None:
    """Train job by job; runs are kept after each, and tables written once all settings are there."""
    asked = parse()
    with jobs.reported():
        folder = HERE if asked.store else asked.out
        known = read(folder).get("runs", [])
        planned = [] if asked.tables else _missing(asked, known)
        if asked.cost:
            count = len(planned) * len(runs.GAMMAS) * 3 * asked.seeds
            return print(f"{count} runs x {runs.SECONDS} s: {count * runs.SECONDS / 60:.0f} minutes of a core")
        for name, batch in planned:
            print(f"{name}, batch {batch}, {asked.seeds} seeds", file=sys.stderr, flush=True)
            new = rounded(runs.train(asked.out, name, batch, asked.seeds), 5)
            known = [run for run in known if (run["optimiser"], run["batch"]) != (name, batch)] + new
        write(known, folder)


def _missing(asked: argparse.Namespace, known: list[dict[str, Any]]) -> list[tuple[str, int]]:
    seeds = {job: len({run["seed"] for run in known if (run["optimiser"], run["batch"]) == job}) for job in runs.JOBS}
    return [job for job in runs.JOBS if asked.again or seeds[job] < asked.seeds]


def write(known: list[dict[str, Any]], folder: Path) -> None:
    """Write results.json, the figure and the README's tables."""
    if {(run["optimiser"], run["batch"]) for run in known} != set(runs.JOBS):
        raise InputError("not every setting is stored: leave --tables out to train the others")
    known = sorted(known, key=lambda run: (*(str(run[factor]) for factor in answers.FACTORS), run["seed"]))
    found = answers.claims(known)
    seconds = {(run["optimiser"], run["batch"], run["record"]["seconds"]) for run in known}  # one of each job
    head = about(
        QUESTION,
        command="python -m experiments.held_apart --store",
        cost=f"{len(known)} runs, {sum(own for *_, own in seconds) / 60:.0f} minutes of 2 cores",
        date=max(run["record"]["date"] for run in known),
    )
    figures.draw(known, folder / "figures")
    texts = {
        "effects": answers.effects_table(known),
        "levels": answers.levels_table(known),
    }
    write_answers(folder, head, found, {"runs": known}, texts)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("held_apart", __doc__)
    parser.add_jobs(seeds=8, least=2)
    parser.add_store()
    parser.add_out("runs/held_apart", "folder of the runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
