"""Where does focal loss begin to help: ECE and T by gamma against how far a network fits its training set.

Runs are of the small CNN of configs/cifar10.py:quick on 2,000 to 45,000 images, for few epochs and for many; a seed has
its own images. The cells of experiments/rows stand beside, as other networks and data on which the rule is tested.
"""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize

from experiments import cells as stored
from experiments import figures, jobs, numbers
from experiments.numbers import Claim, Interval, interval, shown
from experiments.question import Question
from focalgeo.rows import Diagnostic, Fit, select

CONFIG = "configs/cifar10.py:quick"
GAMMAS = (0.0, 1.0, 2.0, 3.0, 5.0)
SETTINGS = ((2000, 20), (2000, 100), (5000, 12), (5000, 60), (15000, 4), (15000, 12), (45000, 3), (45000, 10))
FIELDS = {
    "data.augment": "none",
    "data.val_size": 5000,
    "data.test_size": 10000,
    "optimizer.batch_size": 32,
    "log_every": 500,
    "checkpoint.every": 2000,
    "curvature.examples": 0,
    "diagnostics.splits": ("train",),
    "diagnostics.examples": 2500,
    "evaluation.methods": ("temperature_scaling", "loss_implied_temperature_scaling"),
    "evaluation.num_resamples": 100,
    "sweep.gamma": GAMMAS,
    "sweep.at_once": 1,  # a CNN under vmap is slow on a CPU
}
IMPLIED = "loss_implied_temperature_scaling"
OF_CELLS = {"ce": 0.0, "fl1": 1.0, "fl2": 2.0, "fl3": 3.0, "fl5": 5.0}  # loss -> gamma
NUMBERS = {"gap": "the gap of NLL between train and val", "ln T0": "cross-entropy's T"}  # of rules
BESIDE = {"minus CE": "CE", "minus FL-3": "FL-3", "above the least": "least"}  # words -> what a rule is set against
LARGER = {gamma: f"γ = {gamma:g}" for gamma in GAMMAS[1:]}
TAGS = {"gamma": "gamma", "seed": "seed"}
SAME = 0.15  # how far ln T may lie from another that counts as the same: 15%


# ---- runs


def of_fit(run, rows, workdir):
    """NLL on train after training, and T behind the map of the loss, which gamma 0 does not have."""
    (nll,) = select(rows, Diagnostic, name="nll", split="train", outcome=None)
    implied = select(rows, Fit, name="temperature", method=IMPLIED, criterion="nll")
    return {"train nll": nll.value, "implied temperature": implied[0].value if implied else run["temperature"]}


def plan(flags, parts):
    """Setting by setting a job for each seed, which has its own images; two processes share the work by --only."""
    for (images, epochs), seed in product(SETTINGS, range(flags.seeds)):
        fields = FIELDS | jobs.data_of(flags) | {"data.train_size": images, "data.split_seed": 1 + seed}
        fields |= {"optimizer.epochs": epochs, "diagnostics.every": epochs}
        # the recipe lowers the rate after 150 and 250 of 350 epochs
        fields["optimizer.decay_epochs"] = tuple(round(share * epochs) for share in (150 / 350, 250 / 350))
        of, seconds = {"train_size": images, "epochs": epochs}, len(GAMMAS) * (20 + images * epochs / 2200)
        yield jobs.sweep(of, (seed,), CONFIG, fields, seconds=seconds, tags=TAGS, more=of_fit)


def of_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells' runs with cross-entropy and focal loss, by the names of the runs here; `task` says which."""
    cells = cells[cells.loss.isin(OF_CELLS)]
    last = cells.diagnostics.str["means"].str["train"].str["nll"].str[-1]  # older cells have it by epoch alone
    measured = {
        "temperature": stored.metric(cells, "temperature_scaling/nll", "temperature"),
        "implied temperature": stored.metric(cells, f"{IMPLIED}/nll", "temperature"),
        "val nll": stored.metric(cells, "uncalibrated", "nll", split="val"),
        "ece": stored.metric(cells, "uncalibrated", "ece"),
        "train nll": cells.train_nll.fillna(last).astype(float),
        "train accuracy": cells.train_accuracy,
    }
    measured["implied temperature"] = measured["implied temperature"].fillna(measured["temperature"])  # cross-entropy's
    return cells[["task", "seed"]].assign(gamma=cells.loss.map(OF_CELLS), **measured)


def beside_cross_entropy(runs: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The runs, each with cross-entropy's of the same setting and seed: "T0", "ece0", and the "gap" of its NLL.

    gap: NLL on val minus NLL on train, in nats.
    """
    plain = runs[runs.gamma == 0].set_index([*by, "seed"])
    plain = pd.DataFrame(
        {
            "T0": plain.temperature,
            "ln T0": np.log(plain.temperature),
            "ece0": plain.ece,
            "gap": (plain["val nll"] - plain["train nll"]).astype(float),
        }
    )
    return runs.join(plain, on=[*by, "seed"], how="inner")


def every(runs: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Runs of all settings with those of the cells, beside cross-entropy's; `setting` names them."""
    here = beside_cross_entropy(runs, ["train_size", "epochs"])
    here["setting"] = here.train_size.map("{:,}".format) + " images, " + here.epochs.map("{:g}".format) + " epochs"
    others = beside_cross_entropy(of_cells(cells), ["task"])
    others["setting"] = others.task.map({name: task.title for name, task in stored.TASKS.items()})
    return pd.concat([here.assign(task="here"), others], ignore_index=True)


# ---- the rule


def calibrated_gamma(runs: pd.DataFrame) -> float:
    """The gamma whose network needs no temperature: where ln T, a line between neighbours, is 0; 0 to the largest.

    0 where cross-entropy is underconfident as trained, the largest gamma where all are overconfident.
    """
    runs = runs.sort_values("gamma")
    logs, gammas = np.log(runs.temperature.to_numpy()), runs.gamma.to_numpy()
    below = np.flatnonzero(logs <= 0)
    if not len(below):
        return float(gammas[-1])
    at = below[0]
    if at == 0:
        return float(gammas[0])
    return float(np.interp(0, [logs[at], logs[at - 1]], [gammas[at], gammas[at - 1]]))


def points(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each setting and seed: the gap, cross-entropy's T, the gamma that needs no temperature."""
    groups = table.groupby(["setting", "seed"], sort=False)
    gammas = [calibrated_gamma(group) for _, group in groups]
    return groups[["task", "gap", "ln T0"]].first().assign(gamma=gammas).dropna()


def by_rule(number: Any, slope: float, intercept: float) -> Any:
    """The gamma of a rule: a line, from 0 to the largest gamma trained."""
    return np.clip(slope * number + intercept, min(GAMMAS), max(GAMMAS))


def fitted_rule(known: pd.DataFrame, number: str) -> np.ndarray:
    """Slope and intercept of the rule by `number`, "gap" or "ln T0", by least squares over `points`."""
    x, gammas = known[number].to_numpy(), known.gamma.to_numpy()
    within = (gammas > min(GAMMAS)) & (gammas < max(GAMMAS))
    start = np.polyfit(x[within], gammas[within], 1) if within.sum() > 1 else np.polyfit(x, gammas, 1)
    return optimize.curve_fit(by_rule, x, gammas, p0=start)[0]


def ruled(line: np.ndarray, table: pd.DataFrame, number: str) -> pd.DataFrame:
    """A row for each setting and seed: ECE by the rule's gamma, of cross-entropy, of gamma 3, and the least, in %.

    The rule's gamma lies within those trained, and its ECE on the line between its neighbours.
    """
    rows = []
    for (_, seed), group in table.groupby(["setting", "seed"], sort=False):
        group = group.sort_values("gamma")
        gamma = float(min(by_rule(group[number].iloc[0], *line), group.gamma.max()))
        eces = 100 * np.interp([gamma, 0.0, 3.0], group.gamma, group.ece)
        rows.append((seed, gamma, *eces, 100 * group.ece.min()))
    return pd.DataFrame(rows, columns=["seed", "gamma", "rule", "CE", "FL-3", "least"])


def by_setting(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Setting -> its runs, in the order of cross-entropy's mean T."""
    order = table.groupby("setting").T0.mean().sort_values().index
    return {setting: table[table.setting == setting] for setting in order}


def halves(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The settings in two halves: every other one in the order of cross-entropy's mean T."""
    ordered = list(by_setting(table).values())
    return pd.concat(ordered[::2]), pd.concat(ordered[1::2])


def rules(runs, cells) -> dict[str, Any]:
    """Of each rule, by the gap of NLL or by cross-entropy's T: its line, and ECE where it was not fitted, in points."""
    table = every(runs, cells).dropna(subset="gap")
    known, other = halves(table[table.task == "here"])
    tested = {"other settings": other, **dict(list(table[table.task != "here"].groupby("task")))}
    by_number: dict[str, Any] = {}
    for number in NUMBERS:
        line = fitted_rule(points(known), number)
        by_number[number] = {"line": line.tolist()}
        for name, of_name in tested.items():
            eces = ruled(line, of_name, number)
            of_rule = {"gamma": interval(eces.gamma), "ece": by_seed(eces, eces.rule)}
            beside = {words: by_seed(eces, eces.rule - eces[column]) for words, column in BESIDE.items()}
            by_number[number][name] = of_rule | beside
    return by_number


def by_seed(table: pd.DataFrame, values: pd.Series) -> Interval:
    """The mean over seeds of means over settings."""
    return interval(values.groupby(table.seed).mean())


# ---- claims


def claims(runs, cells):
    """Whether T falls by the same factor everywhere, ECE where T says, and the rule on what it was not fitted on."""
    table = every(runs, cells)
    for gamma in GAMMAS[1:]:
        group = table[table.gamma == gamma]
        factors = np.log(group.T0 / group.temperature).groupby(group.setting).mean()
        claim = f"γ = {gamma:g} divides cross-entropy's T by the same factor in every setting, to {SAME:.0%}"
        yield same("focalgeo", claim, factors, factors.median())
        implied = np.log(group["implied temperature"] / group.T0).groupby(group.setting).mean()
        claim = f"γ = {gamma:g}: behind the map of its loss every network needs cross-entropy's T, to {SAME:.0%}"
        yield same("F 4.1", claim, implied, 0.0)
        nearer = np.abs(np.log(group.temperature)) < np.abs(np.log(group.T0))
        agree = by_seed(group, (nearer == (group.ece < group.ece0)).astype(float)).clipped(0, 1)
        claim = f"γ = {gamma:g} has a lower ECE than cross-entropy just where its T is nearer 1, in 19 of 20 runs"
        because = f"in {shown(agree, scale=100)}% of {len(group)} runs"
        yield Claim("F 4.1", claim, numbers.inside(agree, 0.95, 1), because)
    for number, measured in rules(runs, cells).items():
        del measured["line"]
        for (where, values), beside in product(measured.items(), ("CE", "FL-3")):
            claim = f"{place(where)}: ECE as trained with the γ that {NUMBERS[number]} names is lower than {beside}'s"
            yield numbers.told("focalgeo", claim, values[f"minus {beside}"], unit="points")


def same(source: str, claim: str, logs: pd.Series, wanted: float) -> Claim:
    """A claim that the logarithm of a factor is the wanted one in every setting, to SAME."""
    within = abs(logs - wanted) <= SAME
    least, middle, most = np.exp([logs.min(), logs.median(), logs.max()])
    because = f"in {within.sum()} of {len(logs)} settings; {least:.2f} to {most:.2f}, median {middle:.2f}"
    return Claim(source, claim, numbers.SHOWS if within.all() else numbers.NOT, because)


def place(name: str) -> str:
    """The title of a task, or what it is called here."""
    return stored.TASKS[name].title if name in stored.TASKS else {"here": "small CNN"}.get(name, name)


# ---- tables and figure


def settings_table(runs, cells):
    """Settings in the order of cross-entropy's T: how far it fits, ECE as trained by gamma in %; means over seeds."""
    yield "setting", "seeds", "right on train, %", "gap of NLL", "T of CE, by NLL", "ECE of CE", *LARGER.values()
    for setting, group in by_setting(every(runs, cells)).items():
        plain, eces = group[group.gamma == 0], 100 * group.groupby("gamma").ece.mean()
        texts = eces.map("{:.1f}".format)
        texts[eces.idxmin()] = f"**{texts[eces.idxmin()]}**"
        right, gap, temperature = plain[["train accuracy", "gap", "T0"]].mean()
        fit = f"{100 * right:.1f}", "" if np.isnan(gap) else f"{gap:.2f}", f"{temperature:.2f}"
        yield setting, plain.seed.nunique(), *fit, *texts.reindex(GAMMAS, fill_value="")


def temperatures_table(runs, cells):
    """T by NLL by gamma, as trained and, in brackets, behind the map of the loss; means over seeds."""
    yield "setting", "cross-entropy", *LARGER.values()
    for setting, group in by_setting(every(runs, cells)).items():
        means = group.groupby("gamma")[["temperature", "implied temperature"]].mean()
        texts = pd.Series({gamma: "{:.2f} ({:.2f})".format(*pair) for gamma, pair in means.T.items()})
        yield setting, f"{means.temperature[0]:.2f}", *texts.reindex(list(LARGER), fill_value="")


def rules_table(runs, cells):
    """Rules fitted on half of the settings and tested on what they have not seen: ECE as trained, in points."""
    yield "gamma by the rule", "tested on", "gamma", "ECE, %", "minus CE's", "minus FL-3's", "above the least"
    for number, measured in rules(runs, cells).items():
        slope, intercept = measured.pop("line")
        for where, values in measured.items():
            columns = [shown(value, signed="minus" in words) for words, value in values.items()]
            yield f"{slope:.2f} {number} {intercept:+.2f}", place(where), *columns


def fit(runs, cells):
    """ECE as trained against cross-entropy's T, a line for each gamma; and the gamma that needs no T by the gap."""
    table = every(runs, cells)
    figure, [[eces, needed]] = figures.panels(1, 2, 9.6, 3.8)
    here = table[table.task == "here"].groupby(["gamma", "setting"])[["T0", "ece"]].mean().sort_values("T0")
    for number, (gamma, means) in enumerate(here.groupby("gamma")):
        eces.plot(means.T0, 100 * means.ece, label=f"γ = {gamma:g}", **figures.look(number), markersize=4)
    eces.set(xlabel="T of cross-entropy: how far it is fitted", ylabel="test ECE as trained, %", ylim=(0, None))
    of_all = points(table)
    for number, (task, group) in enumerate(of_all.groupby("task", sort=False)):
        look = figures.look(number) | {"linestyle": "", "markersize": 4, "fillstyle": "none"}
        needed.plot(group.gap, group.gamma, label=place(task), **look)
    grid = np.linspace(of_all.gap.min(), of_all.gap.max(), 200)
    needed.plot(grid, by_rule(grid, *rules(runs, cells)["gap"]["line"]), color="0.5", label="rule")
    needed.set(xlabel="NLL on val minus NLL on train, cross-entropy (nats)", ylabel="γ that needs no temperature")
    return figures.legend(figure, columns=5)


QUESTION = Question(
    "regime",
    "Where does focal loss begin to help, and which gamma needs no temperature?",
    claims,
    tables={"settings": settings_table, "temperatures": temperatures_table, "rules": rules_table},
    figures={"fit": fit},
    jobs=plan,
    keys={"train_size": (), "epochs": (), "gamma": ()},
    numbers={"rules": rules},
    read=lambda flags: {"cells": stored.compared(*stored.TASKS)},
    options="--data=folder:cifar10.tar.xz",
    cost="120 runs, 3 hours of a core; the stored ones 4 minutes of an H100 and 16 cores, in full float32",
    seeds=3,
)
