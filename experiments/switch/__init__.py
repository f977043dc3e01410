"""A network that changes its loss on the way: how fast curvature and calibration follow.

digits, two layers, configs/digits.py, 10 seeds: cross-entropy and focal loss (gamma 3) for 60 epochs each; from the
checkpoints of epochs 30 and 60 (config.start) both go on with either loss for 30 epochs more. From half way with what
is left of the schedule (rate 0.1, lowered after 10 and 20 epochs), once with the momentum kept and once from 0; from
the end with a rate of 0.01, 0.001 for the last ten epochs, momentum from 0. Every second epoch ECE on val (25 bins),
lambda_max and trace of cross-entropy's Hessian on 359 examples of val; accuracy, ECE and NLL on test after training.

A share of the way is the difference of the switched network to the one that went on with the first loss for as long,
over the difference of the two losses' networks after 60 epochs; of curvature in logarithms. Mean over mean, 95% by
the bootstrap over seeds. Hypotheses, written before the run: 1. from half way a switched network ends where the other
loss's does, in ECE within a point, in the trace within a tenth; 2. to focal loss ECE moves more than half of the way
within two epochs, and the trace goes along; 3. the way back takes longer; 4. after the end the same holds,
slower.
"""

import functools
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments import figures, jobs, numbers
from experiments.numbers import OUTPUTS, Claim, Interval, Number, rows_where, shown
from experiments.question import Question
from focalgeo.rows import Diagnostic, Eigenvalue, ReliabilityBin, Trace, select

CONFIG = "configs/digits.py"
GAMMAS = (0.0, 3.0)  # cross-entropy, and the focal loss
LOSS = {0.0: "cross-entropy", 3.0: "focal loss"}
EPOCHS, HALF, MORE, EVERY = 60, 30, 30, 2  # of the first training, half of it, of what follows, between measurements
STEPS_PER_EPOCH = 17
POINTS = {  # epoch of the checkpoint that is gone on from, and whether the optimiser's state is kept
    (HALF, "kept"): "half way",
    (HALF, "fresh"): "half way, momentum from 0",
    (EPOCHS, "fresh"): "after the end",
}
MEASURED = {
    "curvature.splits": ("val",),
    "curvature.every": EVERY,
    "curvature.density_probes": 0,
    "diagnostics.every": EVERY,
    "diagnostics.splits": ("val",),
} | jobs.T_ALONE
EARLY = 2  # epochs after the switch
ROOM, LOG_ROOM, SHARE_ROOM = 0.01, 0.1, 0.25  # of ECE, of the log of the trace, of shares of the way
PATHS = {"ece": "ECE on val", "trace": "trace, CE, val", "lambda_max": "λ_max, CE, val"}
ENDS = {name: number for name, number in OUTPUTS.items() if name != "train accuracy"} | {
    "lambda_max CE val": Number("λ_max, CE, val"),
    "trace CE val": Number("trace, CE, val"),
}


class Way(NamedTuple):
    """What a network goes on from, and with what. at 0: it is trained from random weights to the end."""

    source: float  # gamma of the first training
    at: int  # the epoch of the checkpoint
    optimizer: str  # "fresh" or "kept"
    gamma: float  # of what follows

    def __str__(self) -> str:
        if not self.at:
            return f"{LOSS[self.gamma]} throughout"
        goes_on = "goes on with it" if self.source == self.gamma else f"then {LOSS[self.gamma]}"
        return f"{LOSS[self.source]}, {POINTS[self.at, self.optimizer]}, {goes_on}"


# the two throughout, then those from half way and from the end; the end's have a fresh optimiser
WAYS = [Way(gamma, 0, "fresh", gamma) for gamma in GAMMAS]
WAYS += [Way(source, *point, gamma) for point in POINTS for source in GAMMAS for gamma in GAMMAS]


def fields_of(out: Path, way: Way, seeds: Sequence[int]) -> dict[str, Any]:
    """What the job of a way has beside the config.

    From half way the schedule is what was left of it; from the end the rate is a tenth, and a hundredth for the last
    ten epochs.
    """
    fields = MEASURED | {"loss.gamma": way.gamma}
    if not way.at:
        return fields | {"checkpoint.every": HALF * STEPS_PER_EPOCH, "checkpoint.keep": 2}
    rate, decays = (0.1, (10, 20)) if way.at == HALF else (0.01, (20,))
    return fields | {
        "start.run": str(out / jobs.folder(Way(way.source, 0, "fresh", way.source)._asdict(), seeds)),
        "start.step": way.at * STEPS_PER_EPOCH,
        "start.optimizer": way.optimizer,
        "optimizer.learning_rate": rate,
        "optimizer.epochs": MORE,
        "optimizer.decay_epochs": decays,
    }


def path_of(run, rows, workdir):
    """The run's "path", numbers on val: "epoch", "ece" (25 bins), "nll", "p_y", "lambda_max", "trace" by epoch.

    ECE and NLL in shares and nats, curvature of cross-entropy; the last is after training.
    """
    eces: dict[float, float] = {}
    for row in select(rows, ReliabilityBin, name="reliability", split="val", method=None):
        if row.epoch is not None:
            eces[row.epoch] = eces.get(row.epoch, 0.0) + row.share * abs(row.value - row.confidence)
    epochs = sorted(eces)
    path = {"epoch": epochs, "ece": [eces[epoch] for epoch in epochs]}
    diagnostic = {"split": "val", "outcome": None}
    surface = {"split": "val", "loss": "cross_entropy"}
    for name, measurements in {
        "nll": select(rows, Diagnostic, name="nll", **diagnostic),
        "p_y": select(rows, Diagnostic, name="true_class_probability", **diagnostic),
        "lambda_max": select(rows, Eigenvalue, name="lambda_max", **surface),
        "trace": select(rows, Trace, name="trace", **surface),
    }.items():
        of_epoch = {epochs[-1] if row.epoch is None else row.epoch: row.value for row in measurements}
        path[name] = [of_epoch[epoch] for epoch in epochs]
    return {"path": path}


def plan(flags, parts):
    """A job for each way; later ones go on from the first two."""
    seeds = range(flags.seeds)
    for way in WAYS:
        fields = functools.partial(fields_of, way=way, seeds=seeds)
        yield jobs.sweep(way._asdict(), seeds, CONFIG, fields, seconds=14, more=path_of)


# ---- statistics


def of(runs, *way: Any) -> pd.DataFrame:
    """The runs of a way."""
    return rows_where(runs, **Way(*way)._asdict())


def throughout(runs, gamma: float) -> pd.DataFrame:
    """The runs that were trained with one loss to the end."""
    return of(runs, gamma, 0, "fresh", gamma)


def other_of(gamma: float) -> float:
    """The gamma of the other loss."""
    return GAMMAS[1 - GAMMAS.index(gamma)]


def at_epoch(runs, name: str, epoch: float) -> pd.Series:
    """Seed -> a number of its path; of curvature its logarithm, NaN where it is not above 0."""
    place = np.abs(np.array(runs.path.iloc[0]["epoch"]) - epoch).argmin()
    values = runs.set_index("seed").path.str[name].str[place].astype(float)
    return values if name == "ece" else np.log(values.where(values > 0))


def gone(runs, source: float, point: tuple[int, str], name: str, epoch: float) -> np.ndarray:
    """[seeds, 2]: of each seed, how far a switched network is from one that was not, and how far the losses' ends are.

    Both are differences of the other loss's network minus the first's; the first is of networks that went on from the
    same checkpoint for as many epochs, the second of those trained throughout.
    """
    gammas = other_of(source), source
    switched, stayed = (at_epoch(of(runs, source, *point, gamma), name, epoch) for gamma in gammas)
    ends = [at_epoch(throughout(runs, gamma), name, EPOCHS) for gamma in gammas]
    every = pd.concat([switched, stayed, *ends], axis=1, join="inner").to_numpy()
    return np.column_stack([every[:, 0] - every[:, 1], every[:, 2] - every[:, 3]])


def share_less(one: np.ndarray, *others: np.ndarray) -> Interval:
    """A share of the way, mean over mean, minus others': 95% by the bootstrap over seeds, the same for all."""

    def statistic(seeds):
        shares = [np.divide(*np.moveaxis(pairs[seeds].mean(-2), -1, 0)) for pairs in (one, *others)]
        return shares[0] - sum(shares[1:])

    return numbers.bootstrapped(min(map(len, (one, *others))), statistic)


def claims(runs):
    """Of each direction and point: where it ends, how fast ECE goes, whether curvature goes along."""
    for point, when in POINTS.items():
        for source in GAMMAS:
            yield from _of_switch(runs, source, point)
        more = share_less(*(gone(runs, source, point, "ece", EARLY) for source in GAMMAS))
        words = f"{when}: after {EARLY} epochs ECE has gone more of its way to focal loss than back"
        yield numbers.told("focalgeo", words, more, falls=False, scale=100, unit="points of the way")


def _of_switch(runs, source: float, point: tuple[int, str]):
    other = other_of(source)
    switched, whole = of(runs, source, *point, other), throughout(runs, other)
    ece = numbers.change(switched, whole, "ece")
    trace = numbers.paired(*(at_epoch(group, "trace", EPOCHS) for group in (switched, whole)))
    ways = [gone(runs, source, point, name, EARLY) for name in ("trace", "ece")]
    early, along = share_less(ways[1]), share_less(*ways)
    half = early.mapped(lambda share: share - 0.5)
    for claim, verdict, because in (
        (
            f"test ECE ends within a point of {LOSS[other]}'s throughout",
            numbers.alike(ece, ROOM),
            f"difference {shown(ece, scale=100, signed=True)} points",
        ),
        (
            "the trace of cross-entropy's Hessian on val ends within a tenth of it",
            numbers.alike(trace, LOG_ROOM),
            f"difference of log {shown(trace, signed=True)}",
        ),
        (
            f"after {EARLY} epochs ECE has moved more than half of the way",
            numbers.verdict(half, falls=False),
            f"{shown(early, scale=100)}%",
        ),
        (
            "by then the trace has gone as much of its way, to a quarter of it",
            numbers.alike(along, SHARE_ROOM),
            f"share of the trace minus share of ECE {shown(along, scale=100, signed=True)} points",
        ),
    ):
        yield Claim("focalgeo", f"{LOSS[source]} to {LOSS[other]}, {POINTS[point]}: {claim}", verdict, because)


def shares_table(runs):
    """The share of the way, %, some epochs after the switch."""
    epochs = (2, 6, 10, 20, 30)
    yield "switch", "of", *(f"{epoch} epochs, %" for epoch in epochs)
    for (point, when), source, (name, title) in product(POINTS.items(), GAMMAS, PATHS.items()):
        shares = (share_less(gone(runs, source, point, name, epoch)) for epoch in epochs)
        switch = f"{LOSS[source]} to {LOSS[other_of(source)]}, {when}"
        yield switch, title, *(shown(share, scale=100) for share in shares)


def ends_table(runs):
    """Where each way ends: numbers on test, curvature of cross-entropy on val, means over seeds."""
    groups = {str(way): group for way in WAYS if len(group := of(runs, *way))}
    return numbers.means_table(["trained with"], groups, ENDS)


def paths(runs):
    """ECE and the trace of cross-entropy's Hessian on val: means over seeds against the epochs of both trainings."""
    names = ("ece", "trace")
    styles = {"throughout": "-", (HALF, "kept"): "--", (EPOCHS, "fresh"): ":"}
    figure, axes = figures.panels(2, 2, 7.5, 5.8, sharex=True, sharey="row")
    for column, source in zip(axes.T, GAMMAS, strict=True):
        for (axis, name), (point, style), gamma in product(zip(column, names, strict=True), styles.items(), GAMMAS):
            way = Way(gamma, 0, "fresh", gamma) if point == "throughout" else Way(source, *point, gamma)
            group = of(runs, *way)
            epochs, means = np.array(group.path.iloc[0]["epoch"]), np.mean(group.path.str[name].tolist(), 0)
            axis.plot(way.at + epochs, means, style, color=figures.COLOURS[GAMMAS.index(gamma)], label=str(way))
        column[0].set_title(f"{LOSS[source]} to {LOSS[other_of(source)]}, n = {runs.seed.nunique()} seeds")
        column[1].set_xlabel("epoch")
    axes[0, 0].set_ylabel("ECE on val")
    axes[1, 0].set_ylabel("trace of cross-entropy's\nHessian on val")
    return figures.legend(figure, columns=2)


QUESTION = Question(
    "switch",
    "How fast do curvature and calibration follow when the loss changes half way, or at the end?",
    claims,
    tables={"shares": shares_table, "ends": ends_table},
    figures={"paths": paths},
    jobs=plan,
    keys={"at": (), "optimizer": ("kept", "fresh"), "source": (), "gamma": ()},
)
