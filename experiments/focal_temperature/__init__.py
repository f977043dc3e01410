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
from collections.abc import Iterable
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
OTHERS, HERE_TRAINED = "others", "trained here"
NAMES = {"gamma": "calibration_gamma"}  # of a fit -> in runs
GAMMAS_OF = {"ce": 0.0, "fl1": 1.0, "fl2": 2.0, "fl3": 3.0, "fl5": 5.0, "fl7": 7.0}  # loss -> gamma of training
ALONG = {  # number -> what falls with gamma of training by F 5.2, its scale and unit
    f"{T}/adaptive_ece temperature": ("T by AdaECE", 1, ""),
    "test uncalibrated adaptive_ece": ("AdaECE as trained", 100, "points"),
    f"test {T}/adaptive_ece adaptive_ece": ("AdaECE after T", 100, "points"),
    "test uncalibrated accuracy": ("accuracy", 100, "points"),
}
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
        return {name: float(of) for name, of in calibration.all_metrics(log_probs, test[1], names=METRICS).items()}

    scores, fits = {"uncalibrated": metrics(calibration.temperature_scaling(test[0], 1.0))}, {}
    for method, criterion in FITS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", calibration.ConvergenceWarning)
            fitted = calibration.fit(method, *val, criterion=criterion)
        scores[f"{method}/{criterion}"] = metrics(fitted.predict_log_proba(test[0]))
        numbers_of = {name: float(number) for name, number in fitted.parameters.items() if np.ndim(number) == 0}
        fits[f"{method}/{criterion}"] = {NAMES.get(name, name): number for name, number in numbers_of.items()}
    run = {"task": OTHERS, "classes": val[0].shape[-1], "metrics": {"test": scores}, "fits": fits}
    return run | {"temperatures": {"gammas": GAMMAS, "val": temperatures(*val, GAMMAS)}}


# ---- statistics: a Series has a value a run; of others' outputs a loss is a file's name and a seed one random half


def together(cells, others) -> pd.DataFrame:
    """All runs with the title of their network; numbers stand beside by their path, as "test uncalibrated nll"."""
    runs = pd.concat([cells, others], ignore_index=True)
    of_cells = runs.task.map({name: task.title for name, task in TASKS.items()}) + ", " + runs.loss.map(LOSSES)
    parts = [pd.json_normalize(runs[name].tolist(), sep=" ") for name in ("metrics", "fits", "temperatures")]
    lines = [line if isinstance(line, dict) else {} for line in runs.line]  # older cells have none
    parts.append(pd.json_normalize(lines, sep=" ").add_prefix("line "))
    return pd.concat([runs.assign(title=of_cells.fillna("others' " + runs.loss)), *parts], axis=1)


def by_title(cells, others) -> Iterable[tuple[str, pd.DataFrame]]:
    """Each network with its runs."""
    return together(cells, others).groupby("title", sort=False)


def by_source(runs) -> dict[str, pd.DataFrame]:
    """Data set, or file of others' outputs -> its runs."""
    titles = runs.task.map({task: f"{HERE_TRAINED}, {TASKS[task].title}" for task in TASKS}).fillna(runs.title)
    return dict(list(runs.groupby(titles, sort=False)))


def metric(runs, method: str, name: str) -> pd.Series:
    """A test metric by a method, 1/100."""
    return 100 * runs[f"test {method} {name}"]


def gain(runs, name: str) -> pd.Series:
    """How much lower a metric is with focal temperature scaling, both fitted by it, in % of temperature scaling's."""
    plain, focal = (metric(runs, f"{method}/{name}", name) for method in (T, FOCAL_T))
    return 100 * (plain - focal) / plain.where(plain != 0)


def choice_gain(runs, method: str, name: str) -> Interval:
    """How much lower a metric is where the method was fitted by it in place of the other criterion, in %.

    "adaptive_ece" in place of "nll" or the reverse: 1 minus the ratio of means over losses, by seed (Komisarenko &
    Kull, 5.2); of others' outputs by random half.
    """
    other = "nll" if name == "adaptive_ece" else "adaptive_ece"
    values = pd.DataFrame({by: metric(runs, f"{method}/{by}", name) for by in (name, other)}).groupby(runs.seed).mean()
    gains = 100 * (1 - values[name] / values[other])
    return numbers.resampled_interval(gains) if (runs.task == OTHERS).all() else interval(gains)


def slopes(runs, criterion: str) -> pd.DataFrame:
    """Slope of the best T on val over gamma_ev up to 1, and their correlation."""
    at = np.array(GAMMAS) <= 1
    gammas, lines = np.array(GAMMAS)[at], []
    for of_run in runs[f"val {criterion}"]:
        best = np.array(of_run)[at]
        lines.append((np.polyfit(gammas, best, 1)[0], np.corrcoef(gammas, best)[0, 1] if np.ptp(best) else 0.0))
    return pd.DataFrame(lines, runs.index, ["slope", "correlation"])


def best_temperature(runs, split: str) -> pd.Series:
    """The best plain temperature on a split, by NLL."""
    return runs[f"{split} nll"].str[GAMMAS.index(0.0)]


def mean(runs, values: pd.Series) -> Interval:
    """The mean over networks, by seed, over the seeds that all of them have; those of one seed are left out.

    Of others' outputs over halves of the same examples, which overlap: their interval is wider.
    """
    if (runs.task == OTHERS).all():
        return numbers.resampled_interval(values.dropna())
    table = runs.assign(value=values).pivot(index="seed", columns="title", values="value").dropna(axis=1, how="all")
    counts = table.count()
    table = table.loc[:, counts > 1] if (counts > 1).any() else table
    return interval(table.dropna().mean(axis=1))


def claims(cells, others):
    """Of each statement a claim over all trained networks, and for each file of others' outputs."""
    runs = together(cells, others)
    trained, sources = runs[runs.task != OTHERS], by_source(runs)
    files = {label: group for label, group in sources.items() if HERE_TRAINED not in label}
    higher = {"falls": False, "what": "gain", "unit": "%"}
    gained = (("adaptive_ece", "AdaECE"), ("ece", "ECE"), ("nll", "NLL"))
    for (name, title), (label, group) in product(gained, ({HERE_TRAINED: trained} | sources).items()):
        claim = f"{label}: focal temperature scaling by {title} lowers test {title} against temperature scaling"
        yield numbers.told("F Table 1", claim, mean(group, gain(group, name)), **higher)
    own = mean(trained, gain(trained, "adaptive_ece"))
    claim = "trained here: the focal map's gain in AdaECE lies between the paper's least and largest, 4 to 47%"
    yield Claim("F Table 1", claim, numbers.inside(own, 4, 47), f"gain {shown(own)}%; the paper's mean is 24.5%")
    choices = (("adaptive_ece", "AdaECE", "NLL", 20), ("nll", "NLL", "AdaECE", 1))
    for (name, title, other, printed), (label, group) in product(choices, sources.items()):
        claim = f"{label}: T chosen by {title} in place of {other} lowers test {title} (in the paper by {printed}%)"
        yield numbers.told("F 5.2", claim, choice_gain(group, T, name), **higher)
    for criterion in ("ece", "nll"):
        lines = slopes(runs, criterion)
        rising = ((lines.slope > 0) & (lines.correlation > STRAIGHT)).sum()
        claim = f"the best T by {criterion.upper()} rises with gamma_ev along a line (correlation above {STRAIGHT:g})"
        because = f"in {rising} of {len(lines)} runs; least correlation {lines.correlation.min():.3f}"
        yield Claim("F Fig. 8", claim, SHOWS if rising == len(lines) else NOT, because)
    yield from _along_gamma(trained)
    for label, group in ({HERE_TRAINED: trained} | files).items():
        more = mean(group, metric(group, f"{FOCAL_T}/line_search", "ece") - metric(group, f"{FOCAL_T}/ece", "ece"))
        claim = (
            f"{label}: the line through the ends of the gammas has a test ECE at most {SAME:g} point above the grid's"
        )
        yield numbers.told("F 5.2", claim, more, margin=SAME)
    along = trained[trained["line adaptive_ece test"].notna()]
    for words, method, margin in (
        (f"test AdaECE at most {SAME:g} point above the grid's", FOCAL_T, SAME),
        ("lower test AdaECE than temperature scaling", T, 0.0),
    ):
        more = 100 * along["line adaptive_ece test"] - metric(along, f"{method}/adaptive_ece", "adaptive_ece")
        claim = f"3 m points along the line up to gamma 1 have a {words}"
        yield numbers.told("F 5.2", claim, mean(along, more), margin=margin)


def _along_gamma(trained):
    """F 5.2 and 4.1 of each data set: how T, accuracy and AdaECE go along gamma of training."""
    of_gamma = trained.assign(gamma=trained.loss.map(GAMMAS_OF), temperature=trained[f"{T}/nll temperature"])
    for label, group in by_source(of_gamma.dropna(subset="gamma")).items():
        plain = numbers.rows_where(group, gamma=0.0)
        why = numbers.too_calm(plain)
        for name, (words, scale, unit) in ALONG.items():
            how = {"scale": scale, "unit": unit, "what": "change for a unit of gamma"}
            slope = numbers.slope(group, name, log=False)
            yield numbers.outside(numbers.told("F 5.2", f"{label}: {words} falls with gamma", slope, **how), why)
        for gamma in (2.0, 3.0):
            share = numbers.ratio(numbers.rows_where(group, gamma=gamma), plain, "temperature").mapped(
                lambda more: 1 + more
            )
            claim = f"{label}: FL-{gamma:g} takes T on val to 0.4 to 0.5 of cross-entropy's"
            said = Claim("F 4.1", claim, numbers.inside(share, 0.4, 0.5), shown(share))
            yield numbers.outside(said, why)


# ---- tables


def table_1(cells, others):
    """Laid out as the paper's Table 1: NLL by NLL and AdaECE by AdaECE, T and gamma, both methods, and the gains."""
    heads = ["outputs", "seeds", "accuracy, %", "NLL, T", "NLL, focal T", "gain, %", "AdaECE, T", "AdaECE, focal T"]
    yield [*heads, "gain, %", "T by AdaECE", "gamma, T by AdaECE"]
    for title, group in by_title(cells, others):
        row = [title, len(group), shown(mean(group, metric(group, "uncalibrated", "accuracy")))]
        for name in ("nll", "adaptive_ece"):
            row += [shown(mean(group, metric(group, f"{method}/{name}", name))) for method in (T, FOCAL_T)]
            row.append(shown(mean(group, gain(group, name)), signed=True))
        plain, focal, gamma = group[list(FITTED)].mean()
        yield *row, f"{plain:.3g}", f"{gamma:.2g}, {focal:.3g}"
        of_paper = TABLE_1["CIFAR-10"].get(group.loss.iloc[0])
        if of_paper and group.task.iloc[0] == "cifar10":
            yield "paper, CIFAR-10, ResNet-50", 5, *_of_paper(*of_paper.values())


def _of_paper(plain, focal):
    cells = [f"{plain['accuracy']:g}"]
    for name, scale in (("nll", 100), ("ece", 1)):
        lower = 100 * (plain[name] - focal[name]) / plain[name]
        cells += [f"{scale * plain[name]:.3g}", f"{scale * focal[name]:.3g}", f"{lower:+.2g}"]
    return [*cells, f"{plain['T by ece']:g}", f"{focal['gamma']:g}, {focal['T by ece']:g}"]


def train_table(cells, others):
    """Of each trained network: the best T on train, on val, and val over train, which generalisation is left with."""
    yield "network", "T_train", "T on val", "T_gen = T on val / T_train", "T of the focal map (theory)"
    gammas = {"fl1": 1.0, "fl2": 2.0, "fl3": 3.0, "fl7": 7.0}
    for title, group in by_title(cells, others):
        if OTHERS not in group.task.values:
            on_train, on_val = (best_temperature(group, split) for split in ("train", "val"))
            gamma = gammas.get(group.loss.iloc[0]) if group.classes.iloc[0] == 2 else None
            theory = f"{float(matching_temperature(gamma, 2)):.3g}" if gamma else ""
            yield title, *(shown(interval(values)) for values in (on_train, on_val, on_val / on_train)), theory


def gains_table(cells, others):
    """Gains in %: of the focal map over temperature scaling, both fitted by the metric; and of the criterion.

    "by AdaECE": AdaECE where T was fitted by AdaECE beside where by NLL, for temperature scaling and for focal
    temperature scaling; "by NLL" the same of NLL. Means over losses, by seed; of others' outputs over random halves,
    which overlap: their intervals are widened for it.
    """
    yield "outputs", "map, AdaECE", "map, NLL", "T by AdaECE", "focal T by AdaECE", "T by NLL", "focal T by NLL"
    for label, group in by_source(together(cells, others)).items():
        gains = [mean(group, gain(group, name)) for name in ("adaptive_ece", "nll")]
        gains += [choice_gain(group, method, name) for name in ("adaptive_ece", "nll") for method in (T, FOCAL_T)]
        yield label.removeprefix(f"{HERE_TRAINED}, "), *(shown(value, signed=True) for value in gains)
    yield "paper", "+24.5", "about 0", "+20", "", "+1", ""


def temperatures_figure(cells, others):
    """Fig. 8: the best T against gamma_ev, for each training loss and file; a panel for each data set."""
    names = LOSSES | dict(zip(others.loss, others.loss, strict=True))
    tasks = list(together(cells, others).groupby("task", sort=False))
    figure, panels = figures.row(tasks, 4.1 * len(tasks) + 0.4, 4.2)
    for axis, (task, runs) in panels:
        for loss, group in runs.groupby("loss", sort=False):
            best = pd.Series(np.mean([*group["val ece"]], axis=0), GAMMAS).loc[:1.0]
            look = figures.look(list(names).index(loss)) | {"linewidth": 1.2, "markersize": 4}
            axis.plot(best, label=names[loss], **look)
        axis.set(title="others' outputs, CIFAR-100" if task == OTHERS else TASKS[task].title, xlabel="γ_ev")
    panels[0][0].set_ylabel("best T on val by ECE")
    return figures.legend(figure, columns=7)


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
