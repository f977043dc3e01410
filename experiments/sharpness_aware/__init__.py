"""Sharpness-aware minimisation against trace penalties, at equal trace and at equal cost."""

from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments import figures, jobs, numbers
from experiments.numbers import OUTPUTS, UNKNOWN, UNTOLD, Claim, Number, rows_where, shown
from experiments.question import Flags, Job, Parts, Question

CONFIG = "configs/digits_gamma.py"
RATES = (0.03, 0.1)  # of which the one with the lower NLL on val is taken
EPOCHS, DECAYS = 60, (40, 50)


class Method(NamedTuple):
    """A way to flatten: its title, the field of its strength, the strengths, and what its job has beside."""

    title: str
    field: str
    strengths: tuple[float, ...]
    fields: dict[str, Any]


WEIGHTS = (0.0003, 0.001, 0.003, 0.01)
METHODS = {
    "plain": Method("cross-entropy", "", (0.0,), {}),
    "sam": Method("SAM", "optimizer.sam_radius", (0.02, 0.05, 0.1, 0.2, 0.4), {}),
    "asam": Method("ASAM", "optimizer.sam_radius", (0.25, 0.5, 1.0, 2.0, 4.0), {"optimizer.sam_adaptive": True}),
    "hessian": Method("trace of the Hessian", "loss.trace_penalty", WEIGHTS, {}),
    "gauss_newton": Method("trace of Gauss-Newton", "loss.trace_penalty", WEIGHTS, {"loss.trace_of": "gauss_newton"}),
}
FLATTENING = tuple(METHODS)[1:]
TRACE = "trace CE val"
HALF = 0.5  # of plain cross-entropy's trace, the level at which methods are compared
ROOM, ACCURACY_ROOM = 0.005, 0.01
NUMBERS = {name: number for name, number in OUTPUTS.items() if name != "train accuracy"}
CURVATURE = {
    "trace CE val": Number("trace, val"),
    "trace CE train": Number("trace, train"),
    "lambda_max CE val": Number("λ_max, val"),
    "scale_free_trace CE val": Number("scale-free trace, val"),
}


# ---- jobs


def fields_of(method: str, strength: float, times: float, rate: float | None) -> dict[str, Any]:
    """What a job has beside the config, but for the seeds; the schedule is drawn out with the epochs."""
    field, fields = METHODS[method].field, METHODS[method].fields
    return (
        jobs.T_ALONE
        | {
            "loss.name": "cross_entropy",
            "sweep.gamma": (),
            "optimizer.epochs": round(EPOCHS * times),
            "optimizer.decay_epochs": tuple(round(epoch * times) for epoch in DECAYS),
        }
        | ({"optimizer.learning_rate": rate} if rate else {"sweep.learning_rate": RATES})
        | fields
        | ({field: strength} if field else {})
    )


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """Every method at every strength and rate, then each at its choice for as long as the costliest takes."""

    def job(method: str, strength: float, times: float = 1.0, rate: float | None = None) -> Job:
        of = {"method": method, "strength": strength, "times": times} | ({"rate": rate} if rate else {})
        how = {"tags": {"rate": "learning_rate", "seed": "seed"}, "seconds": 4 * times * (1 if rate else len(RATES))}
        how["more"] = lambda run, *_: {"rate": rate or round(run["rate"], 6)}
        return jobs.sweep(of, range(flags.seeds), CONFIG, fields_of(method, strength, times, rate), **how)

    first = [job(method, strength) for method in METHODS for strength in METHODS[method].strengths]
    fields = {method: fields_of(method, METHODS[method].strengths[-1], 1, RATES[0]) for method in METHODS}
    make = lambda out: {method: jobs.operations(CONFIG, fields[method]) for method in METHODS}  # noqa: E731
    yield Job({}, (), make, part="operations")
    yield from first
    if all(each.is_stored(parts) for each in first) and "operations" in parts:
        costs, runs = parts["operations"], pd.DataFrame(parts["runs"])
        for method in METHODS:
            times = round(max(costs.values()) / costs[method], 4)
            if times > 1:
                strength, rate = chosen(runs, method)
                yield job(method, strength, times, rate)


# ---- statistics


def at_best_rate(runs, method: str) -> dict[float, pd.DataFrame]:
    """Strength -> the runs that learned something, at the rate of the lower mean NLL on val.

    A seed that learned nothing rules a rate out.
    """
    runs = rows_where(runs[runs.accuracy >= numbers.LEARNED], method=method, times=1.0)
    best = {}
    for strength in METHODS[method].strengths:
        own = rows_where(runs, strength=strength)
        rates = own.groupby("rate")["val nll"].agg(["size", "mean"])
        best[strength] = rows_where(own, rate=rates[rates["size"] == rates["size"].max()]["mean"].idxmin())
    return best


def chosen(runs, method: str) -> tuple[float, float]:
    """Strength and rate of the lowest mean NLL on val."""
    best = at_best_rate(runs, method)
    strength = min(best, key=lambda strength: best[strength]["val nll"].mean())
    return strength, best[strength].rate.iloc[0]


def longest(runs, method: str) -> pd.DataFrame:
    """The runs of equal cost: the method's longest, at the strength and rate chosen on val."""
    strength, rate = chosen(runs, method)
    times = rows_where(runs, method=method).times.max()
    own = rows_where(runs, method=method, strength=strength, rate=rate, times=times)
    return own[own.accuracy >= numbers.LEARNED]


def plain(runs) -> pd.DataFrame:
    """The runs of cross-entropy alone."""
    return at_best_rate(runs, "plain")[0.0]


def mean_log(runs) -> float:
    """The mean of the log trace; NaN where one is not above 0."""
    return float(np.log(runs[TRACE].where(runs[TRACE] > 0)).mean(skipna=False))


class Level(NamedTuple):
    """Numbers of a method, by seed, where its mean log trace is the level: between two strengths."""

    between: str
    runs: pd.DataFrame


def at_level(runs, method: str) -> Level | None:
    """Numbers at half of plain's trace, on the line between the first neighbours in strength that lie about it.

    Plain cross-entropy is the weakest strength of each. None where no strength reaches the level.
    """
    strengths = {0.0: plain(runs)} | at_best_rate(runs, method)
    wanted = mean_log(strengths[0.0]) + np.log(HALF)
    for below, above in pairwise(strengths):
        low, high = mean_log(strengths[below]), mean_log(strengths[above])
        if high <= wanted <= low:
            share = (low - wanted) / (low - high)
            one, other = (strengths[strength].set_index("seed")[list(NUMBERS)] for strength in (below, above))
            mixed = ((1 - share) * one + share * other).dropna()
            return Level(f"{below:g} to {above:g}", mixed.reset_index())
    return None


def claims(runs):
    """At half the trace each method against plain and against each other; at equal cost each against plain."""
    levels = {method: at_level(runs, method) for method in FLATTENING}
    points, nats = {"scale": 100, "unit": "points", "what": ""}, {"unit": "nats", "what": ""}
    told = []
    for method, level in levels.items():
        words = f"{METHODS[method].title}, at half the trace of cross-entropy's Hessian on val"
        if level is None:
            why = "no strength reaches half the trace"
            told.append(Claim("focalgeo", f"{words}: ECE as trained is lower", UNTOLD, why))
            continue
        accuracy, ece, ece_t, nll = (
            numbers.change(level.runs, plain(runs), name) for name in ("accuracy", "ece", "ece after T", "nll")
        )
        claim = f"{words}: accuracy falls by less than a point"
        told += [
            numbers.told("focalgeo", claim, accuracy, falls=False, margin=ACCURACY_ROOM, **points),
            numbers.told("focalgeo", f"{words}: ECE as trained is lower", ece, **points),
            numbers.told("focalgeo", f"{words}: ECE after T is lower", ece_t, **points),
            numbers.told("focalgeo", f"{words}: NLL as trained is lower", nll, **nats),
        ]
    for one, other in combinations(FLATTENING, 2):
        both = levels[one], levels[other]
        titles = f"{METHODS[one].title}, {METHODS[other].title}"
        claim = f"at half the trace ECE as trained is the same, to half a point: {titles}"
        ece, nll = (
            numbers.change(*(level.runs for level in both), name) if all(both) else UNKNOWN for name in ("ece", "nll")
        )
        because = f"{shown(ece, scale=100, signed=True)} points; NLL {shown(nll, signed=True)} nats"
        because = because if all(both) else "not both reach half the trace"
        told.append(Claim("focalgeo", claim, numbers.alike(ece, ROOM), because))
    for method in FLATTENING:
        words = f"{METHODS[method].title}, strength chosen on val, beside plain cross-entropy of as many operations"
        for name, how in (("ece", points), ("nll", nats), ("nll after T", nats)):
            less = numbers.change(longest(runs, method), longest(runs, "plain"), name)
            claim = f"{words}: {NUMBERS[name].title.removesuffix(', %')} is lower"
            told.append(numbers.told("focalgeo", claim, less, **how))
    return told


def _means(runs, columns: dict[str, Number]) -> list[str]:
    return [shown(numbers.level(runs, name), scale=number.scale) for name, number in columns.items()]


def level_table(runs):
    """Of each method the numbers at half the trace, means over seeds, and the strengths between which it lies."""
    rows = [["cross-entropy, the whole trace", "", *_means(plain(runs), NUMBERS)]]
    for method in FLATTENING:
        if level := at_level(runs, method):
            rows.append([METHODS[method].title, level.between, *_means(level.runs, NUMBERS)])
    return numbers.markdown(["at half the trace", "strength between", *(title for title, _ in NUMBERS.values())], rows)


def strengths_table(runs):
    """Every method and strength at the rate chosen on val, means over seeds."""
    rows, columns = [], NUMBERS | CURVATURE
    for method, (title, field, *_) in METHODS.items():
        for strength, own in at_best_rate(runs, method).items():
            head = [title, f"{strength:g}" if field else "", f"{own.rate.iloc[0]:g}", str(len(own))]
            rows.append([*head, *_means(own, columns)])
    return numbers.markdown(["method", "strength", "rate", "n", *(title for title, _ in columns.values())], rows)


def cost_table(runs, operations: dict[str, float]):
    """Operations of a step, epochs of equal cost, and the numbers then, means over seeds."""
    rows = []
    for method, (title, field, *_) in METHODS.items():
        (strength, rate), own = chosen(runs, method), longest(runs, method)
        cost, epochs = f"{operations[method] / operations['plain']:.3g}", f"{EPOCHS * own.times.iloc[0]:.0f}"
        rows.append([title, f"{strength:g}" if field else "", f"{rate:g}", cost, epochs, *_means(own, NUMBERS)])
    heads = ["method", "strength", "rate", "operations, of plain's", "epochs"]
    return numbers.markdown([*heads, *(title for title, _ in NUMBERS.values())], rows)


def trace(runs):
    """Calibration against the trace: means over seeds with intervals; each line begins at plain cross-entropy."""
    words = {
        "ece": ("test ECE as trained, %", 100),
        "ece after T": ("test ECE after T, %", 100),
        "nll": ("test NLL", 1),
    }
    colours = (figures.BLUE, "#3aa0d8", figures.RED, "#b58900")
    figure, axes = figures.panels(1, 3, 10.2, 3.6)
    begin = plain(runs)
    for axis, (name, (label, scale)) in zip(axes[0], words.items(), strict=True):
        for method, colour, marker, style in zip(FLATTENING, colours, "os^D", ("-", "--", "-", "--"), strict=True):
            every = [begin, *at_best_rate(runs, method).values()]
            traces = [np.exp(np.log(own[TRACE].clip(1e-9)).mean()) for own in every]
            means = [numbers.interval(scale * own[name]) for own in every]
            look = {"color": colour, "marker": marker, "linestyle": style, "linewidth": 1.1, "elinewidth": 0.7}
            figures.intervals(axis, traces, means, label=METHODS[method].title, capsize=0, **look)
        axis.axvline(HALF * np.exp(mean_log(begin)), color="0.6", linewidth=0.8, linestyle=":")
        figures.logarithmic(axis, "x")
        axis.set(xlabel="trace of cross-entropy's Hessian on val", ylabel=label)
    figures.legend(figure, title=f"n = {len(begin)} seeds; dotted: half the trace")
    return figure


QUESTION = Question(
    "sharpness_aware",
    "Does sharpness-aware minimisation calibrate as trace penalties do, at equal trace and at equal cost?",
    claims,
    tables={"level": level_table, "cost": cost_table, "strengths": strengths_table},
    figures={"trace": trace},
    jobs=plan,
    keys={"method": METHODS, "strength": (), "times": (), "rate": ()},
    within=("rate",),
)
