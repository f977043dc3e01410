"""Everything measured so far as one tree of numbers, and the intervals that are taken of it."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.intervals import resampled_interval
from experiments.posthoc.measured import read_lines
from experiments.writing import Interval

SCORES = ("nll", "ece", "brier", "accuracy", "zeros", "seconds", "processor_seconds", "first_seconds")
RULES = ("chosen", "least")  # the command's choice, and the least NLL by fits of the other folds, untested


def less(own: dict, against: dict, score: str) -> Interval:
    """The interval of a score of one method less another's, over the splits on which both are measured so far."""
    count = min(len(own[score]), len(against[score]))
    return resampled_interval(np.subtract(own[score][:count], against[score][:count]))


def collected(cache: Path) -> dict[str, Any]:
    """What the pieces measured, by network and method, with a number for each split in the order of its seed."""
    return {
        "peers": _by_method(read_lines(cache / "peers.jsonl")),
        "methods": _by_method(read_lines(cache / "methods.jsonl")),
        "criterion": _by_fit(read_lines(cache / "criterion.jsonl")),
        "choice": _by_split(read_lines(cache / "choice.jsonl")),
        "folds": [{**row.pop("key"), **row} for row in read_lines(cache / "folds.jsonl")],
        "simulation": _by_cell(read_lines(cache / "simulation.jsonl")),
    }


def _by_method(rows: list[dict]) -> dict[str, dict[str, dict]]:
    found: dict[str, dict[str, dict]] = {}
    for row in sorted(rows, key=lambda row: row["key"]["seed"]):
        of_network = found.setdefault(row["key"]["network"], {})
        own = of_network.setdefault(row["key"]["method"], {name: row[name] for name in ("version",) if name in row})
        for name in SCORES:
            if name in row:
                own.setdefault(name, []).append(row[name])
        if "error" in row:
            own["error"] = row["error"]
    return found


def _by_fit(rows: list[dict]) -> dict[str, dict[str, dict]]:
    found: dict[str, dict[str, dict]] = {}
    for row in sorted(rows, key=lambda row: row["key"]["seed"]):
        of_network = found.setdefault(row["key"]["network"], {})
        for name, values in row["fits"].items():
            own = of_network.setdefault(name, {score: [] for score in ("nll", "ece", "brier", "nll_difference")})
            for score, each in own.items():
                each.append(list(values[score].values()) if score == "nll_difference" else values[score])
    return found


def _by_split(rows: list[dict]) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for row in sorted(rows, key=lambda row: row["key"]["seed"]):
        against = {
            name: {metric: list(each.values()) for metric, each in metrics.items()}
            for name, metrics in row["against"].items()
        }
        kept = {name: value for name, value in row.items() if name not in ("key", "against")}
        found.setdefault(row["key"]["network"], []).append(kept | {"against": against})
    return found


def _by_cell(rows: list[dict]) -> list[dict]:
    """Of each truth, number of classes and of examples: how often each method was chosen, and the mean excess NLL."""
    cells: dict[tuple, list[dict]] = {}
    for row in rows:
        cells.setdefault(tuple(row["key"][name] for name in ("truth", "classes", "examples")), []).extend(
            row["repetitions"]
        )
    found = []
    for (truth, classes, examples), each in cells.items():
        counts = {rule: [one[rule] for one in each] for rule in RULES}
        counts = {rule: {name: own.count(name) for name in dict.fromkeys(own)} for rule, own in counts.items()}
        excess = {name: float(np.mean([one["excess"][name] for one in each])) for name in each[0]["excess"]}
        excess |= {rule: float(np.mean([one["excess"][one[rule]] for one in each])) for rule in RULES}
        excess["at_least_temperature"] = float(np.mean([_excess_of_at_least_temperature(one) for one in each]))
        found.append(
            {"truth": truth, "classes": classes, "examples": examples, "repetitions": len(each)}
            | {**counts, "excess": excess}
        )
    return found


def _excess_of_at_least_temperature(repetition: dict) -> float:
    """That of the choice, were temperature scaling taken wherever it says to leave the outputs as they are."""
    chosen = repetition["chosen"]
    return repetition["excess"]["temperature_scaling" if chosen == "uncalibrated" else chosen]
