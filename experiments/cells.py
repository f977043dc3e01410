"""Cells of the papers' tables: task x loss x seed, trained by jobs, and what four questions need of each run.

python -m experiments.cells --tasks newsgroups --data newsgroups=newsgroups:GROUPS --seeds 3

trains what experiments/rows does not hold yet and adds a row for each run there. GROUPS is a folder of all group
folders, not of two parts by date: the papers divide posts at random.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from scipy.special import softmax
from scipy.stats import rankdata

from experiments import jobs
from experiments.numbers import rounded
from experiments.question import HERE, Parser, absolute, at_least, replaced, reported
from focalgeo import calibration, records
from focalgeo.job import training
from focalgeo.job.preparation import initial_state, make_members, prepare
from focalgeo.rows import Diagnostic, Fit, HistogramBin, Metric, ReliabilityBin, select
from focalgeo.training import checkpoint, loop
from focalgeo.types import InputError, Split

ROWS = HERE / "rows"
LOSSES = {  # word of configs/ -> title as the papers have it
    "ce": "CE",
    "brier": "Brier",
    "mmce": "MMCE",
    "ls": "LS-0.05",
    "fl1": "FL-1",
    "fl2": "FL-2",
    "fl3": "FL-3",
    "fl5": "FL-5",
    "fl7": "FL-7",
    "fla53": "FLA-53",
    "fla532": "FLA-532",
    "fls531": "FLS-531",
    "fls532": "FLS-532",
    "flsd53": "FLSD-53",
    "adafocal": "AdaFocal",
    "dual": "Dual focal",
}
Pair = tuple[np.ndarray, np.ndarray]  # logits and labels
LEAST = 3  # seeds that say something
SAME_ERROR = 1.0  # points of error that count as none: the papers' networks differ by as much
GAMMAS = (-0.5, -0.25, 0.0, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)  # of evaluation: Komisarenko & Kull's, and 0
TEMPERATURES = (0.01 * np.arange(1, 501)).astype(np.float32)
LINE = np.linspace(-0.5, 1, len(TEMPERATURES), dtype=np.float32)  # the gammas of a line search: as many as T has values
EXAMPLES = 5000  # of the training split that a run is measured on
DIAGNOSED = ("ce", "fl1", "fl2", "fl3")  # on images: experiments/during_training
DIAGNOSTICS = {"diagnostics.every": 1, "diagnostics.splits": ("train", "test"), "diagnostics.examples": 2500}
SHOWN = ("ce", "brier", "mmce", "fla53", *DIAGNOSED)  # losses of which single images are kept: M Fig. 8
MEANS = ("nll", "entropy", "true_class_probability", "gradient_norm", "error", "ece")
IMAGES = 100  # of the test split at even distances, the same for every loss


class Task(NamedTuple):
    """Data with the network of its config, at the scales that it has."""

    title: str
    config: str
    small: str | None  # words of the config, before the loss
    paper: str | None
    seeds: int = 5

    def words(self, scale: str) -> str | None:
        """Those of a scale, "small" or "paper"."""
        return getattr(self, scale)


_DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
_NETWORKS = {"resnet110": "ResNet-110", "wide_resnet26_10": "Wide ResNet 26-10", "densenet121": "DenseNet-121"}
TASKS = {
    "cifar10": Task("CIFAR-10 (JPEG)", "configs/cifar.py", "fitted", "resnet50"),
    "newsgroups": Task("20 Newsgroups", "configs/newsgroups.py", "small", ""),
    "sst": Task("SST, two classes", "configs/sst.py", "small", ""),
    "cifar10_before_fit": Task("CIFAR-10 (JPEG), all images", "configs/cifar.py", "small", None),
    "cifar100": Task("CIFAR-100", "configs/cifar.py", None, "cifar100,resnet50"),
    "tiny_imagenet": Task("Tiny ImageNet", "configs/tiny_imagenet.py", None, "resnet50"),
    **{
        f"{data}_{network}": Task(f"{_DATA[data]}, {title}", "configs/cifar.py", None, f"{data},{network}")
        for data, (network, title) in product(_DATA, _NETWORKS.items())
    },
}


class Cell(NamedTuple):
    """One run: a task, a loss, a seed and a scale, "small" or "paper"."""

    task: str
    loss: str
    seed: int
    scale: str = "small"

    @property
    def config(self) -> str:
        """The config file with its words."""
        task = TASKS[self.task]
        return f"{task.config}:{','.join(filter(None, (task.words(self.scale), self.loss)))}"

    @property
    def is_diagnosed(self) -> bool:
        """Whether it is measured at every epoch."""
        return self.task == "cifar10" and self.loss in DIAGNOSED

    def workdir(self, out: Path) -> Path:
        """Where its job leaves its rows."""
        return out / f"{self.task}-{self.scale}" / f"{self.loss},seed={self.seed}"

    def fields(self, data: str | None) -> dict[str, Any]:
        """What its job has beside the config."""
        fields = {"seed": self.seed} | (DIAGNOSTICS if self.is_diagnosed else {})
        if (self.task, self.scale) == ("cifar10", "small"):  # a seed has its own images, too
            fields["data.split_seed"] = 1 + self.seed
        return fields | ({"data.name": data} if data else {})


def having(scale: str) -> list[str]:
    """The tasks that have a network of a scale."""
    return [name for name, task in TASKS.items() if task.words(scale) is not None]


def cells(tasks: Iterable[str], losses: Iterable[str], seeds: int | None, scale: str = "small") -> list[Cell]:
    """The cells in the order of training: all losses of the first seed, then of the next.

    Raises:
        InputError: a task has no network of that scale.
    """
    for task in tasks:
        if TASKS[task].words(scale) is None:
            raise InputError(f"{task} has no cells with --scale={scale}: name some of {', '.join(having(scale))}")
    return [
        Cell(task, loss, seed, scale) for task in tasks for seed in range(seeds or TASKS[task].seeds) for loss in losses
    ]


# ---- what is stored, one run a line


def rows_file(task: str, scale: str = "small") -> Path:
    """Where the rows of a task lie."""
    return ROWS / f"{task}{'' if scale == 'small' else '_' + scale}.jsonl"


def stored(task: str, scale: str = "small") -> list[dict[str, Any]]:
    """The runs of a task that are stored, in the order of LOSSES and seeds."""
    path = rows_file(task, scale)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    order = list(LOSSES)
    return sorted(map(json.loads, lines), key=lambda run: (order.index(run["loss"]), run["seed"]))


def compared(*tasks: str, scale: str = "small") -> list[dict[str, Any]]:
    """The stored runs of tasks that questions compare: those of the seeds that all stored losses of a task have.

    A seed of which some losses are not trained yet waits, so that every mean and difference is over the same seeds; a
    task waits for LEAST of them.
    """
    compared = []
    for task in tasks:
        runs = stored(task, scale)
        losses, seeds = {run["loss"] for run in runs}, Counter(run["seed"] for run in runs)
        whole = {seed for seed, count in seeds.items() if count == len(losses)}
        compared += [run for run in runs if run["seed"] in whole] if len(whole) >= LEAST else []
    return compared


def metric(runs: pd.DataFrame, method: str, name: str, *, split: str = "test") -> pd.Series:
    """A metric of each run by a method, "uncalibrated" or "temperature_scaling/ece", or a parameter it has fitted."""
    of_runs = runs.fits if name in ("temperature", "calibration_gamma") else runs.metrics.str[split]
    return pd.Series([of_run.get(method, {}).get(name, np.nan) for of_run in of_runs], runs.index, dtype=float)


def by_loss(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Title of a loss -> its runs, in their order."""
    return {LOSSES[loss]: group for loss, group in runs.groupby("loss", sort=False)}


def store(run: dict[str, Any], task: str, scale: str = "small") -> None:
    """Add a run to those stored; one of the same loss and seed is replaced.

    Raises:
        InputError: it was measured on other test examples than those stored.
    """
    known = stored(task, scale)
    sizes = {run["examples"] for run in known if "examples" in run}
    if sizes - {run.get("examples")} and "examples" in run:
        told = f"{run['examples']:,} test examples, those stored {', '.join(map('{:,}'.format, sizes))}"
        raise InputError(f"{task}, {run['loss']}, seed {run['seed']} has {told}: name the same data by --data")
    runs = {(run["loss"], run["seed"]): run for run in [*known, run]}
    ROWS.mkdir(exist_ok=True)
    lines = [json.dumps(run, separators=(",", ":")) for run in runs.values()]
    replaced(rows_file(task, scale), "\n".join(lines) + "\n")


# ---- what is measured of a run


def train(cell: Cell, out: Path, data: str | None) -> dict[str, Any]:
    """Train and evaluate a cell, or go on with it, and measure all that is stored of it."""
    workdir = jobs.trained(cell.config, cell.workdir(out), cell.fields(data))
    rows = records.read_rows(workdir)
    outputs = {split: records.read_predictions(workdir, split) for split in ("val", "test")}
    pairs = {split: (predicted.logits, predicted.labels) for split, predicted in outputs.items()}
    pairs["train"] = train_outputs(workdir)
    run = {
        "task": cell.task,
        "loss": cell.loss,
        "seed": cell.seed,
        "record": jobs.record(workdir, cell.config),
        "classes": int(pairs["test"][0].shape[-1]),
        "examples": len(pairs["test"][1]),
        "metrics": {split: by_method(select(rows, Metric, split=split)) for split in ("val", "test")},
        "auc": {split: class_auc(*pairs[split]) for split in ("val", "test")},
        "train_accuracy": float((pairs["train"][0].argmax(-1) == pairs["train"][1]).mean()),
        "train_nll": float(calibration.nll(calibration.temperature_scaling(pairs["train"][0], 1.0), pairs["train"][1])),
        "fits": by_method(select(rows, Fit)),
        "line": {name: along_line(pairs["val"], pairs["test"], name) for name in ("nll", "adaptive_ece")},
        "temperatures": {"gammas": GAMMAS} | {split: temperatures(*pair, GAMMAS) for split, pair in pairs.items()},
    }
    if cell.is_diagnosed:
        run["diagnostics"] = rounded(diagnosed(rows), 4)
    if cell.task == "cifar10" and cell.loss in SHOWN:
        run["images"] = rounded(images(rows, *pairs["test"]), 4)
    return rounded(run, 5)


def by_method(rows: Iterable[Metric | Fit]) -> dict[str, dict[str, float]]:
    """Method and criterion, as "temperature_scaling/ece" -> name -> value."""
    values: dict[str, dict[str, float]] = {}
    for row in rows:
        values.setdefault("/".join(filter(None, (row.method, row.criterion))), {})[row.name] = row.value
    return values


def train_outputs(workdir: Path, examples: int = EXAMPLES, *, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of the first examples of a split, not augmented, by the parameters that the job kept.

    Training examples are in random order. Of trees, whose every labelled phrase is an example, those of the first
    twentieth as many trees. Where the job ends with its best epoch the parameters are that epoch's.
    """
    config = jobs.config_of(workdir)
    prepared = prepare(config)
    predict = training.make_prediction(config, prepared.model)
    state = checkpoint.restore_latest(workdir / "checkpoints", initial_state(prepared, make_members(config))).state
    if state.best is not None:
        best = loop.best_after_epoch(state, config.optimizer.epochs, predict(prepared.dataset.val, state))
        state = loop.with_best(state._replace(best=best))
    every = getattr(prepared.dataset, split)
    count = examples if np.ndim(every.y) == 1 else examples // 20
    predicted = predict(Split(jax.tree.map(lambda leaf: leaf[:count], every.x), every.y[:count]), state)
    return predicted.logits[:examples, 0], predicted.labels[:examples]


def temperatures(logits: np.ndarray, labels: np.ndarray, gammas: Sequence[float]) -> dict[str, list[float]]:
    """Criterion -> the temperature from 0.01 to 5 by 0.01 that is best for each gamma of the focal calibration map."""
    grid = tuple(gammas), tuple(TEMPERATURES.tolist())
    ece, adaptive = (calibration.grid_search(logits, labels, *grid, criterion=name) for name in ("ece", "adaptive_ece"))
    values = {"nll": ece.nll, "ece": ece.ece, "adaptive_ece": adaptive.ece}
    return {name: TEMPERATURES[np.asarray(of).argmin(-1)].tolist() for name, of in values.items()}


def class_auc(logits: np.ndarray, labels: np.ndarray) -> float:
    """The mean over classes of the area under the ROC curve of p_k for "the label is k"; 0.5 is chance.

    A class that no label has, or all have, is left out.
    """
    areas, probs = [], softmax(logits.astype(np.float64), axis=-1)
    for k, scores in enumerate(probs.T):
        is_k = labels == k
        if 0 < (count := is_k.sum()) < len(labels):
            ranks = rankdata(scores)[is_k].sum() - count * (count + 1) / 2
            areas.append(ranks / (count * (len(labels) - count)))
    return float(np.mean(areas))


def along_line(val: Pair, test: Pair, criterion: str) -> dict[str, float]:
    """Gamma and T of the line search on val, and the criterion's metric on test, with as many points as T has values.

    The line goes through the best T of gamma -0.5 and of 1, up to which T is nearly linear in gamma: three times the
    evaluations of temperature scaling. Source: Komisarenko & Kull, 5.2.
    """
    best = calibration.line_search(*val, LINE, TEMPERATURES, criterion=criterion)
    log_probs = calibration.focal_temperature_scaling(test[0], best.gamma, best.temperature)
    measured = calibration.all_metrics(log_probs, test[1], names=[criterion])[criterion]
    return {"gamma": float(best.gamma), "temperature": float(best.temperature), "test": float(measured)}


def diagnosed(rows: list) -> dict[str, Any]:
    """What training does to right and wrong examples, epoch by epoch, small enough to store.

    "means" -> split -> name, or name and outcome as "nll wrong" -> value by epoch, None where no example has that
    outcome; "error" and "ece" (25 bins) are there too. At three epochs "reliability" -> split -> epoch -> lower and
    upper edge, share, confidence and accuracy of each bin that is not empty, and "histograms" -> name -> split -> epoch
    -> edges and share.
    """
    rows = [row for row in rows if row.epoch is not None]
    measured, splits = select(rows, Diagnostic), DIAGNOSTICS["diagnostics.splits"]
    epochs = sorted({row.epoch for row in measured})
    whens = (epochs[0], epochs[len(epochs) // 2], epochs[-1])
    curves: dict[str | None, dict[str, dict]] = defaultdict(lambda: defaultdict(lambda: dict.fromkeys(epochs)))
    for row in measured:
        curves[row.split][" ".join(filter(None, (row.name, row.outcome)))][row.epoch] = row.value
    bins: dict[tuple, list] = defaultdict(list)
    for row in (*select(rows, ReliabilityBin, name="reliability", method=None), *select(rows, HistogramBin)):
        numbers = [row.value] if isinstance(row, HistogramBin) else [row.share, row.confidence, row.value]
        bins[row.name, row.split, row.epoch].append([row.lower, row.upper, *numbers])
    for split, epoch in product(splits, epochs):
        share, confidence, right = np.array(bins["reliability", split, epoch]).T[2:]
        curves[split]["error"][epoch] = float(share @ (1 - right))
        curves[split]["ece"][epoch] = float(share @ abs(right - confidence))

    def of_splits(name):
        return {split: {f"{epoch:g}": bins[name, split, epoch] for epoch in whens} for split in splits}

    def means(of_split):
        return {name: [*curve.values()] for name, curve in of_split.items() if name.partition(" ")[0] in MEANS}

    return {
        "examples": {row.split: row.n for row in measured if row.name == "nll" and row.outcome is None},
        "epochs": epochs,
        "weight_norm": [*curves[None]["weight_norm"].values()],
        "means": {split: means(curves[split]) for split in splits},
        "reliability": of_splits("reliability"),
        "histograms": {name: of_splits(f"{name}_histogram") for name in ("gradient_norm", "true_class_probability")},
    }


def images(rows: list, logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """By image: index in the test split, label, prediction, confidence as trained and after T, fitted by ECE."""
    fitted = select(rows, Fit, name="temperature", method="temperature_scaling", criterion="ece")[0].value
    index = np.arange(IMAGES) * len(labels) // IMAGES
    logits = logits[index].astype(np.float64)
    return {
        "index": index.tolist(),
        "label": labels[index].tolist(),
        "predicted": logits.argmax(-1).tolist(),
        "confidence": softmax(logits, axis=-1).max(-1).tolist(),
        "after": softmax(logits / fitted, axis=-1).max(-1).tolist(),
        "temperature": fitted,
    }


# ---- the command


def main() -> None:
    """Train the cells asked for that are not stored, and store each."""
    flags = parse()
    with reported():
        for cell in cells(flags.tasks or having(flags.scale), flags.losses, flags.seeds, flags.scale):
            known = {(run["loss"], run["seed"]) for run in stored(cell.task, cell.scale)}
            if flags.again or (cell.loss, cell.seed) not in known:
                print(f"{cell.task}, {cell.loss}, seed {cell.seed}", file=sys.stderr, flush=True)
                store(train(cell, flags.out, dict(flags.data).get(cell.task)), cell.task, cell.scale)


def _named(text: str) -> tuple[str, str]:
    task, equals, name = text.partition("=")
    if task not in TASKS or not equals:
        raise argparse.ArgumentTypeError(f"{text}: give it as TASK=NAME, as in cifar10=folder:cifar10.tar.xz")
    return task, absolute(name)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("python -m experiments.cells", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--tasks", nargs="+", choices=TASKS, help="default all that the scale has")
    add("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    add("--seeds", type=at_least(1), help="0, 1, ... of every loss (default 5)")
    add("--data", type=_named, nargs="+", default=[], metavar="TASK=NAME", help="config.data.name of a task")
    add("--again", action="store_true", help="what is stored too; jobs finished in --out are read, not trained")
    add("--scale", choices=("small", "paper"), default="small", help="paper: every network of the papers' tables")
    add("--out", type=lambda text: Path(text).absolute(), default="runs/cells", help="folder of the runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
