"""Train the sweeps over gamma that are not stored, and write tables, figures and verdicts.

python -m experiments.curvature_and_gamma --networks digits --store
python -m experiments.curvature_and_gamma --cifar10=folder:cifar10.tar.xz --store
python -m experiments.curvature_and_gamma --tables --store
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from experiments import jobs
from experiments.claims import about
from experiments.curvature_and_gamma import figures, runs, tables, verdicts
from experiments.flags import Parser, at_least
from experiments.results import read, write_answers
from experiments.writing import rounded
from focalgeo.types import InputError

HERE = Path(__file__).parent
QUESTION = "Does focal loss flatten the loss surface, which one, and is the flatter network better calibrated?"


def main() -> None:
    """Train piece by piece; what is there is written after each."""
    asked = parse()
    with jobs.reported():
        folder = HERE if asked.store else asked.out
        known = read(folder, asked.scale).get("runs", [])
        planned = [] if asked.tables else _missing(asked, known)
        if asked.cost:
            return print(_cost(planned))
        data = jobs.absolute(asked.cifar10)
        for network, seeds in planned:
            print(f"{network}, seeds {seeds[0]} to {seeds[-1]}", file=sys.stderr, flush=True)
            known = merged(known, runs.train(asked.out, network, seeds, data, asked.scale))
            write(known, folder, asked.scale)
        if not planned:
            write(known, folder, asked.scale)


def _missing(asked: argparse.Namespace, known: list[dict[str, Any]]) -> list[tuple[str, tuple[int, ...]]]:
    there = set() if asked.again else {(run["network"], run["seed"]) for run in known}
    every = runs.pieces(asked.networks, asked.seeds)
    return [(network, seeds) for network, seeds in every if not {(network, seed) for seed in seeds} <= there]


def _cost(planned: list[tuple[str, tuple[int, ...]]]) -> str:
    gammas = {network: 7 if network == runs.DIGITS else 5 for network, _ in planned}
    lines, total = [], 0
    for network in gammas:
        count = sum(len(seeds) for name, seeds in planned if name == network) * gammas[network]
        total += count * runs.SECONDS[network]
        lines.append(f"{network}: {count} runs x {runs.SECONDS[network]} s of a core")
    return "\n".join([*lines, f"together {total / 3600:.1f} hours of a core"])


def merged(known: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs known with the new ones in their places, in the order of networks, gammas and seeds."""
    found = {(run["network"], run["gamma"], run["seed"]): run for run in [*known, *new]}
    order = list(runs.NETWORKS)
    return [found[key] for key in sorted(found, key=lambda key: (order.index(key[0]), *key[1:]))]


def write(known: list[dict[str, Any]], folder: Path, scale: str = "small") -> None:
    """Write results.json, figures and the README's tables from the runs."""
    if not known:
        raise InputError("no run is stored: leave --tables out to train some")
    by_network = {name: own for name in runs.NETWORKS if (own := [run for run in known if run["network"] == name])}
    found = verdicts.claims(by_network)
    seconds = {(run["record"]["config"], run["record"]["seconds"]) for run in known}  # one of each job
    head = about(
        QUESTION,
        command="python -m experiments.curvature_and_gamma --store",
        cost=f"{len(known)} runs, {sum(own for _, own in seconds) / 3600:.1f} hours of a core",
        date=max(run["record"]["date"] for run in known),
        answers=["K Fig. 2", "K Fig. 3"],
    )
    texts = {
        "attribution": tables.attribution(by_network),
        "other vectors": tables.other_vectors(by_network),
        "minima": tables.minima(by_network),
    }
    for name, own in by_network.items():
        texts |= {f"{name} curvature": tables.curvature(own), f"{name} changes": tables.changes(own)}
        texts[f"{name} outputs"] = tables.outputs(own)
    figures.draw(by_network, folder / "figures")
    write_answers(folder, head, found, {"runs": rounded(known, 5)}, texts, scale)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("curvature_and_gamma", __doc__)
    add = parser.add_argument
    add("--networks", nargs="+", choices=runs.NETWORKS, default=list(runs.NETWORKS))
    add("--seeds", type=at_least(1), help="0, 1, ... (default 20 on digits, 3 on CIFAR-10)")
    add("--again", action="store_true", help="what is stored too; jobs finished in --out are read, not trained")
    add("--tables", action="store_true", help="train nothing, write what is stored")
    add("--cost", action="store_true", help="print what is to be trained and its cost")
    parser.add_cifar10("the images")
    parser.add_store()
    parser.add_scale()
    parser.add_out("runs/curvature_and_gamma", "folder of the runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
