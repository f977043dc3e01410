"""What the answers of the libraries come to, for results.json."""

from collections.abc import Callable
from typing import Any

from experiments.claims import Claim, about
from experiments.intervals import NOT, SHOWS


def head(results: dict[str, Any], date: str, agrees: Callable[[Any, float], bool]) -> dict[str, Any]:
    """The head, and for each installed library whether all its answers are exact."""
    names = [name for name, version in results["versions"].items() if version]
    return {
        "about": about(
            "Which ECE is this? Edge cases, and what each library counts",
            command="python -m experiments.which_ece",
            cost="a minute on 2 cores",
            date=date,
        ),
        "claims": [_claim(name, results["rows"], agrees)._asdict() for name in names],
    }


def _claim(name: str, rows: list[dict], agrees: Callable[[Any, float], bool]) -> Claim:
    asked = [row for row in rows if name in row["answers"]]
    right = sum(agrees(row["answers"][name], row["expected"]) for row in asked)
    because = f"{right} of {len(asked)} cases"
    return Claim(
        "focalgeo", f"{name} gives the exact ECE in every case", SHOWS if right == len(asked) else NOT, because
    )
