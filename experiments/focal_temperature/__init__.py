"""Does focal temperature scaling calibrate better than temperature scaling, and what do its gamma and T say?

gamma_ev from the paper's grid and 0; T from 0.01 to 5 by 0.01; fits on val, numbers on test. The paper's ECE has bins
of equal mass: that is AdaECE here. By NLL both methods are fitted continuously. T_train: the best T by NLL on the
first 5,000 training examples; T_gen: the best T on val over T_train; the theory's T is the one nearest to the focal
map, for two classes. Line: T over gamma_ev up to 1. The library's line search has its two fits at gamma_ev = -0.5 and
5, and its points are the grid's gammas; "3 m points" is the paper's: the line through -0.5 and 1, with as many points
as T has values. NLL in 1/100 nat, AdaECE in points; T and gamma are means. "Trained here": by seed the mean over all
losses of which two seeds or more are stored.
"""

import json
import warnings
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from experiments import cells as stored
from experiments import figures, halves, numbers
from experiments.cells import GAMMAS, LOSSES, TASKS, temperatures
from experiments.numbers import NOT, SHOWS, Claim, Interval, interval, shown
from experiments.question import HERE, Question
from focalgeo import calibration
from focalgeo.theory import matching_temperature

TABLE_1 = json.loads((HERE / "focal_temperature" / "table1.json").read_text(encoding="utf-8"))
T, FOCAL_T = "temperature_scaling", "focal_temperature_scaling"
OTHERS = "others"
STRAIGHT = 0.9  # correlation of T and gamma above which they are called linear (PAPERS: corr > .9)
SAME = 0.1  # points of ECE, within which two searches count as equal
FITS = (  # of others' outputs
    *((method, criterion) for method in (T, FOCAL_T) for criterion in ("nll", "ece", "adaptive_ece")),
    (FOCAL_T, "line_search"),
)
METRICS = ("accuracy", "nll", "ece", "adaptive_ece")
FITTED = (
    f"{T}/adaptive_ece temperature",
    *(f"{FOCAL_T}/adaptive_ece {name}" for name in ("temperature", "calibration_gamma")),
)


def measure(val: halves.Pair, test: halves.Pair) -> dict[str, Any]:
    """A run of the same form as the cells', of fits on val; a fit that ends at the grid's end gamma -0.5 may."""

    def metrics(log_probs):
        return {
            name: float(value) for name, value in calibration.all_metrics(log_probs, test[1], names=METRICS).items()
        }

    scores, fits = {"uncalibrated": metrics(calibration.temperature_scaling(test[0], 1.0))}, {}
    for method, criterion in FITS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", calibration.ConvergenceWarning)
            fitted = calibration.fit(method, *val, criterion=criterion)
        scores[f"{method}/{criterion}"] = metrics(fitted.predict_log_proba(test[0]))
        fits[f"{method}/{criterion}"] = {
            "calibration_gamma" if name == "gamma" else name: float(number)
            for name, number in fitted.parameters.items()
            if np.ndim(number) == 0
        }
    run = {"task": OTHERS, "classes": val[0].shape[-1], "metrics": {"test": scores}, "fits": fits}
    return run | {"temperatures": {"gammas": GAMMAS, "val": temperatures(*val, GAMMAS)}}


# ---- statistics: a Series has a value a run; of others' outputs a loss is a file's name and a seed one random half


def together(cells, others) -> pd.DataFrame:
    """All runs with the title of their network; numbers stand beside by their path, as "test uncalibrated nll"."""
    runs = pd.concat([cells, others], ignore_index=True)
    of_cells = runs.task.map({name: task.title for name, task in TASKS.items()}) + ", " + runs.loss.map(LOSSES)
    parts = [pd.json_normalize(runs[name].tolist(), sep=" ") for name in ("metrics", "fits", "temperatures")]
    if "line" in runs:  # older cells have none
        lines = [line if isinstance(line, dict) else {} for line in runs.line]
        parts.append(pd.json_normalize(lines, sep=" ").add_prefix("line "))
    return pd.concat([runs.assign(title=of_cells.fillna("others' " + runs.loss)), *parts], axis=1)


def by_title(cells, others) -> dict[str, pd.DataFrame]:
    """Network -> its runs."""
    return dict(iter(together(cells, others).groupby("title", sort=False)))


def metric(runs, method: str, name: str) -> pd.Series:
    """A test metric by a method, 1/100."""
    return 100 * runs[f"test {method} {name}"]


def gain(runs, name: str) -> pd.Series:
    """How much lower a metric is with focal temperature scaling, both fitted by it, in % of temperature scaling's."""
    plain, focal = (metric(runs, f"{method}/{name}", name) for method in (T, FOCAL_T))
    return 100 * (plain - focal) / plain.where(plain != 0)


def choice_gain(runs, method: str, name: str) -> Interval:
    """How much lower a metric is where the method was fitted by it in place of the other criterion, in %.

    "adaptive_ece" in place of "nll" or the reverse: 1 less the ratio of means over losses, by seed (Komisarenko & Kull,
    5.2); of others' outputs by random half.
    """
    other = "nll" if name == "adaptive_ece" else "adaptive_ece"
    values = pd.DataFrame({by: metric(runs, f"{method}/{by}", name) for by in (name, other)}).groupby(runs.seed).mean()
    gains = 100 * (1 - values[name] / values[other])
    return numbers.resampled_interval(gains) if (runs.task == OTHERS).all() else interval(gains)


def slopes(runs, criterion: str) -> pd.DataFrame:
    """Slope of the best T on val over gamma_ev up to 1, and their correlation."""
    lines, at = [], np.array(GAMMAS) <= 1
    for temperatures_ in runs[f"val {criterion}"]:
        gammas, best = np.array(GAMMAS)[at], np.array(temperatures_)[at]
        lines.append((np.polyfit(gammas, best, 1)[0], np.corrcoef(gammas, best)[0, 1] if np.ptp(best) else 0.0))
    return pd.DataFrame(lines, runs.index, ["slope", "correlation"])


def best_temperature(runs, split: str) -> pd.Series:
    """The best plain temperature on a split, by NLL."""
    return runs[f"{split} nll"].str[GAMMAS.index(0.0)]


def mean(values: pd.Series, runs) -> Interval:
    """Over the seeds of a network; halves of the same examples overlap, which widens their interval."""
    values = values[runs.index].dropna()
    return numbers.resampled_interval(values) if (runs.task == OTHERS).all() else interval(values)


def over_losses(runs, values: pd.Series) -> Interval:
    """The mean over tasks and losses, by seed, over the seeds that all of them have; those of one seed are left out."""
    table = runs.assign(value=values).pivot(index="seed", columns="title", values="value").dropna(axis=1, how="all")
    counts = table.count()
    table = table.loc[:, counts > 1] if (counts > 1).any() else table
    return interval(table.dropna().mean(axis=1))


def claims(cells, others):
    """Of each statement a claim over all trained networks, and for each file of others' outputs."""
    runs, told = together(cells, others), []
    trained, files = runs[runs.task != OTHERS], runs[runs.task == OTHERS].groupby("title", sort=False)
    for name, title in (("adaptive_ece", "AdaECE"), ("ece", "ECE"), ("nll", "NLL")):
        gains = gain(runs, name)
        every = {"trained here": over_losses(trained, gains)}
        for task, group in trained.groupby("task", sort=False):
            every[f"trained here, {TASKS[task].title}"] = over_losses(group, gains)
        for label, value in (every | {file: mean(gains, group) for file, group in files}).items():
            claim = f"{label}: focal temperature scaling by {title} lowers test {title} against temperature scaling"
            told.append(numbers.told("F Table 1", claim, value, falls=False, what="gain", unit="%"))
    own = over_losses(trained, gain(runs, "adaptive_ece"))
    claim = "trained here: the focal map's gain in AdaECE lies between the paper's least and largest, 4 to 47%"
    told.append(Claim("F Table 1", claim, numbers.inside(own, 4, 47), f"gain {shown(own)}%; the paper's mean is 24.5%"))
    groups = {f"trained here, {TASKS[task].title}": of for task, of in trained.groupby("task", sort=False)}
    groups |= {file: group for file, group in files}
    choices = (("adaptive_ece", "AdaECE", "NLL", 20), ("nll", "NLL", "AdaECE", 1))
    for (name, title, other, printed), (label, group) in product(choices, groups.items()):
        claim = f"{label}: T chosen by {title} in place of {other} lowers test {title} (in the paper by {printed}%)"
        how = {"falls": False, "what": "gain", "unit": "%"}
        told.append(numbers.told("F 5.2", claim, choice_gain(group, T, name), **how))
    for criterion in ("ece", "nll"):
        lines = slopes(runs, criterion)
        rising = ((lines.slope > 0) & (lines.correlation > STRAIGHT)).sum()
        claim = f"the best T by {criterion.upper()} rises with gamma_ev along a line (correlation above {STRAIGHT:g})"
        because = f"in {rising} of {len(lines)} runs; least correlation {lines.correlation.min():.3f}"
        told.append(Claim("F Fig. 8", claim, SHOWS if rising == len(lines) else NOT, because))
    for title, group in trained[trained.loss.isin(["fl1", "fl2", "fl3"])].groupby("title", sort=False):
        value = interval(best_temperature(group, "train"))
        claim = f"{title}: T on train is between 0.4 and 0.5"
        told.append(Claim("F 4.1", claim, numbers.inside(value, 0.4, 0.5), f"T {shown(value)}"))
    more = metric(runs, f"{FOCAL_T}/line_search", "ece") - metric(runs, f"{FOCAL_T}/ece", "ece")
    every = {"trained here": over_losses(trained, more)} | {file: mean(more, group) for file, group in files}
    for label, value in every.items():
        claim = (
            f"{label}: the line through the ends of the gammas has a test ECE at most {SAME:g} point above the grid's"
        )
        told.append(numbers.told("F 5.2", claim, value, margin=SAME))
    if "line adaptive_ece test" in trained:
        along, plain, grid = (
            trained["line adaptive_ece test"] * 100,
            *(metric(trained, f"{method}/adaptive_ece", "adaptive_ece") for method in (T, FOCAL_T)),
        )
        kept = trained[along.notna()]
        claim = f"3 m points along the line up to gamma 1 have a test AdaECE at most {SAME:g} point above the grid's"
        told.append(numbers.told("F 5.2", claim, over_losses(kept, along - grid), margin=SAME))
        claim = "3 m points along the line up to gamma 1 have a lower test AdaECE than temperature scaling"
        told.append(numbers.told("F 5.2", claim, over_losses(kept, along - plain)))
    return told


# ---- tables


def table_1(cells, others):
    """Laid out as the paper's Table 1: NLL by NLL and AdaECE by AdaECE, T and gamma, both methods, and the gains."""
    rows = []
    for title, group in by_title(cells, others).items():
        row = [title, len(group), shown(mean(metric(group, "uncalibrated", "accuracy"), group))]
        for name in ("nll", "adaptive_ece"):
            row += [shown(mean(metric(group, f"{method}/{name}", name), group)) for method in (T, FOCAL_T)]
            row.append(shown(mean(gain(group, name), group), signed=True))
        plain, focal, gamma = (group[name].mean() for name in FITTED)
        rows.append([*row, f"{plain:.3g}", f"{gamma:.2g}, {focal:.3g}"])
        of_paper = TABLE_1["CIFAR-10"].get(group.loss.iloc[0]) if group.task.iloc[0] == "cifar10" else None
        if of_paper:
            rows.append(["paper, CIFAR-10, ResNet-50", 5, *_of_paper(*of_paper.values())])
    heads = ["outputs", "seeds", "accuracy, %", "NLL, T", "NLL, focal T", "gain, %", "AdaECE, T", "AdaECE, focal T"]
    return numbers.markdown([*heads, "gain, %", "T by AdaECE", "gamma, T by AdaECE"], rows)


def _of_paper(plain, focal):
    cells = [f"{plain['accuracy']:g}"]
    for name, scale in (("nll", 100), ("ece", 1)):
        lower = 100 * (plain[name] - focal[name]) / plain[name]
        cells += [f"{scale * plain[name]:.3g}", f"{scale * focal[name]:.3g}", f"{lower:+.2g}"]
    return [*cells, f"{plain['T by ece']:g}", f"{focal['gamma']:g}, {focal['T by ece']:g}"]


def train_table(cells, others):
    """Of each trained network: the best T on train, on val, and val over train, which generalisation is left with."""
    rows, gammas = [], {"fl1": 1.0, "fl2": 2.0, "fl3": 3.0, "fl7": 7.0}
    for title, group in by_title(cells, others).items():
        if OTHERS not in group.task.values:
            on_train, on_val = (best_temperature(group, split) for split in ("train", "val"))
            gamma = gammas.get(group.loss.iloc[0]) if group.classes.iloc[0] == 2 else None
            theory = f"{float(matching_temperature(gamma, 2)):.3g}" if gamma else ""
            rows.append([title, *(shown(interval(values)) for values in (on_train, on_val, on_val / on_train)), theory])
    heads = ["network", "T_train", "T on val", "T_gen = T on val / T_train", "T of the focal map (theory)"]
    return numbers.markdown(heads, rows)


def gains_table(cells, others):
    """Gains in %: of the focal map over temperature scaling, both fitted by the metric; and of the criterion.

    "by AdaECE": AdaECE where T was fitted by AdaECE beside where by NLL, for temperature scaling and for focal
    temperature scaling; "by NLL" the same of NLL. Means over losses, by seed; of others' outputs over random halves,
    which overlap: their intervals are widened for it.
    """
    runs, rows = together(cells, others), []
    groups = [(TASKS[task].title, group) for task, group in runs[runs.task != OTHERS].groupby("task", sort=False)]
    groups += list(runs[runs.task == OTHERS].groupby("title", sort=False))
    for label, group in groups:
        average = mean if (group.task == OTHERS).all() else lambda values, group: over_losses(group, values)
        map_gains = [average(gain(runs, name)[group.index], group) for name in ("adaptive_ece", "nll")]
        chosen = [choice_gain(group, method, name) for name in ("adaptive_ece", "nll") for method in (T, FOCAL_T)]
        rows.append([label, *(shown(value, signed=True) for value in map_gains + chosen)])
    rows.append(["paper", "+24.5", "about 0", "+20", "", "+1", ""])
    heads = ["outputs", "map, AdaECE", "map, NLL", "T by AdaECE", "focal T by AdaECE", "T by NLL", "focal T by NLL"]
    return numbers.markdown(heads, rows)


def temperatures_figure(cells, others):
    """Fig. 8: the best T against gamma_ev, for each training loss and file; a panel for each data set."""
    tasks = dict(iter(together(cells, others).groupby("task", sort=False)))
    names = LOSSES | dict(zip(others.loss, others.loss, strict=True))
    figure, axes = figures.panels(1, len(tasks), 4.1 * len(tasks) + 0.4, 4.2)
    for axis, (task, runs) in zip(axes[0], tasks.items(), strict=True):
        for loss, group in runs.groupby("loss", sort=False):
            best = pd.Series(np.mean([*group["val ece"]], axis=0), GAMMAS).loc[:1.0]
            look = figures.look(list(names).index(loss)) | {"linewidth": 1.2, "markersize": 4}
            axis.plot(best, label=names[loss], **look)
        axis.set(title="others' outputs, CIFAR-100" if task == OTHERS else TASKS[task].title, xlabel="γ_ev")
    axes[0, 0].set_ylabel("best T on val by ECE")
    figures.legend(figure, columns=7)
    return figure


QUESTION = Question(
    "focal_temperature",
    "Does focal temperature scaling calibrate better than temperature scaling, and what do its gamma and T say?",
    claims,
    tables={"gains": gains_table, "table 1": table_1, "train": train_table},
    figures={"temperatures": temperatures_figure},
    jobs=lambda flags, parts: halves.jobs(flags.logits, "loss", "others", measure),
    keys={"loss": ()},
    read=lambda flags: {"cells": stored.compared(*TASKS)},
    before="python -m experiments.cells; ",
    options="--logits=FOLDER",
    cost=lambda cells, others: (
        f"{len(cells)} cells of experiments/rows; {len(others)} halves of others' outputs, 12 s of a core"
    ),
    answers=("F Table 1", "F Fig. 2, right", "F Fig. 8"),
    flags=halves.FLAG,
)
