"""Members of a sweep: runs that differ in traced values and keys alone, and advance together in one program."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.training.meter import FINITE
from focalgeo.types import PyTree, TrainState


def stack(states: Sequence[TrainState]) -> TrainState:
    """The states of all members as one, leaves [members, ...]."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(list(states)))


def member(states: TrainState, index: int) -> TrainState:
    """The state of one member, as a run of its own has it."""
    return jax.tree.map(lambda leaf: leaf[index], states)


def candidates(members: int) -> list[int]:
    """Numbers of members worth trying at once, each a divisor: all, the one nearest to the root of all, one."""
    divisors = [number for number in range(1, members + 1) if members % number == 0]
    middle = min(divisors, key=lambda number: abs(number - members**0.5))
    return sorted({1, middle, members}, reverse=True)


def make_members_step(step: Callable) -> Callable:
    """All members' step: (states [members, ...], batches [streams, examples, ...]) -> (states, metrics [members]).

    `step` takes (state, the batch of its own stream, *shared), where what is shared is the same for all.

    A member whose loss, penalty, gradient or new parameters are not finite keeps its state from before that step, but
    for the step's number, and is frozen from then on; the others go on. Metrics gain "frozen".
    """

    def of_member(state: TrainState, batch: PyTree, *shared: PyTree) -> tuple[TrainState, dict]:
        # The batch of an only stream does not depend on the member: what is made of it is computed once for all.
        own = jax.tree.map(lambda leaf: leaf[0] if len(leaf) == 1 else leaf[state.stream], batch)
        new, metrics = step(state, own, *shared)
        finite = jnp.stack([jnp.isfinite(metrics[name]) for name in FINITE]).all()
        frozen = state.frozen | ~finite
        kept = jax.tree.map(lambda after, before: jnp.where(frozen, before, after), new, state)
        # The number of the step goes on for all, as checkpoints are named by it.
        return kept._replace(step=new.step, frozen=frozen), metrics | {"frozen": frozen}

    def members_step(states: TrainState, batch: PyTree, *shared: PyTree) -> tuple[TrainState, dict]:
        return jax.vmap(of_member, (0, None, *(None for _ in shared)))(states, batch, *shared)

    return members_step
