"""What the timed searches come to, for results.json."""

from typing import Any

from experiments.claims import Claim, about
from experiments.intervals import NOT, SHOWS


def head(results: dict[str, Any], date: str) -> dict[str, Any]:
    """The head, and how many times as long as the search a lean loop over its points takes."""
    return {
        "about": about(
            "How fast are the search, curvature, sweeps and training, beside loops and other libraries?",
            command="python -m experiments.benchmarks.grid_search (curvature, trace_forms, sweep, throughput)",
            cost="minutes each on 2 cores",
            date=date,
        ),
        "claims": [_claim(row)._asdict() for row in results["rows"]],
    }


def _claim(row: dict[str, Any]) -> Claim:
    ratio = row["seconds"]["lean loop"][0] / row["seconds"]["ours, ece"][0]
    claim = f"the search by ECE of {row['examples']:,} x {row['classes']} is faster than a lean loop over its points"
    return Claim("focalgeo", claim, SHOWS if ratio > 1 else NOT, f"{ratio:.0f} times")
