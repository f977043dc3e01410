"""Who counts which example: the edge cases of ECE, asked of four libraries.

How each was asked. focalgeo: ece or binary_ece of the float32 logarithms of the probabilities. torchmetrics:
multiclass_calibration_error of all columns, binary_calibration_error of P(class 1). scikit-learn has no ECE:
calibration_curve was given the event and its probability, and the gaps of its points were averaged. netcal:
ECE(bins).measure of all columns; of P(class 1) alone in the row p = 0.

torchmetrics puts a confidence of exactly 1 into a bin of its own (its issue 3510) and takes rows with NaN for logits;
netcal refuses three classes of which the labels hold two, refuses bfloat16, and for two columns gives a value that is
neither that of class 1 nor that of the predicted class (its issues 25 and 37 are of this kind).
"""

import math
from fractions import Fraction
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pandas as pd
from sklearn.calibration import calibration_curve

from experiments import timing
from experiments.numbers import NOT, SHOWS, Claim
from experiments.question import Job, Question
from focalgeo import calibration

TOLERANCE = 1e-5


class Case(NamedTuple):
    """Predictions and what is asked of them."""

    name: str
    kind: str  # "top_label": is the predicted class right; "class_one": is the label 1, of P(class 1)
    probs: np.ndarray  # [examples, classes]
    labels: np.ndarray
    num_bins: int
    fault: str  # what gives another value

    def event(self) -> tuple[np.ndarray, np.ndarray]:
        """The probabilities [examples] that are judged and whether each came true, in the type of the case."""
        if self.kind == "class_one":
            return self.probs[:, 1], self.labels == 1
        return self.probs.max(axis=1), self.probs.astype(np.float64).argmax(axis=1) == self.labels

    def exact(self) -> float:
        """ECE over bins ((i-1)/M, i/M], in exact arithmetic; NaN where a probability is.

        0 is in the first bin, and what is within 1e-6 of an edge is on it: 0.6 as it was written is no float32.
        """
        p, came_true = self.event()
        if np.isnan(p.astype(float)).any():
            return math.nan
        shares = pd.Series([Fraction(float(probability)) for probability in p])
        bins = [max(math.ceil((share - Fraction(1, 10**6)) * self.num_bins), 1) for share in shares]
        return float((shares - came_true.astype(int)).groupby(bins).sum().abs().sum() / len(p))


def _two(p, dtype=np.float32):
    p = np.asarray(p, dtype)
    return np.stack([(1 - p.astype(np.float64)).astype(dtype), p], axis=1)


def cases() -> list[Case]:
    """All cases, in the order of the table."""
    halves, mixed, shifted = [1, 0] * 5, [0.1] * 10 + [0.9] * 10, [1, 1, *[0] * 8, *[1] * 10]
    three = np.float32([[0.75, 0.125, 0.125], [0.75, 0.125, 0.125], [0.125, 0.125, 0.75], [0.125, 0.125, 0.75]])
    spoiled = _two([0.75] * 4)
    spoiled[1] = np.nan
    rows = [
        ("p = 1", "top_label", _two([1.0, 0.95] * 5), [0, 1] * 5, 10, "a bin of its own for 1"),
        ("p = 0", "class_one", _two([0.0, 0.05] * 5), halves, 10, "0 is in no bin"),
        ("tie at an edge", "top_label", _two([0.75, 0.625] * 5), [0, 1] * 5, 4, "bins closed on the left"),
        ("0.6 in float32", "top_label", _two([0.6, 0.65] * 5), halves, 10, "the last bit of float32 decides"),
        ("empty bins", "top_label", _two([0.5625, 0.9375] * 5), [1] * 10, 10, "empty bins are counted"),
        ("a class no label has", "top_label", three, [0, 2, 2, 0], 10, "classes are read off the labels"),
        ("two columns, class 1", "class_one", _two(mixed), shifted, 10, "the predicted class is judged: 0"),
        ("two columns, top label", "top_label", _two(mixed), shifted, 10, "class 1 is judged: 0.1"),
        ("a NaN row", "top_label", spoiled, [1, 1, 0, 1], 10, "the row is dropped or binned in silence"),
        ("bfloat16", "top_label", _two([0.6] * 600, ml_dtypes.bfloat16), [1, 0] * 300, 10, "sums stop at 256"),
    ]
    return [Case(name, kind, probs, np.int32(y), bins, fault) for name, kind, probs, y, bins, fault in rows]


# ---- the same question put to each library in its own words


def focalgeo_ece(case: Case) -> float:
    """`ece` or `binary_ece` of the float32 logarithms of the probabilities."""
    with np.errstate(divide="ignore"):
        log_probs = np.log(case.probs.astype(np.float32))
    metric = calibration.binary_ece if case.kind == "class_one" else calibration.ece
    return float(metric(log_probs, case.labels, num_bins=case.num_bins))


def torchmetrics_ece(case: Case) -> float:
    """binary_calibration_error of P(class 1), multiclass_calibration_error of all columns."""
    import torch
    from torchmetrics.functional import classification

    dtype = torch.float32 if case.probs.dtype == np.float32 else torch.bfloat16
    probs = torch.tensor(case.probs.astype(np.float32)).to(dtype)
    labels = torch.tensor(case.labels.astype(np.int64))
    if case.kind == "class_one":
        return float(classification.binary_calibration_error(probs[:, 1], labels, n_bins=case.num_bins))
    return float(classification.multiclass_calibration_error(probs, labels, probs.shape[1], case.num_bins))


def sklearn_curve(case: Case) -> float:
    """Mean |share - mean probability| over the points of calibration_curve, with the event handed in."""
    p, came_true = case.event()
    share, mean = calibration_curve(came_true.astype(int), p, n_bins=case.num_bins)
    return float(np.mean(np.abs(share - mean)))


def netcal_ece(case: Case) -> float:
    """ECE.measure of the whole array, or of P(class 1) where that is asked and the columns are not the question."""
    from netcal.metrics import ECE

    columns = case.kind == "top_label" or case.name.startswith("two columns")
    return float(ECE(bins=case.num_bins).measure(case.probs if columns else case.probs[:, 1], case.labels))


LIBRARIES = {
    "focalgeo": focalgeo_ece,
    "torchmetrics": torchmetrics_ece,
    "scikit-learn": sklearn_curve,
    "netcal": netcal_ece,
}


def answer(library: str, case: Case) -> float | str:
    """The library's value, "NaN", or "error: ..." with the first line of what it raised."""
    try:
        value = LIBRARIES[library](case)
        return "NaN" if math.isnan(value) else value
    except Exception as error:  # whatever a library raises is its answer
        first = str(error).strip().splitlines()
        return f"error: {type(error).__name__}{': ' + first[0] if first else ''}"


def measure() -> list[dict[str, Any]]:
    """For each case the exact value and each installed library's answer."""
    installed = [name for name in LIBRARIES if timing.version(name)]
    rows = []
    for case in cases():
        expected = "NaN" if math.isnan(case.exact()) else case.exact()
        row = {"case": case.name, "asked": case.kind, "bins": case.num_bins, "fault": case.fault, "expected": expected}
        rows.append(row | {"answers": {name: answer(name, case) for name in installed}})
    return rows


def agrees(value: float | str, expected: float | str) -> bool:
    """Whether an answer is the exact value; where that is NaN, a refusal is right too."""
    if isinstance(value, str) or isinstance(expected, str):
        return isinstance(value, str) and expected == "NaN"
    return abs(value - expected) < TOLERANCE


def claims(versions, rows):
    """For each installed library whether all its answers are exact."""
    for name in filter(versions.get, versions):
        right = [agrees(row["answers"][name], row["expected"]) for row in rows]
        words, because = f"{name} gives the exact ECE in every case", f"{sum(right)} of {len(right)} cases"
        yield Claim("focalgeo", words, SHOWS if all(right) else NOT, because)


def table(versions, rows):
    """An answer in bold is not the exact value."""
    heads = (f"{name} {version or '(not installed)'}" for name, version in versions.items())
    yield "case", "asked", "exact", *heads, "another value means"
    for row in rows:
        answers = (_cell(row["answers"].get(name), row["expected"]) for name in versions)
        yield row["case"], row["asked"].replace("_", " "), f"{float(row['expected']):.5g}", *answers, row["fault"]


def _cell(value, expected):
    if value is None:
        return "not installed"
    is_error = isinstance(value, str) and value != "NaN"
    text = value.replace("|", "/") if is_error else f"{float(value):.5g}"
    return text if agrees(value, expected) else f"**{text}**"


def plan(flags, parts):
    """Versions, None of what is not installed, and answers."""
    yield Job({}, (), lambda out: {name: timing.version(name) for name in LIBRARIES}, part="versions")
    yield Job({}, (), lambda out: measure(), part="rows")


QUESTION = Question(
    "which_ece",
    "Which ECE is this? Edge cases, and what each library counts",
    claims,
    tables={"answers": table},
    jobs=plan,
    cost="a minute on 2 cores",
    seeds=None,
)
