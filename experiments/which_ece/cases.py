"""Small predictions at the edges of the definition of ECE, each with the value that exact arithmetic gives.

In every case the bins that are not empty hold equally many examples, so that a library which returns only the points of
a curve can be compared too.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import ml_dtypes
import numpy as np


class Case(NamedTuple):
    """Predictions and what is asked of them."""

    name: str
    kind: str  # "top_label": is the predicted class right; "class_one": is the label 1, of P(class 1)
    probs: np.ndarray  # [examples, classes]
    labels: np.ndarray
    num_bins: int
    fault: str  # what gives another value


def _two_columns(p, dtype=np.float32):
    p = np.asarray(p, dtype)
    return np.stack([(1 - p.astype(np.float64)).astype(dtype), p], axis=1)


def cases() -> list[Case]:
    """All cases, in the order of the table."""
    halves = [1, 0] * 5
    three = np.float32([[0.75, 0.125, 0.125], [0.75, 0.125, 0.125], [0.125, 0.125, 0.75], [0.125, 0.125, 0.75]])
    mixed = [0.1] * 10 + [0.9] * 10
    shifted = [1, 1, *[0] * 8, *[1] * 10]
    spoiled = _two_columns([0.75, 0.75, 0.75, 0.75])
    spoiled[1] = np.nan
    rows = [
        ("p = 1", "top_label", _two_columns([1.0, 0.95] * 5), [0, 1] * 5, 10, "a bin of its own for 1"),
        ("p = 0", "class_one", _two_columns([0.0, 0.05] * 5), halves, 10, "0 is in no bin"),
        ("tie at an edge", "top_label", _two_columns([0.75, 0.625] * 5), [0, 1] * 5, 4, "bins closed on the left"),
        ("float32 above an edge", "top_label", _two_columns([0.6, 0.65] * 5), halves, 10, "rounded edges"),
        ("empty bins", "top_label", _two_columns([0.5625, 0.9375] * 5), [1] * 10, 10, "empty bins are counted"),
        ("a class no label has", "top_label", three, [0, 2, 2, 0], 10, "classes are read off the labels"),
        ("two columns, class 1", "class_one", _two_columns(mixed), shifted, 10, "the predicted class is judged: 0"),
        ("two columns, top label", "top_label", _two_columns(mixed), shifted, 10, "class 1 is judged: 0.1"),
        ("a NaN row", "top_label", spoiled, [1, 1, 0, 1], 10, "the row is dropped or binned in silence"),
        ("bfloat16", "top_label", _two_columns([0.6] * 600, ml_dtypes.bfloat16), [1, 0] * 300, 10, "sums stop at 256"),
    ]
    return [Case(name, kind, probs, np.int32(y), bins, fault) for name, kind, probs, y, bins, fault in rows]


def event(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The probabilities [examples] that are judged and whether each came true, in the type of the case."""
    if case.kind == "class_one":
        return case.probs[:, 1], case.labels == 1
    wide = case.probs.astype(np.float64)
    return case.probs.max(axis=1), wide.argmax(axis=1) == case.labels


def expected(case: Case) -> float:
    """ECE over bins ((i-1)/M, i/M], 0 in the first, in exact arithmetic; NaN where a probability is."""
    p, came_true = event(case)
    if np.isnan(p.astype(float)).any():
        return math.nan
    bins: dict[int, list[Fraction]] = {}
    for probability, outcome in zip(p, came_true, strict=True):
        exact = Fraction(float(probability))
        bins.setdefault(max(math.ceil(exact * case.num_bins), 1), []).append(exact - int(outcome))
    return float(sum(abs(sum(gaps)) for gaps in bins.values()) / len(p))
