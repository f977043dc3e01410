"""Do losses other than cross-entropy train networks that are better calibrated?"""

import json
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments import cells as stored
from experiments import figures, numbers
from experiments.cells import LOSSES, SAME_ERROR, TASKS
from experiments.numbers import Interval, column, paired, shown
from experiments.question import HERE, Question

PAPERS = json.loads((HERE / "calibration_of_losses" / "papers.json").read_text(encoding="utf-8"))
PLAIN, BY_ECE = "uncalibrated", "temperature_scaling/ece"


class Quantity(NamedTuple):
    """A number of a run: a metric of the outputs by a method, or a fitted temperature; the factor to its unit."""

    title: str
    method: str
    metric: str  # "temperature" is the fit's
    scale: float = 100.0


QUANTITIES = {
    "accuracy": Quantity("accuracy, %", PLAIN, "accuracy"),
    "ece": Quantity("ECE, %", PLAIN, "ece"),
    "ece after T": Quantity("ECE after T by ECE, %", BY_ECE, "ece"),
    "T by ece": Quantity("T by ECE", BY_ECE, "temperature", 1.0),
    "adaptive_ece": Quantity("AdaECE, %", PLAIN, "adaptive_ece"),
    "adaptive_ece after T": Quantity("AdaECE after T by AdaECE, %", "temperature_scaling/adaptive_ece", "adaptive_ece"),
    "T by adaptive_ece": Quantity("T by AdaECE", "temperature_scaling/adaptive_ece", "temperature", 1.0),
    "classwise_ece": Quantity("classwise ECE, %", PLAIN, "classwise_ece"),
    "classwise_ece after T": Quantity("classwise ECE after T by ECE, %", BY_ECE, "classwise_ece"),
    "mce": Quantity("MCE, %", PLAIN, "mce"),
    "mce after T": Quantity("MCE after T by ECE, %", BY_ECE, "mce"),
    "nll": Quantity("NLL, 1/100 nat", PLAIN, "nll"),
    "nll after T": Quantity("NLL after T by ECE, 1/100 nat", BY_ECE, "nll"),
    "nll after T by nll": Quantity("NLL after T by NLL, 1/100 nat", "temperature_scaling/nll", "nll"),
    "ece after T by nll": Quantity("ECE after T by NLL, %", "temperature_scaling/nll", "ece"),
    "T by nll": Quantity("T by NLL", "temperature_scaling/nll", "temperature", 1.0),
    "brier": Quantity("Brier, 1/100", PLAIN, "brier"),
    "brier after T": Quantity("Brier after T by ECE, 1/100", BY_ECE, "brier"),
    "s99": Quantity("S99, %", PLAIN, "high_confidence"),
    "s99 accuracy": Quantity("accuracy in S99, %", PLAIN, "high_confidence_accuracy"),
    "s99 after T": Quantity("S99 after T by ECE, %", BY_ECE, "high_confidence"),
    "s99 accuracy after T": Quantity("accuracy in S99 after T, %", BY_ECE, "high_confidence_accuracy"),
    "ece after focal T": Quantity("ECE after focal T by ECE, %", "focal_temperature_scaling/ece", "ece"),
    "nll after focal T": Quantity("NLL after focal T by NLL, 1/100 nat", "focal_temperature_scaling/nll", "nll"),
    "nll after vector scaling": Quantity("NLL after vector scaling, 1/100 nat", "vector_scaling/nll", "nll"),
    "ece after vector scaling": Quantity("ECE after vector scaling, %", "vector_scaling/nll", "ece"),
    "nll after focal vector scaling": Quantity("NLL after focal vector scaling", "focal_vector_scaling/nll", "nll"),
}
TITLES = {name: quantity.title for name, quantity in QUANTITIES.items()} | {"error": "error, %"}
SHORT = ("accuracy", "ece", "ece after T", "T by ece", "nll", "nll after T", "s99")
LONG = ("adaptive_ece", "adaptive_ece after T", "classwise_ece", "classwise_ece after T", "mce", "mce after T", "brier")
RANKED = ("error", "ece", "ece after T", "adaptive_ece", "adaptive_ece after T", "nll", "nll after T", "mce")

# Mukhoti et al.'s tables: title, losses, and the quantities in each cell
_MORE = ("fl1", "fl2", "fl3", "fls532", "flsd53")
_ALL = ("ce", "brier", "mmce", *_MORE)
_ECE, _ADAPTIVE = ((name, f"{name} after T", f"T by {name}") for name in ("ece", "adaptive_ece"))
_S99 = ("s99", "s99 accuracy", "s99 after T", "s99 accuracy after T")
PAPER_TABLES = {
    "M Table 1": ("ECE before and after T (by ECE on val), and T", ("ce", "brier", "mmce", "flsd53"), _ECE),
    "M Table 2": ("AdaECE before and after T (by AdaECE on val), and T", ("ce", "brier", "mmce", "flsd53"), _ADAPTIVE),
    "M Table 3": ("error", ("ce", "brier", "mmce", "fl3", "fls532", "flsd53"), ("error",)),
    "M Table 4": ("ECE of focal losses before and after T, and T", _MORE[2:], _ECE),
    "M Table 5": ("AdaECE of focal losses before and after T, and T", _MORE[2:], _ADAPTIVE),
    "M Table 6": ("|S99| and its accuracy, before and after T", ("ce", "mmce", "flsd53"), _S99),
    "M Table 7": ("ECE of more focal losses before and after T, and T", _MORE, _ECE),
    "M Table 8": ("AdaECE of more focal losses before and after T, and T", _MORE, _ADAPTIVE),
    "M Table 9": ("error of more focal losses", _MORE, ("error",)),
    "M Table 10": ("NLL before T", _ALL, ("nll",)),
    "M Table 11": ("NLL after T", _ALL, ("nll after T",)),
    "M Table 12": ("MCE before T", _ALL, ("mce",)),
    "M Table 13": ("MCE after T", _ALL, ("mce after T",)),
}
# where, statement, quantity, losses it is made of; all against cross-entropy
FALLS = (
    ("M Table 1", "ECE as trained is below cross-entropy's", "ece", ("flsd53", "fl3", "brier", "mmce")),
    ("M Table 1", "ECE after temperature scaling is below cross-entropy's", "ece after T", ("flsd53", "fl3")),
    ("M Table 2", "AdaECE as trained is below cross-entropy's", "adaptive_ece", ("flsd53", "fl3")),
    ("M Table 10", "NLL as trained is below cross-entropy's", "nll", ("flsd53", "fl3")),
    ("M Table 11", "NLL after temperature scaling is below cross-entropy's", "nll after T", ("flsd53",)),
    ("M Table 6", "fewer test examples have a confidence above 99%", "s99", ("flsd53", "mmce")),
)
RIVALS = ("brier", "mmce")  # the paper has FLSD-53 before them on CIFAR-10 and 20 Newsgroups
CRITERIA = {  # quantity that is least on val -> words
    "nll": "NLL as trained",
    "nll after T by nll": "NLL after T",
    "ece": "ECE as trained",
    "error": "error",
}


def tasks(cells, split: str = "test") -> dict[str, pd.DataFrame]:
    """Task -> its runs with their quantities in their units; NaN as accuracy in S99 where S99 is empty."""

    def value(run: Any, quantity: Quantity) -> float:
        source = run.fits if quantity.metric == "temperature" else run.metrics[split]
        return quantity.scale * source.get(quantity.method, {}).get(quantity.metric, np.nan)

    every = cells[["task", "loss", "seed", "record"]].assign(
        **{"train accuracy": cells.train_accuracy},
        **{name: [value(run, own) for run in cells.itertuples()] for name, own in QUANTITIES.items()},
    )
    every["error"] = 100 - every.accuracy
    return {task: own for task in TASKS if len(own := numbers.rows_where(every, task=task))}


def mean(runs, loss: str, name: str) -> Interval:
    """The interval over the seeds of a loss, cut where the quantity's range ends: at 0, and of a share at 100%."""
    return numbers.level(runs, name, loss=loss).clipped(0, 100 if TITLES[name].endswith("%") else np.inf)


def claims(cells):
    """Each statement for each data set and loss."""
    told = []
    for task, runs in tasks(cells).items():

        def say(source: str, loss: str, words: str, one: pd.Series, other: pd.Series, task=task, **how: Any) -> None:
            less, how = paired(one, other), {"unit": "points"} | how
            claim = numbers.told(source, f"{TASKS[task].title}, {LOSSES[loss]}: {words}", less, **how)
            told.append(claim if np.isfinite(less.mean) else claim._replace(because="no runs to compare"))

        def of(loss: str, name: str, runs=runs) -> pd.Series:
            return column(runs, name, loss=loss)

        for source, words, name, losses in FALLS:
            for loss in losses:
                unit = "in 1/100 nat" if name.startswith("nll") else "points"
                say(source, loss, words, of(loss, name), of("ce", name), unit=unit)
        for rival in RIVALS:
            words = f"ECE as trained is below that of {LOSSES[rival]}"
            say("M Table 1", "flsd53", words, of("flsd53", "ece"), of(rival, "ece"))
        for loss in ("flsd53", "fl3"):
            words = f"error is at most {SAME_ERROR:g} point above cross-entropy's"
            say("M Table 3", loss, words, of(loss, "error"), of("ce", "error"), margin=SAME_ERROR)
        distances = [(of(loss, "T by ece") - 1).abs() for loss in ("flsd53", "ce")]
        words = "the best temperature is nearer 1 than cross-entropy's"
        say("M Table 1", "flsd53", words, *distances, what="distance of T from 1,", unit="")
        words = "ECE as trained is below that of cross-entropy after temperature scaling"
        say("M Table 1", "flsd53", words, of("flsd53", "ece"), of("ce", "ece after T"))
    return told


# ---- tables


def paper_table(cells, name: str):
    """A table of the paper: for each data set our means with intervals, and the paper's numbers of each network."""
    (title, losses, quantities), rows, ours = PAPER_TABLES[name], [], tasks(cells)
    for task in TASKS:
        if task in ours:
            means = [mean(ours[task], loss, quantity) for loss in losses for quantity in quantities]
            rows.append([TASKS[task].title, "here", *map(shown, means)])
        for network in PAPERS.get(quantities[0], {}).get(task, {}):
            of_paper = [PAPERS.get(quantity, {}).get(task, {}).get(network, {}) for quantity in quantities]
            theirs = [own.get(loss) for loss in losses for own in of_paper]
            rows.append(["", network, *("" if value is None else f"{value:g}" for value in theirs)])
    heads = [f"{LOSSES[loss]}: {TITLES[quantity]}" for loss in losses for quantity in quantities]
    return f"## {name}: {title}\n\n" + numbers.markdown(["data", "network", *heads], rows)


def all_losses(runs, names: tuple[str, ...]):
    """Of one data set: a row for each loss, a column for each quantity."""
    rows = [
        [LOSSES[loss], str(len(column(runs, names[0], loss=loss))), *(shown(mean(runs, loss, name)) for name in names)]
        for loss in runs.loss.unique()
    ]
    return numbers.markdown(["loss", "seeds", *(TITLES[name] for name in names)], rows)


def differences(runs):
    """Of one data set: each loss less cross-entropy, paired by seed; bold where the interval leaves out 0."""
    groups = {LOSSES[loss]: numbers.rows_where(runs, loss=loss) for loss in runs.loss.unique()}
    base = groups.pop(LOSSES["ce"], runs[:0])
    columns = numbers.changes({name: numbers.Number(TITLES[name]) for name in SHORT}, base)
    return numbers.table(["less CE"], groups, columns)


def of_tasks(cells):
    """The tables of each data set, and the paper's."""
    found = {name: paper_table(cells, name) for name in PAPER_TABLES}
    for task, runs in tasks(cells).items():
        found |= {task: all_losses(runs, SHORT), f"{task} more": all_losses(runs, LONG)}
        found[f"{task} differences"] = differences(runs)
    return found


def ranks(cells):
    """The rank correlation of the losses here and in the paper (means over its networks), where cells match."""

    def correlation(task: str, name: str) -> Interval:
        theirs = pd.DataFrame(PAPERS[name][task]).dropna().mean(axis=1)
        own = [loss for loss in ours[task].loss.unique() if loss in theirs]
        return numbers.rank_correlation([mean(ours[task], loss, name).mean for loss in own], theirs[own])

    ours = tasks(cells)
    rows = [[TITLES[name], *(shown(correlation(task, name)) for task in ours)] for name in RANKED]
    return numbers.markdown(["Spearman's correlation of ranks", *(TASKS[task].title for task in ours)], rows)


def choice(cells):
    """For each data set and criterion: gamma and loss chosen on val, the best on test, and the cost of the choice.

    The choice is of the least mean over seeds, among losses of as many seeds as any; "gamma": 0, 1, 2, 3 or 7.
    Source: Komisarenko & Kull, 2; Mukhoti et al., 5.
    """
    rows, val = [], tasks(cells, "val")
    for task, test in tasks(cells).items():
        for group, among in (("gamma", ("ce", "fl1", "fl2", "fl3", "fl7")), ("loss", tuple(LOSSES))):
            for criterion, words in CRITERIA.items():
                on_val, on_test = (
                    runs[runs.loss.isin(among)]
                    .pivot(index="seed", columns="loss", values=criterion)
                    .reindex(columns=among)
                    for runs in (val[task], test)
                )
                on_val, on_test = (
                    values.loc[:, values.count() == values.count().max()] for values in (on_val, on_test)
                )
                if on_val.shape[1] > 1:
                    picked, best = on_val.mean().idxmin(), on_test.mean().idxmin()
                    cost = "0" if picked == best else shown(paired(on_test[picked], on_test[best]))
                    rows.append([TASKS[task].title, group, words, LOSSES[picked], LOSSES[best], cost])
    heads = ["data", "chosen", "by least, on val", "chosen", "best on test", "costs on test (1/100)"]
    return numbers.markdown(heads, rows)


# ---- what results.json holds, and the figure


def means(cells) -> dict[str, Any]:
    """Means over seeds by data set, loss and quantity."""
    return {
        task: {loss: {name: mean(runs, loss, name) for name in QUANTITIES} for loss in runs.loss.unique()}
        for task, runs in tasks(cells).items()
    }


def brief(cells) -> list[dict[str, Any]]:
    """The runs with the quantities that they have."""
    every = pd.concat(tasks(cells).values()).drop(columns="error")
    return [{name: value for name, value in run.items() if value == value} for run in every.to_dict("records")]


def ece(cells):
    """ECE before and after T by loss, a panel for each data set; the paper's as trained, a mean over its networks."""
    ours = tasks(cells)
    figure, axes = figures.panels(1, len(ours), 4.2 * len(ours) + 0.6, 4.4)
    for axis, (task, runs) in zip(axes[0], ours.items(), strict=True):
        losses = list(runs.loss.unique())
        heights = np.arange(len(losses))[::-1]
        for place, (name, label) in enumerate({"ece": "as trained", "ece after T": "after T, by ECE on val"}.items()):
            found = [mean(runs, loss, name) for loss in losses]
            look = figures.look(place) | {"marker": "os"[place], "markersize": 5, "linestyle": "", "label": label}
            figures.intervals(axis, heights + 0.14 - 0.28 * place, found, along="x", **look)
        theirs = pd.DataFrame(PAPERS["ece"][task]).mean(axis=1).reindex(losses)
        axis.plot(theirs, heights + 0.14, "x", color="0.45", label="as trained, Mukhoti et al.")
        axis.set_yticks(heights, [LOSSES[loss] for loss in losses])
        seeds = sorted({len(column(runs, "ece", loss=loss)) for loss in losses})
        axis.set_title(
            f"{TASKS[task].title}, n = {' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))}", fontsize=10
        )
        axis.set(xlim=(0, None), xlabel="test ECE, %")
    figures.legend(figure, "upper center", 3)
    return figure


QUESTION = Question(
    "calibration_of_losses",
    "Do losses other than cross-entropy train networks that are better calibrated?",
    claims,
    tables={"ranks": ranks, "choice": choice},
    texts=of_tasks,
    figures={"ece": ece},
    numbers={"means": means, "runs": brief},
    read=lambda flags: {"cells": stored.compared(*TASKS, scale=flags.scale)},
    before="python -m experiments.cells; ",
    cores="one core for their training",
    answers=[name for name in PAPER_TABLES if name != "M Table 6"],  # experiments/during_training
)
