"""Classifier outputs with their labels, read from files of any framework: logits or probabilities, as the user says.

Nothing in a file is ever executed.
"""

import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import numpy as np

from focalgeo import checks, files
from focalgeo.data.output_arrays import Keys, Outputs, array_of, open_arrays, read_arrays, rows_of
from focalgeo.types import FEWEST_EXAMPLES, OFF_ONE, PROBABILITY_FLOOR, InputError, floored_log, look_like_probabilities

# Sums of larger numbers would leave float32.
_LARGEST_LOGIT = 1e30
# The squares of larger differences would leave it too.
_LARGEST_GAP = 1e15
# Up to here float32 rounds a logit by 0.03 at the most.
_LARGE_LOGIT = 1e6
# A probability so little below 0 is rounding, and counts as 0.
_NEGATIVE_ROUNDING = 1e-6
# Up to this n probabilities are looked at as multiples of 1/n, as votes are.
_MOST_VOTES = 1000
_DECIMALS = (10**4, 10**5, 10**6)
# From this n on a row of multiples of 1/n may miss the sum 1 by what rounding explains, which votes never do.
_FINE = 10
# By so much float32 may miss a multiple.
_STORED = 2e-7
_OF_THREE = {  # axes
    "probs": "; of an ensemble [members, examples, classes] give probs.mean(axis=0), of several labels [labels,"
    " examples, 2] probs[..., 1].T and --task=multilabel",
    "logits": "; of an ensemble [members, examples, classes] give scipy.special.logsumexp(scipy.special.log_softmax("
    "logits, axis=-1), axis=0), of several labels [labels, examples, 2] (logits[..., 1] - logits[..., 0]).T and"
    " --task=multilabel",
}
# Scores of which no larger share of the rows is none are probabilities with faults.
_FEW_WRONG = 0.1
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
        outputs = _of_classes(read_arrays(source, keys, where))
    parts = [outputs]
    if keys.multilabel and outputs.left_out:  # all scores are calibrated, and those with a label are measured
        parts = [rows_of(outputs, outputs.labels >= 0), outputs._replace(labels=None)]
    for fault in chain.from_iterable(map(_faults, parts)):
        raise InputError(f"{where}: {fault}")
    scores, is_probs = outputs.logits, outputs.kind == "probs"
    possible, unit = scores > -np.inf, 0
    logits = np.where(possible, scores, 0)
    if is_probs:
        unit, logits = _unit(logits), floored_log(logits, floor or PROBABILITY_FLOOR)
    elif scores.dtype.itemsize > 4 and np.abs(logits).max() > _LARGE_LOGIT:
        # float32 would round their differences away, so each row minus its maximum comes first
        logits = scores.astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
    return outputs._replace(
        logits=np.where(possible, logits, -np.inf).astype(np.float32),
        labels=None if outputs.labels is None else outputs.labels.astype(np.int32),
        unit=unit,
        looks_like_probs=not is_probs and look_like_probabilities(scores, np.inf),
    )


def _of_classes(outputs):
    """Scores of one column, class 1's, as [1 - p, p] or [0, s]; which of both they are may be for them to say."""
    cells, kind, scores, is_column = outputs.logits, outputs.kind, outputs.logits, outputs.logits.ndim == 1
    if is_column:
        scores = np.stack([1 - cells.astype(np.float64), cells], axis=1)
    if kind == "scores":
        # Taken for probabilities where they may be, they are refused with the row that is none.
        is_logits = (cells < 0).any() and _are_wrong(np.where(scores == -np.inf, 0, scores)).mean() > _FEW_WRONG
        kind = "logits" if is_logits else "probs"
    if is_column and kind == "logits":
        scores[:, 0] = 0
    return outputs._replace(kind=kind, logits=scores, is_column=is_column)


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
        what = f"{kind} are {str(scores.dtype)[:60]} of shape {scores.shape}: give numbers [examples, classes]"
        yield what + (_OF_THREE[kind] if scores.ndim == 3 else "")
    for role, types in _KINDS.items():
        values = getattr(outputs, role)
        if values is not None and (values.shape != scores.shape[:1] or values.dtype.kind not in types):
            what = f"{role} is {str(values.dtype)[:60]} of shape {values.shape}, {kind} have shape {scores.shape}"
            mend = (
                checks.label_advice(values, scores.shape) if role == "labels" else "give a name or number for each row"
            )
            yield f"{what}: {mend}"
    labels, classes = outputs.labels if is_labelled else scores.argmax(axis=1), scores.shape[1]
    if len(labels) < (FEWEST_EXAMPLES if is_labelled else 1):
        mend = f"give {FEWEST_EXAMPLES} at the very least, and some hundreds for a useful answer"
        yield f"it has {len(labels)} examples, too few to fit or to measure calibration: {mend}"
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        what = f"labels run from {labels.min()} to {labels.max()}: with {classes} classes give labels from 0 to"
        first = f"the first is in {place(np.argmax(wrong))}"
        yield f"{what} {classes - 1}; {first}; {checks.label_advice(labels, scores.shape)}"
    yield from _faults_of_scores(np.where(scores == -np.inf, 0, scores), kind, place, outputs.is_column)
    of_label = scores[np.arange(len(labels)), labels]
    wrong = ~(of_label > np.float64(scores.max(axis=1)) - _LARGEST_GAP)
    if wrong.any():
        what = f"has a score, or one less than {_LARGEST_GAP:g} below the largest"
        yield f"in {place(np.argmax(wrong))} no class, or not that of the label, {what}: fix or remove it"
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


def _faults_of_scores(scores, kind, place="row {}".format, is_column=False):
    wrong = ~(np.abs(scores.astype(np.promote_types(scores.dtype, np.float64))) <= _LARGEST_LOGIT).all(axis=1)
    if wrong.any():
        what = f"{kind} of {wrong.sum()} examples are NaN, infinite or beyond {_LARGEST_LOGIT:g}"
        low = kind == "logits" and (scores <= _LARGEST_LOGIT).all()  # and no NaN; -inf has been taken out
        mend = "give -inf for a class that cannot be, in its column alone" if low else "remove or fix them"
        yield f"{what}, the first in {place(np.argmax(wrong))}: {mend}"
    if kind == "probs" and (wrong := _are_wrong(scores)).any():
        row, what, cells = np.argmax(wrong), "rows of probs are negative or do not sum to 1", scores
        if is_column:
            what, cells = "values of probs are outside [0, 1]", scores[:, 1]
        where = f"{wrong.sum()} {what}, the first is {place(row)} with {cells[row].sum():.6g}"
        yield f"{where}: {checks.probability_advice(cells)}"


def _are_wrong(scores):
    """Rows that are no probabilities: negative, or of another sum than 1 by more than rounding leaves."""
    sums = scores.sum(axis=1, dtype=np.float64)
    unit = _unit(scores) if (np.abs(sums - 1) > OFF_ONE).any() else 0
    off = max(OFF_ONE, scores.shape[1] / (2 * unit) if unit >= _FINE else 0)
    return (scores < -_NEGATIVE_ROUNDING).any(axis=1) | (np.abs(sums - 1) > off)
