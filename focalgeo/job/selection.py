"""config.optimizer.select: the epoch whose parameters a run ends with, its last one or the best on val."""

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.types import Array, Predictions, TrainState

BEST = "best"  # in `hyper`: accuracy on val, epoch, parameters and model state of the best epoch so far
SELECTED_EPOCH = "selected_epoch"  # in `hyper` after training: the epoch that was taken


def with_best(state: TrainState) -> TrainState:
    """The state of one member as training begins, with room for its best epoch."""
    nothing = {"accuracy": np.float32(-1), "epoch": np.float32(0)}
    best = {**nothing, "params": state.params, "model_state": state.model_state}
    return state._replace(hyper={**state.hyper, BEST: best})


def best_after(chunk: TrainState, epoch: int, predicted: Predictions) -> dict:
    """`hyper["best"]` of a chunk's members after `epoch` epochs, from val's predictions; of equals the earliest."""
    return _best_after(chunk.hyper[BEST], chunk.params, chunk.model_state, np.float32(epoch), *predicted[:2])


@jax.jit
def _best_after(best: dict, params: dict, model_state: dict, epoch: Array, logits: Array, labels: Array) -> dict:
    right = jnp.argmax(logits, axis=-1) == labels.reshape(-1, 1)  # [examples, members]
    accuracy = jnp.mean(right.astype(jnp.float32), axis=0)
    now = {"accuracy": accuracy, "epoch": jnp.full_like(accuracy, epoch), "params": params, "model_state": model_state}

    def better(new: Array, old: Array) -> Array:
        return jnp.where((accuracy > best["accuracy"]).reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(better, now, best)


def without_best(state: TrainState) -> TrainState:
    """The state as those see it who have no use for the best epoch."""
    return state._replace(hyper={name: value for name, value in state.hyper.items() if name != BEST})


def selected(states: TrainState, best: dict) -> TrainState:
    """States with the parameters of their best epochs, as `best` has them, and the numbers of those epochs."""
    states = without_best(states)._replace(params=best["params"], model_state=best["model_state"])
    return states._replace(hyper={**states.hyper, SELECTED_EPOCH: best["epoch"]})
