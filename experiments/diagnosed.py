"""What training does to right and wrong examples, epoch by epoch, of one finished job: the rows of its diagnostics.

A run with FIELDS holds these for 5,000 training and test examples. `diagnosed` makes them small enough to store.
"""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from experiments import jobs
from experiments.writing import rounded
from focalgeo import records
from focalgeo.rows import Diagnostic, Fit, HistogramBin, ReliabilityBin, select

FIELDS = {"diagnostics.every": 1, "diagnostics.splits": ("train", "test"), "diagnostics.examples": 5000}
MEANS = ("nll", "entropy", "true_class_probability", "gradient_norm")
HISTOGRAMS = ("gradient_norm", "true_class_probability")
IMAGES = 100  # of the test split at even distances, the same for every loss


def diagnosed(workdir: Path) -> dict[str, Any]:
    """Means by epoch, split and outcome; reliability and histograms at three epochs; some test images.

    "means" -> split -> name, or name and outcome as "nll wrong" -> value by epoch; "error" and "ece" (25 bins) are
    there too. "reliability" -> split -> epoch -> bins; "histograms" -> name -> split -> epoch -> bins. "images" are
    `IMAGES` of the test split.
    """
    every = jobs.rows_of(workdir)
    rows = [row for row in every if row.epoch is not None]
    epochs = sorted({row.epoch for row in select(rows, Diagnostic)})
    chosen = sorted({epochs[0], epochs[len(epochs) // 2], epochs[-1]})
    splits = FIELDS["diagnostics.splits"]
    histograms = {
        name: {split: {f"{at:g}": _histogram(rows, name, split, at) for at in chosen} for split in splits}
        for name in HISTOGRAMS
    }
    found = {
        "examples": {split: select(rows, Diagnostic, name="nll", split=split, outcome=None)[0].n for split in splits},
        "epochs": epochs,
        "weight_norm": [row.value for row in sorted(select(rows, Diagnostic, name="weight_norm"), key=_epoch)],
        "means": {split: _means(rows, split, epochs) for split in splits},
        "reliability": {split: {f"{at:g}": _reliability(rows, split, at) for at in chosen} for split in splits},
        "histograms": histograms,
        "images": _images(workdir, every),
    }
    return rounded(found, 4)


def _epoch(row: Any) -> float:
    return row.epoch


def _means(rows: list, split: str, epochs: list[float]) -> dict[str, list[float | None]]:
    """Name and outcome -> value by epoch; None where no example has that outcome."""
    found: dict[str, list[float | None]] = {}
    for name in MEANS:
        for outcome in (None, "correct", "wrong"):
            of_epoch = {
                row.epoch: row.value for row in select(rows, Diagnostic, name=name, split=split, outcome=outcome)
            }
            found[f"{name} {outcome}" if outcome else name] = [of_epoch.get(epoch) for epoch in epochs]
    bins = {epoch: _bins(rows, split, epoch) for epoch in epochs}
    found["error"] = [sum(row.share * (1 - row.value) for row in bins[epoch]) for epoch in epochs]
    found["ece"] = [sum(row.share * abs(row.value - row.confidence) for row in bins[epoch]) for epoch in epochs]
    return found


def _bins(rows: list, split: str, epoch: float) -> list[ReliabilityBin]:
    own = select(rows, ReliabilityBin, name="reliability", split=split, method=None)
    return [row for row in own if row.epoch == epoch]


def _reliability(rows: list, split: str, epoch: float) -> list[list[float]]:
    """Of each bin that is not empty: lower and upper edge, share of the examples, confidence, accuracy."""
    return [[row.lower, row.upper, row.share, row.confidence, row.value] for row in _bins(rows, split, epoch)]


def _histogram(rows: list, name: str, split: str, epoch: float) -> list[list[float]]:
    """Of each bin that is not empty: lower and upper edge, share of the examples."""
    own = select(rows, HistogramBin, name=f"{name}_histogram", split=split)
    return [[row.lower, row.upper, row.value] for row in own if row.epoch == epoch]


def _images(workdir: Path, rows: list) -> dict[str, Any]:
    """By image: index in the split, label, prediction, confidence as trained and after T, fitted on val by ECE."""
    test = records.read_predictions(workdir, "test")
    fitted = select(rows, Fit, name="temperature", method="temperature_scaling", criterion="ece")
    index = np.arange(IMAGES) * len(test.labels) // IMAGES
    logits = test.logits[index].astype(np.float64)
    return {
        "index": index.tolist(),
        "label": test.labels[index].tolist(),
        "predicted": logits.argmax(-1).tolist(),
        "confidence": softmax(logits, axis=-1).max(-1).tolist(),
        "after": softmax(logits / fitted[0].value, axis=-1).max(-1).tolist(),
        "temperature": fitted[0].value,
    }
