"""Each method at half the trace of plain cross-entropy, and at equal cost, beside plain and beside each other."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from experiments.claims import Claim
from experiments.curvature_rows import trained
from experiments.intervals import NOT, SHOWS, UNTOLD, alike, interval, is_known, paired, shown, verdict
from experiments.sharpness_aware.runs import METHODS, RATES
from experiments.writing import Interval, markdown

Runs = Sequence[dict[str, Any]]
FLATTENING = tuple(name for name in METHODS if name != "plain")
TRACE = "trace CE val"
HALF = 0.5  # of plain cross-entropy's trace, the level at which methods are compared
ROOM, ACCURACY_ROOM = 0.005, 0.01
NUMBERS = {  # number -> title, scale
    "accuracy": ("accuracy, %", 100),
    "ece": ("ECE as trained, %", 100),
    "ece after T": ("ECE after T, %", 100),
    "nll": ("NLL as trained", 1),
    "nll after T": ("NLL after T", 1),
    "temperature": ("T", 1),
}
CURVATURE = {
    "trace CE val": "trace, val",
    "trace CE train": "trace, train",
    "lambda_max CE val": "λ_max, val",
    "scale_free_trace CE val": "scale-free trace, val",
}
Numbers = dict[str, dict[int, float]]  # number -> seed -> value


def of(runs: Runs, method: str, strength: float, rate: float, times: float = 1.0) -> dict[int, dict[str, Any]]:
    """Seed -> run that has learned something."""
    own = (method, strength, rate, times)
    return {
        run["seed"]: run for run in trained(runs) if (run["method"], run["strength"], run["rate"], run["times"]) == own
    }


def best_rate(runs: Runs, method: str, strength: float) -> float:
    """The rate whose runs have the lower mean NLL on val; a seed that learned nothing rules a rate out."""
    of_rate = {rate: of(runs, method, strength, rate) for rate in RATES}
    most = max(map(len, of_rate.values()))
    means = {rate: np.mean([run["val nll"] for run in own.values()]) for rate, own in of_rate.items() if own}
    return min((rate for rate, own in of_rate.items() if own and len(own) == most), key=means.__getitem__)


def strengths(runs: Runs, method: str) -> dict[float, dict[int, dict[str, Any]]]:
    """Strength -> seed -> run at the rate that was chosen on val."""
    return {
        strength: of(runs, method, strength, best_rate(runs, method, strength))
        for strength in METHODS[method].strengths
    }


def chosen(runs: Runs, method: str) -> tuple[float, float]:
    """Strength and rate of the lowest mean NLL on val."""
    found = strengths(runs, method)
    means = {at: np.mean([run["val nll"] for run in own.values()]) for at, own in found.items() if own}
    strength = min(means, key=means.__getitem__)
    return strength, best_rate(runs, method, strength)


class Level(NamedTuple):
    """Numbers of a method where its mean log trace is the level: between two strengths, `share` of the way."""

    below: float
    above: float
    share: float
    numbers: Numbers


def level(runs: Runs) -> float:
    """The logarithm of half of plain cross-entropy's trace on val, a geometric mean over seeds."""
    return _mean_log(strengths(runs, "plain")[0.0]) + np.log(HALF)


def _mean_log(own: dict[int, dict[str, Any]]) -> float:
    values = np.array([run[TRACE] for run in own.values()])
    return float(np.log(values).mean()) if len(values) and (values > 0).all() else float("nan")


def at_level(runs: Runs, method: str) -> Level | None:
    """Numbers at the level, on the line between the first two neighbours in strength whose traces lie about it.

    Plain cross-entropy is the weakest strength of each. None where no strength reaches the level.
    """
    found = {0.0: strengths(runs, "plain")[0.0]} | strengths(runs, method)
    wanted = level(runs)
    for below, above in zip(list(found)[:-1], list(found)[1:], strict=True):
        low, high = _mean_log(found[below]), _mean_log(found[above])
        if high <= wanted <= low:
            share = (low - wanted) / (low - high)
            return Level(below, above, share, _mixed(found[below], found[above], share))
    return None


def _mixed(one: dict[int, dict[str, Any]], other: dict[int, dict[str, Any]], share: float) -> Numbers:
    seeds = sorted(set(one) & set(other))
    return {
        name: {seed: (1 - share) * one[seed][name] + share * other[seed][name] for seed in seeds} for name in NUMBERS
    }


def column(own: dict[int, dict[str, Any]], name: str) -> dict[int, float]:
    """Seed -> number."""
    return {seed: run[name] for seed, run in own.items()}


def longest(runs: Runs, method: str) -> dict[int, dict[str, Any]]:
    """Seed -> run of equal cost: the method's longest, at the strength and rate chosen on val."""
    strength, rate = chosen(runs, method)
    times = max((run["times"] for run in runs if run["method"] == method), default=1.0)
    return of(runs, method, strength, rate, times)


def claims(runs: Runs) -> list[Claim]:
    """At half the trace each method against plain and against each other; at equal cost each against plain."""
    plain = strengths(runs, "plain")[0.0]
    found = [claim for method in FLATTENING for claim in _at_level(runs, method, plain)]
    found += [_pair(runs, one, other) for one, other in combinations(FLATTENING, 2)]
    return found + [claim for method in FLATTENING for claim in _at_cost(runs, method)]


def _at_level(runs: Runs, method: str, plain: dict[int, dict[str, Any]]) -> list[Claim]:
    title = METHODS[method].title
    here = at_level(runs, method)
    words = f"{title}, at half the trace of cross-entropy's Hessian on val"
    if here is None:
        return [Claim("focalgeo", f"{words}: ECE as trained is lower", UNTOLD, "no strength reaches half the trace")]
    accuracy = paired(here.numbers["accuracy"], column(plain, "accuracy"))
    kept = UNTOLD
    if is_known(accuracy):
        kept = SHOWS if accuracy.low > -ACCURACY_ROOM else NOT if accuracy.high < -ACCURACY_ROOM else UNTOLD
    found = [
        Claim("focalgeo", f"{words}: accuracy falls by less than a point", kept, _points(accuracy)),
    ]
    for name, said in (("ece", "ECE as trained"), ("ece after T", "ECE after T")):
        change = paired(here.numbers[name], column(plain, name))
        found.append(Claim("focalgeo", f"{words}: {said} is lower", verdict(change), _points(change)))
    change = paired(here.numbers["nll"], column(plain, "nll"))
    found.append(Claim("focalgeo", f"{words}: NLL as trained is lower", verdict(change), _nats(change)))
    return found


def _pair(runs: Runs, one: str, other: str) -> Claim:
    here, there = at_level(runs, one), at_level(runs, other)
    claim = (
        f"at half the trace ECE as trained is the same, to half a point: {METHODS[one].title}, {METHODS[other].title}"
    )
    if here is None or there is None:
        return Claim("focalgeo", claim, UNTOLD, "not both reach half the trace")
    change = paired(here.numbers["ece"], there.numbers["ece"])
    nll = paired(here.numbers["nll"], there.numbers["nll"])
    return Claim("focalgeo", claim, alike(change, ROOM), f"{_points(change)}; NLL {_nats(nll)}")


def _at_cost(runs: Runs, method: str) -> list[Claim]:
    own, plain = longest(runs, method), longest(runs, "plain")
    words = f"{METHODS[method].title}, strength chosen on val, beside plain cross-entropy of as many operations"
    found = []
    for name, said, shape in (
        ("ece", "ECE as trained", _points),
        ("nll", "NLL as trained", _nats),
        ("nll after T", "NLL after T", _nats),
    ):
        change = paired(column(own, name), column(plain, name))
        found.append(Claim("focalgeo", f"{words}: {said} is lower", verdict(change), shape(change)))
    return found


def _points(change: Interval) -> str:
    return f"{shown(change, scale=100, signed=True)} points"


def _nats(change: Interval) -> str:
    return f"{shown(change, signed=True)} nats"


def level_table(runs: Runs) -> str:
    """Of each method the numbers at half the trace, means over seeds, and the strengths between which it lies."""
    plain = strengths(runs, "plain")[0.0]
    lines = [["cross-entropy, the whole trace", "", *(_cell(column(plain, name), name) for name in NUMBERS)]]
    for method in FLATTENING:
        here = at_level(runs, method)
        if here is not None:
            between = f"{here.below:g} to {here.above:g}"
            lines.append([METHODS[method].title, between, *(_cell(here.numbers[name], name) for name in NUMBERS)])
    return markdown(["at half the trace", "strength between", *(title for title, _ in NUMBERS.values())], lines)


def _cell(values: dict[int, float], name: str) -> str:
    return shown(interval(list(values.values())), scale=NUMBERS[name][1])


def strengths_table(runs: Runs) -> str:
    """Every method and strength at the rate chosen on val, means over seeds."""
    lines = []
    for method, kind in METHODS.items():
        for strength, own in strengths(runs, method).items():
            cells = [_cell(column(own, name), name) for name in NUMBERS]
            cells += [shown(interval([run[name] for run in own.values()])) for name in CURVATURE]
            rate = f"{best_rate(runs, method, strength):g}"
            lines.append([kind.title, f"{strength:g}" if kind.field else "", rate, str(len(own)), *cells])
    heads = ["method", "strength", "rate", "n", *(title for title, _ in NUMBERS.values()), *CURVATURE.values()]
    return markdown(heads, lines)


def cost_table(runs: Runs, costs: dict[str, float]) -> str:
    """Operations of a step, epochs of equal cost, and the numbers then, means over seeds."""
    lines = []
    for method, kind in METHODS.items():
        own = longest(runs, method)
        if not own:
            continue
        strength, rate = chosen(runs, method)
        epochs = f"{60 * next(iter(own.values()))['times']:.0f}"
        head = [kind.title, f"{strength:g}" if kind.field else "", f"{rate:g}", f"{costs[method] / costs['plain']:.3g}"]
        lines.append([*head, epochs, *(_cell(column(own, name), name) for name in NUMBERS)])
    heads = ["method", "strength", "rate", "operations, of plain's", "epochs"]
    return markdown([*heads, *(title for title, _ in NUMBERS.values())], lines)
