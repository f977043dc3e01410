"""What training does to right and wrong examples, epoch by epoch, of one finished job: the rows of its diagnostics.

A run with FIELDS holds these for its first training and test examples. `diagnosed` makes them small enough to store.
"""

from pathlib import Path
from typing import Any

import numpy as np

from experiments import jobs
from experiments.outputs import train_outputs
from experiments.writing import rounded
from focalgeo import records
from focalgeo.rows import Diagnostic, Fit, HistogramBin, ReliabilityBin, select

FIELDS = {"diagnostics.every": 1, "diagnostics.splits": ("train", "test"), "diagnostics.examples": 5000}
MEANS = ("nll", "entropy", "true_class_probability", "gradient_norm")
PROBABILITY_BINS = 20
EXAMPLES = 6  # of right and of wrong test images


def diagnosed(workdir: Path) -> dict[str, Any]:
    """Means by epoch, split and outcome; reliability and histograms at three epochs; some test images.

    "means" -> split -> name, or name and outcome as "nll wrong" -> value by epoch; "error" and "ece" (25 bins) are
    there too. "reliability" and "gradient_norm_histogram" -> split -> epoch -> bins. "true_class_probability" -> split
    -> shares of `PROBABILITY_BINS` bins at the end. "images" are indices in the test split.
    """
    rows = [row for row in jobs.rows_of(workdir) if row.tags.epoch is not None]
    epochs = sorted({row.tags.epoch for row in select(rows, Diagnostic)})
    chosen = sorted({epochs[0], epochs[len(epochs) // 2], epochs[-1]})
    splits = FIELDS["diagnostics.splits"]
    found = {
        "epochs": epochs,
        "weight_norm": [row.value for row in sorted(select(rows, Diagnostic, name="weight_norm"), key=_epoch)],
        "means": {split: _means(rows, split, epochs) for split in splits},
        "reliability": {split: {f"{at:g}": _reliability(rows, split, at) for at in chosen} for split in splits},
        "gradient_norm_histogram": {split: {f"{at:g}": _norms(rows, split, at) for at in chosen} for split in splits},
        "true_class_probability": _probabilities(workdir),
        "images": _images(workdir),
    }
    return rounded(found, 4)


def _epoch(row: Any) -> int:
    return row.tags.epoch


def _means(rows: list, split: str, epochs: list[int]) -> dict[str, list[float | None]]:
    """Name and outcome -> value by epoch; None where no example has that outcome."""
    found: dict[str, list[float | None]] = {}
    for name in MEANS:
        for outcome in (None, "correct", "wrong"):
            of_epoch = {
                row.tags.epoch: row.value for row in select(rows, Diagnostic, name=name, split=split, outcome=outcome)
            }
            found[f"{name} {outcome}" if outcome else name] = [of_epoch.get(epoch) for epoch in epochs]
    bins = {epoch: _bins(rows, split, epoch) for epoch in epochs}
    found["error"] = [sum(row.share * (1 - row.value) for row in bins[epoch]) for epoch in epochs]
    found["ece"] = [sum(row.share * abs(row.value - row.confidence) for row in bins[epoch]) for epoch in epochs]
    return found


def _bins(rows: list, split: str, epoch: int) -> list[ReliabilityBin]:
    own = select(rows, ReliabilityBin, name="reliability", split=split, method=None)
    return [row for row in own if row.tags.epoch == epoch]


def _reliability(rows: list, split: str, epoch: int) -> list[list[float]]:
    """Of each bin that is not empty: lower and upper edge, share of the examples, confidence, accuracy."""
    return [[row.lower, row.upper, row.share, row.confidence, row.value] for row in _bins(rows, split, epoch)]


def _norms(rows: list, split: str, epoch: int) -> list[list[float]]:
    """Of each bin that is not empty: lower and upper edge, share of the examples."""
    own = select(rows, HistogramBin, name="gradient_norm_histogram", split=split)
    return [[row.lower, row.upper, row.value] for row in own if row.tags.epoch == epoch]


def _probabilities(workdir: Path) -> dict[str, list[float]]:
    """Split -> shares of the examples by the probability of their own class, at the end."""
    test = records.read_predictions(workdir, "test")
    pairs = {"train": train_outputs(workdir), "test": (test.logits, test.labels)}
    found = {}
    for split, (logits, labels) in pairs.items():
        own = np.take_along_axis(_softmax(logits), labels[:, None].astype(int), 1)[:, 0]
        counts = np.histogram(own, np.linspace(0, 1, PROBABILITY_BINS + 1))[0]
        found[split] = (counts / len(own)).tolist()
    return found


def _images(workdir: Path) -> list[dict[str, Any]]:
    """The surest wrong and evenly spaced right test images: index, label, prediction, confidence before and after T."""
    test = records.read_predictions(workdir, "test")
    fitted = select(jobs.rows_of(workdir), Fit, name="temperature", method="temperature_scaling", criterion="ece")
    probs, after = _softmax(test.logits), _softmax(test.logits / fitted[0].value)
    right = probs.argmax(-1) == test.labels
    surest = np.argsort(-probs.max(-1), kind="stable")
    wrong, correct = surest[~right[surest]], np.flatnonzero(right)
    chosen = [*wrong[:EXAMPLES], *correct[:: max(1, len(correct) // EXAMPLES)][:EXAMPLES]]
    return [
        {
            "index": int(index),
            "label": int(test.labels[index]),
            "predicted": int(probs[index].argmax()),
            "confidence": float(probs[index].max()),
            "after": float(after[index].max()),
        }
        for index in chosen
    ]


def _softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)
