"""From the fields of config.loss to what a step minimises and how that changes between epochs."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import curvature, losses, parallel
from focalgeo.training import best_epoch
from focalgeo.training.step import plain_forward
from focalgeo.types import Array, Batch, Predictions, PyTree, TrainState

# everything that config.loss.name may be
NAMES = (*losses.LOSSES, *losses.POLICIES, *losses.SCHEDULES, *losses.PENALTIES)
FUNCTIONS = {
    **{name: name for name in losses.LOSSES},
    **dict.fromkeys(losses.POLICIES, "sample_dependent_focal_loss"),
    **dict.fromkeys(losses.SCHEDULES, "scheduled_focal_loss"),
    **dict.fromkeys(losses.PENALTIES, "cross_entropy"),
}


class Objective(NamedTuple):
    """What a step minimises: the mean of `loss` over the examples, plus the penalties that `forward` adds."""

    name: str  # of the mean alone, as its curvature is named
    loss: Callable[[Array, Array, dict], Array]  # (logits, labels, loss_values) -> [examples]
    forward: Callable  # as make_step takes it
    loss_values: dict[str, PyTree]  # that both read, as training begins


def make_objective(config) -> Objective:
    """The objective that config.loss names, with its values as float32 arrays."""
    name = config.loss.name
    function = FUNCTIONS[name]
    loss = losses.make_loss(function)
    needed = [*losses.hyperparameters(function)]
    forward, shown = plain_forward, name
    if config.loss.trace_penalty or any(config.sweep.trace_penalty):
        forward = _traced_forward
        needed.append("trace_penalty")
    if name in losses.PENALTIES:
        forward, shown = _with_penalty(forward, losses.PENALTIES[name]), function
        needed.append("penalty_weight")
    if config.loss.alpha:
        loss, shown = _weighted_by_class(loss), f"class_weighted_{shown}"
        needed.append("alpha")
    return Objective(shown, loss, forward, initial_values(config, needed))


def initial_values(config, names: Iterable[str]) -> dict[str, PyTree]:
    """The traced values of these names as training begins, as float32 arrays."""
    name = config.loss.name
    values = {**config.loss, "epoch": 0, "adafocal": losses.adafocal_state()}
    for table in (losses.POLICIES, losses.SCHEDULES):
        values |= table[name]._asdict() if name in table else {}
    return {each: jax.tree.map(_as_float32, values[each], is_leaf=_is_list) for each in names}


def make_adapt(
    predict: Callable[[TrainState], Predictions],
) -> Callable[[list[TrainState], int], list[TrainState]]:
    """The change of a state as an epoch begins, in each chunk of members; predict(chunk) gives val's predictions.

    A schedule learns the epoch's number; from the second epoch on AdaFocal moves its gammas by the calibration of val,
    and the epoch before is kept if it is the best on val so far and the best is asked for.
    """
    update = jax.jit(jax.vmap(_adafocal_after, (0, 1, None)))

    def adapted(chunk: TrainState, epoch: int) -> TrainState:
        values, best = chunk.loss_values, chunk.best
        if best is None and not {"epoch", "adafocal"} & values.keys():
            return chunk
        if "epoch" in values:
            values = {**values, "epoch": np.full_like(values["epoch"], epoch)}
        if epoch > 0 and ("adafocal" in values or best is not None):
            predicted = predict(chunk)
            if "adafocal" in values:
                moved = update(jax.device_get(values["adafocal"]), predicted.logits, predicted.labels)
                values = {**values, "adafocal": moved}
            if best is not None:
                best = best_epoch.after_epoch(chunk, epoch, predicted)
        values, best = parallel.like((values, best), (chunk.loss_values, chunk.best))
        return chunk._replace(loss_values=values, best=best)

    return lambda chunks, epoch: [adapted(chunk, epoch) for chunk in chunks]


def _adafocal_after(adafocal: losses.AdaFocalState, logits: Array, labels: Array) -> losses.AdaFocalState:
    confidence = jnp.max(jax.nn.softmax(logits), axis=-1)
    return losses.adafocal_update(adafocal, confidence, jnp.argmax(logits, axis=-1) == labels)


def _with_penalty(forward: Callable, penalty: Callable) -> Callable:
    """`forward` with a penalty on the whole batch, seen by each device in proportion to its examples."""

    def penalised(network: Callable, params: PyTree, batch: Batch, key: Array, loss_values: dict) -> tuple:
        logits, model_state, others = forward(network, params, batch, key, loss_values)
        every = parallel.gather((logits.reshape(-1, logits.shape[-1]), batch.y.reshape(-1), batch.mask.reshape(-1)))
        value = penalty(*every)
        count = jnp.sum(batch.mask, dtype=jnp.float32)
        return logits, model_state, others + loss_values["penalty_weight"] * count * value

    return penalised


def _traced_forward(network: Callable, params: PyTree, batch: Batch, key: Array, loss_values: dict) -> tuple:
    """The network's outputs, and a probe's estimate of the trace of the batch's cross-entropy Hessian as a penalty.

    All devices take the same probe: batch statistics couple their examples, and a probe of one's own would miss that.
    """

    def summed_cross_entropy(logits: Array) -> Array:
        return jnp.sum(jnp.where(batch.mask, losses.cross_entropy(logits, batch.y), 0.0))

    probe_key = jax.random.fold_in(parallel.from_first_device(key), 1)
    logits, model_state, trace = curvature.outputs_and_trace(network, summed_cross_entropy, params, probe_key)
    return logits, model_state, loss_values["trace_penalty"] * trace


def _weighted_by_class(loss: Callable) -> Callable:
    def weighted(logits: Array, labels: Array, loss_values: dict) -> Array:
        return losses.weighted_by_class(loss(logits, labels, loss_values), labels, loss_values["alpha"])

    return weighted


def _is_list(value) -> bool:
    return type(value) in (list, tuple)


def _as_float32(value) -> jax.Array:
    return jnp.asarray(np.asarray(value, np.float32))
