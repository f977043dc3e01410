"""Whether the gains of map and classes add up, where they lie, and whether training's gamma is found again."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.claims import Claim
from experiments.intervals import (
    NOT,
    SHOWS,
    UNTOLD,
    alike,
    clipped,
    interval,
    is_known,
    resampled_interval,
    shown,
    verdict,
)
from experiments.writing import Interval, markdown

Runs = Sequence[dict[str, Any]]
PARTS = {"nll": "NLL", "right or wrong": "right or wrong", "which else": "which else"}
ERRORS = {"confidence": "error by confidence", "class shares": "error of the class shares"}
METHODS = ("as given", "T", "γ, T", "T, classes", "γ, T, classes")
MAP, CLASSES, BOTH = "γ, T", "T, classes", "γ, T, classes"
ALIKE = 0.25  # of the sum of both gains: within it they add up
TRAINED = {"ce": 0.0, "fl1": 1.0, "fl2": 2.0, "fl3": 3.0, "fl7": 7.0}  # loss -> gamma of training
FITTED = "focal_temperature_scaling/nll"
IMPLIED = "loss_implied_temperature_scaling/nll"


def sets(runs: Runs) -> dict[str, Runs]:
    """Set of outputs -> its runs."""
    return {name: [run for run in runs if run["set"] == name] for name in dict.fromkeys(run["set"] for run in runs)}


def over(own: Runs, values: Sequence[float]) -> Interval:
    """Over seeds, or over random halves of the same examples."""
    return interval(values) if own[0]["kind"] == "seeds" else resampled_interval(values)


def gain(run: dict[str, Any], method: str, part: str) -> float:
    """How much less than after temperature scaling, in nats."""
    return run["parts"]["T"][part] - run["parts"][method][part]


def interaction(run: dict[str, Any], part: str = "nll") -> float:
    """The gain of both less the gains of each, in nats: 0 where they add up, below 0 where they overlap."""
    return gain(run, BOTH, part) - gain(run, MAP, part) - gain(run, CLASSES, part)


def claims(runs: Runs, cells: Mapping[str, Runs]) -> list[Claim]:
    """Of every set of outputs, and of the cells of every task by their training gamma."""
    found = [claim for name, own in sets(runs).items() for claim in _of_set(name, own)]
    return found + [claim for task, own in cells.items() for claim in _of_gamma(task, own)]


def _of_set(name: str, own: Runs) -> list[Claim]:
    alone = [over(own, [gain(run, method, "nll") for run in own]) for method in (MAP, CLASSES)]
    found = [
        Claim("focalgeo", f"{name}: {words} lowers the NLL beyond T", _rises(found), f"gain {_milli(found)} mnat")
        for words, found in zip(("γ", "class-wise scaling"), alone, strict=True)
    ]
    found.append(_adds_up(name, own, alone))
    for method, words, error in (
        (MAP, "γ lowers the error by confidence", "confidence"),
        (CLASSES, "class-wise scaling lowers the error by confidence", "confidence"),
        (MAP, "γ lowers the error of the class shares", "class shares"),
        (CLASSES, "class-wise scaling lowers the error of the class shares", "class shares"),
    ):
        fall = over(own, [-gain(run, method, error) for run in own])
        found.append(Claim("focalgeo", f"{name}: {words}", verdict(fall), f"change {_milli(fall)} mnat"))
    return found


def _rises(found: Interval) -> str:
    return verdict(found, falls=False)


def _adds_up(name: str, own: Runs, alone: Sequence[Interval]) -> Claim:
    """Shows where the interaction is at most a quarter of the summed gains in size, not where it is more; 95% each."""
    claim = f"{name}: the gains of γ and of class-wise scaling add up, to a quarter of their sum"
    both = over(own, [interaction(run) for run in own])
    room = [ALIKE * (gain(run, MAP, "nll") + gain(run, CLASSES, "nll")) for run in own]  # of each run, as both are
    because = f"interaction {_milli(both)} mnat, a quarter of the sum {1000 * np.mean(room):.3g}"
    if not is_known(both) or not all(_rises(found) == SHOWS for found in alone):
        return Claim("focalgeo", claim, UNTOLD, f"{because}; not both are shown to gain" if any(room) else because)
    below, above = (
        over(own, [interaction(run) + sign * most for run, most in zip(own, room, strict=True)]) for sign in (1, -1)
    )
    said = SHOWS if below.low >= 0 >= above.high else NOT if below.high < 0 or above.low > 0 else UNTOLD
    return Claim("focalgeo", claim, said, because)


def by_gamma(own: Runs) -> dict[int, dict[float, dict[str, Any]]]:
    """Seed -> gamma of training -> run, of cross-entropy and the focal losses with one gamma.

    A gamma of one seed is left out where others have more, since a slope of that seed would be another's.
    """
    counts = Counter(run["loss"] for run in own)
    least = min(2, max(counts.values(), default=0))
    found: dict[int, dict[float, dict[str, Any]]] = {}
    for run in own:
        if run["loss"] in TRAINED and counts[run["loss"]] >= least:
            found.setdefault(run["seed"], {})[TRAINED[run["loss"]]] = run
    return {seed: runs for seed, runs in sorted(found.items()) if len(runs) > 2}


def at_cross_entropy(own: Runs) -> Interval:
    """The fitted gamma by NLL of the networks that cross-entropy trained."""
    return interval([runs[0.0]["fits"][FITTED]["calibration_gamma"] for runs in by_gamma(own).values() if 0.0 in runs])


def line(own: Runs) -> tuple[Interval, Interval]:
    """Slope and value at 0 of the fitted gamma by NLL against that of training, by seed."""
    fits = []
    for runs in by_gamma(own).values():
        gammas = sorted(runs)
        fits.append(np.polyfit(gammas, [runs[at]["fits"][FITTED]["calibration_gamma"] for at in gammas], 1))
    slopes, starts = np.array(fits).reshape(-1, 2).T
    return interval(slopes), interval(starts)


def given_up(own: Runs) -> Interval:
    """What training's gamma with T gives up in NLL to a fitted gamma with T, over seeds; means over the gammas."""
    costs = []
    for runs in by_gamma(own).values():
        scores = [run["metrics"]["test"] for run in runs.values() if IMPLIED in run["metrics"]["test"]]
        costs.append(np.mean([score[IMPLIED]["nll"] - score[FITTED]["nll"] for score in scores]))
    return interval(costs)


def _of_gamma(task: str, own: Runs) -> list[Claim]:
    slope, start = line(own)[0], at_cross_entropy(own)
    less = slope._replace(mean=slope.mean - 1, low=slope.low - 1, high=slope.high - 1)
    found = [
        Claim("focalgeo", f"{task}: the fitted γ rises with that of training", _rises(slope), f"slope {shown(slope)}"),
        Claim(
            "focalgeo", f"{task}: it rises as much, slope 1 to a quarter", alike(less, ALIKE), f"slope {shown(slope)}"
        ),
        Claim("focalgeo", f"{task}: of cross-entropy it is above 0", _rises(start), f"fitted: {shown(start)}"),
    ]
    cost = given_up(own)
    claim = f"{task}: with γ fitted the NLL is lower than with that of training, both with T"
    return [*found, Claim("focalgeo", claim, _rises(cost), f"difference {_milli(cost)} mnat")]


def gains_table(runs: Runs) -> str:
    """Gains over temperature scaling, in thousandths of a nat, in each part; of two classes there is one part."""
    lines = []
    for name, own in sets(runs).items():
        parts = [part for part in PARTS if any(run["parts"]["as given"][part] for run in own)]
        for part in parts if "which else" in parts else ["nll"]:
            gains = [over(own, [gain(run, method, part) for run in own]) for method in METHODS[2:]]
            both = over(own, [interaction(run, part) for run in own])
            lines.append([name, str(len(own)), PARTS[part], *map(_milli, gains), _milli(both)])
    return markdown(["outputs", "n", "part", "γ", "classes", "both", "both less each"], lines)


def errors_table(runs: Runs) -> str:
    """Both errors after each method, in thousandths of a nat."""
    lines = []
    for name, own in sets(runs).items():
        for error, title in ERRORS.items():
            values = [[1000 * run["parts"][method][error] for run in own] for method in METHODS]
            cells = [shown(clipped(over(own, each), 0, np.inf)) for each in values]
            lines.append([name, str(len(own)), title, *cells])
    return markdown(["outputs", "n", "error", *METHODS], lines)


def gamma_table(cells: Mapping[str, Runs]) -> str:
    """The fitted gamma by that of training, with the line through them."""
    lines = []
    for task, own in cells.items():
        found = by_gamma(own)
        row = [task]
        for gamma in TRAINED.values():
            fitted = [runs[gamma]["fits"][FITTED]["calibration_gamma"] for runs in found.values() if gamma in runs]
            row.append(shown(interval(fitted)))
        slope, start = line(own)
        lines.append([*row, shown(slope), shown(start), _milli(given_up(own))])
    heads = ["task", *(f"γ = {gamma:g}" for gamma in TRAINED.values())]
    return markdown([*heads, "slope", "line at 0", "NLL with training's γ less that with the fitted, mnat"], lines)


def _milli(found: Interval) -> str:
    return shown(found, scale=1000, signed=True)
