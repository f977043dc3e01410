"""What curvature is measured of."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from jax.tree_util import Partial

from focalgeo import parallel
from focalgeo.types import Batch, PyTree


class Problem(NamedTuple):
    """Losses of a network at fixed parameters, each the mean over fixed batches of one shape."""

    apply: Callable  # (variables, x) -> logits, in evaluation mode
    losses: dict[str, Callable]  # row name -> (logits, labels) -> [examples], in nats
    params: PyTree
    model_state: PyTree
    batches: Iterable[Batch]  # iterated at every product: a list, or an object that makes them anew and keeps none


def as_argument(function: Callable) -> Partial:
    """The function as a tree, which jit takes as an argument: what compiled for it serves all that are equal to it.

    The arrays of a `jax.tree_util.Partial` are its leaves, so the same loss with other values compiles nothing.
    """
    return function if isinstance(function, Partial) else Partial(function)


def on_device(problem: Problem) -> Problem:
    """The problem with its arrays on the devices, where every product reads them anew.

    The examples of each batch are spread over all devices, everything else is whole on each; batches that are not in a
    list stay what they are.
    """
    batches = problem.batches
    batches = parallel.spread(batches) if isinstance(batches, list) else batches
    losses = {name: as_argument(loss) for name, loss in problem.losses.items()}
    params, model_state, losses = parallel.replicated((problem.params, problem.model_state, losses))
    return Problem(as_argument(problem.apply), losses, params, model_state, batches)


def count_examples(problem: Problem) -> int:
    """Number of unmasked examples."""
    return sum(int(np.sum(batch.mask)) for batch in problem.batches)
