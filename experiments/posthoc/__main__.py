"""Measure what the folder of --out lacks, piece by piece, and write results.json, tables.md and the figure from all.

python -m experiments.posthoc --predictions=runs/cifar10-ce/predictions
"""

import argparse
import json
from datetime import date
from pathlib import Path

from experiments.flags import Parser, at_least
from experiments.posthoc import choice, criterion, folds, methods, peers, simulation
from experiments.posthoc.collected import collected
from experiments.posthoc.splits import sources
from experiments.posthoc.tables import all_tables
from experiments.posthoc.verdicts import head
from experiments.writing import rounded

ON_SPLITS = {"methods": methods, "choice": choice, "criterion": criterion, "peers": peers}
PIECES = (*ON_SPLITS, "folds", "simulation")


def main() -> None:
    """Measure the pieces asked for, and write what there is of all."""
    asked = parse()
    for name in asked.pieces.split(","):
        path = asked.out / "measured" / f"{name}.jsonl"
        if name in ON_SPLITS:
            ON_SPLITS[name].measure(path, sources(asked.predictions), asked.splits)
        elif name == "folds":
            folds.measure(path)
        else:
            simulation.measure(path, simulation.planned(asked.repetitions))
    write(asked.out)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("posthoc", __doc__)
    add = parser.add_argument
    add("--pieces", default=",".join(PIECES), help=f"pieces to measure, of {', '.join(PIECES)} (default: all)")
    add("--splits", type=at_least(2), default=20, help="random halves of each network's predictions (default 20)")
    add(
        "--repetitions",
        type=at_least(1),
        default=100,
        help="of each cell of the simulation (default 100)",
    )
    add("--predictions", type=Path, help="folder of val.npz and test.npz that a run of the main job left")
    parser.add_out("runs/posthoc", "output folder, continued")
    asked = parser.parse_args()
    unknown = set(asked.pieces.split(",")) - set(PIECES)
    if unknown:
        parser.error(f"--pieces: {', '.join(sorted(unknown))} is none of {', '.join(PIECES)}")
    return asked


def write(out: Path) -> None:
    """Write results.json, and from it alone the tables and the figure."""
    from experiments.posthoc.forest import draw

    results = collected(out / "measured")
    results = rounded(head(results, str(date.today())) | results)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, ensure_ascii=False) + "\n", encoding="utf-8")
    tables = all_tables(results)
    text = "\n".join(f"## {name}\n\n{table}" for name, table in tables.items())
    (out / "tables.md").write_text(text, encoding="utf-8")
    if results["methods"]:
        draw(results, out / "figures" / "nll.png")
    print(f"{out}: results.json, tables.md and figures/nll.png")


if __name__ == "__main__":
    main()
