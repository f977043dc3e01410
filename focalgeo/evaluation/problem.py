"""What curvature is measured of."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from focalgeo.types import Batch, PyTree


class Problem(NamedTuple):
    """Losses of a network at fixed parameters, each the mean over fixed batches of one shape."""

    apply: Callable  # (variables, x) -> logits, in evaluation mode
    losses: dict[str, Callable]  # row name -> (logits, labels) -> [examples], in nats
    params: PyTree
    model_state: PyTree
    batches: list[Batch]


def on_device(problem: Problem) -> Problem:
    """The problem with its arrays on the device, where every product reads them anew."""
    params, model_state, batches = jax.device_put((problem.params, problem.model_state, problem.batches))
    return problem._replace(params=params, model_state=model_state, batches=batches)


def count_examples(problem: Problem) -> int:
    """Number of unmasked examples."""
    return sum(int(np.sum(batch.mask)) for batch in problem.batches)
