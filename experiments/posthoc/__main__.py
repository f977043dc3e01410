"""Measures what is missing, piece by piece, and writes results.json, tables.md and the figure from all of it.

python -m experiments.posthoc --cache=runs/posthoc --predictions=runs/cifar10-quick/predictions
"""

import argparse
from pathlib import Path

from experiments.posthoc import criterion, peers
from experiments.posthoc.splits import sources

PIECES = ("peers", "criterion")


def main() -> None:
    """Measure the pieces asked for."""
    parser = argparse.ArgumentParser(prog="python -m experiments.posthoc", description=__doc__)
    add = parser.add_argument
    add("--pieces", default=",".join(PIECES), help="pieces to measure (default: all)")
    add("--splits", type=int, default=20, help="random halves of each network's predictions (default 20)")
    add("--predictions", type=Path, help="folder of val.npz and test.npz of a run of the main job on CIFAR-10")
    add("--cache", type=Path, default=Path("runs/posthoc"), help="folder of what is measured (default: runs/posthoc)")
    add("--out", type=Path, default=Path(__file__).parent, help="folder for results.json, tables.md and the figure")
    asked = parser.parse_args()
    networks = sources(asked.predictions)
    for name in asked.pieces.split(","):
        {"peers": peers, "criterion": criterion}[name].measure(asked.cache / f"{name}.jsonl", networks, asked.splits)


if __name__ == "__main__":
    main()
