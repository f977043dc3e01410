"""The training step, whole."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from focalgeo import trees
from focalgeo.types import Array, Batch, PyTree, TrainState


def plain_forward(network: Callable, params: PyTree, batch: Batch, key: Array, loss_values: dict) -> tuple:
    """The network's (logits, new model state), and 0: nothing but the mean loss is minimised."""
    return *network(params), jnp.float32(0)


def make_step(
    apply: Callable,
    loss: Callable,
    tx: optax.GradientTransformation,
    reduce: Callable,
    *,
    forward: Callable = plain_forward,
    mean: bool = True,
) -> Callable:
    """The step (state, batch) -> (state, metrics): one update of the mean loss over all devices' unmasked examples.

    apply: flax's signature (see types.Model). loss(logits, labels, loss_values) -> [examples] in nats. reduce: sums a
    tree over devices. forward(network, params, batch, key, loss_values) -> (logits, new model state, penalty), where
    network(params) gives the first two: a penalty is summed over the batch as losses are, of this device's share of it.
    mean: False minimises the batch's sum in place of its mean, as the published code of Mukhoti et al. does.
    Metrics are sums over the batch ("loss" without "penalty", "penalty", "correct", "count") and the norms of the
    gradient and of the new parameters and batch statistics.
    """

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict]:
        noise = jax.random.fold_in(state.key, state.step)

        def network(params):
            return apply(
                {"params": params, **state.model_state},
                batch.x,
                train=True,
                mask=batch.mask,
                mutable=list(state.model_state),
                rngs={"dropout": noise},
            )

        def objective(params):
            logits, model_state, penalty = forward(network, params, batch, noise, state.loss_values)
            total = jnp.sum(jnp.where(batch.mask, loss(logits, batch.y, state.loss_values), 0.0))
            correct = jnp.sum((jnp.argmax(logits, -1) == batch.y) & batch.mask)
            sums = {"loss": total, "penalty": penalty, "correct": correct, "count": jnp.sum(batch.mask)}
            return total + penalty, (sums, model_state)

        gradient, (sums, model_state) = jax.grad(objective, has_aux=True)(state.params)
        gradient, sums = reduce((gradient, sums))
        if mean:
            gradient = jax.tree.map(lambda leaf: leaf / sums["count"].astype(leaf.dtype), gradient)

        updates, opt_state = tx.update(gradient, state.opt_state, state.params)
        updates = jax.tree.map(lambda leaf: state.learning_rate * leaf, updates)
        params = optax.apply_updates(state.params, updates)
        norms = {"gradient_norm": trees.norm(gradient), "parameter_norm": trees.norm((params, model_state))}
        new = state._replace(step=state.step + 1, params=params, model_state=model_state, opt_state=opt_state)
        return new, sums | norms

    return step
