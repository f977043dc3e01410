"""Which statements of the papers hold: their figures that need no training, redrawn, and a table of errata.

T by gamma_ev, derived. Of two probabilities, p of the predicted class and r of each of its k rivals, the focal map
makes log-odds phi(s / T), s those of the logits. They stay log(p / r), as temperature scaling has them, where T is s
over the map's inverse of log(p / r): T(gamma) = T(0) log(p / r) / phi^-1(log(p / r)), the map's mean slope times T(0).
Its derivative at 0 is T(0) (a(p) - a(r)) / log(p / r), a(x) = -log(1 - x) + x log(x) / (1 - x). With two classes the
mean slope lies between that at even odds and gamma + 1, which are nearly lines. p is the accuracy on val, and k makes
the entropy of p and k rivals val's NLL after T, as it is of calibrated outputs; nothing is fitted to T(gamma).

T_high. The third derivative of the map of two classes at even odds is 0 at gamma = 5.635 (its formula is in
focalgeo.theory.temperature_bounds). Above it the map falls below its tangent there, and T_high is more than 1 / slope.
Up to it the map is convex over log-odds above 0, tested and not proven, and T_high is 1 / slope for every range.

Entropy at equal NLL: of networks of the stored runs on CIFAR-10, at the first epochs between which NLL on train passes
the level.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from experiments import cells as stored
from experiments import numbers
from experiments.cells import LOSSES, TASKS
from experiments.numbers import NOT, SHOWS, Claim, Number, interval, rows_where, shown
from experiments.question import Flags, Job, Parts, Question
from experiments.theory import errata as statements
from experiments.theory import figures, trained
from experiments.theory.errata import LINES, matched

GAMMAS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
LETTERS = {statements.KIMURA: "K", statements.KOMISARENKO: "F", statements.MUKHOTI: "M"}  # as experiments/papers.py
SAME = 0.15  # how far a ratio may be from 1 where a slope counts as the derived one
FITTED = {2: 5.0, 3: 10.0, 4: 10.0}  # classes -> the largest gamma of our fit of a line; the paper's is not printed


def matches(classes: int, gammas: Sequence[float] = GAMMAS) -> dict[str, Any]:
    """Best temperature and its error by gamma, and the error of the paper's line."""
    (slope, intercept), end = LINES[classes], FITTED[classes]
    rows = pd.DataFrame(
        [(gamma, *matched(gamma, classes, 1 / (slope * gamma + intercept))) for gamma in gammas],
        columns=["gamma", "temperature", "error", "error_of_printed_line"],
    )
    fitted = rows[rows.gamma <= end]
    return {
        "num_classes": classes,
        "printed_line": [slope, intercept],
        "our_line": np.polyfit(fitted.gamma, 1 / fitted.temperature, 1).tolist(),
        "our_line_up_to_gamma": end,
        "rows": rows.to_dict("records"),
    }


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """Numbers first, then the errata and readings."""
    yield Job({}, (), lambda out: [matches(classes) for classes in LINES], part="matching_temperatures")
    yield Job({}, (), lambda out: [row._asdict() for row in statements.errata()], part="errata")
    yield Job({}, (), lambda out: [row._asdict() for row in statements.readings()], part="readings")


def claims(errata, readings, cells):
    """Errata, refuted by counterexamples; readings that make statements true; bounds; what trained networks say."""
    for row in errata:
        yield Claim(_where(row), row["printed"], NOT if row["refuted"] else SHOWS, row["holds"])
    for row in readings:
        claim = f"{row['printed']}, read as: {row['reading']}"
        yield Claim(_where(row), claim, SHOWS if row["holds"] else NOT, row["elsewhere"])
    wide, tight = figures.widths(GAMMAS)
    claim = "the temperatures that enclose the map for logits within 20 are closer than the theory's at every γ"
    because = f"T_high - T_low {tight[6]:.4f} and {wide[6]:.4f} at γ = {GAMMAS[6]:g}; {len(GAMMAS)} γ up to 10"
    yield Claim("F Fig. 3", claim, SHOWS if all(tight < wide) else NOT, because)
    for task, group in trained.slopes(cells).groupby("task", sort=False):
        ratios = {f"{name} rises with γ_ev up to 1": group[name] / group.derived for name in ("by ECE", "by NLL")}
        for words, ratio in (ratios | {"by NLL at γ_ev = 5 is as many times that at 0": group["at 5"]}).items():
            value, claim = interval(ratio), f"{TASKS[task].title}: the best T {words} as derived, to {SAME:.0%}"
            yield Claim("focalgeo", claim, numbers.inside(value, 1 - SAME, 1 + SAME), f"over it {shown(value)}")
    table = trained.entropies(cells)
    for level, loss in product(trained.LEVELS, ("fl1", "fl2", "fl3")):
        pair = (rows_where(table, level=level, loss=name) for name in (loss, "ce"))
        claim = f"{LOSSES[loss]} has predictions of more entropy on train than CE where NLL on train is {level:g}"
        yield numbers.told("K Eq. 6", claim, numbers.change(*pair, "entropy"), unit="nats", falls=False)


def _where(row):
    return f"{LETTERS[row['paper']]} {row['where']}"


def _statements(rows, *names):
    for row in rows:
        yield *(row[name] for name in names), ", ".join(f"{name} {value:.4g}" for name, value in row["numbers"].items())


def errata_table(errata):
    """Statements with the numbers of a counterexample, and the range over which one was looked for."""
    yield "paper", "where", "printed", "what holds", "tried", "counterexample"
    yield from _statements(errata, "paper", "where", "printed", "holds", "tried")


def readings_table(readings):
    """Statements that hold as one may read them, and what else there is; none counts as an erratum."""
    yield "paper", "where", "printed", "true where read as", "elsewhere", "numbers"
    yield from _statements(readings, "paper", "where", "printed", "reading", "elsewhere")


def slopes_table(cells):
    """Slope of the best T on val over gamma_ev up to 1, over T at 0: by criterion, and derived with these rivals."""
    groups = {TASKS[task].title: group for task, group in trained.slopes(cells).groupby("task", sort=False)}
    names = ("rivals", "by ECE", "by NLL", "derived")
    return numbers.means_table(["outputs"], groups, {name: Number(name) for name in names}, "seeds")


DRAWN = (
    *("kimura_1", "mukhoti_4a_7"),
    *(f"komisarenko_{number}" for number in ("1", "2_6", "2_right", "3", "4", "5", "7")),
)
QUESTION = Question(
    "theory",
    "Which statements of the papers hold? Every figure that needs no training",
    claims,
    tables={
        "errata": errata_table,
        "readings": readings_table,
        "slopes": slopes_table,
    },
    figures={name: getattr(figures, name) for name in DRAWN},
    jobs=plan,
    read=lambda flags: {"cells": stored.compared(*TASKS)},
    answers=("K Fig. 1", *(f"F Fig. {number}" for number in range(1, 8)), "F 6", "M Fig. 4", "M Fig. 7"),
    cost="2 minutes on 2 cores",
    seeds=None,
)
