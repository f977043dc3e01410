"""Predictions of a trained network."""

from collections.abc import Callable, Iterable

import numpy as np

from focalgeo import parallel
from focalgeo.types import Batch, Predictions, PyTree


def predict(forward: Callable, variables: PyTree, batches: Iterable[Batch]) -> Predictions:
    """Logits of every example once, in order; forward is compiled by parallel.pmapped_forward."""
    variables, logits, labels = parallel.replicated(variables), [], []
    for batch in batches:
        outputs = forward(variables, batch)
        logits.append(outputs[batch.mask])
        labels.append(batch.y[batch.mask])
    logits = np.concatenate(logits).astype(np.float32)
    return Predictions(logits, np.concatenate(labels), np.ones(len(logits), bool))
