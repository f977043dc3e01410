"""What a classifier's outputs and labels must be; each function raises InputError with one line."""

import numpy as np

from focalgeo.types import InputError

LARGEST_LOGIT = 1e30  # sums of more would leave float32
LEAST_EXAMPLES = 30
_NEGATIVE_ROUNDING = 1e-6  # a probability this far below 0 counts as 0
_SUM_TOLERANCE = {2: 2e-2, 4: 1e-3, 8: 1e-3}  # by bytes of the type: what rounding leaves of a sum of 1


def check_shapes(scores: np.ndarray, labels: np.ndarray, group: np.ndarray | None, given: str, where: str) -> None:
    """Refuses what is not one row of two or more classes for each label, and fewer than 30 rows."""
    if scores.ndim != 2:
        hint = "; of two classes give both, np.stack([1 - p, p], 1)" if scores.ndim == 1 else ""
        raise InputError(f"{where}: {given} have shape {scores.shape}: give [examples, classes]{hint}")
    for name, array in (("labels", labels), ("group", group)):
        if array is not None and array.shape != scores.shape[:1]:
            shapes = f"{name} have shape {array.shape}, {given} {scores.shape}"
            raise InputError(f"{where}: {shapes}: give one for each row of {given}")
    if scores.shape[1] < 2:
        raise InputError(f"{where}: {given} have {scores.shape[1]} class: give two or more")
    if len(scores) < LEAST_EXAMPLES:
        few = f"{where} has {len(scores)} examples, too few to fit or to measure calibration"
        raise InputError(f"{few}: give {LEAST_EXAMPLES} at the very least, and some hundreds for a useful answer")


def check_values(scores: np.ndarray, labels: np.ndarray, given: str, where: str) -> None:
    """Refuses numbers that are not finite or too large, and labels out of range or of one class."""
    bad = np.flatnonzero(~np.isfinite(scores).all(axis=1))
    if bad.size:
        what = f"{where}: {given} of {bad.size} examples are NaN or infinite"
        raise InputError(f"{what}, the first in row {bad[0]}: remove or mend them")
    largest = float(np.abs(scores).max())
    if largest > LARGEST_LOGIT:
        raise InputError(f"{where}: {given} run up to {largest:.3g}, beyond {LARGEST_LOGIT:g}: look for what made them")
    outside = np.flatnonzero((labels < 0) | (labels >= scores.shape[1]))
    if outside.size:
        first, last = outside[0], scores.shape[1] - 1
        what = f"{where}: labels[{first}] is {labels[first]}"
        raise InputError(f"{what}: with {last + 1} classes give labels from 0 to {last}")
    if labels.min() == labels.max():
        raise InputError(f"{where}: all labels are {labels[0]}, one class: calibration needs examples of two or more")


def check_probs(probs: np.ndarray, where: str) -> None:
    """Refuses negative numbers (beyond rounding) and rows that do not sum to 1."""
    negative = np.argwhere(probs < -_NEGATIVE_ROUNDING)
    if negative.size:
        row, column = negative[0]
        what = f"{where}: probs[{row}, {column}] is {probs[row, column]:.6g}, no probability"
        raise InputError(f"{what}: if these are logits, say --logits-key")
    off = np.abs(probs.sum(axis=1, dtype=np.float64) - 1)
    wrong = np.count_nonzero(off > _tolerance(probs))
    if wrong:
        worst = int(off.argmax())
        total = probs[worst].sum(dtype=np.float64)
        what = (
            f"{where}: {wrong} of {len(probs)} rows of probs do not sum to 1, the worst is row {worst} with {total:.6g}"
        )
        raise InputError(f"{what}: give probabilities of all classes, or say --logits-key if these are logits")


def check_group(group: np.ndarray, where: str) -> None:
    """Refuses groups that are NaN or empty."""
    missing = group != group if group.dtype.kind == "f" else np.char.strip(group.astype(str)) == ""
    if missing.any():
        first = int(np.flatnonzero(missing)[0])
        raise InputError(f"{where}: group of {missing.sum()} examples is missing, the first in row {first}: name them")


def _tolerance(probs: np.ndarray) -> float:
    """What rounding leaves of a sum of 1, by the digits that the numbers hold: bfloat16 may come as float32."""
    if probs.dtype.kind != "f":
        return 0.0
    if probs.dtype.itemsize == 4 and not np.any(np.ascontiguousarray(probs).view(np.uint32) & 0xFFFF):
        return _SUM_TOLERANCE[2]
    return _SUM_TOLERANCE.get(probs.dtype.itemsize, 1e-3)


def sums_to_1(scores: np.ndarray) -> bool:
    """Whether the scores could be probabilities."""
    close = np.abs(scores.sum(axis=1, dtype=np.float64) - 1) <= _tolerance(scores)
    return bool((scores >= 0).all() and (scores <= 1).all() and close.all())
