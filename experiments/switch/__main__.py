"""Train what is not stored, and write results.json, the figure and the README's tables.

python -m experiments.switch --store
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from experiments import jobs
from experiments.claims import about
from experiments.flags import Parser
from experiments.results import read, write_answers
from experiments.switch import answers, figures
from experiments.switch.runs import SECONDS, Way, train, ways
from experiments.writing import rounded
from focalgeo.types import InputError

HERE = Path(__file__).parent
QUESTION = "How fast do curvature and calibration follow when the loss changes half way, or at the end?"


def main() -> None:
    """Train way by way; what is there is written after each."""
    asked = parse()
    with jobs.reported():
        folder = HERE if asked.store else asked.out
        known = read(folder).get("runs", [])
        planned = [] if asked.tables else [way for way in ways() if asked.again or _lacks(known, way, asked.seeds)]
        if asked.cost:
            seconds = SECONDS * asked.seeds * len(planned)
            return print(
                f"{len(planned)} jobs x {asked.seeds} seeds x {SECONDS} s: {seconds / 60:.0f} minutes of a core"
            )
        for way in planned:
            print(f"{way}, {asked.seeds} seeds", file=sys.stderr, flush=True)
            new = rounded(train(asked.out, way, asked.seeds), 5)
            known = [run for run in known if _way(run) != way] + new
            write(known, folder)
        if not planned:
            write(known, folder)


def _way(run: dict[str, Any]) -> Way:
    return Way(*(run[name] for name in Way._fields))


def _lacks(known: list[dict[str, Any]], way: Way, seeds: int) -> bool:
    return sum(_way(run) == way for run in known) < seeds


def write(known: list[dict[str, Any]], folder: Path) -> None:
    """Write results.json, the figure and the README's tables."""
    if not known:
        raise InputError("no run is stored: leave --tables out to train some")
    order = list(ways())
    known = sorted(known, key=lambda run: (order.index(_way(run)), run["seed"]))
    found = answers.claims(known)
    seconds = {(_way(run), run["record"]["seconds"]) for run in known}  # one of each job
    head = about(
        QUESTION,
        command="python -m experiments.switch --store",
        cost=f"{len(known)} runs, {sum(own for _, own in seconds) / 60:.0f} minutes of 2 cores",
        date=max(run["record"]["date"] for run in known),
    )
    figures.draw(known, folder / "figures")
    texts = {
        "shares": answers.shares_table(known),
        "ends": answers.ends_table(known),
    }
    write_answers(folder, head, found, {"runs": known}, texts)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("switch", __doc__)
    parser.add_jobs(seeds=10, least=2)
    parser.add_store()
    parser.add_out("runs/switch", "folder of the runs, which later ones start from")
    return parser.parse_args()


if __name__ == "__main__":
    main()
