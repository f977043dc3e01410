"""Which statements of the papers hold: their figures that need no training, redrawn, and a table of errata."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.numbers import NOT, SHOWS, Claim
from experiments.question import Flags, Job, Parts, Question
from experiments.theory import errata as statements
from experiments.theory import figures
from experiments.theory.errata import LINES, matched

GAMMAS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
LETTERS = {statements.KIMURA: "K", statements.KOMISARENKO: "F", statements.MUKHOTI: "M"}  # as experiments/papers.py
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


def claims(errata, readings):
    """Each erratum's statement, which its counterexample refutes; each statement that a reading makes true."""
    for row in errata:
        yield Claim(_where(row), row["printed"], NOT if row["refuted"] else SHOWS, row["holds"])
    for row in readings:
        claim = f"{row['printed']}, read as: {row['reading']}"
        yield Claim(_where(row), claim, SHOWS if row["holds"] else NOT, row["elsewhere"])


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


DRAWN = (
    *("kimura_1", "mukhoti_4a_7"),
    *(f"komisarenko_{number}" for number in ("1", "2_6", "2_right", "3", "4", "5", "7")),
)
QUESTION = Question(
    "theory",
    "Which statements of the papers hold? Every figure that needs no training",
    claims,
    tables={"errata": errata_table, "readings": readings_table},
    figures={name: getattr(figures, name) for name in DRAWN},
    jobs=plan,
    answers=("K Fig. 1", *(f"F Fig. {number}" for number in range(1, 8)), "M Fig. 4", "M Fig. 7"),
    cost="2 minutes on 2 cores",
    seeds=None,
)
