"""Train what is not stored, and write results.json, the figure and the README's tables.

python -m experiments.text_transformer --data=sst:sst-trees.tar.xz --store
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from experiments import jobs
from experiments.claims import about
from experiments.flags import Parser
from experiments.results import read, write_answers
from experiments.text_transformer import answers, figures, runs
from experiments.writing import rounded
from focalgeo.types import InputError

HERE = Path(__file__).parent
QUESTION = (
    "Does a small transformer on sentences behave as the papers' networks do, with focal loss and trace penalties?"
)


def main() -> None:
    """Train seed by seed; what is there is written after each run, once every way of training has one."""
    asked = parse()
    with jobs.reported():
        folder, data = HERE if asked.store else asked.out, jobs.absolute(asked.data)
        results = read(folder)
        known, costs = results.get("runs", []), results.get("operations", {})
        there = {(run["training"], run["seed"]) for run in known}
        every = [(name, seed) for seed in range(asked.seeds) for name in runs.TRAININGS]
        planned = [] if asked.tables else [each for each in every if asked.again or each not in there]
        if asked.cost:
            return print(f"{len(planned)} runs, {2 * len(planned) * runs.SECONDS / 60:.0f} minutes of a core")
        if planned and not costs:
            costs = {name: runs.cost(name, data) for name in runs.TRAININGS}
        for name, seed in planned:
            print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
            new = rounded(runs.train(asked.out, name, seed, data), 5)
            known = [run for run in known if (run["training"], run["seed"]) != (name, seed)] + [new]
            if {run["training"] for run in known} == set(runs.TRAININGS):
                write(known, costs, folder)
        if not planned:
            write(known, costs, folder)


def write(known: list[dict[str, Any]], costs: dict[str, float], folder: Path) -> None:
    """Write results.json, the figure and the README's tables."""
    if {run["training"] for run in known} != set(runs.TRAININGS):
        raise InputError("not every way of training is stored: leave --tables out to train the others")
    order = list(runs.TRAININGS)
    known = sorted(known, key=lambda run: (order.index(run["training"]), run["seed"]))
    found = answers.claims(known)
    head = about(
        QUESTION,
        command="python -m experiments.text_transformer --data=sst:sst-trees.tar.xz --store",
        cost=f"{len(known)} runs, {sum(run['record']['seconds'] for run in known) / 60:.0f} minutes of a core",
        date=max(run["record"]["date"] for run in known),
    )
    figures.draw(known, folder / "figures")
    texts = {
        "numbers": answers.table(known),
        "changes": answers.changes_table(known),
        "cost": answers.cost_table(known, costs),
    }
    parts = {"operations": costs, "runs": known}
    write_answers(folder, head, found, parts, texts)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("text_transformer", __doc__)
    add = parser.add_argument
    add("--data", metavar="NAME", help="config.data.name of the trees, as sst:sst-trees.tar.xz")
    parser.add_jobs(seeds=3, least=1)
    parser.add_store()
    parser.add_out("runs/text_transformer", "folder of the runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
