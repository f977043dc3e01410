"""How to mend labels and scores that are not what is asked for, by what they hold: the end of a line of error."""

import numpy as np

from focalgeo.types import OFF_ONE


def of_labels(labels: np.ndarray, shape: tuple[int, ...]) -> str:
    """What to give in place of labels that are no class numbers, for scores of this shape [..., classes]."""
    *rows, classes = shape
    if labels.shape == shape and labels.dtype.kind in "biuf":
        sums = labels.sum(axis=-1, dtype=np.float64)
        if np.isin(labels, (-1, 0, 1)).all():
            return "these rows are multi-label: give --task=multilabel, or in Python calibration.binary_outputs"
        if (labels >= 0).all() and (abs(sums - 1) < OFF_ONE).all():
            return "these are soft labels, which metrics nll and brier and fits by NLL take: give classes here"
    if labels.shape != tuple(rows):
        if labels.shape == (*rows, 1):
            return "give labels[..., 0]"
        if labels.shape == (classes,) and len(rows) == 1:
            return (
                f"the scores seem to have classes first: give their transpose, {labels.size} rows of {rows[0]} classes"
            )
        return f"give one class number for each row, {list(rows)} of them"
    if labels.dtype.kind not in "iu":
        return _of_kind(labels)
    held = np.unique(labels)
    inside = (held >= 0) & (held < classes)
    if set(held.tolist()) <= {-1, 1} and classes == 2:
        return "of -1 and 1 give (labels + 1) // 2"
    if held[0] >= 1 and held[-1] == classes:
        return "if they count from 1, give labels - 1"
    if np.sum(~inside) == 1:
        other = held[~inside][0]
        return f"if {other} stands for no label, leave out these {np.sum(labels == other)} rows"
    return "give labels in the order of the columns, or all columns"


def _of_kind(labels):
    if labels.dtype.kind in "US":
        return (
            "of names give their numbers in the order of the columns, such as np.unique(labels, return_inverse=True)[1]"
        )
    if labels.dtype.kind not in "bf":
        return "give whole numbers"
    if not np.isfinite(labels).all():
        return f"leave out the {np.sum(~np.isfinite(labels))} rows without a label"
    if (labels == np.round(labels)).all():
        return "give labels.astype(int)"
    return "fractions are no classes: give soft labels as shares of all classes; targets of a regression are not served"


def of_probabilities(probs: np.ndarray) -> str:
    """What to give in place of rows that are negative or do not sum to 1."""
    sums = probs.sum(axis=1, dtype=np.float64)
    usual = float(np.median(sums))
    if (probs <= 0).all():
        return "these are logarithms: give np.exp(probs), or say --logits-key"
    if (probs >= 0).all() and usual > 1 + OFF_ONE and (abs(sums / usual - 1) < OFF_ONE).all():
        what = "percents" if abs(usual - 100) < 1 else f"rows that all sum to {usual:.6g}"
        return f"of {what} give probs / {usual:.4g}"
    if (probs >= 0).all() and (probs <= 1).all():
        return "each class has a probability of its own, as sigmoid scores have: give --task=multilabel, or one softmax"
    return "if these are logits, say --logits-key"
