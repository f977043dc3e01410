"""Penalties on a batch.

With them a step minimises

    sum_i alpha[y_i] loss_i  +  trace_penalty Tr H  +  penalty_weight n p,

over the n unmasked examples of a batch, divided by n unless the step minimises sums. H is the Hessian of their summed
cross-entropy in the parameters, p a penalty on all of their outputs together, such as MMCE. The weights are among the
loss values; that of the trace may be steered to a target. Losses and the estimator of the trace are handed in, as this
package imports neither.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from focalgeo import parallel
from focalgeo.types import Array


def make_outputs(*, trace: Callable | None = None, on_batch: Callable | None = None) -> Callable:
    """Make the function (network, params, batch, key, loss_values) -> (logits, new model state, penalty).

    The penalty is summed over this device's examples.

    Args:
        trace: (network, params, batch, key) -> (logits, new model state, estimate of Tr H for this device's examples),
            see `make_trace`, weighed by loss_values["trace_penalty"]; network(params, batch=part) is of a part.
        on_batch: (logits [examples, classes], labels [examples], mask [examples]) -> a number p; weighed by
            loss_values["penalty_weight"]. It sees all devices' examples; each device adds its own examples' part.
    """

    def outputs(network, params, batch, key, loss_values):
        penalty = jnp.float32(0)
        if trace is None:
            logits, model_state = network(params)
        else:
            logits, model_state, estimate = trace(network, params, batch, key)
            penalty += loss_values["trace_penalty"] * estimate
        if on_batch is not None:
            examples = logits.reshape(-1, logits.shape[-1]), batch.y.reshape(-1), batch.mask.reshape(-1)
            count = jnp.sum(batch.mask, dtype=jnp.float32)
            penalty += loss_values["penalty_weight"] * count * on_batch(*parallel.gather(examples))
        return logits, model_state, penalty

    return outputs


plain_outputs = make_outputs()  # no penalty


def steered_weight(loss_values: dict[str, Array], *, before: Array) -> Array:
    """The trace penalty's weight for the next epoch: larger where the trace is above its target, smaller below.

    It gains bound (r / 5 + (r - r_before) / 2), r = log(trace / target) cut to -1 and 1, and stays within -bound and
    bound: the multiplier of the constraint trace = target, which also answers to the trace's change over the epoch. A
    negative weight raises the trace. Without a target, 0, the weight stays.

    Args:
        loss_values: "trace_penalty" (the weight), "trace", "trace_target" and "trace_bound".
        before: the trace an epoch ago.

    Source: Platt and Barr, Constrained differential optimization (1988); its second term is a controller's.
    """
    weight, trace, target, bound = (loss_values[f"trace{end}"] for end in ("_penalty", "", "_target", "_bound"))

    def distance(trace):
        return jnp.clip(jnp.log(jnp.maximum(trace, target / 3) / target), -1, 1)

    moved = weight + bound * (0.2 * distance(trace) + 0.5 * (distance(trace) - distance(before)))
    return jnp.where(target > 0, jnp.clip(moved, -bound, bound), weight)


def make_trace(outputs_and_trace: Callable, loss: Callable, *, examples: int = 0) -> Callable:
    """Make the function `trace` of `make_outputs`: outputs, and Tr H by one random vector, H that of `loss` summed.

    All devices take the same random vector: batch statistics couple their examples, separate vectors would miss that.

    With `examples` = m above 0 the outputs come from one plain pass over all of the batch, and v' H v from a second one
    over m of its rows, evenly spaced, times the batch's unmasked examples over those among the m. A batch is in random
    order, so that every example is as likely to be among them: the estimate is unbiased for the trace of the whole
    batch if the loss of an example depends on no other. With batch normalisation it is not: the m are normalised by
    their own mean and variance, and the estimate is in the mean that of a batch of m examples, times n / m; running
    statistics are those of the plain pass. Dropout of the second pass is its own. If m divides the batch size, the rows
    are the same on any number of devices. With the Gauss-Newton matrix and a quarter of the batch a gradient of
    ResNet-20 takes 1.66 plain ones of operations, with an eighth 1.33.

    Args:
        outputs_and_trace: (network, loss of the outputs, params, key) -> (outputs, auxiliary results, estimate), as
            that of focalgeo.curvature.
        loss: (logits, labels) -> [...], in nats.
        examples: 0 for all of a batch, else how many of its rows, on all devices together; the devices divide it. Where
            none of these rows counts the estimate is 0.
    """

    def estimated(network, params, batch, key):
        def summed(logits):
            return jnp.sum(jnp.where(batch.mask, loss(logits, batch.y), 0.0))

        probe_key = jax.random.fold_in(parallel.from_first_device(key), 1)
        return outputs_and_trace(partial(network, batch=batch), summed, params, probe_key)

    def from_part(network, params, batch, key):
        rows = examples // jax.lax.axis_size(parallel.AXIS)
        part = jax.tree.map(lambda leaf: leaf[:: len(leaf) // rows][:rows], batch)
        _, _, estimate = estimated(network, params, part, key)
        of_part, of_all = parallel.reduce_sum([jnp.sum(mask, dtype=jnp.float32) for mask in (part.mask, batch.mask)])
        return *network(params), estimate * of_all / jnp.maximum(of_part, 1)

    return from_part if examples else estimated
