"""Which statements of the papers hold: their figures that need no training, redrawn, and a table of errata."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.numbers import NOT, SHOWS, Claim, markdown
from experiments.question import Flags, Job, Parts, Question
from experiments.theory import errata as statements
from experiments.theory import figures
from experiments.theory.errata import matched

GAMMAS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
LINES = {  # classes -> the printed line 1/T = slope * gamma + intercept, and the largest gamma of our fit of it
    2: (0.95, 0.85, 5.0),  # the papers do not print theirs
    3: (0.64, 0.91, 10.0),
    4: (0.47, 0.85, 10.0),
}


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


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """Numbers first, then the errata."""
    yield Job({}, (), lambda out: [matches(classes) for classes in LINES], part="matching_temperatures")
    yield Job({}, (), lambda out: [row._asdict() for row in statements.errata()], part="errata")


def claims(errata) -> list[Claim]:
    """Each erratum's statement, which its counterexample refutes or does not."""
    return [
        Claim(f"{paper}, {where}", printed, NOT if refuted else SHOWS, f"what holds: {holds}")
        for paper, where, printed, holds, _, refuted in (row.values() for row in errata)
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
