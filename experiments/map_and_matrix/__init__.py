"""Why focal temperature scaling and class-wise scaling add up, and whether the fitted gamma is that of training."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import entr, logsumexp, rel_entr
from sklearn.isotonic import IsotonicRegression

from experiments import cells as stored
from experiments import figures, halves, numbers
from experiments.cells import TASKS
from experiments.numbers import NOT, SHOWS, UNTOLD, Claim, Interval, interval, shown, verdict
from experiments.question import Flags, Job, Parts, Question
from focalgeo import calibration, records

METHODS = {  # name here -> method
    "as given": "",
    "T": "temperature_scaling",
    "γ, T": "focal_temperature_scaling",
    "T, classes": "vector_scaling",
    "γ, T, classes": "focal_vector_scaling",
}
MAP, CLASSES, BOTH = list(METHODS)[2:]
PARTS = {"nll": "NLL", "right or wrong": "right or wrong", "which else": "which else"}
ERRORS = {"confidence": "error by confidence", "class shares": "error of the class shares"}
ALIKE = 0.25  # of the sum of both gains: within it they add up
TRAINED = {"ce": 0.0, "fl1": 1.0, "fl2": 2.0, "fl3": 3.0, "fl7": 7.0}  # loss -> gamma of training
FITTED, IMPLIED = "focal_temperature_scaling/nll", "loss_implied_temperature_scaling/nll"


# ---- what is measured of outputs


def measured(val: halves.Pair, test: halves.Pair) -> dict[str, dict[str, float]]:
    """Method -> number -> value on test, after a fit on val by NLL."""
    (logits, labels), found = test, {}
    for name, method in METHODS.items():
        log_probs = calibration.temperature_scaling(logits, 1.0)
        log_probs = calibration.fit(method, *val).predict_log_proba(logits) if method else log_probs
        found[name] = parts_of(log_probs, labels, np.asarray(logits).argmax(-1))
    return found


def parts_of(log_probs: Any, labels: np.ndarray, top: np.ndarray) -> dict[str, float]:
    """The parts of the NLL, in nats, and two errors.

    With c a fixed class of each example, -log q_y = [-log q_c if y = c, else -log(1 - q_c)] + [0 if y = c, else
    -log(q_y / (1 - q_c))]: whether c is right, and which class it is else. The sum is exact. c is `top`, that of the
    outputs as given, whatever a method predicts.

    confidence: how much of "right or wrong" the best increasing map of q_c would remove, fitted to these examples.
    class shares: sum over classes of f log(f / mean q), f the share of the labels: 0 where the mean probability of
    every class is its share.
    """
    log_probs = np.asarray(log_probs, np.float64)
    rows, right = np.arange(len(labels)), labels == top
    others = log_probs.copy()
    others[rows, top] = -np.inf
    log_top, log_rest, log_label = log_probs[rows, top], logsumexp(others, axis=-1), log_probs[rows, labels]
    first = -np.where(right, log_top, log_rest)
    best = IsotonicRegression(y_min=0, y_max=1).fit_transform(log_top - log_rest, right.astype(float))
    shares = np.bincount(labels, minlength=log_probs.shape[-1]) / len(labels)
    return {
        "nll": float(-log_label.mean()),
        "right or wrong": float(first.mean()),
        "which else": float((-log_label - first).mean()),
        "confidence": float(first.mean() - (entr(best) + entr(1 - best)).mean()),
        "class shares": float(rel_entr(shares, np.exp(log_probs).mean(0)).sum()),
    }


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """A job for each file of others' outputs, and for each cell of two losses below --cells."""
    yield from halves.jobs(flags.logits, "set", "runs", lambda *pair: {"kind": "halves", "parts": measured(*pair)})
    for cell in stored.cells(TASKS, ("ce", "fl3"), None) if flags.cells else ():
        workdir = cell.workdir(flags.cells)
        name = f"{TASKS[cell.task].title}, {stored.LOSSES[cell.loss]}"

        def make(out: Path, workdir: Path = workdir, name: str = name, seed: int = cell.seed) -> list[dict[str, Any]]:
            predicted = [records.read_predictions(workdir, split) for split in ("val", "test")]
            pairs = [(outputs.logits, outputs.labels) for outputs in predicted]
            return [{"set": name, "kind": "seeds", "seed": seed, "parts": measured(*pairs)}]

        if (workdir / "predictions" / "test.npz").exists():
            yield Job({"set": name}, (cell.seed,), make, 10)


# ---- of every set of outputs


class Set:
    """The runs of a set of outputs."""

    def __init__(self, runs):
        self.count, self.halves = len(runs), runs.kind.iloc[0] == "halves"
        self.parts = runs.parts.tolist()

    def value(self, method: str, part: str) -> np.ndarray:
        """Of each run, in nats."""
        return np.array([found[method][part] for found in self.parts])

    def gain(self, method: str, part: str = "nll") -> np.ndarray:
        """How much less than after temperature scaling, in nats."""
        return self.value("T", part) - self.value(method, part)

    def interaction(self, part: str = "nll") -> np.ndarray:
        """The gain of both less the gains of each, in nats: 0 where they add up, below 0 where they overlap."""
        return self.gain(BOTH, part) - self.gain(MAP, part) - self.gain(CLASSES, part)

    def mean(self, values: np.ndarray) -> Interval:
        """Over seeds, or over random halves of the same examples."""
        return numbers.resampled_interval(values) if self.halves else interval(values)


def sets(runs) -> dict[str, Set]:
    """Set of outputs -> its runs."""
    return {name: Set(own) for name, own in runs.groupby("set", sort=False)}


def milli(value: Interval) -> str:
    """In thousandths, signed."""
    return shown(value, scale=1000, signed=True)


def claims(runs, cells):
    """Of every set of outputs, and of the cells of every task by their training gamma."""
    mnat, told = {"scale": 1000, "unit": "mnat"}, []
    for name, own in sets(runs).items():
        for method, words in ((MAP, "γ"), (CLASSES, "class-wise scaling")):
            found = own.mean(own.gain(method))
            claim = f"{name}: {words} lowers the NLL beyond T"
            told.append(numbers.told("focalgeo", claim, found, falls=False, what="gain", **mnat))
        told.append(_adds_up(name, own))
        for error, title in (
            ("confidence", "the error by confidence"),
            ("class shares", "the error of the class shares"),
        ):
            for method, words in ((MAP, "γ"), (CLASSES, "class-wise scaling")):
                fall = own.mean(-own.gain(method, error))
                told.append(numbers.told("focalgeo", f"{name}: {words} lowers {title}", fall, what="change", **mnat))
    for title, (fitted, cost) in by_gamma(cells).items():
        slope, start = line(fitted)[0], interval(fitted[0.0])
        said = f"slope {shown(slope)}"
        claim = f"{title}: with γ fitted the NLL is lower than with that of training, both with T"
        told += [
            Claim("focalgeo", f"{title}: the fitted γ rises with that of training", verdict(slope, falls=False), said),
            Claim(
                "focalgeo",
                f"{title}: it rises as much, slope 1 to a quarter",
                numbers.inside(slope, 1 - ALIKE, 1 + ALIKE),
                said,
            ),
            Claim(
                "focalgeo",
                f"{title}: of cross-entropy it is above 0",
                verdict(start, falls=False),
                f"fitted: {shown(start)}",
            ),
            numbers.told("focalgeo", claim, interval(cost), falls=False, **mnat),
        ]
    return told


def _adds_up(name: str, own: Set) -> Claim:
    """Shows where the interaction is at most a quarter of the summed gains in size, not where it is more; 95% each."""
    claim = f"{name}: the gains of γ and of class-wise scaling add up, to a quarter of their sum"
    both, room = own.interaction(), ALIKE * (own.gain(MAP) + own.gain(CLASSES))  # of each run, as both are
    because = f"interaction {milli(own.mean(both))} mnat, a quarter of the sum {1000 * room.mean():.3g}"
    if any(verdict(own.mean(own.gain(method)), falls=False) != SHOWS for method in (MAP, CLASSES)):
        return Claim("focalgeo", claim, UNTOLD, f"{because}; not both are shown to gain" if room.any() else because)
    below, above = own.mean(both + room), own.mean(both - room)
    said = SHOWS if below.low >= 0 >= above.high else NOT if below.high < 0 or above.low > 0 else UNTOLD
    return Claim("focalgeo", claim, said, because)


def gains_table(runs):
    """Gains over temperature scaling, in thousandths of a nat, in each part; of two classes there is one part."""
    rows = []
    for name, own in sets(runs).items():
        for part in PARTS if own.value("as given", "which else").any() else ("nll",):
            values = [own.gain(MAP, part), own.gain(CLASSES, part), own.gain(BOTH, part), own.interaction(part)]
            rows.append([name, str(own.count), PARTS[part], *(milli(own.mean(each)) for each in values)])
    return numbers.markdown(["outputs", "n", "part", "γ", "classes", "both", "both less each"], rows)


def errors_table(runs):
    """Both errors after each method, in thousandths of a nat."""
    rows = []
    for name, own in sets(runs).items():
        for error, title in ERRORS.items():
            values = [own.mean(1000 * own.value(method, error)).clipped(0) for method in METHODS]
            rows.append([name, str(own.count), title, *map(shown, values)])
    return numbers.markdown(["outputs", "n", "error", *METHODS], rows)


# ---- of cells, by the gamma of training


def by_gamma(cells) -> dict[str, tuple[pd.DataFrame, pd.Series]]:
    """Task -> the fitted gamma by NLL, [seeds, gammas of training], and by seed what fitting it saves.

    That is the NLL with training's gamma and T less that with a fitted gamma and T, a mean over the gammas. Of
    cross-entropy and the focal losses with one gamma, where there are three or more.
    """
    runs, found = cells[cells.loss.isin(TRAINED)], {}
    test = [metrics["test"] for metrics in runs.metrics]
    runs = runs.assign(
        gamma=runs.loss.map(TRAINED),
        fitted=[fits[FITTED]["calibration_gamma"] for fits in runs.fits],
        saved=[own[IMPLIED]["nll"] - own[FITTED]["nll"] if IMPLIED in own else np.nan for own in test],
    )
    for task, own in runs.groupby("task", sort=False):
        fitted, saved = (own.pivot(index="seed", columns="gamma", values=name) for name in ("fitted", "saved"))
        if fitted.shape[1] > 2:
            found[TASKS[task].title] = fitted, saved.mean(axis=1)
    return found


def line(fitted) -> list[Interval]:
    """Slope and value at 0 of the fitted gamma against that of training, by seed."""
    return [interval(values) for values in np.polyfit(fitted.columns, fitted.T, 1)]


def gamma_table(cells):
    """The fitted gamma by that of training, with the line through them."""
    rows = []
    for title, (fitted, saved) in by_gamma(cells).items():
        means = [shown(interval(fitted.get(gamma, []))) for gamma in TRAINED.values()]
        rows.append([title, *means, *map(shown, line(fitted)), milli(interval(saved))])
    heads = ["task", *(f"γ = {gamma:g}" for gamma in TRAINED.values()), "slope", "line at 0"]
    return numbers.markdown([*heads, "NLL with training's γ less that with the fitted, mnat"], rows)


# ---- figures


def gains(runs):
    """Gains over temperature scaling: sets of outputs below each other, the two parts of the NLL beside each other."""
    looks = {MAP: (figures.BLUE, "o", "γ"), CLASSES: (figures.RED, "s", "class-wise scaling")}
    looks[BOTH] = ("#000000", "D", "both")
    every = sets(runs)
    figure, axes = figures.panels(1, 2, 8.2, 0.55 * len(every) + 1.5, sharey=True)
    for axis, part in zip(axes[0], ("right or wrong", "which else"), strict=True):
        for shift, (method, (colour, marker, label)) in zip((0.22, 0, -0.22), looks.items(), strict=True):
            found = [own.mean(1000 * own.gain(method, part)) for own in every.values()]
            look = {"color": colour, "marker": marker, "label": label, "markersize": 5, "linestyle": ""}
            figures.intervals(axis, shift - np.arange(len(every)), found, along="x", **look)
        axis.axvline(0, color="0.6", linewidth=0.8)
        axis.set_xlabel(f"gain in “{part}”, mnat")
    axes[0, 0].set_yticks(-np.arange(len(every)), [f"{name}, n = {own.count}" for name, own in every.items()])
    figures.legend(figure, "upper center", 3)
    return figure


def gamma(cells):
    """Means over seeds with intervals, and the line on which the fitted gamma is that of training."""
    figure, axes = figures.panels(1, 1, 5.0, 4.0)
    axis = axes[0, 0]
    for place, (title, (fitted, _)) in enumerate(by_gamma(cells).items()):
        look = figures.look(place) | {"marker": "os^"[place], "markersize": 5, "label": f"{title}, n = {len(fitted)}"}
        figures.intervals(axis, fitted.columns, [interval(fitted[at]) for at in fitted], **look)
    axis.plot([0, 7], [0, 7], color="0.5", linewidth=0.8, linestyle="--", label="the same γ")
    axis.set(xlabel="γ of the training loss", ylabel="γ fitted on val with T, by NLL")
    axis.legend(frameon=False, fontsize=9)
    return figure


QUESTION = Question(
    "map_and_matrix",
    "Do focal temperature scaling and class-wise scaling add up, and what does the fitted gamma say?",
    claims,
    tables={"gains": gains_table, "errors": errors_table, "gammas": gamma_table},
    figures={"gains": gains, "gamma": gamma},
    jobs=plan,
    keys={"set": ()},
    read=lambda flags: {"cells": stored.compared(*TASKS)},
    options="--logits=FOLDER --cells=runs/cells",
    cost=lambda runs: (
        f"{len(runs)} fits of five methods, minutes of one core; the cells' training is of calibration_of_losses"
    ),
    flags=halves.FLAG | {"--cells": {"type": Path, "help": "folder into which python -m experiments.cells trained"}},
)
