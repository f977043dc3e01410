"""Write tables, figures and verdicts from the stored runs, which python -m experiments.cells trains.

python -m experiments.calibration_of_losses --store
python -m experiments.calibration_of_losses --table "M Table 1"
"""

import argparse
from pathlib import Path
from typing import Any

from experiments import cells, jobs
from experiments.calibration_of_losses import choice, figures, quantities, tables, verdicts
from experiments.claims import about, claims_table
from experiments.flags import Parser
from experiments.intervals import as_json
from experiments.results import write_all
from experiments.writing import rounded
from focalgeo.types import InputError

HERE = Path(__file__).parent
QUESTION = "Do losses other than cross-entropy train networks that are better calibrated?"
SHORT = ("accuracy", "ece", "ece after T", "T by ece", "nll", "nll after T", "s99")
LONG = ("adaptive_ece", "adaptive_ece after T", "classwise_ece", "classwise_ece after T", "mce", "mce after T", "brier")


def main() -> None:
    """Do what is asked."""
    asked = parse()
    with jobs.reported():
        runs = {task: cells.compared(task, asked.scale) for task in cells.TASKS}
        if asked.table:
            print(tables.PAPER_TABLES[asked.table].title, tables.paper_table(asked.table, runs), sep="\n\n")
            return
        if not any(runs.values()):
            raise InputError("no run is stored in experiments/rows: train some with python -m experiments.cells")
        write(runs, HERE if asked.store else asked.out, asked.scale)


def write(runs: tables.Runs, folder: Path, scale: str = "small") -> None:
    """Write results.json, tables.md, figures and the README's tables."""
    write_all(folder, rounded(results(runs), 4), readme_tables(runs), scale)
    parts = [
        f"## {name}: {table.title}\n\n{tables.paper_table(name, runs)}" for name, table in tables.PAPER_TABLES.items()
    ]
    head = "# The tables of Mukhoti et al., here and in the paper\n\nMeans over seeds with 95% intervals.\n\n"
    (folder / "tables.md").write_text(head + "\n".join(parts), encoding="utf-8")
    figures.draw(runs, folder / "figures")


def results(runs: tables.Runs) -> dict[str, Any]:
    """What results.json holds: head, claims, and means over seeds by data set, loss and quantity."""
    dates = [run["record"]["date"] for own in runs.values() for run in own]
    seconds = sum(run["record"]["seconds"] for own in runs.values() for run in own)
    found: dict[str, Any] = {
        "about": about(
            QUESTION,
            command="python -m experiments.cells; python -m experiments.calibration_of_losses --store",
            cost=f"{len(dates)} runs, {seconds / 3600:.1f} hours of one core for their training",
            date=max(dates),
            answers=[name for name in tables.PAPER_TABLES if name != "M Table 6"],  # experiments/during_training
        ),
        "claims": [claim._asdict() for claim in verdicts.claims({task: own for task, own in runs.items() if own})],
        "means": {},
        "runs": [_brief(run) for own in runs.values() for run in own],
    }
    for task, own in runs.items():
        found["means"][task] = {
            loss: {name: as_json(quantities.mean(own, loss, name)) for name in quantities.QUANTITIES}
            for loss in quantities.losses_of(own)
        }
    return found


def _brief(run: dict[str, Any]) -> dict[str, Any]:
    numbers = {name: quantities.value(run, name) for name in quantities.QUANTITIES}
    kept = {name: number for name, number in numbers.items() if number is not None}
    head = {"task": run["task"], "loss": run["loss"], "seed": run["seed"], "record": run["record"]}
    return head | {"train accuracy": run["train_accuracy"]} | kept


def readme_tables(runs: tables.Runs) -> dict[str, str]:
    """The README's tables by their marks."""
    runs = {task: own for task, own in runs.items() if own}
    found = {
        "claims": claims_table(verdicts.claims(runs)),
        "ranks": tables.ranks(runs),
        "choice": choice.choices_table(runs),
    }
    for task, own in runs.items():
        found[task] = tables.all_losses(own, SHORT)
        found[f"{task} more"] = tables.all_losses(own, LONG)
        found[f"{task} differences"] = tables.differences(own, SHORT)
    return found


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("calibration_of_losses", __doc__)
    words = "print one table of the papers from the stored runs"
    parser.add_argument("--table", choices=tables.PAPER_TABLES, help=words)
    parser.add_store()
    parser.add_scale()
    parser.add_out("runs/calibration_of_losses", "folder of tables and figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
