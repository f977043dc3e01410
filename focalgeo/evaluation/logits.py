"""What a loss does on each example at its logits, beside cross-entropy: the weight of its gradient, its curvature."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from focalgeo.evaluation.problem import Problem, as_argument
from focalgeo.types import Array, Batch, PyTree

PARALLEL = 1e-3  # relative difference below which two gradients count as parallel; float32 keeps 2e-5
RAISED = 1e-3  # relative difference above which two curvatures count as different; float32 keeps 1e-4


class Examples(NamedTuple):
    """What a loss does on each example at fixed logits, beside the reference, cross-entropy."""

    probability: Array  # [examples] softmax probability of the true class
    weight: Array  # [examples] the loss's derivative in the true logit over cross-entropy's
    parallel: Array  # bool [examples] the loss's gradient in the logits is `weight` times cross-entropy's
    raised: Array  # bool [examples] its second derivative in the true logit is above cross-entropy's, p_y (1 - p_y)
    negative: Array  # bool [examples] that second derivative is negative


def look_at_examples(problem: Problem, reference: str) -> dict[str, Examples]:
    """`Examples` of every loss, unmasked, in the order of the batches, as NumPy arrays; `reference`: cross-entropy."""
    network = (as_argument(problem.apply), problem.params, problem.model_state)
    found = [jax.device_get(_look(problem.losses, *network, batch, reference=reference)) for batch in problem.batches]
    mask = np.concatenate([batch.mask for batch in problem.batches])
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[mask], *found)


@partial(jax.jit, static_argnames="reference")
def _look(
    losses: dict[str, Partial], apply: Partial, params: PyTree, model_state: PyTree, batch: Batch, *, reference: str
) -> dict[str, Examples]:
    logits = apply({"params": params, **model_state}, batch.x)
    return {name: compare(loss, losses[reference], logits, batch.y) for name, loss in losses.items()}


def compare(loss: Callable, reference: Callable, logits: Array, labels: Array) -> Examples:
    """`Examples` of a loss; both losses are (logits, labels) -> [examples], and reference is cross-entropy.

    The second derivative in the true logit is that along the log-odds of p_y: for a function of p_y alone its ratio to
    cross-entropy's is that of two classes, whatever their number. Held by tests/evaluation/test_attribution.py.

    Source: Kimura & Naganuma, arXiv 2405.00442, section 3: the curvature that Eq. 28 gives for a frozen weight.
    """
    own, plain = _gradient(loss, logits, labels), _gradient(reference, logits, labels)
    weight = _ratio(own, plain, labels)
    apart = jnp.max(jnp.abs(own - weight[:, None] * plain), axis=-1)
    size = jnp.max(jnp.abs(own), axis=-1)
    bend, reference_bend = (_bend(each, logits, labels) for each in (loss, reference))
    return Examples(
        probability=jnp.exp(-reference(logits, labels)),
        weight=weight,
        parallel=apart <= PARALLEL * size + jnp.finfo(size.dtype).tiny,
        raised=bend > (1 + RAISED) * reference_bend,
        negative=bend < -RAISED * reference_bend,
    )


def held_weight(loss: Callable, reference: Callable) -> Callable:
    """The loss w * cross_entropy with w, the ratio of both gradients in the true logit, a constant to derivatives."""
    return Partial(_held, as_argument(loss), as_argument(reference))


def _held(loss: Partial, reference: Partial, logits: Array, labels: Array) -> Array:
    gradients = (_gradient(each, logits, labels) for each in (loss, reference))
    return jax.lax.stop_gradient(_ratio(*gradients, labels)) * reference(logits, labels)


def _gradient(loss: Callable, logits: Array, labels: Array) -> Array:
    return jax.grad(lambda point: jnp.sum(loss(point, labels)))(logits)


def _ratio(own: Array, plain: Array, labels: Array) -> Array:
    is_true = jax.nn.one_hot(labels, own.shape[-1], dtype=bool)
    numerator, denominator = (jnp.sum(jnp.where(is_true, each, 0), axis=-1) for each in (own, plain))
    # Cross-entropy's is p_y - 1: where it underflows the example has no curvature left to weigh.
    gone = denominator == 0
    return jnp.where(gone, 0, numerator / jnp.where(gone, 1, denominator))


def _bend(loss: Callable, logits: Array, labels: Array) -> Array:
    true_logit = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)

    def slope(point: Array) -> Array:
        return jax.jvp(lambda z: loss(z, labels), (point,), (true_logit,))[1]

    return jax.jvp(slope, (logits,), (true_logit,))[1]
