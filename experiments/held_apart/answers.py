"""How far each factor moves the logarithm of a curvature, and in which settings gamma lowers it."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from experiments.claims import Claim
from experiments.curvature_rows import with_own
from experiments.held_apart.runs import BATCHES, GAMMAS, RATES
from experiments.intervals import NOT, SHOWS, UNTOLD, clipped, interval, shown, verdict
from experiments.writing import Interval, markdown

Runs = Sequence[dict[str, Any]]
FACTORS = {"gamma": "γ", "rate": "learning rate", "batch": "batch size", "optimiser": "optimiser"}
LEVELS = {"gamma": GAMMAS, "rate": (0, 1, 2), "batch": BATCHES, "optimiser": tuple(RATES)}
LEFT_OUT = {  # what is left out -> its axis of `table_of` and the levels that stay
    "": (1, (0, 1, 2)),
    "without the high rates": (2, (0, 1)),
    "without batches of 16": (3, (1, 2)),
}
CURVATURE = {
    "lambda_max own val": "λ_max of the trained loss's Hessian on val",
    "lambda_max CE val": "λ_max of cross-entropy's Hessian on val",
    "lambda_max own train": "λ_max of the trained loss's Hessian on train",
    "lambda_max CE train": "λ_max of cross-entropy's Hessian on train",
    "trace own val": "the trace of the trained loss's Hessian on val",
    "trace CE val": "the trace of cross-entropy's Hessian on val",
}


def table_of(runs: Runs, name: str) -> np.ndarray:
    """log(number) of the seeds that all settings have: [seeds, gammas, rates, batches, optimisers].

    A number that is not above 0 stands as NaN, and so do all that rest on it.
    """
    found = {(*(run[factor] for factor in FACTORS), run["seed"]): with_own(run).get(name, np.nan) for run in runs}
    every = list(product(*LEVELS.values()))
    seeds = [seed for seed in sorted({run["seed"] for run in runs}) if all((*at, seed) in found for at in every)]
    values = np.array([[found[(*at, seed)] for at in every] for seed in seeds], np.float64)
    values = np.log(np.where(values > 0, values, np.nan))
    return values.reshape(len(seeds), *(len(levels) for levels in LEVELS.values()))


def spreads(logs: np.ndarray) -> dict[str, np.ndarray]:
    """Factor -> by seed, the standard deviation over its levels of the mean log over all levels of the others."""
    found = {}
    for axis, name in enumerate(FACTORS, start=1):
        others = tuple(other for other in range(1, logs.ndim) if other != axis)
        found[name] = logs.mean(others).std(-1)
    return found


def shares(logs: np.ndarray) -> dict[str, np.ndarray]:
    """Factor -> by seed, its main effect's share of the variance over all settings."""
    total = logs.reshape(len(logs), -1).var(-1)
    return {name: spread**2 / total for name, spread in spreads(logs).items()}


def slopes(logs: np.ndarray) -> np.ndarray:
    """Least-squares slope over gamma at each setting of the others: [seeds, rates, batches, optimisers]."""
    gammas = np.array(GAMMAS) - np.mean(GAMMAS)
    return np.einsum("sg...,g->s...", logs, gammas) / (gammas**2).sum()


def claims(runs: Runs) -> list[Claim]:
    """Of each curvature: gamma against each other factor, and whether gamma lowers it at every setting."""
    found = []
    for name, title in CURVATURE.items():
        logs = table_of(runs, name)
        parts = {words: spreads(logs.take(stay, axis)) for words, (axis, stay) in LEFT_OUT.items()}
        found += [_more(title, factor, parts) for factor in ("rate", "batch", "optimiser")]
        found.append(_everywhere(title, slopes(logs)))
    return found


def _more(title: str, factor: str, parts: dict[str, dict[str, np.ndarray]]) -> Claim:
    """Whether gamma's spread is larger; told only where all levels and those without extreme ones agree."""
    less = {words: interval(own["gamma"] - own[factor]) for words, own in parts.items()}
    each = [verdict(found, falls=False) for found in less.values()]
    said = each[0] if len(set(each)) == 1 else UNTOLD
    whole, *others = parts
    because = (
        f"spread of log {_mean(parts[whole]['gamma'])} and {_mean(parts[whole][factor])}, "
        f"difference {shown(less[whole], signed=True)}"
    )
    because += "".join(f"; {words} {shown(less[words], signed=True)}" for words in others)
    return Claim("focalgeo", f"γ moves {title} more than the {FACTORS[factor]}", said, because)


def _mean(values: np.ndarray) -> str:
    return f"{values.mean():.3g}" if len(values) else "–"


def _everywhere(title: str, found: np.ndarray) -> Claim:
    each = [verdict(interval(column)) for column in found.reshape(len(found), -1).T] if len(found) else []
    falls, rises = each.count(SHOWS), each.count(NOT)
    said = NOT if rises else SHOWS if each and falls == len(each) else UNTOLD
    because = f"of {len(each)} settings it falls in {falls}, rises in {rises}, and is not told in {each.count(UNTOLD)}"
    return Claim("focalgeo", f"{title} falls with γ at every learning rate, batch size and optimiser", said, because)


def effects_table(runs: Runs) -> str:
    """Of each curvature the spread of its log by each factor, and the factor's share of the variance, over seeds."""
    lines = []
    for name, title in CURVATURE.items():
        for words, (axis, stay) in LEFT_OUT.items():
            logs = table_of(runs, name).take(stay, axis)
            spread, share = spreads(logs), shares(logs)
            cells = [f"{shown(interval(spread[factor]))}; {_percent(interval(share[factor]))}" for factor in FACTORS]
            lines.append([words or title, *cells])
    return markdown(["curvature", *(f"{title}: spread of log; share, %" for title in FACTORS.values())], lines)


def levels_table(runs: Runs) -> str:
    """Of each factor's levels the geometric mean of each curvature over all settings of the others, over seeds."""
    tables = [table_of(runs, name) for name in CURVATURE]
    heads = [
        "factor",
        "level",
        *CURVATURE.values(),
        "accuracy on train at the end, %",
        "accuracy on test, %",
        "ECE as trained, %",
    ]
    lines = []
    for axis, (factor, title) in enumerate(FACTORS.items(), start=1):
        for place, level in enumerate(LEVELS[factor]):
            cells = [_geometric(logs.take(place, axis)) for logs in tables]
            own = [run for run in runs if run[factor] == level]
            outputs = [100 * np.mean([run[name] for run in own]) for name in ("train accuracy", "accuracy", "ece")]
            lines.append([title, _level(factor, level), *cells, *(f"{number:.3g}" for number in outputs)])
    return markdown(heads, lines)


def _level(factor: str, level: Any) -> str:
    if factor == "rate":
        return ("low", "middle", "high")[level]
    return f"{level:g}" if factor == "gamma" else str(level)


def _geometric(logs: np.ndarray) -> str:
    found = interval(logs.reshape(len(logs), -1).mean(-1))
    return shown(Interval(*(float(np.exp(end)) for end in found)))


def _percent(found: Interval) -> str:
    return shown(clipped(found, 0, 1), scale=100, digits=2)
