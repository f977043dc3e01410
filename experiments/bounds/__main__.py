"""Train and measure what is not stored, and write results.json, the figure and the README's tables.

python -m experiments.bounds --store
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from experiments import jobs
from experiments.bounds import answers, figures, measured, runs
from experiments.claims import about
from experiments.flags import Parser
from experiments.results import read, write_answers
from experiments.writing import rounded
from focalgeo.types import InputError

HERE = Path(__file__).parent
QUESTION = "What do the bounds, the theorem and the conjecture of Kimura & Naganuma say in numbers?"


def main() -> None:
    """Train the four sweeps, measure their networks, and write."""
    asked = parse()
    with jobs.reported():
        folder = HERE if asked.store else asked.out
        results = read(folder)
        if asked.cost:
            count = sum(len(job.gammas) for job in runs.JOBS) * asked.seeds
            return print(f"{count} runs x {runs.SECONDS} s: {count * runs.SECONDS / 60:.0f} minutes of a core")
        if asked.tables and not results:
            raise InputError(f"{folder} holds no results: run without --tables")
        if not asked.tables and (asked.again or len({run["seed"] for run in results.get("runs", [])}) < asked.seeds):
            for job in runs.JOBS:
                print(f"{job.name}, {asked.seeds} seeds", file=sys.stderr, flush=True)
                runs.train(asked.out, job, asked.seeds)
            results = {
                "constants": rounded(measured.lipschitz(runs.GAMMAS), 6),
                "finite": rounded(measured.finite_bounds(asked.out, asked.seeds), 5),
                "runs": rounded(measured.measure(asked.out, asked.seeds), 5),
            }
        write(results, folder)


def write(results: dict[str, Any], folder: Path) -> None:
    """Write results.json, the figure and the README's tables."""
    own, constants, finite = results["runs"], results["constants"], results["finite"]
    found = answers.claims(own, constants, finite)
    seconds = {(run["loss"], run["record"]["seconds"]) for run in own}  # one of each job
    head = about(
        QUESTION,
        command="python -m experiments.bounds --store",
        cost=f"{len(own)} runs, {sum(each for _, each in seconds) / 60:.0f} minutes of 2 cores; those of halves more",
        date=max(run["record"]["date"] for run in own),
    )
    figures.draw(own, folder / "figures")
    texts = {
        "constants": answers.constants_table(constants),
        "gradients": answers.gradients_table(own),
        "distances": answers.distances_table(own),
        "bounds": answers.bounds_table(own, finite),
        "objectives": answers.objectives_table(own),
    }
    parts = {"constants": constants, "finite": finite, "runs": own}
    write_answers(folder, head, found, parts, texts)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("bounds", __doc__)
    parser.add_jobs(seeds=10, least=5)
    parser.add_store()
    parser.add_out("runs/bounds", "folder of the runs, which later ones start from")
    return parser.parse_args()


if __name__ == "__main__":
    main()
