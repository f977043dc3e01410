"""Write tables, figures and verdicts from the stored runs, which python -m experiments.cells trains.

python -m experiments.during_training --store --cifar10=folder:cifar10.tar.xz
"""

import argparse
from pathlib import Path
from typing import Any

from experiments import cells, jobs
from experiments.claims import about, claims_table
from experiments.during_training import figures, images, numbers, tables, verdicts
from experiments.during_training.numbers import Runs
from experiments.flags import Parser
from experiments.intervals import as_json, interval
from experiments.results import write_all
from experiments.writing import rounded
from focalgeo.types import InputError

HERE = Path(__file__).parent
DESCRIPTION = __doc__.partition("\n")[0]
QUESTION = "Does cross-entropy grow sure of the test images that it gets wrong while it trains, and focal loss less?"
ANSWERS = ("M Fig. 1", "M Fig. 2", "M Fig. 3", "M Fig. 4, b to d", "M Fig. 8", "M Table 6")
TRAIN = "python -m experiments.cells --tasks cifar10 --losses " + " ".join(cells.DIAGNOSED)

NUMBERS = {
    **{f"{split} {name}": numbers.at(split, name) for split in numbers.SPLITS for name in numbers.NAMES},
    "weight norm": numbers.at("", "weight_norm"),
    "train, surest bin": numbers.surest(),
    "train, p_y above p0": numbers.beyond_threshold,
    **tables.S99,
}


def main() -> None:
    """Do what is asked."""
    asked = parse()
    with jobs.reported():
        if asked.cost:
            print(plan(cells.stored("cifar10", asked.scale), asked.scale))
            return
        runs = cells.compared("cifar10", asked.scale)
        if not numbers.diagnosed(runs):
            raise InputError(f"no run of experiments/rows was measured in training: {TRAIN} --scale={asked.scale}")
        write(runs, HERE if asked.store else asked.out, scale=asked.scale, data=jobs.absolute(asked.cifar10))


def plan(runs: Runs, scale: str) -> str:
    """The runs that are left to train, and their time at small scale."""
    known = {(run["loss"], run["seed"]) for run in numbers.diagnosed(runs)}
    left = [one for one in cells.cells(["cifar10"], cells.DIAGNOSED, None, scale) if (one.loss, one.seed) not in known]
    minutes = len(left) * cells.TASKS["cifar10"].minutes
    time = f", some {minutes:.0f} minutes of one core" if scale == "small" else " of 350 epochs with ResNet-50"
    return f"{len(left)} runs are left{time}: {TRAIN} --scale={scale}"


def write(runs: Runs, folder: Path, *, scale: str = "small", data: str | None = None) -> None:
    """Write results.json, figures and the README's tables; the figure of images only where data are given."""
    texts = {"claims": claims_table(verdicts.claims(runs)), **tables.all_tables(runs)}
    write_all(folder, rounded(results(runs), 4), texts, scale)
    own, figures_folder = numbers.diagnosed(runs), folder / ("figures" if scale == "small" else f"figures_{scale}")
    figures.draw(own, figures_folder)
    if data:
        images.draw(own, figures_folder, data)


def results(runs: Runs) -> dict[str, Any]:
    """What results.json holds: head, claims, curves over epochs by loss, and the numbers of each run."""
    own = numbers.diagnosed(runs)
    seconds = sum(run["record"]["seconds"] for run in own)
    head = about(
        QUESTION,
        command=f"{TRAIN}; python -m experiments.during_training --store",
        cost=f"{len(own)} runs, {seconds / 3600:.1f} hours of one core for their training",
        date=max(run["record"]["date"] for run in own),
        answers=ANSWERS,
    )
    return {
        "about": head,
        "claims": [claim._asdict() for claim in verdicts.claims(runs)],
        "epochs": numbers.epochs_of(own),
        "curves": {loss: _curves(own, loss) for loss in numbers.losses_of(own)},
        "s99": {loss: _s99(runs, loss) for loss in numbers.losses_of(runs)},
        "runs": [_brief(run) for run in own],
    }


def _curves(runs: Runs, loss: str) -> dict[str, list]:
    """Split and name -> mean, low and high over seeds at each epoch."""
    found = {}
    for split in numbers.SPLITS:
        for name in numbers.NAMES:
            found[f"{split} {name}"] = numbers.band(runs, loss, split, name)
    found["weight_norm"] = numbers.band(runs, loss, "", "weight_norm")
    return {name: [list(as_json(one).values()) for one in own] for name, own in found.items()}


def _s99(runs: Runs, loss: str) -> dict[str, dict]:
    """Table 6's numbers of a loss over seeds."""
    return {
        title: as_json(interval(list(numbers.by_seed(runs, loss, of).values()))) for title, of in tables.S99.items()
    }


def _brief(run: dict[str, Any]) -> dict[str, Any]:
    values = {title: of(run) for title, of in NUMBERS.items()}
    kept = {title: value for title, value in values.items() if value is not None and value == value}
    return {"loss": run["loss"], "seed": run["seed"], "record": run["record"]} | kept


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("during_training", __doc__)
    parser.add_cifar10("the runs' images, for the figure of images")
    parser.add_argument("--cost", action="store_true", help="print what is left to train")
    parser.add_store()
    parser.add_scale()
    parser.add_out("runs/during_training", "folder of tables and figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
