"""Others' outputs, halved at random: each half fits, the other tests; runs of the same form as the cells'."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells import GAMMAS, temperatures
from experiments.writing import rounded
from focalgeo import calibration
from focalgeo.data.logits_files import Keys, read_outputs

FITS = (  # method, criterion
    ("temperature_scaling", "nll"),
    ("temperature_scaling", "ece"),
    ("temperature_scaling", "adaptive_ece"),
    ("focal_temperature_scaling", "nll"),
    ("focal_temperature_scaling", "ece"),
    ("focal_temperature_scaling", "adaptive_ece"),
    ("focal_temperature_scaling", "line_search"),
    ("vector_scaling", "nll"),
    ("focal_vector_scaling", "nll"),
)
NAMES = {"gamma": "calibration_gamma"}  # as a job's rows have it
METRICS = ("accuracy", "nll", "ece", "adaptive_ece")


def measure(path: Path, splits: int) -> list[dict[str, Any]]:
    """A run for each random half of a file with probs or logits, and labels.

    Raises:
        InputError: the file holds none.
    """
    outputs = read_outputs(str(path), Keys(), where=path.stem)
    logits, labels = outputs.logits, outputs.labels
    found = []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(labels))
        halves = [(logits[half], labels[half]) for half in np.array_split(order, 2)]
        found.append(rounded(_run(path.stem, seed, *halves), 5))
    return found


def _run(name: str, seed: int, val: tuple, test: tuple) -> dict[str, Any]:
    run: dict[str, Any] = {"task": "others", "loss": name, "seed": seed, "classes": int(val[0].shape[-1])}
    run["metrics"], run["fits"] = (
        {"test": {"uncalibrated": _metrics(calibration.temperature_scaling(test[0], 1.0), test[1])}},
        {},
    )
    for method, criterion in FITS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", calibration.ConvergenceWarning)  # the paper's grid ends at gamma -0.5
            fitted = calibration.fit(method, *val, criterion=criterion)
        key = f"{method}/{criterion}"
        run["metrics"]["test"][key] = _metrics(fitted.predict_log_proba(test[0]), test[1])
        run["fits"][key] = {
            NAMES.get(name, name): float(number) for name, number in fitted.parameters.items() if np.ndim(number) == 0
        }
    run["temperatures"] = {"gammas": GAMMAS, "val": temperatures(*val, GAMMAS)}
    return run


def _metrics(log_probs: Any, labels: np.ndarray) -> dict[str, float]:
    return {name: float(number) for name, number in calibration.all_metrics(log_probs, labels, names=METRICS).items()}
