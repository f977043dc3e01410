"""Classifier outputs with their labels, read from files of any framework: logits or probabilities, as the user says.

Nothing in a file is ever executed.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from focalgeo import checks, files
from focalgeo.data.output_arrays import Keys, Outputs, array_of, open_arrays, read_arrays
from focalgeo.types import OFF_ONE, PROBABILITY_FLOOR, InputError, floored_log, look_like_probabilities

# Sums of larger numbers would leave float32.
_LARGEST_LOGIT = 1e30
# Up to here float32 rounds a logit by 0.03 at the most.
_LARGE_LOGIT = 1e6
_FEWEST_EXAMPLES = 30
# A probability so little below 0 is rounding, and counts as 0.
_NEGATIVE_ROUNDING = 1e-6
# Up to this n probabilities are looked at as multiples of 1/n, as votes are.
_MOST_VOTES = 1000
_DECIMALS = (10**4, 10**5, 10**6)
# From this n on a row of multiples of 1/n may miss the sum 1 by what rounding explains, which votes never do.
_FINE = 10
# By so much float32 may miss a multiple.
_STORED = 2e-7
_KINDS = {"labels": "iu", "group": "U", "cluster": "U", "weight": "fiu"}  # of NumPy's types


def read_outputs(source: str, keys: Keys, *, where: str, floor: float | None = None) -> Outputs:
    """Read logits (or probabilities), labels and perhaps groups, clusters and weights.

    One column of scores is that of class 1 of two: a probability p becomes log [1 - p, p], a logit s [0, s]. Labels of
    columns that are named for classes may be those names. An empty cell of a table is a class that cannot be.

    Args:
        source: A path of arrays or of a table, or "logits=z.npy,labels=y.npy[,group=g.npy]"; "probs=" likewise.
        keys: Names of the arrays in the file, and how labels are read.
        where: The name of the split, for messages; of any but "val" labels may be missing.
        floor: What smaller probabilities count as, before rows are divided by their sums; None for 1.2e-38, which
            stands for a zero: what that counts as is chosen when methods are fitted.

    Raises:
        InputError: a file that cannot be read, pickled objects, an array that is missing, a wrong shape or type,
        numbers that are not finite, labels out of range, probabilities that are none, fewer than 30 examples.
    """
    flag = f"--{where}" if where in ("val", "test") else f"--test={where}"
    with files.reading(f"{flag}={source}"):
        outputs = read_arrays(source, keys, where)
    for fault in _faults(outputs):
        raise InputError(f"{where}: {fault}")
    scores, is_probs = outputs.logits, outputs.kind == "probs"
    possible = scores > -np.inf
    filled = np.where(possible, scores, 0)
    unit = _unit(filled) if is_probs else 0
    if is_probs:
        logits = floored_log(filled, floor or PROBABILITY_FLOOR)
    elif scores.dtype.itemsize > 4 and np.abs(filled).max() > _LARGE_LOGIT:
        # float32 would round their differences away, so each row less its maximum comes first
        logits = scores.astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
    else:
        logits = filled
    return outputs._replace(
        logits=np.where(possible, logits, -np.inf).astype(np.float32),
        labels=None if outputs.labels is None else outputs.labels.astype(np.int32),
        unit=unit,
        looks_like_probs=not is_probs and look_like_probabilities(scores, OFF_ONE),
    )


def read_calibrated(path: str, shapes: Mapping[str, tuple[int, ...]], *, where: str) -> dict[str, np.ndarray]:
    """Log-probabilities by a method from elsewhere, an array of probabilities for each split.

    Args:
        path: A file with an array for each split, named as it.
        shapes: Split -> [examples, classes] that its array must have.
        where: The flag and name, for errors.

    Raises:
        InputError: a file that cannot be read, an array that is missing, of another shape, or no probabilities.
    """
    with files.reading(path):
        arrays = open_arrays(Path(os.path.expanduser(path)), Keys())
        probs = {split: array_of(arrays, split, "probs", where) for split in shapes}
    for split, array in probs.items():
        if array.dtype.kind not in "fiu" or array.shape != shapes[split]:
            mend = f"give probabilities {list(shapes[split])}, as --{split} has examples and classes"
            raise InputError(f"{where}: {split} is {array.dtype}{list(array.shape)}: {mend}")
        for fault in _faults_of_scores(array, "probs"):
            raise InputError(f"{where}, {split}: {fault}")
    return {split: floored_log(array) for split, array in probs.items()}


def _unit(probs):
    """The least n of which all values are multiples of 1/n; 0 where there is none, and where no value is 0.

    Sought are n up to 1,000, of votes or two and three decimals, and four to six decimals.
    """
    values = np.unique(probs.astype(np.float64)) if (probs <= 0).any() else probs[:0]
    for n in (*range(max(values.size - 1, 2), _MOST_VOTES + 1), *_DECIMALS) if values.size > 2 else ():
        if (np.abs(values * n - np.round(values * n)) <= n * _STORED).all() and values[values > 0][0] * n > 0.5:
            return n
    return 0


def _faults(outputs):
    """What is wrong with the arrays, one line each; a line may be asked for only where those above it do not hold."""
    scores, kind, place, is_labelled = outputs.logits, outputs.kind, outputs.place, outputs.labels is not None
    if scores.dtype.kind not in "fiu" or scores.ndim != 2 or scores.shape[1] < 2:
        both = "np.stack([1 - p, p], 1)" if kind == "probs" else "np.stack([0 * z, z], 1)"
        what = f"{kind} are {str(scores.dtype)[:60]} of shape {scores.shape}"
        yield f"{what}: give numbers [examples, classes]; of two classes give both, {both}"
    for role, types in _KINDS.items():
        values = getattr(outputs, role)
        if values is not None and (values.shape != scores.shape[:1] or values.dtype.kind not in types):
            what = f"{role} is {str(values.dtype)[:60]} of shape {values.shape}, {kind} have shape {scores.shape}"
            mend = (
                checks.label_advice(values, scores.shape) if role == "labels" else "give a name or number for each row"
            )
            yield f"{what}: {mend}"
    labels, classes = outputs.labels if is_labelled else scores.argmax(axis=1), scores.shape[1]
    if len(labels) < (_FEWEST_EXAMPLES if is_labelled else 1):
        mend = f"give {_FEWEST_EXAMPLES} at the very least, and some hundreds for a useful answer"
        yield f"it has {len(labels)} examples, too few to fit or to measure calibration: {mend}"
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        what = f"labels run from {labels.min()} to {labels.max()}: with {classes} classes give labels from 0 to"
        first = f"the first is in {place(np.argmax(wrong))}"
        yield f"{what} {classes - 1}; {first}; {checks.label_advice(labels, scores.shape)}"
    yield from _faults_of_scores(np.where(scores == -np.inf, 0, scores), kind, place)
    of_label = scores[np.arange(len(labels)), labels]
    if of_label.min() == -np.inf:
        yield f"in {place(np.argmin(of_label))} no class, or not that of the label, has a score: mend or remove it"
    if is_labelled and labels.min() == labels.max():
        yield f"all labels are {labels[0]}, one class: calibration needs examples of two or more"
    for role in ("group", "cluster"):
        values = getattr(outputs, role)
        for name in () if values is None else set(values.tolist()):
            if not (name.strip() and name.isprintable()):
                yield f"{role} {name!a} is no name on one line: name them all"
    weight = np.ones(1) if outputs.weight is None else outputs.weight
    wrong = ~((weight > 0) & (weight <= _LARGEST_LOGIT))
    if wrong.any():
        yield f"weight in {place(np.argmax(wrong))} is {weight[np.argmax(wrong)]}: give numbers above 0"


def _faults_of_scores(scores, kind, place="row {}".format):
    wrong = ~(np.abs(scores.astype(np.promote_types(scores.dtype, np.float64))) <= _LARGEST_LOGIT).all(axis=1)
    if wrong.any():
        what = f"{kind} of {wrong.sum()} examples are NaN, infinite or beyond {_LARGEST_LOGIT:g}"
        low = kind == "logits" and (scores <= _LARGEST_LOGIT).all()  # and no NaN; -inf has been taken out
        mend = "give -inf for a class that cannot be, in its column alone" if low else "remove or mend them"
        yield f"{what}, the first in {place(np.argmax(wrong))}: {mend}"
    if kind == "probs":
        sums = scores.sum(axis=1, dtype=np.float64)
        unit = _unit(scores) if (np.abs(sums - 1) > OFF_ONE).any() else 0
        off = max(OFF_ONE, scores.shape[1] / (2 * unit) if unit >= _FINE else 0)  # what rounding may leave
        wrong = (scores < -_NEGATIVE_ROUNDING).any(axis=1) | (np.abs(sums - 1) > off)
        if wrong.any():
            row = np.argmax(wrong)
            what = f"{wrong.sum()} rows of probs are negative or do not sum to 1, the first is {place(row)}"
            yield f"{what} with {sums[row]:.6g}: {checks.probability_advice(scores)}"
