"""Sharpness of a trained network's losses by the measures that the field uses, as rows."""

from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import curvature, parallel
from focalgeo.evaluation.curvature import Problem, count_examples, make_batch_loss, on_device
from focalgeo.rows import Sharpness, finite
from focalgeo.types import Array


def sharpness_rows(problem: Problem, key: Array, *, split: str) -> list[Sharpness]:
    """Rows of each loss's mean over the batches, and of the network's Fisher-Rao norm.

    "adaptive_sharpness": the worst rise within the ball of radius 0.5, "average_sharpness": the mean rise by noise of
    0.1, both measured by each weight's size. "pac_bayes_sigma": the noise that adds 0.1 nats to the loss,
    "relative_sigma": that adds a tenth of the loss. "fisher_rao_norm": w' F w, as of cross-entropy. Errors are of
    starts and noise, that of the last of examples.

    Args:
        problem: its losses pass the determinism check of `measure_curvature`.
        key: PRNG key of starts and noise, the same for all losses.
        split: name for the rows.

    Raises:
        RunError: a number is not finite, or no noise gives the rise.

    Accuracy: as the functions of focalgeo.curvature say; equal to those of all examples at once in
    tests/evaluation/test_sharpness_rows.py.
    """
    n, (apply, losses, params, model_state, batches) = count_examples(problem), on_device(problem)

    def over_batches(function):
        """The sum of function(params, model_state, batch), as a function of params."""
        return lambda at: reduce(
            partial(jax.tree.map, jnp.add), (parallel.in_turn(function(at, model_state, batch)) for batch in batches)
        )

    by_batch = [parallel.to_host(_fisher_rao(apply, params, model_state, batch)) for batch in batches]
    shares = np.concatenate([share[mask] for share, mask in by_batch])
    measures = {("fisher_rao_norm", "cross_entropy"): curvature.sample_mean(shares)}
    for name, loss in losses.items():
        batch_loss = make_batch_loss(apply, loss, n)
        mean, slope = over_batches(batch_loss), over_batches(partial(_value_and_grad, batch_loss))
        measures |= {
            ("adaptive_sharpness", name): curvature.adaptive_sharpness(slope, params, key, radius=0.5),
            ("average_sharpness", name): curvature.sample_mean(
                curvature.noise_rises(mean, params, key, 0.1, adaptive=True)
            ),
            ("pac_bayes_sigma", name): curvature.pac_bayes_sigma(mean, params, key, rise=0.1),
            ("relative_sigma", name): curvature.pac_bayes_sigma(mean, params, key, rise=0.1 * mean(params)),
        }
    return [finite(Sharpness(name, *found[:2], loss, n, split)) for (name, loss), found in measures.items()]


@jax.jit
def _value_and_grad(batch_loss, params, model_state, batch):
    return jax.value_and_grad(batch_loss)(params, model_state, batch)


@jax.jit
def _fisher_rao(apply, params, model_state, batch):
    return curvature.fisher_rao(lambda at: apply({"params": at, **model_state}, batch.x), params), batch.mask
