"""The epoch with the highest accuracy on val; a run ends with its parameters if config.optimizer.select is best_val."""

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.types import Array, BestEpoch, InputError, Predictions, PyTree, TrainState


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

    Raises:
        InputError: there is no example.
    """
    if len(predicted.labels) == 0:
        raise InputError("predicted holds no example of val, by which the best epoch is chosen")
    return _better(
        states.best, states.params, states.model_state, np.float32(epoch), predicted.logits, predicted.labels
    )


@jax.jit
def _better(
    best: BestEpoch, params: PyTree, model_state: PyTree, epoch: Array, logits: Array, labels: Array
) -> BestEpoch:
    known = ~jnp.isnan(logits).any(axis=-1)
    right = known & (jnp.argmax(logits, axis=-1) == labels.reshape(-1, 1))  # [examples, members]
    accuracy = jnp.mean(right.astype(jnp.float32), axis=0)
    now = BestEpoch(accuracy, jnp.full_like(accuracy, epoch), params, model_state)

    def better(new: Array, old: Array) -> Array:
        return jnp.where((accuracy > best.accuracy).reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(better, now, best)


def selected(states: TrainState) -> TrainState:
    """The states with the parameters and the batch statistics of their best epochs."""
    return states._replace(params=states.best.params, model_state=states.best.model_state)
