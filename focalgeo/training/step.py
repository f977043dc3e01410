"""The training step: of one run, and of all members of a sweep side by side."""

from collections.abc import Callable, Iterable

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from focalgeo import trees
from focalgeo.training.penalties import plain_outputs
from focalgeo.types import TrainState

FINITE = ("loss", "penalty", "gradient_norm", "parameter_norm")  # the metrics that must stay finite


def make_step(
    apply: Callable,
    loss: Callable,
    tx: optax.GradientTransformation,
    reduce: Callable,
    *,
    outputs: Callable = plain_outputs,
    mean: bool = True,
    ascent: Callable | None = None,
) -> Callable:
    """The step (state, batch) -> (state, metrics): one update by the gradient of (sum_i loss_i + penalty) / n.

    The sum is over the n unmasked examples of all devices, the penalty that of `outputs`. Weight decay is part of
    `tx`.

    Args:
        apply: flax's signature, see types.Model.
        loss: (logits, labels, loss_values) -> [examples], in nats.
        tx: gradients -> updates for a learning rate of 1, see `optimiser.make_optimiser`.
        reduce: sums a tree over devices.
        outputs: the network's outputs and their penalties, see `penalties.make_outputs`.
        mean: False leaves out the division by n, as the published code of Mukhoti et al. does.
        ascent: (gradient, params) -> the step uphill, from whose end the gradient is taken a second time, with the same
            batch and random numbers, see `make_ascent`; sums and batch statistics are of the first.

    Metrics are sums over the batch ("loss" without "penalty", "penalty", "correct", "count") and the norms of the
    gradient that is applied and of the new parameters and batch statistics.
    """

    def step(state, batch):
        chex.assert_equal_shape((batch.y, batch.mask))
        noise = jax.random.fold_in(state.key, state.step)

        def network(params, batch=batch):
            variables, mutable = {"params": params, **state.model_state}, list(state.model_state)
            return apply(variables, batch.x, train=True, mask=batch.mask, mutable=mutable, rngs={"dropout": noise})

        def objective(params):
            logits, model_state, penalty = outputs(network, params, batch, noise, state.loss_values)
            losses = loss(logits, batch.y, state.loss_values)
            chex.assert_equal_shape((losses, batch.mask))  # another shape would be broadcast, and summed wrongly
            total = jnp.sum(jnp.where(batch.mask, losses, 0.0))
            correct = jnp.sum((jnp.argmax(logits, -1) == batch.y) & batch.mask, dtype=jnp.float32)
            count = jnp.sum(batch.mask, dtype=jnp.float32)  # exact to 2^24; of one type all is reduced at once
            sums = {"loss": total, "penalty": penalty, "correct": correct, "count": count}
            return total + penalty, (sums, model_state)

        def gradient_at(params):
            gradient, (sums, model_state) = jax.grad(objective, has_aux=True)(params)
            gradient, sums = reduce((gradient, sums))
            if mean:
                gradient = jax.tree.map(lambda leaf: leaf / sums["count"].astype(leaf.dtype), gradient)
            return gradient, sums, model_state

        gradient, sums, model_state = gradient_at(state.params)
        if ascent is not None:
            gradient, _, _ = gradient_at(optax.apply_updates(state.params, ascent(gradient, state.params)))

        # Weight decay that differs from member to member is an argument; else it is a constant of the optimiser's own.
        swept = {} if state.weight_decay is None else {"weight_decay": state.weight_decay}
        updates, opt_state = tx.update(gradient, state.opt_state, state.params, **swept)
        updates = jax.tree.map(lambda leaf: state.learning_rate * leaf, updates)
        params = optax.apply_updates(state.params, updates)
        chex.assert_trees_all_equal_shapes_and_dtypes((params, model_state), (state.params, state.model_state))
        sums |= {"gradient_norm": trees.norm(gradient), "parameter_norm": trees.norm((params, model_state))}
        new = state._replace(step=state.step + 1, params=params, model_state=model_state, opt_state=opt_state)
        return new, sums

    return step


def make_members_step(step: Callable) -> Callable:
    """All members' step: (states [members, ...], batches [streams, examples, ...]) -> (states, metrics [members]).

    `step` takes (state, the batch of its own stream, *shared), where what is shared is the same for all.

    A member whose loss, penalty, gradient or new parameters are not finite keeps its state from before that step, but
    for the step's number, and is frozen from then on; the others go on. Metrics gain "frozen".
    """

    def members_step(states, batch, *shared):
        def of_member(state):
            # The batch of an only stream does not depend on the member: what is made of it is computed once for all.
            of_stream = jax.tree.map(lambda leaf: leaf[0] if len(leaf) == 1 else leaf[state.stream], batch)
            new, metrics = step(state, of_stream, *shared)
            frozen = state.frozen | ~jnp.stack([jnp.isfinite(metrics[name]) for name in FINITE]).all()
            kept = jax.tree.map(lambda after, before: jnp.where(frozen, before, after), new, state)
            # The number of the step goes on for all, as checkpoints are named by it.
            return kept._replace(step=new.step, frozen=frozen), metrics | {"frozen": frozen}

        return jax.vmap(of_member)(states)

    return members_step


def stack(states: Iterable[TrainState]) -> TrainState:
    """The states of all members, or other trees, as one in host memory, leaves [members, ...]."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(list(states)))


def member_state(states: TrainState, index: int | slice) -> TrainState:
    """The state of one member, as a run of its own has it, or those of some; or what else there is of all members."""
    return jax.tree.map(lambda leaf: leaf[index], states)


def make_ascent(radius: float, *, adaptive: bool = False) -> Callable | None:
    """(gradient g, params w) -> radius g / |g|, or of adaptive steps radius w^2 g / |w g|, entry by entry; None for 0.

    The loss at its end is, to first order, the largest within a ball about the parameters: of that radius, or of that
    radius once each parameter is measured by its own size. A gradient of 0 has no way up, and gives 0.

    Source: Foret et al., Sharpness-aware minimization (2021), Eq. 2; Kwon et al., ASAM (2021), Eq. 10, without its
    constant added to |w|.

    Example:
        >>> from focalgeo.training import step
        >>> uphill = step.make_ascent(0.05)({"w": jnp.float32([3, 4])}, {"w": jnp.zeros(2)})
        >>> print(np.asarray(uphill["w"]).round(3))
        [0.03 0.04]
    """
    if not radius:
        return None

    def ascent(gradient, params):
        sizes = jax.tree.map(jnp.abs if adaptive else jnp.ones_like, params)
        measured = jax.tree.map(jnp.multiply, sizes, gradient)
        length = trees.norm(measured)
        factor = jnp.where(length > 0, radius / jnp.where(length > 0, length, 1.0), 0.0)
        return jax.tree.map(lambda size, slope: size * slope * factor.astype(size.dtype), sizes, measured)

    return ascent
