"""What every split must satisfy before anything is trained on it."""

import numpy as np

from focalgeo.types import InputError, Split


def check_split(split: Split, num_classes: int, *, where: str = "the split") -> None:
    """Refuses a split that is empty, of unequal lengths, with labels outside 0..num_classes-1 or non-finite values.

    Args:
        split: x [examples, ...] of any dtype, y integers [examples], or [examples, nodes] where -1 is a node without a
            label and every example needs one label at least.
        num_classes: at least 2.
        where: what the message calls the split, for example "digits: train".

    Raises:
        InputError: one line naming the first offending example.
    """
    if num_classes < 2:
        raise InputError(f"{where} has {num_classes} class: give at least two, nothing can be learnt from one")
    if len(split.x) != len(split.y):
        raise InputError(f"{where} has {len(split.x)} examples but {len(split.y)} labels: give one label per example")
    if len(split.y) == 0:
        raise InputError(f"{where} is empty: give at least one example")
    _check_labels(split.y, num_classes, where)
    if np.issubdtype(split.x.dtype, np.floating):
        _check_finite(split.x, where)


def _check_labels(labels: np.ndarray, num_classes: int, where: str) -> None:
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"{where} has labels of type {labels.dtype}: give integers 0..{num_classes - 1}")
    lowest = 0 if labels.ndim == 1 else -1
    wrong = (labels < lowest) | (labels >= num_classes)
    if wrong.any():
        raise InputError(
            f"{where}: example {np.argwhere(wrong)[0, 0]} has label {labels[wrong][0]} but {num_classes} classes mean "
            f"labels 0..{num_classes - 1}: mend the labels or the list of classes"
        )
    if labels.ndim > 1 and (bare := (labels < 0).all(axis=1)).any():
        raise InputError(f"{where}: example {int(np.argmax(bare))} has no label at any node: label one or drop it")


def _check_finite(x: np.ndarray, where: str) -> None:
    wrong = ~np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if wrong.any():
        raise InputError(
            f"{where}: {int(wrong.sum())} examples hold NaN or infinite values, the first is example "
            f"{int(np.argmax(wrong))}: mend or remove them"
        )


def one_line(error: Exception) -> str:
    """What the error says, or else its type, on one line of at most 200 characters."""
    return " ".join(str(error).split())[:200] or type(error).__name__
