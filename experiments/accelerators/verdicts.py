"""What the compiled rows come to, for results.json."""

from typing import Any

from experiments.claims import Claim, about
from experiments.intervals import NOT, SHOWS


def head(results: dict[str, Any], date: str) -> dict[str, Any]:
    """The head, and whether every program compiles and fits, by topology."""
    topologies = dict.fromkeys(row["topology"] for row in results["rows"])
    return {
        "about": about(
            "Do the job's programs compile for TPUs, and what do they cost there?",
            command="python -m experiments.accelerators",
            cost="hours of 2 cores, row by row; no TPU",
            date=date,
        ),
        "claims": [_claim(name, results["rows"])._asdict() for name in topologies],
    }


def _claim(topology: str, rows: list[dict]) -> Claim:
    own = [row for row in rows if row["topology"] == topology]
    good = sum(bool(row["compiles"] and row.get("fits")) for row in own)
    claim = f"{topology}: every program compiles and fits in memory"
    return Claim("focalgeo", claim, SHOWS if good == len(own) else NOT, f"{good} of {len(own)} programs")
