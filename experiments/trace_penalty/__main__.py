"""Train and measure what is not stored, and write results.json, tables and the figure from all that is there.

python -m experiments.trace_penalty --tasks digits --pieces weights --store
python -m experiments.trace_penalty --pieces forms cost --cifar10=folder:cifar10.tar.xz
"""

import argparse
import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

from experiments import jobs
from experiments.claims import about
from experiments.flags import Parser, at_least
from experiments.results import read, write_answers
from experiments.trace_penalty import cost, figures, runs, verdicts, weight_tables, weights
from experiments.trace_penalty.tables import all_tables
from experiments.writing import rounded

HERE = Path(__file__).parent
QUESTION = "What does training with the trace penalty do, by its weight and by its form, and what does it cost?"


def main() -> None:
    """Do the pieces asked for; what is there is written after each job."""
    asked = parse()
    with jobs.reported():
        folder = HERE if asked.store else asked.out
        results = read(folder, asked.scale)
        planned = [] if asked.tables else _missing(asked, results.get("weights", []))
        if asked.cost:
            print(_cost(planned, asked.scale))
            return
        data = jobs.absolute(asked.cifar10)
        if not asked.tables:
            results = _forms(asked, results, data)
        write(results, folder, asked.scale)
        for task, form, seeds in planned:
            print(f"{task}, {form}, seeds {seeds[0]} to {seeds[-1]}", file=sys.stderr, flush=True)
            new = weights.train(asked.out, task, form, seeds, data, asked.scale)
            results["weights"] = merged(results.get("weights", []), new)
            write(results, folder, asked.scale)


def _forms(asked: argparse.Namespace, results: dict[str, Any], data: str | None) -> dict[str, Any]:
    """The results with the forms' runs and their cost, where those pieces are asked for."""
    for name in asked.tasks:
        own = data if name == "cifar10" else None
        if "forms" in asked.pieces:
            runs.train(asked.out, name, asked.seeds or 5, own)
            results.setdefault(name, {})["runs"] = rounded(runs.measured(asked.out, name))
        if "cost" in asked.pieces:
            cost.measure(asked.out, name, asked.seeds or 5, data=own, rounds=asked.rounds, probes=asked.probes)
            path = asked.out / "measured" / f"cost-{name}.json"
            results.setdefault(name, {})["cost"] = rounded(json.loads(path.read_text()))
    return results


def _missing(asked: argparse.Namespace, known: list[dict[str, Any]]) -> list[tuple[str, str, tuple[int, ...]]]:
    if "weights" not in asked.pieces:
        return []
    there = set() if asked.again else {(run["task"], run["form"], run["seed"]) for run in known}
    every = [(name, *piece) for name in asked.tasks for piece in weights.pieces(name, asked.seeds)]
    return [(task, form, seeds) for task, form, seeds in every if not {(task, form, seed) for seed in seeds} <= there]


def _cost(planned: list[tuple[str, str, tuple[int, ...]]], scale: str) -> str:
    lines, seconds, operations = [], 0.0, 0.0
    for task, form, seeds in planned:
        own = weights.task_of(task, scale)
        count = len(seeds) * len(own.rates) * (len(own.weights) - (form != "hessian"))
        each = f"{own.operations:.2g} operations" if own.operations else f"{own.seconds:g} s of a core"
        seconds += 0.0 if own.operations else count * own.seconds
        operations += count * own.operations
        lines.append(f"{task}, {form}, seeds {seeds[0]} to {seeds[-1]}: {count} runs x {each}")
    total = f"together {seconds / 3600:.1f} hours of a core"
    return "\n".join([*lines, total + (f" and {operations:.2g} operations" if operations else "")])


def merged(known: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs known with the new ones in their places."""
    keys = ("task", "form", "penalty", "rate", "seed")
    found = {tuple(run[key] for key in keys): run for run in rounded([*known, *new], 5)}
    return [found[key] for key in sorted(found)]


def write(results: dict[str, Any], folder: Path, scale: str = "small") -> None:
    """Write results.json, the figure and the README's tables."""
    own = merged(results.get("weights", []), [])
    results["weights"] = own
    found = verdicts.claims(own)
    head = about(
        QUESTION,
        command="python -m experiments.trace_penalty --store",
        cost=f"{len(own)} runs over weights and rates, and those of the forms",
        date=max((run["record"]["date"] for run in own), default=str(date.today())),
        answers=["K Fig. 4"],
    )
    parts = {name: part for name, part in results.items() if name not in ("about", "claims")}
    texts = all_tables(parts) | weight_tables.all_tables(own)
    if own:
        figures.draw(own, folder / "figures")
    write_answers(folder, head, found, parts, texts, scale)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("trace_penalty", __doc__)
    add = parser.add_argument
    add("--tasks", nargs="+", choices=runs.TASKS, default=list(runs.TASKS))
    add("--pieces", nargs="+", choices=("forms", "cost", "weights"), default=["forms", "cost", "weights"])
    add("--seeds", type=at_least(2), help="0, 1, ... (default: 5 of every form, 10 and 3 of every weight)")
    add("--rounds", type=at_least(1), default=9, help="of timed steps (default 9)")
    add("--probes", type=at_least(2), default=200, help="random vectors by which noise is measured (default 200)")
    add("--again", action="store_true", help="train weights that are stored too")
    add("--tables", action="store_true", help="train nothing, write what is stored")
    add("--cost", action="store_true", help="print which weights are to be trained, and their cost")
    parser.add_cifar10("the images")
    parser.add_store()
    parser.add_scale()
    parser.add_out("runs/trace_penalty", "folder of the runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
