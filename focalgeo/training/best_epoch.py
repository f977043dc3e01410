"""The best epoch on val, whose parameters a run ends with where config.optimizer.select asks for it."""

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.types import Array, BestEpoch, Predictions, PyTree, TrainState


def before_training(params: PyTree, model_state: PyTree) -> BestEpoch:
    """Of one member that has seen no epoch: every accuracy is higher."""
    return BestEpoch(np.float32(-1), np.float32(0), params, model_state)


def after_epoch(states: TrainState, epoch: int, predicted: Predictions) -> BestEpoch:
    """The best of each member's first `epoch` epochs, of equals the earliest.

    Args:
        states: after that epoch, leaves [members, ...]; `states.best` is that of the epochs before.
        epoch: 1 or more.
        predicted: of val with these states; logits [examples, members, classes].
    """
    return _better(
        states.best, states.params, states.model_state, np.float32(epoch), predicted.logits, predicted.labels
    )


@jax.jit
def _better(
    best: BestEpoch, params: PyTree, model_state: PyTree, epoch: Array, logits: Array, labels: Array
) -> BestEpoch:
    right = jnp.argmax(logits, axis=-1) == labels.reshape(-1, 1)  # [examples, members]
    accuracy = jnp.mean(right.astype(jnp.float32), axis=0)
    now = BestEpoch(accuracy, jnp.full_like(accuracy, epoch), params, model_state)

    def better(new: Array, old: Array) -> Array:
        return jnp.where((accuracy > best.accuracy).reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(better, now, best)


def selected(states: TrainState) -> TrainState:
    """The states with the parameters and the batch statistics of their best epochs."""
    return states._replace(params=states.best.params, model_state=states.best.model_state)
