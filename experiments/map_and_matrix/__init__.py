"""Why focal temperature scaling and class-wise scaling add up, and whether the fitted gamma is that of training.

Parts: with c the class that the outputs as given put first, -log q_y = [-log q_c if y = c, else -log(1 - q_c)] + [0
if y = c, else -log(q_y / (1 - q_c))]: whether c is right or wrong, and which else it is. The sum is exact, for any
method. Error by confidence: how much of "right or wrong" the best increasing map of q_c would remove, fitted to the
test examples, so that a little is always left. Error of the class shares: the divergence of the mean probabilities
from the shares of the labels. In thousandths of a nat, gains against temperature scaling; all methods are fitted by
NLL on val. SST has two classes, and so no "which else". Of others' outputs n counts random halves, of the cells
seeds.

Hypotheses, written before the run: 1. gamma's gain lies in "right or wrong", and it lowers the error by confidence;
class-wise scaling lowers that of the class shares; 2. the gains add up: the interaction lies within a quarter of
their sum; 3. the fitted gamma rises with that of training, by as much (seen on 20 Newsgroups before, some two above).
"Adds up" shows where the interaction, minus or plus a quarter of the summed gains of the same seed, leaves no doubt
that it is no larger, and is judged only where both gains are significant. Errors are cut at 0.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import entr, logsumexp, rel_entr
from sklearn.isotonic import IsotonicRegression

from experiments import cells as stored
from experiments import figures, halves, numbers
from experiments.cells import TASKS
from experiments.numbers import NOT, SHOWS, UNTOLD, Claim, Interval, interval, shown, verdict
from experiments.question import Job, Question
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
SCALED = {MAP: "γ", CLASSES: "class-wise scaling"}
ALIKE = 0.25  # of the sum of both gains: within it they add up
TRAINED = {"ce": 0.0, "fl1": 1.0, "fl2": 2.0, "fl3": 3.0, "fl7": 7.0}  # loss -> gamma of training
FITTED, IMPLIED = "focal_temperature_scaling/nll", "loss_implied_temperature_scaling/nll"


# ---- what is measured of outputs


def measured(val: halves.Pair, test: halves.Pair) -> dict[str, dict[str, float]]:
    """Method -> number -> value on test, after a fit on val by NLL."""
    (logits, labels), by_name = test, {}
    for name, method in METHODS.items():
        log_probs = calibration.temperature_scaling(logits, 1.0)
        log_probs = calibration.fit(method, *val).predict_log_proba(logits) if method else log_probs
        by_name[name] = parts_of(log_probs, labels, np.asarray(logits).argmax(-1))
    return by_name


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


def plan(flags, parts):
    """A job for each file of others' outputs, and for each cell of two losses below --cells."""
    yield from halves.jobs(flags.logits, "set", "runs", lambda *pair: {"kind": "halves", "parts": measured(*pair)})
    for cell in stored.cells(stored.having("small"), ("ce", "fl3"), None) if flags.cells else ():
        of = {"set": f"{TASKS[cell.task].title}, {stored.LOSSES[cell.loss]}"}
        workdir = cell.workdir(flags.cells)

        def make(out, workdir=workdir, of=of, seed=cell.seed):
            predicted = [records.read_predictions(workdir, split) for split in ("val", "test")]
            pairs = [(outputs.logits, outputs.labels) for outputs in predicted]
            return [of | {"kind": "seeds", "seed": seed, "parts": measured(*pairs)}]

        if (workdir / "predictions" / "test.npz").exists():
            yield Job(of, (cell.seed,), make, 10)


# ---- of every set of outputs


class Set(NamedTuple):
    """The runs of a set of outputs. values: columns (method, number), in nats; gains: less than after T, by number."""

    values: pd.DataFrame
    gains: dict[str, pd.DataFrame]
    mean: Callable[[pd.Series], Interval]  # over seeds, or over random halves of the same examples

    def signed(self, values: pd.Series) -> str:
        """The mean in thousandths of a nat."""
        return shown(self.mean(values), scale=1000, signed=True)


def sets(runs) -> dict[str, Set]:
    """Set of outputs -> its runs; "each": the gain of both minus the gains of each, 0 where they add up."""
    by_name = {}
    for name, group in runs.groupby("set", sort=False):
        values = pd.DataFrame([pd.DataFrame(parts).unstack() for parts in group.parts])
        gains = {method: values["T"] - values[method] for method in (MAP, CLASSES, BOTH)}
        gains["each"] = gains[BOTH] - gains[MAP] - gains[CLASSES]
        by_name[name] = Set(values, gains, numbers.resampled_interval if group.kind.iloc[0] == "halves" else interval)
    return by_name


def claims(runs, cells):
    """Of every set of outputs, and of the cells of every task by their training gamma."""
    told = partial(numbers.told, "focalgeo", scale=1000, unit="mnat")
    for name, results in sets(runs).items():
        for method, words in SCALED.items():
            gain = results.mean(results.gains[method].nll)
            yield told(f"{name}: {words} lowers the NLL beyond T", gain, falls=False, what="gain")
        yield _adds_up(name, results)
        for (error, title), (method, words) in product(ERRORS.items(), SCALED.items()):
            fall = results.mean(-results.gains[method][error])
            yield told(f"{name}: {words} lowers the {title}", fall, what="change")
    for title, (fitted, saved) in by_gamma(cells).items():
        slope, start = line(fitted)[0], interval(fitted[0.0])
        said = f"slope {shown(slope)}"
        as_much = numbers.inside(slope, 1 - ALIKE, 1 + ALIKE)
        for words, *why in (
            ("the fitted γ rises with that of training", verdict(slope, falls=False), said),
            ("it rises as much, slope 1 to a quarter", as_much, said),
            ("of cross-entropy it is above 0", verdict(start, falls=False), f"fitted: {shown(start)}"),
        ):
            yield Claim("focalgeo", f"{title}: {words}", *why)
        claim = f"{title}: with γ fitted the NLL is lower than with that of training, both with T"
        yield told(claim, interval(saved), falls=False)


def _adds_up(name, results):
    """Shows where the interaction is at most a quarter of the summed gains in size, not where it is more; 95% each."""
    claim = f"{name}: the gains of γ and of class-wise scaling add up, to a quarter of their sum"
    gains = [results.gains[method].nll for method in SCALED]
    both, room = results.gains["each"].nll, ALIKE * sum(gains)  # of each run, as both are
    because = f"interaction {results.signed(both)} mnat, a quarter of the sum {1000 * room.mean():.3g}"
    if any(verdict(results.mean(gain), falls=False) != SHOWS for gain in gains):
        return Claim("focalgeo", claim, UNTOLD, f"{because}; not both are shown to gain" if room.any() else because)
    below, above = results.mean(both + room), results.mean(both - room)
    said = SHOWS if below.low >= 0 >= above.high else NOT if below.high < 0 or above.low > 0 else UNTOLD
    return Claim("focalgeo", claim, said, because)


def gains_table(runs):
    """Gains over temperature scaling, in thousandths of a nat, in each part; of two classes there is one part."""
    yield "outputs", "n", "part", "γ", "classes", "both", "both minus each"
    for name, results in sets(runs).items():
        for part in PARTS if results.values["as given", "which else"].any() else ("nll",):
            gains = (results.signed(gain[part]) for gain in results.gains.values())
            yield name, len(results.values), PARTS[part], *gains


def errors_table(runs):
    """Both errors after each method, in thousandths of a nat."""
    yield "outputs", "n", "error", *METHODS
    for (name, results), (error, title) in product(sets(runs).items(), ERRORS.items()):
        errors = (results.mean(1000 * results.values[method, error]).clipped(0) for method in METHODS)
        yield name, len(results.values), title, *map(shown, errors)


# ---- of cells, by the gamma of training


def by_gamma(cells) -> dict[str, tuple[pd.DataFrame, pd.Series]]:
    """Task -> the fitted gamma by NLL, [seeds, gammas of training], and by seed what fitting it saves.

    That is the NLL with training's gamma and T minus that with a fitted gamma and T, a mean over the gammas. Of
    cross-entropy and the focal losses with one gamma, where there are three or more.
    """
    by_name = {}
    for task, group in cells[cells.loss.isin(TRAINED)].groupby("task", sort=False):
        saved = stored.metric(group, IMPLIED, "nll") - stored.metric(group, FITTED, "nll")
        fitted = stored.metric(group, FITTED, "calibration_gamma")
        table = group[["seed"]].assign(gamma=group.loss.map(TRAINED), fitted=fitted, saved=saved)
        table = table.pivot(index="seed", columns="gamma")
        if table.fitted.shape[1] > 2:
            by_name[TASKS[task].title] = table.fitted, table.saved.mean(axis=1)
    return by_name


def line(fitted) -> list[Interval]:
    """Slope and value at 0 of the fitted gamma against that of training, by seed."""
    return [interval(values) for values in np.polyfit(fitted.columns, fitted.T, 1)]


def gamma_table(cells):
    """The fitted gamma by that of training, with the line through them."""
    saving = "NLL with training's γ minus that with the fitted, mnat"
    yield "task", *(f"γ = {gamma:g}" for gamma in TRAINED.values()), "slope", "line at 0", saving
    for title, (fitted, saved) in by_gamma(cells).items():
        means = [interval(fitted.get(gamma, [])) for gamma in TRAINED.values()]
        yield title, *map(shown, [*means, *line(fitted)]), shown(interval(saved), scale=1000, signed=True)


# ---- the figure


def gamma(cells):
    """Means over seeds with intervals, and the line on which the fitted gamma is that of training."""
    figure, [[axis]] = figures.panels(1, 1, 5.0, 4.0)
    every = {f"{title}, n = {len(fitted)}": fitted for title, (fitted, _) in by_gamma(cells).items()}
    figures.lines(axis, {title: {at: interval(fitted[at]) for at in fitted} for title, fitted in every.items()})
    axis.plot([0, 7], [0, 7], color="0.5", linewidth=0.8, linestyle="--", label="the same γ")
    axis.set(xlabel="γ of the training loss", ylabel="γ fitted on val with T, by NLL")
    axis.legend()
    return figure


QUESTION = Question(
    "map_and_matrix",
    "Do focal temperature scaling and class-wise scaling add up, and what does the fitted gamma say?",
    claims,
    tables={"gains": gains_table, "errors": errors_table, "gammas": gamma_table},
    figures={"gamma": gamma},
    jobs=plan,
    keys={"set": ()},
    read=lambda flags: {"cells": stored.compared(*TASKS)},
    options="--logits=FOLDER --cells=runs/cells",
    cost=lambda runs: (
        f"{len(runs)} fits of five methods, minutes of one core; the cells' training is of calibration_of_losses"
    ),
    flags=halves.FLAG | {"--cells": {"type": Path, "help": "folder into which python -m experiments.cells trained"}},
)
