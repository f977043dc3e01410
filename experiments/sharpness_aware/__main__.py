"""Train what is not stored, and write results.json, the figure and the README's tables.

python -m experiments.sharpness_aware --store
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments import jobs
from experiments.claims import about
from experiments.flags import Parser
from experiments.results import read, write_answers
from experiments.sharpness_aware import answers, figures, runs
from experiments.writing import rounded
from focalgeo.types import InputError

HERE = Path(__file__).parent
QUESTION = "Does sharpness-aware minimisation calibrate as trace penalties do, at equal trace and at equal cost?"


def main() -> None:
    """Train every method at every strength, then for as long as cost allows; all is written at the end."""
    asked = parse()
    with jobs.reported():
        folder = HERE if asked.store else asked.out
        results = read(folder)
        known, costs = results.get("runs", []), results.get("operations", {})
        first = [job for job in runs.equal_epochs() if asked.again or _lacks(known, job, asked.seeds)]
        if asked.cost:
            seconds = len(first) * len(runs.RATES) * asked.seeds * runs.SECONDS
            return print(f"{len(first)} jobs, {seconds / 60:.0f} minutes of a core, and half as much at equal cost")
        if not asked.tables:
            costs = costs or {name: runs.cost(name) for name in runs.METHODS}
            for job in first:
                known = _trained(known, job, asked)
            for job in _longer(known, costs):
                if asked.again or _lacks(known, job, asked.seeds):
                    known = _trained(known, job, asked)
        write(known, costs, folder)


def _trained(known: list[dict[str, Any]], job: runs.Job, asked: argparse.Namespace) -> list[dict[str, Any]]:
    print(f"{job}, {asked.seeds} seeds", file=sys.stderr, flush=True)
    new = rounded(runs.train(asked.out, job, asked.seeds), 5)
    return [run for run in known if not _is_of(run, job)] + new


def _longer(known: list[dict[str, Any]], costs: dict[str, float]) -> Iterator[runs.Job]:
    """Each method at its choice on val, for as many epochs as cost what the costliest method's 60 do."""
    for name in runs.METHODS:
        strength, rate = answers.chosen(known, name)
        times = round(max(costs.values()) / costs[name], 4)
        if times > 1:
            yield runs.Job(name, strength, times, rate)


def _is_of(run: dict[str, Any], job: runs.Job) -> bool:
    same = (run["method"], run["strength"], run["times"]) == (job.method, job.strength, job.times)
    return same and job.rate in (None, run["rate"])


def _lacks(known: list[dict[str, Any]], job: runs.Job, seeds: int) -> bool:
    return len({run["seed"] for run in known if _is_of(run, job)}) < seeds


def write(known: list[dict[str, Any]], costs: dict[str, float], folder: Path) -> None:
    """Write results.json, the figure and the README's tables."""
    if not {job for job in runs.equal_epochs() if not _lacks(known, job, 1)} >= set(runs.equal_epochs()):
        raise InputError("not every strength is stored: leave --tables out to train the others")
    order = list(runs.METHODS)
    names = ("strength", "times", "rate", "seed")
    known = sorted(known, key=lambda run: (order.index(run["method"]), *(run[name] for name in names)))
    found = answers.claims(known)
    seconds = {(run["method"], run["strength"], run["times"], run["record"]["seconds"]) for run in known}
    head = about(
        QUESTION,
        command="python -m experiments.sharpness_aware --store",
        cost=f"{len(known)} runs, {sum(own for *_, own in seconds) / 60:.0f} minutes of 2 cores",
        date=max(run["record"]["date"] for run in known),
    )
    figures.draw(known, folder / "figures")
    texts = {
        "level": answers.level_table(known),
        "cost": answers.cost_table(known, costs),
        "strengths": answers.strengths_table(known),
    }
    parts = {"operations": costs, "runs": known}
    write_answers(folder, head, found, parts, texts)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("sharpness_aware", __doc__)
    parser.add_jobs(seeds=10, least=2)
    parser.add_store()
    parser.add_out("runs/sharpness_aware", "folder of the runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
