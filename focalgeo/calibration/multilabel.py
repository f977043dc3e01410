"""Multi-label outputs as examples of two classes, so that every method, metric and interval of two classes serves."""

from collections.abc import Sequence

import numpy as np

from focalgeo import checks
from focalgeo.calibration.comparison import Outputs
from focalgeo.types import Array, InputError


def binary_outputs(
    scores: Array,
    labels: Array,
    names: Sequence[str] | None = None,
    *,
    clusters: Array | None = None,
    weights: Array | None = None,
) -> Outputs:
    """Each pair of a row and a label as an example of the classes 0, not so, and 1.

    Args:
        scores: Float [rows, labels], logits s of P(label) = sigmoid(s).
        labels: [rows, labels] of 0 and 1, any number of ones in a row.
        names: Of the labels; None names them 0, 1, ...
        clusters: [rows], what rows belong together; None takes each by itself.
        weights: Float [rows], how often each counts.

    Returns:
        Outputs of rows * labels examples, row by row, with logits (0, s). Groups are the labels, so that
        "temperature_scaling_by_group" has a temperature for each and "macro_class1_ece" is the mean of their ECE;
        clusters are the rows, so that intervals draw whole rows.

    Example:
        >>> tags = calibration.binary_outputs(np.float32([[2, -1], [0, 1]]), [[1, 0], [1, 1]], ["cat", "dog"])
        >>> print(tags.labels, tags.group, tags.clusters)
        [1 0 1 1] ['cat' 'dog' 'cat' 'dog'] [0 0 1 1]
    """
    scores, labels = np.asarray(checks.score_rows("scores", scores, shape=(None, None))), np.asarray(labels)
    if labels.shape != scores.shape or not np.isin(labels, (0, 1)).all():
        raise InputError(f"labels {labels.shape} for scores {scores.shape}: give a 0 or a 1 for each of these")
    count = scores.shape[1]
    names = np.array(range(count) if names is None else names, str)
    if len(set(names)) != count:
        raise InputError(f"names are {len(set(names))} for {count} labels: give each label one of its own")
    row, label = np.indices(scores.shape).reshape(2, -1)
    logits = np.stack([np.zeros_like(scores), scores], axis=-1).reshape(-1, 2)
    clusters = row if clusters is None else np.asarray(clusters)[row]
    weights = None if weights is None else np.asarray(weights)[row]
    return Outputs(logits, labels.ravel().astype(np.int32), names[label], clusters, weights)
