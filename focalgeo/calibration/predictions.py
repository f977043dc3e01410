"""The gate where predictions enter: one line for whatever is wrong with them."""

import jax
import numpy as np

from focalgeo.types import Array, InputError


def check_predictions(logits: Array, labels: Array) -> None:
    """Refuses logits and labels from which no calibration can be computed; traced arrays pass unchecked.

    Args:
        logits: Float [examples, classes], finite, one example and two classes or more.
        labels: Int [examples], from 0 to classes - 1.

    Raises:
        InputError: one line that says which array, what is wrong with it and where first.
    """
    if isinstance(logits, jax.core.Tracer) or isinstance(labels, jax.core.Tracer):
        return
    logits, labels = np.asarray(logits), np.asarray(labels)
    _check_shapes(logits, labels)
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"labels are {labels.dtype}: give class numbers as integers")
    outside = np.flatnonzero((labels < 0) | (labels >= logits.shape[1]))
    if outside.size:
        i, last = outside[0], logits.shape[1] - 1
        raise InputError(f"labels[{i}] is {labels[i]}: with {last + 1} classes give labels from 0 to {last}")
    bad = np.flatnonzero(~np.isfinite(logits.astype(np.float32, copy=False)).all(axis=1))
    if bad.size:
        raise InputError(
            f"logits of {bad.size} examples are not finite, the first in row {bad[0]}: remove or mend them"
        )


def _check_shapes(logits: np.ndarray, labels: np.ndarray) -> None:
    if logits.ndim != 2:
        raise InputError(f"logits have shape {logits.shape}: give [examples, classes]")
    if labels.shape != logits.shape[:1]:
        raise InputError(
            f"labels have shape {labels.shape}, logits {logits.shape}: give one label for each row of logits"
        )
    if logits.shape[0] == 0:
        raise InputError("logits and labels are empty: give at least one example")
    if logits.shape[1] < 2:
        raise InputError("logits have one class: give two or more")
