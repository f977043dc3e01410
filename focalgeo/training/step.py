"""The training step, whole."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from focalgeo import trees
from focalgeo.types import Array, Batch, TrainState


def no_penalty(logits: Array, batch: Batch, hyper: dict) -> float:
    """The penalty of a loss that is a plain mean over examples: 0."""
    return 0.0


def make_step(
    apply: Callable,
    loss: Callable,
    tx: optax.GradientTransformation,
    reduce: Callable,
    *,
    penalty: Callable = no_penalty,
) -> Callable:
    """The step (state, batch) -> (state, metrics): one update of the mean loss over all devices' unmasked examples.

    apply: flax's signature (see types.Model). loss(logits, labels, hyper) -> [examples] in nats. reduce: sums a tree
    over devices. penalty(logits, batch, hyper) -> scalar in nats, equal on all devices: added to the mean loss, for
    what is no mean over examples. Metrics are sums over the batch ("loss", "correct", "count") and the norms of the
    mean gradient and of the new parameters and batch statistics.
    """

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict]:
        noise = jax.random.fold_in(state.key, state.step)

        def summed_loss(params):
            logits, model_state = apply(
                {"params": params, **state.model_state},
                batch.x,
                train=True,
                mask=batch.mask,
                mutable=list(state.model_state),
                rngs={"dropout": noise},
            )
            losses = loss(logits, batch.y, state.hyper) + penalty(logits, batch, state.hyper)
            return jnp.sum(jnp.where(batch.mask, losses, 0.0)), (logits, model_state)

        (total, (logits, model_state)), gradient = jax.value_and_grad(summed_loss, has_aux=True)(state.params)
        correct = jnp.sum((jnp.argmax(logits, -1) == batch.y) & batch.mask)
        sums = {"loss": total, "correct": correct, "count": jnp.sum(batch.mask)}
        gradient, sums = reduce((gradient, sums))
        gradient = jax.tree.map(lambda leaf: leaf / sums["count"].astype(leaf.dtype), gradient)

        updates, opt_state = tx.update(gradient, state.opt_state, state.params)
        updates = jax.tree.map(lambda leaf: state.hyper["learning_rate"] * leaf, updates)
        params = optax.apply_updates(state.params, updates)
        norms = {"gradient_norm": trees.norm(gradient), "parameter_norm": trees.norm((params, model_state))}
        return TrainState(state.step + 1, params, model_state, opt_state, state.key, state.hyper), sums | norms

    return step
