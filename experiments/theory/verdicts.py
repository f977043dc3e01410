"""What the closed forms say of the papers' statements, for results.json."""

from typing import Any

from experiments.claims import Claim, about
from experiments.intervals import NOT, SHOWS

ANSWERS = ("K Fig. 1", *(f"F Fig. {number}" for number in (1, 2, 3, 4, 5, 6, 7)), "M Fig. 4", "M Fig. 7")


def head(results: dict[str, Any], date: str) -> dict[str, Any]:
    """The head and the claims: each erratum's statement, which its counterexample refutes or does not."""
    return {
        "about": about(
            "Which statements of the papers hold? Every figure that needs no training",
            command="python -m experiments.theory --out=experiments/theory",
            cost="2 minutes on 2 cores",
            date=date,
            answers=ANSWERS,
        ),
        "claims": [_claim(row)._asdict() for row in results["errata"]],
    }


def _claim(row: dict[str, Any]) -> Claim:
    verdict = NOT if row["refuted"] else SHOWS
    return Claim(f"{row['paper']}, {row['where']}", row["printed"], verdict, f"what holds: {row['holds']}")
