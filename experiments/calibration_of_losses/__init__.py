"""Do losses other than cross-entropy train networks that are better calibrated?"""

import json
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments import cells as stored
from experiments import figures, numbers
from experiments.cells import LOSSES, SAME_ERROR, TASKS
from experiments.numbers import Number, column, paired, rows_where, shown
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
    "brier": Quantity("Brier, 1/100", PLAIN, "brier"),
    "s99": Quantity("S99, %", PLAIN, "high_confidence"),
    "s99 accuracy": Quantity("accuracy in S99, %", PLAIN, "high_confidence_accuracy"),
    "s99 after T": Quantity("S99 after T by ECE, %", BY_ECE, "high_confidence"),
    "s99 accuracy after T": Quantity("accuracy in S99 after T, %", BY_ECE, "high_confidence_accuracy"),
}
TITLES = {name: quantity.title for name, quantity in QUANTITIES.items()} | {
    "error": "error, %",
    "auc": "AUC of classes, %",
}
MEANS = numbers.means({name: Number(title) for name, title in TITLES.items()})


def _titled(*names: str) -> dict[str, Number]:
    return {name: Number(TITLES[name]) for name in names}


DISTANCE = "distance of T from 1,"
SHORT = _titled("accuracy", "ece", "ece after T", "T by ece", "nll", "nll after T", "s99")
LONG = _titled(
    *("auc", "adaptive_ece", "adaptive_ece after T", "classwise_ece", "classwise_ece after T"),
    *("mce", "mce after T", "brier"),
)
RANKED = ("error", "ece", "ece after T", "adaptive_ece", "adaptive_ece after T", "nll", "nll after T", "mce")

# Mukhoti et al.'s tables: title, losses, and the quantities in each cell
_MORE = ("fl1", "fl2", "fl3", "fls531", "fls532", "fla532", "fla53")
_BEST, _BASE = ("fl3", "fls532", "fla53"), ("ce", "brier", "mmce")
_ALL = (*_BASE, *_MORE)
_ECE, _ADAPTIVE = ((name, f"{name} after T", f"T by {name}") for name in ("ece", "adaptive_ece"))
_S99 = ("s99", "s99 accuracy", "s99 after T", "s99 accuracy after T")
PAPER_TABLES = {
    "M Table 1": ("ECE before and after T (by ECE on val), and T", (*_BASE, "fla53"), _ECE),
    "M Table 2": ("AdaECE before and after T (by AdaECE on val), and T", (*_BASE, "fla53"), _ADAPTIVE),
    "M Table 3": ("error", (*_BASE, *_BEST), ("error",)),
    "M Table 4": ("ECE of focal losses before and after T, and T", _BEST, _ECE),
    "M Table 5": ("AdaECE of focal losses before and after T, and T", _BEST, _ADAPTIVE),
    "M Table 6": ("|S99| and its accuracy, before and after T", ("ce", "mmce", "fla53"), _S99),
    "M Table 7": ("ECE of more focal losses before and after T, and T", _MORE, _ECE),
    "M Table 8": ("AdaECE of more focal losses before and after T, and T", _MORE, _ADAPTIVE),
    "M Table 9": ("error of more focal losses", _MORE, ("error",)),
    "M Table 10": ("NLL before T", _ALL, ("nll",)),
    "M Table 11": ("NLL after T", _ALL, ("nll after T",)),
    "M Table 12": ("MCE before T", _ALL, ("mce",)),
    "M Table 13": ("MCE after T", _ALL, ("mce after T",)),
}
_AFTER_T = "ECE as trained is below that of cross-entropy after temperature scaling"
_BY_ECE = "ECE after T by ECE is below that after T by NLL"
_T_BELOW = "ECE after temperature scaling is below"
# where, statement, quantity, losses it is made of, and beside which: a loss and its quantity, or cross-entropy's own
STATEMENTS = (
    ("M Table 1", "ECE as trained is below cross-entropy's", "ece", ("fla53", "fl3", "fl1", "brier", "mmce")),
    ("M Table 1", f"{_T_BELOW} cross-entropy's", "ece after T", ("fla53", "fl3")),
    ("M Table 2", "AdaECE as trained is below cross-entropy's", "adaptive_ece", ("fla53", "fl3")),
    ("M Table 10", "NLL as trained is below cross-entropy's", "nll", ("fla53", "fl3")),
    ("M Table 11", "NLL after temperature scaling is below cross-entropy's", "nll after T", ("fla53", "fl3")),
    ("M Table 6", "fewer test examples have a confidence above 99%", "s99", ("fla53", "mmce")),
    ("M Table 1", "ECE as trained is below that of Brier", "ece", ("fla53",), "brier", "ece"),
    ("M Table 1", "ECE as trained is below that of MMCE", "ece", ("fla53",), "mmce", "ece"),
    ("M Table 1", f"{_T_BELOW} that of Brier", "ece after T", ("fla53",), "brier", "ece after T"),
    ("M Table 1", f"{_T_BELOW} that of MMCE", "ece after T", ("fla53",), "mmce", "ece after T"),
    ("M Table 7", "ECE as trained is below that of FL-1", "ece", ("fl2",), "fl1", "ece"),
    ("M Table 7", "ECE as trained is below that of FL-2", "ece", ("fl3",), "fl2", "ece"),
    ("M 6", "of the fixed gammas 3 has a lower ECE as trained than 5", "ece", ("fl3",), "fl5", "ece"),
    ("M 6", "ECE as trained is below that of FLA-532", "ece", ("fla53",), "fla532", "ece"),
    ("M 6", "ECE as trained is below that of FLS-531", "ece", ("fls532",), "fls531", "ece"),
    ("M Table 3", f"error is at most {SAME_ERROR:g} point above cross-entropy's", "error", ("fla53", "fl3")),
    ("M Table 1", "the best temperature is nearer 1 than cross-entropy's", DISTANCE, ("fla53", "fl3")),
    ("M Table 1", _AFTER_T, "ece", ("fla53",), "ce", "ece after T"),
    ("M 6", _BY_ECE, "ece after T", ("ce",), "ce", "ece after T by nll"),
    ("M 6", _BY_ECE, "ece after T", ("fla53",), "fla53", "ece after T by nll"),
    ("M 6", f"{_T_BELOW} AdaECE after it", "ece after T", ("ce",), "ce", "adaptive_ece after T"),
    ("M 6", f"{_T_BELOW} AdaECE after it", "ece after T", ("fla53",), "fla53", "adaptive_ece after T"),
    ("M 4", "accuracy on train is below that of FL-3", "train accuracy", ("fl5", "fl7"), "fl3", "train accuracy"),
    ("F 2", "the area under the ROC curve of classes is larger than cross-entropy's", "auc", ("fl3",)),
)
TEMPERATURES = {"fla53": (0.9, 1.1), "ce": (2.0, 2.8), "mmce": (2.0, 2.8)}  # of M 6: loss -> where T by ECE lies
CRITERIA = {  # quantity that is least on val -> words
    "nll": "NLL as trained",
    "nll after T by nll": "NLL after T",
    "ece": "ECE as trained",
    "error": "error",
}


def tasks(cells, split: str = "test") -> dict[str, pd.DataFrame]:
    """Task -> its runs with their quantities in their units; NaN as accuracy in S99 where S99 is empty."""
    quantities = {
        name: number.scale * stored.metric(cells, number.method, number.metric, split=split)
        for name, number in QUANTITIES.items()
    }
    runs = cells[["task", "loss", "seed", "record"]].assign(**{"train accuracy": cells.train_accuracy}, **quantities)
    runs = runs.assign(error=100 - runs.accuracy, auc=100 * cells.auc.str[split].astype(float))  # older: no auc
    return dict(list(runs.groupby("task", sort=False)))


def claims(cells):
    """Each statement for each data set and loss that has runs.

    It is not the paper's on all images, which are not fitted, and where the paper's own table has the opposite.
    """
    for task, runs in tasks(cells).items():
        runs = runs.assign(**{DISTANCE: (runs["T by ece"] - 1).abs()})
        for source, words, name, losses, *beside in STATEMENTS:
            other, same = beside or ("ce", name)
            how = {"unit": "in 1/100 nat" if name.startswith("nll") else "points"}
            how = {"what": DISTANCE} if name == DISTANCE else how
            how |= {"margin": SAME_ERROR if name == "error" else 0.0, "falls": name != "auc"}
            how |= {"scale": 100} if name == "train accuracy" else {}
            printed = {of: pd.DataFrame(PAPERS.get(of, {}).get(task, {})).mean(axis=1) for of in (name, same)}
            for loss in losses:
                ours, theirs = column(runs, name, loss=loss), column(runs, same, loss=other)
                if len(ours) and len(theirs):
                    claim = f"{TASKS[task].title}, {LOSSES[loss]}: {words}"
                    higher = printed[name].get(loss, np.nan) - printed[same].get(other, np.nan) > how["margin"]
                    where = "focalgeo" if task == "cifar10_before_fit" or higher else source
                    yield numbers.told(where, claim, paired(ours, theirs), **how)
        for loss, ends in TEMPERATURES.items():
            value = numbers.level(runs, "T by ece", loss=loss)
            if value.known:
                theirs = pd.DataFrame(PAPERS["T by ece"].get(task, {})).mean(axis=1).get(loss, np.nan)
                where = "M 6" if ends[0] <= theirs <= ends[1] else "focalgeo"
                claim = f"{TASKS[task].title}, {LOSSES[loss]}: T by ECE is between {ends[0]:g} and {ends[1]:g}"
                yield numbers.Claim(where, claim, numbers.inside(value, *ends), f"T {shown(value)}")


# ---- tables


def paper_table(cells, name: str):
    """A table of the paper: for each data set our means with intervals, and the paper's numbers of each network."""
    (title, losses, quantities), rows, ours = PAPER_TABLES[name], [], tasks(cells)
    cells_of = list(product(losses, quantities))
    for task in TASKS:
        if task in ours:
            means = (MEANS[TITLES[at]](rows_where(ours[task], loss=loss)) for loss, at in cells_of)
            rows.append([TASKS[task].title, "here", *means])
        elif task in PAPERS[quantities[0]]:
            rows.append([TASKS[task].title, "no runs"])
        of_paper = {quantity: PAPERS.get(quantity, {}).get(task, {}) for quantity in quantities}
        for network in of_paper[quantities[0]]:
            theirs = [of_paper[quantity].get(network, {}).get(loss) for loss, quantity in cells_of]
            rows.append(["", network, *("" if value is None else f"{value:g}" for value in theirs)])
    heads = [f"{LOSSES[loss]}: {TITLES[quantity]}" for loss, quantity in cells_of]
    return f"{title[0].upper()}{title[1:]}.\n\n" + numbers.markdown(["data", "network", *heads], rows)


def of_tasks(cells):
    """Means over seeds with 95% intervals; differences are paired by seed, bold where the interval leaves out 0."""
    texts = {name: paper_table(cells, name) for name in PAPER_TABLES}
    for task, runs in tasks(cells).items():
        losses = stored.by_loss(runs)
        for title, of in ((task, SHORT), (f"{task} more", LONG)):
            texts[title] = numbers.means_table(["loss"], losses, of, "seeds")
        texts[f"{task} differences"] = numbers.changes_table(["minus CE"], losses, SHORT)
    return texts


def overview(cells):
    """Test ECE as trained and, in brackets, after temperature scaling by ECE, in %; means over seeds."""
    means = {task: runs.groupby("loss")[["ece", "ece after T"]].mean() for task, runs in tasks(cells).items()}
    yield "ECE, %", *(TASKS[task].title for task in means)
    for loss, title in LOSSES.items():
        texts = ["{:.1f} ({:.1f})".format(*of.loc[loss]) if loss in of.index else "" for of in means.values()]
        if any(texts):
            yield title, *texts


def ranks(cells):
    """The rank correlation of the losses here and in the paper (means over its networks), where cells match.

    Intervals are over losses, not over seeds.
    """
    ours = {task: runs for task, runs in tasks(cells).items() if task in PAPERS["ece"]}
    yield "Spearman's correlation of ranks", *(TASKS[task].title for task in ours)
    for name in RANKED:
        correlations = []
        for task, runs in ours.items():
            theirs = pd.DataFrame(PAPERS[name][task]).dropna().mean(axis=1).rename("theirs")
            both = runs.groupby("loss", sort=False)[[name]].mean().join(theirs, how="inner")
            correlations.append(numbers.rank_correlation(both[name], both.theirs))
        yield TITLES[name], *map(shown, correlations)


def choice(cells):
    """For each data set and criterion: gamma and loss chosen on val, the best on test, and the cost of the choice.

    The choice is of the least mean over seeds; "gamma": 0, 1, 2, 3, 5 or 7, where there are runs.
    Source: Komisarenko & Kull, 2; Mukhoti et al., 5.
    """
    yield "data", "chosen", "by least, on val", "chosen", "best on test", "costs on test (1/100)"
    among = {"gamma": ("ce", "fl1", "fl2", "fl3", "fl5", "fl7"), "loss": tuple(LOSSES)}
    every, val = tasks(cells), tasks(cells, "val")
    for task, (group, losses), (criterion, words) in product(every, among.items(), CRITERIA.items()):
        on_val, on_test = (
            runs[runs.loss.isin(losses)].pivot(index="seed", columns="loss", values=criterion)
            for runs in (val[task], every[task])
        )
        picked, best = on_val.mean().idxmin(), on_test.mean().idxmin()
        cost = "0" if picked == best else shown(paired(on_test[picked], on_test[best]))
        yield TASKS[task].title, group, words, LOSSES[picked], LOSSES[best], cost


# ---- what results.json holds, and the figure


def brief(cells) -> pd.DataFrame:
    """The runs with the quantities that they have."""
    return pd.concat(tasks(cells).values()).drop(columns="error")


def ece(cells):
    """ECE before and after T by loss, a panel for each data set; the paper's as trained, a mean over its networks."""
    ours, names = tasks(cells), {"as trained": "ece", "after T, by ECE on val": "ece after T"}
    figure, panels = figures.row(ours.items(), 4.2 * len(ours) + 0.6, 4.4)
    for axis, (task, runs) in panels:
        titled = runs.assign(loss=runs.loss.map(LOSSES))
        levels = {label: numbers.levels(titled, "loss", name) for label, name in names.items()}
        figures.lines(axis, levels, along="x", linestyle="")
        if task in PAPERS["ece"]:
            theirs = pd.DataFrame(PAPERS["ece"][task]).mean(axis=1).rename(LOSSES)
            axis.plot(theirs, theirs.index, "x", color="0.45", label="as trained, Mukhoti et al.")
        axis.set(title=f"{TASKS[task].title}, n = {runs.seed.nunique()}", xlim=(0, None), xlabel="test ECE, %")
        axis.invert_yaxis()
    return figures.legend(figure, "upper center", 3)


QUESTION = Question(
    "calibration_of_losses",
    "Do losses other than cross-entropy train networks that are better calibrated?",
    claims,
    tables={"overview": overview, "ranks": ranks, "choice": choice},
    texts=of_tasks,
    figures={"ece": ece},
    numbers={"runs": brief},
    read=lambda flags: {"cells": stored.compared(*TASKS, scale=flags.scale)},
    before="python -m experiments.cells; ",
    cores="one core for their training",
    answers=[name for name in PAPER_TABLES if name != "M Table 6"],  # experiments/during_training
)
