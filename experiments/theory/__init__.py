"""Which statements of the papers hold: their figures that need no training, redrawn, and a table of errata."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.numbers import NOT, SHOWS, Claim, markdown
from experiments.question import Flags, Job, Parts, Question
from experiments.theory import errata as statements
from experiments.theory import figures
from experiments.theory.errata import Erratum, matched
from focalgeo import theory

GAMMAS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
LINES = {  # classes -> the printed line 1/T = slope * gamma + intercept, and the largest gamma of our fit of it
    2: (0.95, 0.85, 5.0),  # the papers do not print theirs
    3: (0.64, 0.91, 10.0),
    4: (0.47, 0.85, 10.0),
}
PRINTED_PAIRS = (  # figure, classes, gamma, T
    *(("Fig. 2", 2, 0.5, 0.76), ("Fig. 2", 2, 3.0, 0.36), ("Fig. 5", 3, 1.0, 0.81), ("Fig. 5", 3, 3.0, 0.46)),
    *(("Fig. 7", 3, 0.5, 0.8), ("Fig. 7", 3, 2.0, 0.46)),
)


def matches(classes: int, gammas: Sequence[float] = GAMMAS) -> dict[str, Any]:
    """Best temperature and its error by gamma, and the error of the paper's line."""
    slope, intercept, end = LINES[classes]
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


def printed_pairs() -> list[dict[str, Any]]:
    """Each (gamma, T) that the papers print: its error, the best T and the best error."""
    rows = []
    for figure, classes, gamma, printed in PRINTED_PAIRS:
        best, error, of_printed = matched(gamma, classes, printed)
        row = {"figure": figure, "num_classes": classes, "gamma": gamma, "printed_temperature": printed}
        rows.append(row | {"printed_error": of_printed, "temperature": best, "error": error})
    return rows


def anchors() -> list[dict[str, Any]]:
    """Single numbers that the papers print, beside ours."""
    best, ratio = theory.optimal_prediction([0.8, 0.2], 2.0)[0], theory.gradient_ratio
    rows = (
        ("best prediction for p = 0.8, gamma = 2 (Komisarenko & Kull, 3.1)", "around 0.62", best),
        ("G(0.2, 5), the reason for gamma = 5 below 0.2 (Mukhoti et al., 4)", "about 1", ratio(0.2, 5.0)),
        ("G(0.25, 3) (Mukhoti et al., 4)", "about 1", ratio(0.25, 3.0)),
        ("G(0.5, 7) (Mukhoti et al., Fig. 4a)", "nearly 0", ratio(0.5, 7.0)),
    )
    return [{"what": what, "printed": printed, "ours": float(ours)} for what, printed, ours in rows]


def simplex() -> dict[str, dict[str, float]]:
    """The numbers behind the heat map."""
    points = figures.logit_points()
    differences = {
        f"gamma_{gamma:g}_T_{temperature:g}": float(np.abs(figures.map_difference(points, gamma, temperature)).max())
        for gamma, temperature in figures.PAIRS
    }
    return {"largest_difference": differences}


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """Numbers first, then the errata."""
    made = {
        "matching_temperatures": lambda out: [matches(classes) for classes in LINES],
        "printed_pairs": lambda out: printed_pairs(),
        "simplex": lambda out: simplex(),
        "anchors": lambda out: anchors(),
        "errata": lambda out: [row._asdict() for row in statements.errata()],
    }
    for part, make in made.items():
        yield Job({}, (), make, part=part)


def claims(errata) -> list[Claim]:
    """Each erratum's statement, which its counterexample refutes or does not."""
    rows = [Erratum(**row) for row in errata]
    return [
        Claim(f"{row.paper}, {row.where}", row.printed, NOT if row.refuted else SHOWS, f"what holds: {row.holds}")
        for row in rows
    ]


def errata_table(errata) -> str:
    """The statements with the numbers of their counterexamples."""
    lines = []
    for paper, where, printed, holds, numbers, _ in (row.values() for row in errata):
        lines.append([paper, where, printed, holds, ", ".join(f"{name} {numbers[name]:.4g}" for name in numbers)])
    return markdown(["paper", "where", "printed", "what holds", "counterexample"], lines)


DRAWN = ("kimura_1", "mukhoti_4a_7", *(f"komisarenko_{number}" for number in ("1", "2_6", "3", "4", "5", "7")))
QUESTION = Question(
    "theory",
    "Which statements of the papers hold? Every figure that needs no training",
    claims,
    tables={"errata": errata_table},
    figures={name: getattr(figures, name) for name in DRAWN},
    jobs=plan,
    answers=("K Fig. 1", *(f"F Fig. {number}" for number in range(1, 8)), "M Fig. 4", "M Fig. 7"),
    cost="2 minutes on 2 cores",
    seeds=None,
)
