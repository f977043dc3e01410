"""What the papers' tables hold of a run, and its values over the seeds of a loss."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from experiments.intervals import clipped, interval
from experiments.writing import Interval

PAPERS = json.loads((Path(__file__).parent / "papers.json").read_text(encoding="utf-8"))
PLAIN, BY_ECE = "uncalibrated", "temperature_scaling/ece"


class Quantity(NamedTuple):
    """A number of a run: a metric of the test outputs by a method, or a fitted temperature; the factor to its unit."""

    title: str
    method: str
    metric: str  # "temperature" is the fit's
    scale: float = 100.0


QUANTITIES = {
    "accuracy": Quantity("accuracy, %", PLAIN, "accuracy"),
    "ece": Quantity("ECE, %", PLAIN, "ece"),
    "ece after T": Quantity("ECE after T by ECE, %", BY_ECE, "ece"),
    "T by ece": Quantity("T by ECE", BY_ECE, "temperature", 1.0),
    "adaptive_ece": Quantity("AdaECE, %", PLAIN, "adaptive_ece"),
    "adaptive_ece after T": Quantity("AdaECE after T by AdaECE, %", "temperature_scaling/adaptive_ece", "adaptive_ece"),
    "T by adaptive_ece": Quantity("T by AdaECE", "temperature_scaling/adaptive_ece", "temperature", 1.0),
    "classwise_ece": Quantity("classwise ECE, %", PLAIN, "classwise_ece"),
    "classwise_ece after T": Quantity("classwise ECE after T by ECE, %", BY_ECE, "classwise_ece"),
    "mce": Quantity("MCE, %", PLAIN, "mce"),
    "mce after T": Quantity("MCE after T by ECE, %", BY_ECE, "mce"),
    "nll": Quantity("NLL, 1/100 nat", PLAIN, "nll"),
    "nll after T": Quantity("NLL after T by ECE, 1/100 nat", BY_ECE, "nll"),
    "nll after T by nll": Quantity("NLL after T by NLL, 1/100 nat", "temperature_scaling/nll", "nll"),
    "ece after T by nll": Quantity("ECE after T by NLL, %", "temperature_scaling/nll", "ece"),
    "T by nll": Quantity("T by NLL", "temperature_scaling/nll", "temperature", 1.0),
    "brier": Quantity("Brier, 1/100", PLAIN, "brier"),
    "brier after T": Quantity("Brier after T by ECE, 1/100", BY_ECE, "brier"),
    "s99": Quantity("S99, %", PLAIN, "high_confidence"),
    "s99 accuracy": Quantity("accuracy in S99, %", PLAIN, "high_confidence_accuracy"),
    "s99 after T": Quantity("S99 after T by ECE, %", BY_ECE, "high_confidence"),
    "s99 accuracy after T": Quantity("accuracy in S99 after T, %", BY_ECE, "high_confidence_accuracy"),
    "ece after focal T": Quantity("ECE after focal T by ECE, %", "focal_temperature_scaling/ece", "ece"),
    "nll after focal T": Quantity("NLL after focal T by NLL, 1/100 nat", "focal_temperature_scaling/nll", "nll"),
    "nll after vector scaling": Quantity("NLL after vector scaling, 1/100 nat", "vector_scaling/nll", "nll"),
    "ece after vector scaling": Quantity("ECE after vector scaling, %", "vector_scaling/nll", "ece"),
    "nll after focal vector scaling": Quantity("NLL after focal vector scaling", "focal_vector_scaling/nll", "nll"),
}


def value(run: dict[str, Any], name: str, split: str = "test") -> float | None:
    """A quantity of a run in its unit; None where the run has none, as |S99|'s accuracy where S99 is empty."""
    if name == "error":
        return 100.0 - value(run, "accuracy", split)
    quantity = QUANTITIES[name]
    if quantity.metric == "temperature":
        return run["fits"].get(quantity.method, {}).get("temperature")
    found = run["metrics"][split].get(quantity.method, {}).get(quantity.metric)
    return None if found is None else quantity.scale * found


def by_seed(runs: Iterable[dict[str, Any]], loss: str, name: str, split: str = "test") -> dict[int, float]:
    """Seed -> value of the runs of a loss that have one."""
    found = {run["seed"]: value(run, name, split) for run in runs if run["loss"] == loss}
    return {seed: number for seed, number in found.items() if number is not None}


def mean(runs: Iterable[dict[str, Any]], loss: str, name: str) -> Interval:
    """The interval over the seeds of a loss, cut where the quantity's range ends: at 0, and of a share at 100%."""
    is_share = name == "error" or QUANTITIES[name].title.endswith("%")
    return clipped(interval(list(by_seed(runs, loss, name).values())), 0.0, 100.0 if is_share else math.inf)


def losses_of(runs: Iterable[dict[str, Any]]) -> list[str]:
    """The losses that have runs, in the order of the runs."""
    return list(dict.fromkeys(run["loss"] for run in runs))
