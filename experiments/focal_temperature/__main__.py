"""Measure others' outputs, take the stored cells, and write tables, the figure and verdicts.

python -m experiments.focal_temperature --logits=FOLDER --store   outputs of others: .npz with probs or logits, labels
python -m experiments.focal_temperature --store                   with the cells that are stored now
"""

import argparse
from datetime import date
from pathlib import Path
from typing import Any

from experiments import cells, jobs
from experiments.claims import about
from experiments.flags import Parser, at_least
from experiments.focal_temperature import answers, figures, others
from experiments.results import read, write_answers
from focalgeo.types import InputError

HERE = Path(__file__).parent
QUESTION = "Does focal temperature scaling calibrate better than temperature scaling, and what do its gamma and T say?"


def main() -> None:
    """Measure what is asked for, and write."""
    asked = parse()
    with jobs.reported():
        folder = HERE if asked.store else asked.out
        measured = read(folder).get("others", [])
        if asked.logits:
            paths = sorted(asked.logits.glob("*.npz"))
            if not paths:
                raise InputError(f"{asked.logits}: holds no .npz file: name a folder of outputs")
            measured = [run for path in paths for run in others.measure(path, asked.splits)]
        trained = [run for task in cells.TASKS for run in cells.compared(task)]
        if not measured and not trained:
            raise InputError("no cell is stored and --logits names no outputs: nothing to compare")
        write(trained, measured, folder)


def write(trained: list[dict[str, Any]], measured: list[dict[str, Any]], folder: Path) -> None:
    """Write results.json (others' outputs; cells lie in experiments/rows), the figure and the README's tables."""
    runs = [*trained, *measured]
    found = answers.claims(runs)
    head = about(
        QUESTION,
        command="python -m experiments.cells; python -m experiments.focal_temperature --logits=FOLDER --store",
        cost=f"{len(trained)} cells of experiments/rows; {len(measured)} halves of others' outputs, 12 s of a core",
        date=max((run["record"]["date"] for run in trained), default=str(date.today())),
        answers=["F Table 1", "F Fig. 2, right", "F Fig. 8"],
    )
    texts = {
        "table 1": answers.table_1(runs),
        "lines": answers.lines_table(runs),
        "train": answers.train_table(runs),
        "methods": answers.methods_table(runs),
    }
    figures.draw(runs, folder / "figures")
    write_answers(folder, head, found, {"others": measured}, texts)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("focal_temperature", __doc__)
    parser.add_argument("--logits", type=Path, help="folder of others' outputs, .npz files")
    parser.add_argument("--splits", type=at_least(2), default=20, help="random halves of each file (default 20)")
    parser.add_store()
    parser.add_out("runs/focal_temperature", "folder of tables and figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
