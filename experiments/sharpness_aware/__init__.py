"""Sharpness-aware minimisation against trace penalties, at equal trace and at equal cost."""

from itertools import combinations, pairwise, product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments import figures, jobs, numbers
from experiments.numbers import OUTPUTS, UNTOLD, Claim, Number, learned, rows_where, shown
from experiments.question import Job, Question

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


def fields_of(method: str, strength: float, times: float = 1.0, rate: float | None = None) -> dict[str, Any]:
    """What a job has beside the config, but for the seeds; the schedule is drawn out with the epochs."""
    _, field, _, fields = METHODS[method]
    fields = jobs.T_ALONE | fields | {"loss.name": "cross_entropy", "sweep.gamma": ()}
    fields |= {"optimizer.learning_rate": rate} if rate else {"sweep.learning_rate": RATES}
    fields["optimizer.epochs"] = round(EPOCHS * times)
    fields["optimizer.decay_epochs"] = tuple(round(epoch * times) for epoch in DECAYS)
    return fields | ({field: strength} if field else {})


def plan(flags, parts):
    """Every method at every strength and rate, then each at its choice for as long as the costliest takes."""

    def job(method, strength, times=1.0, **rate):
        fields = fields_of(method, strength, times, **rate)
        how = {"seconds": 4 * times * (1 if rate else len(RATES)), "tags": {"rate": "learning_rate", "seed": "seed"}}
        more = lambda run, *_: rate or {"rate": round(run["rate"], 6)}  # noqa: E731
        of = {"method": method, "strength": strength, "times": times, **rate}
        return jobs.sweep(of, range(flags.seeds), CONFIG, fields, more=more, **how)

    fields = {name: fields_of(name, method.strengths[-1], rate=RATES[0]) for name, method in METHODS.items()}
    make = lambda out: {method: jobs.operations(CONFIG, values) for method, values in fields.items()}  # noqa: E731
    yield Job({}, (), make, part="operations")
    first = [job(name, strength) for name, method in METHODS.items() for strength in method.strengths]
    yield from first
    if all(job.is_stored(parts) for job in first) and "operations" in parts:
        costs, runs = parts["operations"], pd.DataFrame(parts["runs"])
        for method in METHODS:
            times = round(max(costs.values()) / costs[method], 4)
            if times > 1:
                yield job(method, times=times, **chosen(runs, method))


# ---- statistics


def at_best_rate(runs, method: str) -> dict[float, pd.DataFrame]:
    """Strength -> the runs that learned something, at the rate of the lower mean NLL on val.

    A seed that learned nothing rules a rate out.
    """
    best = {}
    for strength, group in learned(rows_where(runs, method=method, times=1.0)).groupby("strength"):
        rates = group.groupby("rate")["val nll"].agg(["size", "mean"])
        best[strength] = rows_where(group, rate=rates[rates["size"] == rates["size"].max()]["mean"].idxmin())
    return best


def chosen(runs, method: str) -> dict[str, float]:
    """Strength and rate of the lowest mean NLL on val."""
    best = min(at_best_rate(runs, method).values(), key=lambda group: group["val nll"].mean())
    return {"strength": best.strength.iloc[0], "rate": best.rate.iloc[0]}


def longest(runs, method: str) -> pd.DataFrame:
    """The runs of equal cost: the method's longest, at the strength and rate chosen on val."""
    group = rows_where(runs, method=method, **chosen(runs, method))
    return learned(rows_where(group, times=rows_where(runs, method=method).times.max()))


def plain(runs) -> pd.DataFrame:
    """The runs of cross-entropy alone."""
    return at_best_rate(runs, "plain")[0.0]


def mean_log(runs) -> float:
    """The mean of the log trace; NaN where one is not above 0."""
    return float(np.log(runs[TRACE].where(runs[TRACE] > 0)).mean(skipna=False))


def at_level(runs, method: str) -> tuple[str, pd.DataFrame]:
    """Numbers by seed at half of plain's trace, on the line between the neighbours in strength about it, and which.

    Plain cross-entropy is the weakest strength of each. No runs where no strength reaches the level.
    """
    strengths = {0.0: plain(runs)} | at_best_rate(runs, method)
    logs = {strength: mean_log(group) for strength, group in strengths.items()}
    wanted = logs[0.0] + np.log(HALF)
    for pair in pairwise(strengths):
        low, high = map(logs.get, pair)
        if high <= wanted <= low:
            share = (low - wanted) / (low - high)
            one, other = (strengths[strength].set_index("seed")[list(NUMBERS)] for strength in pair)
            return "{:g} to {:g}".format(*pair), ((1 - share) * one + share * other).dropna().reset_index()
    return "", runs[:0]


def claims(runs):
    """At half the trace each method against plain and against each other; at equal cost each against plain."""
    levels = {method: at_level(runs, method)[1] for method in FLATTENING}
    points, nats = {"scale": 100, "unit": "points", "what": ""}, {"unit": "nats", "what": ""}
    kept = points | {"falls": False, "margin": ACCURACY_ROOM}
    for method, level in levels.items():
        words = f"{METHODS[method].title}, at half the trace of cross-entropy's Hessian on val"
        if level.empty:
            yield Claim("focalgeo", f"{words}: ECE as trained is lower", UNTOLD, "no strength reaches half the trace")
            continue
        for name, claim, how in (
            ("accuracy", "accuracy falls by less than a point", kept),
            ("ece", "ECE as trained is lower", points),
            ("ece after T", "ECE after T is lower", points),
            ("nll", "NLL as trained is lower", nats),
        ):
            less = numbers.change(level, plain(runs), name)
            yield numbers.told("focalgeo", f"{words}: {claim}", less, **how)
    for one, other in combinations(FLATTENING, 2):
        claim = f"at half the trace ECE as trained is the same, to half a point: {METHODS[one].title}, "
        ece, nll = (numbers.change(levels[one], levels[other], name) for name in ("ece", "nll"))
        because = f"{shown(ece, scale=100, signed=True)} points; NLL {shown(nll, signed=True)} nats"
        because = because if ece.known else "not both reach half the trace"
        yield Claim("focalgeo", claim + METHODS[other].title, numbers.alike(ece, ROOM), because)
    for method, (name, how) in product(FLATTENING, (("ece", points), ("nll", nats), ("nll after T", nats))):
        words = f"{METHODS[method].title}, strength chosen on val, beside plain cross-entropy of as many operations"
        less = numbers.change(longest(runs, method), longest(runs, "plain"), name)
        title = NUMBERS[name].title.removesuffix(", %")
        yield numbers.told("focalgeo", f"{words}: {title} is lower", less, **how)


def level_table(runs):
    """Of each method the numbers at half the trace, means over seeds, and the strengths between which it lies."""
    groups = {("cross-entropy, the whole trace", ""): plain(runs)}
    for method in FLATTENING:
        between, group = at_level(runs, method)
        groups |= {(METHODS[method].title, between): group} if len(group) else {}
    return numbers.table(["at half the trace", "strength between"], groups, numbers.means(NUMBERS))


def strengths_table(runs):
    """Every method and strength at the rate chosen on val, means over seeds."""
    groups = {
        (title, f"{strength:g}" if strength else "", f"{group.rate.iloc[0]:g}"): group
        for method, (title, *_) in METHODS.items()
        for strength, group in at_best_rate(runs, method).items()
    }
    return numbers.means_table(["method", "strength", "rate"], groups, NUMBERS | CURVATURE)


def cost_table(runs, operations: dict[str, float]):
    """Operations of a step, epochs of equal cost, and the numbers then, means over seeds."""
    groups = {}
    for method in METHODS:
        group = longest(runs, method)
        strength, rate, times = group[["strength", "rate", "times"]].iloc[0]
        cost, strength = f"{operations[method] / operations['plain']:.3g}", f"{strength:g}" if strength else ""
        groups[METHODS[method].title, strength, f"{rate:g}", cost, f"{EPOCHS * times:.0f}"] = group
    heads = ["method", "strength", "rate", "operations, of plain's", "epochs"]
    return numbers.table(heads, groups, numbers.means(NUMBERS))


def trace(runs):
    """Calibration against the trace: means over seeds with intervals; each line begins at plain cross-entropy."""
    figure, panels = figures.row(("ece", "ece after T", "nll"), 10.2, 3.6)
    begin = plain(runs)
    cells = {METHODS[method].title: [begin, *at_best_rate(runs, method).values()] for method in FLATTENING}
    for axis, name in panels:
        level = lambda group, name=name: (np.exp(mean_log(group)), numbers.level(group, name))  # noqa: E731
        lines = {title: dict(map(level, groups)) for title, groups in cells.items()}
        figures.lines(axis, lines, scale=NUMBERS[name].scale)
        axis.axvline(HALF * np.exp(mean_log(begin)), color="0.6", linewidth=0.8, linestyle=":")
        figures.logarithmic(axis, "x")
        axis.set(xlabel="trace of cross-entropy's Hessian on val", ylabel=NUMBERS[name].title)
    return figures.legend(figure, title=f"n = {len(begin)} seeds; dotted: half the trace")


QUESTION = Question(
    "sharpness_aware",
    "Does sharpness-aware minimisation calibrate as trace penalties do, at equal trace and at equal cost?",
    claims,
    tables={"level": level_table, "cost": cost_table, "strengths": strengths_table},
    figures={"trace": trace},
    jobs=plan,
    keys={"method": METHODS, "strength": (), "times": (), "rate": ()},
    within=("rate",),
    answers=("K 5, other optimisers",),
)
