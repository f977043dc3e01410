"""Does the 95% interval of a calibration error hold the truth? How often, and how wide it is, on data of known law.

Simulated: logits are normal with a standard deviation of 1.5, 2 and 2.5 for 2, 10 and 100 classes, labels are drawn
from their softmax, and the model's outputs are these logits times a sharpness. Members of a cluster share a normal
shift of the logits, of 0.4 times their deviation, that the model does not know. Weights are gamma variables plus 0.05.
The truth is the metric of a million fresh examples. Real: examples are drawn with replacement from the 10,000 outputs
of each file of logits/ in FOCALGEO_DATA, whose metric is the truth.

A seed is 100 data sets of each cell, each resampled 300 times. Intervals, from the same resamples: "focalgeo", of
`bootstrap` as it is now; "before", as it was when this was asked: the value minus the bias of resampling +- 1.96
standard deviations, of squares where 0 is within reach; "hull", the least interval that contains "before" and the value
+- 1.96 standard deviations; "percentile", the 2.5% and 97.5% quantiles; "BCa", those moved by the share of resamples
below the value and by their skewness / 6, in place of the jackknife's. Ends below 0 are 0. The difference is the ECE of
the outputs minus their ECE at a temperature of 1.25: "focalgeo" is the interval of `paired_bootstrap`, "before" the
difference +- 1.96 standard deviations.

Smooth ECE is measured in cells of 1,000 examples and at most 10 classes. No other library that is installed here gives
an interval of an ECE.
"""

import functools
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy import special, stats

from experiments import figures
from experiments.numbers import NOT, SHOWS, UNTOLD, Claim, interval, told
from experiments.question import Flags, Job, Parts, Question
from focalgeo import calibration
from focalgeo.calibration.examples import Clusters
from focalgeo.calibration.metrics import resampling

DRAWS, RESAMPLES, ROWS, TEMPERATURE = 100, 300, 10**6, 1.25
LEAST, LEVEL, ENOUGH = 0.93, 0.05, 1000
SCALES = {2: 1.5, 10: 2.0, 100: 2.5}  # of the logits, by classes
SHARPNESS = {2: (1.0, 1.25, 1.55, 2.2), 10: (1.0, 1.1, 1.2, 1.37, 1.96), 100: (1.0, 1.14, 1.6)}
FILES = {"Wide ResNet": "wide-resnet-16-4-cifar100.npz", "DenseNet": "densenet-cifar100.npz"}
INTERVALS = ("focalgeo", "before", "hull", "percentile", "BCa")
ERRORS = ("ece", "adaptive_ece", "smooth_ece", "classwise_ece", "binary_ece")
OTHER, DIFFERENCE = "ece_at_temperature", "ece_difference"


class Cell(NamedTuple):
    """Data sets of one law and size."""

    examples: int
    classes: int
    sharpness: float = 1.0
    clusters: int = 0
    weights: bool = False
    file: str = ""  # of real outputs, in FILES

    def __str__(self) -> str:
        law = self.file or f"{self.classes} classes, sharpness {self.sharpness:g}"
        more = [f", {self.clusters} clusters"] * (self.clusters > 0) + [", weights"] * self.weights
        return "".join([law, f", n = {self.examples}", *more])

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those that are measured of it, but for the difference."""
        smooth = ["smooth_ece"] if self.examples == ENOUGH and self.classes <= 10 else []
        return ("ece", "adaptive_ece", *smooth, "binary_ece" if self.classes == 2 else "classwise_ece", "nll")


CELLS = {
    str(cell): cell
    for cell in (
        *(Cell(n, k, at) for n in (300, 1000, 5000) for k, every in SHARPNESS.items() for at in every),
        *(Cell(20_000, k, SHARPNESS[k][1]) for k in SHARPNESS),
        *(Cell(20 * c, k, at, clusters=c) for c in (50, 200) for k, at in ((2, 1.25), (10, 1.0), (10, 1.37))),
        *(Cell(1000, k, SHARPNESS[k][2], weights=True) for k in SHARPNESS),
        *(Cell(n, 100, file=name) for n in (1000, 5000) for name in FILES),
    )
}


def path_of(cell: Cell) -> Path:
    """The file of a cell of real outputs."""
    return Path(os.environ.get("FOCALGEO_DATA") or "unset") / "logits" / FILES[cell.file]


def sample(cell: Cell, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Log-probabilities [examples, 2 * classes] of the outputs and at TEMPERATURE, labels, and clusters."""
    size, k = cell.examples, cell.classes
    index = np.arange(size) % (cell.clusters or size)
    if cell.file:
        with np.load(path_of(cell)) as file:
            outputs, labels = np.asarray(calibration.log_probabilities(file["probs"])), file["labels"]
        chosen = rng.integers(len(labels), size=size) if size < ROWS else slice(None)
        outputs, labels = outputs[chosen], labels[chosen]
    else:
        logits, shift = np.float32(SCALES[k]) * rng.standard_normal((2, size, k), np.float32)
        true = logits + 0.4 * shift[index] if cell.clusters else logits
        labels = np.argmax(true - np.log(rng.standard_exponential((size, k), np.float32)), axis=1)
        outputs = cell.sharpness * logits
    both = [special.log_softmax(np.float32(rows), axis=1) for rows in (outputs, outputs / TEMPERATURE)]
    return np.concatenate(both, axis=1), np.int32(labels), index


@functools.cache
def metric_of(names: tuple[str, ...]) -> Any:
    """The metrics of what `sample` draws, and the ECE at TEMPERATURE."""

    def metric(rows, labels, *, weights=None):
        outputs, other = jnp.split(rows, 2, axis=1)
        found = {name: getattr(calibration, name)(outputs, labels, weights=weights) for name in names}
        return found | {OTHER: calibration.ece(other, labels, weights=weights)}

    return metric


@functools.cache
def truth(population: Cell, names: tuple[str, ...]) -> dict[str, Any]:
    """The metrics of a million examples, or of all that there are."""
    rows, labels, _ = sample(population, np.random.default_rng(0))
    true = metric_of(names)(rows, labels)
    return true | {DIFFERENCE: true["ece"] - true[OTHER]}


def intervals(value: Any, draws: np.ndarray, clusters: Clusters | None) -> Iterator[Any]:
    """The ends of each of INTERVALS."""
    estimate = resampling.estimated(value, draws, num_examples=0, clusters=clusters)
    yield estimate.low, estimate.high
    spread, quantile = resampling.student(clusters)
    ends = spread * quantile * np.array([-1, 1])
    before, squares = (2 * of(value) - of(draws).mean() + ends * of(draws).std(ddof=1) for of in (np.array, np.square))
    if draws.mean() - value > draws.std() / 2 and squares[0] <= 0:
        before = np.sqrt(np.maximum([0, squares[1]], 0))
    around = value + ends * draws.std(ddof=1)
    yield before
    yield min(before[0], around[0]), max(before[1], around[1])
    yield np.quantile(draws, [0.025, 0.975])
    below = special.ndtri((np.sum(draws < value) + 0.5) / (len(draws) + 1))
    moved = below + special.ndtri([0.025, 0.975])
    yield np.quantile(draws, special.ndtr(below + moved / (1 - stats.skew(draws) / 6 * moved)))


def measure(cell: Cell, seed: int) -> list[dict[str, Any]]:
    """For each metric and interval the share of data sets in which it holds the truth, and its mean width."""
    metric, start, found = metric_of(cell.metrics), zlib.crc32(str(cell).encode()), {}
    true = truth(cell._replace(examples=ROWS, clusters=ROWS * (cell.clusters > 0), weights=False), cell.metrics)
    for draw in range(DRAWS):
        rng = np.random.default_rng([start, seed, draw])
        rows, labels, index = sample(cell, rng)
        weights = rng.gamma(1.0, size=cell.examples) + 0.05 if cell.weights else None
        clusters = Clusters.of(index if cell.clusters else None, labels, weights)
        key = rng.integers(2**32, size=2, dtype=np.uint32)
        ((values, draws),) = resampling.drawn((metric, metric), [rows], labels, key, clusters, RESAMPLES)
        for name in (*cell.metrics, DIFFERENCE):
            if name == DIFFERENCE:
                pair = ((values[each], draws[each]) for each in ("ece", OTHER))
                less = resampling.compared(*pair, num_examples=cell.examples, clusters=clusters)
                half = resampling.student(clusters)[1] * less.stderr
                ends = {
                    "focalgeo": (less.low, less.high),
                    "before": (less.difference - half, less.difference + half),
                }
            else:
                found_ends = intervals(values[name], draws[name], clusters)
                ends = dict(zip(INTERVALS, np.maximum([*found_ends], 0), strict=True))
            for at, (low, high) in ends.items():
                found.setdefault(name, {}).setdefault(at, []).append((low <= true[name] <= high, high - low))
    means = {name: {at: np.mean(each, 0).tolist() for at, each in of.items()} for name, of in found.items()}
    return [{"cell": str(cell), "seed": seed, "draws": DRAWS, "true": float(true["ece"]), **means}]


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """A hundred data sets of every cell, and then a hundred more."""
    for seed in range(flags.seeds):
        for name, cell in CELLS.items():
            if not cell.file or path_of(cell).exists():
                make = functools.partial(measure, cell, seed)
                yield Job({"cell": name}, (seed,), lambda out, make=make: make(), 5 + cell.examples / 200)


def of(runs: pd.DataFrame, metric: str, number: int) -> pd.DataFrame:
    """Of a metric the share of data sets (0) or the width (1): a row a cell, a column an interval."""
    rows = {}
    for cell, each in runs[runs[metric].notna()].groupby("cell", sort=False)[metric]:
        rows[cell] = {at: np.mean([found[at][number] for found in each]) for at in each.iloc[0]}
    return pd.DataFrame.from_dict(rows, orient="index")


def claims(runs: pd.DataFrame) -> Iterator[Claim]:
    """For each metric whether its interval holds the truth, and what that costs in width."""
    for metric in filter(runs.columns.__contains__, (*ERRORS, "nll", DIFFERENCE)):
        held, title = of(runs, metric, 0), metric.replace("_", " ")
        ours, draws = held.focalgeo, runs.groupby("cell").draws.sum()[held.index]
        fails = int((stats.binom.cdf(np.round(ours * draws), draws, LEAST) < LEVEL / len(ours)).sum())
        verdict = NOT if fails else SHOWS if draws.min() >= ENOUGH and ours.min() >= 0.915 else UNTOLD
        because = (
            f"least {100 * ours.min():.1f}% ({ours.idxmin()}); significantly below in {fails} of {len(ours)} cells"
        )
        yield Claim("focalgeo", f"{title}: the interval holds the truth in 93% of data sets", verdict, because)
        if metric != "nll":
            wider = of(runs, metric, 1).pipe(lambda width: width.focalgeo / width.before - 1)
            words = f"{title}: the interval is at most 1.3 times as wide as before"
            yield told("focalgeo", words, interval(wider), scale=100, unit="%", what="wider by", margin=0.3)


def of_metrics(runs: pd.DataFrame) -> Iterator[tuple]:
    """In what % of data sets the intervals hold the truth: the mean over cells, and the least."""
    yield "metric", "cells", *INTERVALS
    for metric in filter(runs.columns.__contains__, ERRORS):
        held = 100 * of(runs, metric, 0)
        yield (
            metric.replace("_", " "),
            len(held),
            *(f"{held[at].mean():.1f} ({held[at].min():.1f})" for at in INTERVALS),
        )


def of_cells(runs: pd.DataFrame) -> Iterator[tuple]:
    """In what % of data sets the intervals hold the true ECE, in %, their widths, and of other metrics focalgeo's."""
    others = [name for name in (*ERRORS[1:], "nll", DIFFERENCE) if name in runs]
    yield "cell", "data sets", "true ECE", *INTERVALS, "width", "before", *(name.replace("_", " ") for name in others)
    held, width = of(runs, "ece", 0), of(runs, "ece", 1)
    table = held.join(pd.DataFrame({name: of(runs, name, 0).focalgeo for name in others}))
    for cell, group in runs.groupby("cell", sort=False):
        shares = ["" if np.isnan(share) else f"{100 * share:.1f}" for share in table.loc[cell]]
        widths = (f"{100 * width[at][cell]:.2f}" for at in INTERVALS[:2])
        yield cell, group.draws.sum(), f"{100 * group.true.iloc[0]:.2f}", *shares[:5], *widths, *shares[5:]


def coverage(runs):
    """Coverage of the ECE against the true one, of three intervals."""
    figure, panels = figures.row(("focalgeo", "before", "percentile"), 7.5, 2.8, sharey=True)
    held, true = of(runs, "ece", 0), runs.groupby("cell", sort=False).true.first()
    for number, (axis, at) in enumerate(panels):
        axis.plot(100 * true, 100 * held[at], linestyle="", **figures.look(number))
        axis.axhline(95, color="0.5")
        axis.set(title=at, xlabel="true ECE, %", ylabel="" if number else "holds it, % of data sets")
    return figure


QUESTION = Question(
    "intervals",
    "Does the 95% interval of a calibration error hold the truth?",
    claims,
    tables={"metrics": of_metrics, "cells": of_cells},
    figures={"coverage": coverage},
    jobs=plan,
    keys={"cell": CELLS},
    cost="2.5 hours of a core for 1,000 data sets of each cell, of which 100 are stored",
    least=1,
)
