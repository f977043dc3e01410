"""What the splits of others' predictions say of the methods, for results.json."""

from typing import Any

from experiments.claims import Claim, about
from experiments.intervals import shown, verdict
from experiments.posthoc.collected import less

PAIRS = (  # method, less which, the paper that says so
    ("temperature_scaling", "uncalibrated", "Mukhoti et al., 6"),
    ("focal_temperature_scaling", "temperature_scaling", "Komisarenko & Kull, 4.2"),
    ("focal_vector_scaling", "vector_scaling", "focalgeo"),
    ("vector_scaling", "temperature_scaling", "focalgeo"),
)


def head(results: dict[str, Any], date: str) -> dict[str, Any]:
    """The head, and for each network whether a method's NLL is below a plainer one's."""
    found = []
    for network, methods in results["methods"].items():
        for one, other, where in PAIRS:
            if one in methods and other in methods:
                found.append(_claim(network, methods, one, other, where)._asdict())
    return {
        "about": about(
            "Which post-hoc method, how often is the choice right, and how do other libraries do?",
            command="python -m experiments.posthoc",
            cost="hours on 2 cores, piece by piece",
            date=date,
        ),
        "claims": found,
    }


def _claim(network: str, methods: dict[str, Any], one: str, other: str, where: str) -> Claim:
    difference = less(methods[one], methods[other], "nll")
    claim = f"{network}: NLL on test after {one.replace('_', ' ')} is below that after {other.replace('_', ' ')}"
    return Claim(where, claim, verdict(difference), f"{shown(difference, scale=100, signed=True)} 1/100 nat")
