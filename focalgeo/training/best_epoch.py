"""The epoch with the highest accuracy on val; a run ends with its parameters if config.optimizer.select is best_val."""

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.types import Array, BestEpoch, Predictions, PyTree, TrainState


def before_training(params: PyTree, model_state: PyTree) -> BestEpoch:
    """The start value of one member: accuracy -1, which any epoch exceeds."""
    return BestEpoch(np.float32(-1), np.float32(0), params, model_state)


def after_epoch(states: TrainState, epoch: int, predicted: Predictions) -> BestEpoch:
    """The states with each member's best of the first `epoch` epochs, the earliest on ties, in `best`.

    Args:
        states: after that epoch, leaves [members, ...]; `states.best` is that of the epochs before.
        epoch: 1 or more.
        predicted: of val with these states; logits [examples, members, classes]. An example with NaN among its logits
            is not right.
    """
    known = ~np.isnan(predicted.logits).any(-1)
    right = known & (predicted.logits.argmax(-1) == predicted.labels.reshape(-1, 1))  # [examples, members]
    accuracy = right.mean(0, dtype=np.float32)
    now = BestEpoch(accuracy, np.full_like(accuracy, epoch), states.params, states.model_state)
    return _where(accuracy > jax.device_get(states.best.accuracy), now, states.best)


@jax.jit
def _where(chosen: Array, new: PyTree, old: PyTree) -> PyTree:
    """Leaves [members, ...] of the new where a member is chosen."""
    return jax.tree.map(lambda a, b: jnp.where(chosen.reshape(-1, *(1,) * (a.ndim - 1)), a, b), new, old)


def selected(states: TrainState) -> TrainState:
    """The states with the parameters and the batch statistics of their best epochs."""
    return states._replace(params=states.best.params, model_state=states.best.model_state)
