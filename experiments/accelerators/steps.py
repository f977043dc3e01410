"""Training steps and predictions as the main job compiles them, for any devices."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.accelerators.counts import product_flops
from experiments.accelerators.stand_ins import stand_in
from focalgeo import losses, parallel
from focalgeo.job import preparation
from focalgeo.job.members import Member, make_members
from focalgeo.job.preparation import Prepared
from focalgeo.job.training import members_step
from focalgeo.types import Batch, PyTree, TrainState

LAYOUTS = ("at once", "one after another")


class Call(NamedTuple):
    """A function of jit or pmap, and the shapes of its arguments."""

    function: Callable
    arguments: tuple
    options: dict[str, PyTree] = {}  # noqa: RUF012 - arguments by name

    def lower(self) -> Any:
        """What jax has lowered for the devices of function and arguments."""
        return self.function.lower(*self.arguments, **self.options)


class Program(NamedTuple):
    """A program: its call for devices of any kind, or started on those at hand.

    call: (devices) -> Call. start: () -> a function whose every call is one run of it.
    own: operations of the products that the computation asks for, of all devices together; None where it has none.
    """

    call: Callable[[Sequence[jax.Device]], Call]
    start: Callable[[], Callable[[], PyTree]]
    own: int | None


class Job(NamedTuple):
    """A config, checked, and what a run makes of it before it begins."""

    config: Any
    prepared: Prepared
    members: list[Member]


def make_job(config) -> Job:
    """The job of a config, on a stand-in of its data."""
    config = preparation.check_config(config)
    return Job(config, preparation.prepare(config, stand_in(config.data.name)), make_members(config))


def training_step(config, *, layout: str = "at once") -> Program:
    """The step of all members of the config's sweep, or of its only run, in one call.

    Members are spread over the devices where they divide evenly, as the main job does. layout: "at once" is that of the
    main job, where the members of a device are one axis of every product; "one after another" is a loop over them
    inside the program.
    """
    job = make_job(config)
    pipeline = preparation.make_pipeline(job.config, job.prepared.dataset, preparation.stream_seeds(job.members))
    step = members_step(job.prepared, pipeline)
    step = step if layout == "at once" else in_a_loop(step)
    batch, at_once = next(iter(pipeline.specs(0, 0))), len(job.members)

    def call(devices: Sequence[jax.Device]) -> Call:
        apart = len(devices) > 1 and at_once % len(devices) == 0
        compiled = parallel.pmapped_members if apart else parallel.pmapped
        state = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((at_once, *leaf.shape), leaf.dtype),
            preparation.state_shapes(job.prepared, job.members[0]),
        )
        arguments = (parts(state, len(devices)), shapes(batch)) if apart else (state, parts(batch, len(devices), 1))
        several = len({each.process_index for each in devices}) > 1
        asked = {"stop": jax.ShapeDtypeStruct((len(devices),), np.float32)} if several else {}
        function = compiled(step, num_shared=len(pipeline.resident), devices=devices)
        return Call(function, (*arguments, *shapes(pipeline.resident)), asked)

    def start() -> Callable[[], PyTree]:
        program = parallel.make_program(step, at_once=at_once, shared=pipeline.resident)
        groups = program.place(preparation.initial_state(job.prepared, job.members))

        def run() -> PyTree:
            nonlocal groups
            groups, metrics, _ = program.step(groups, batch)
            return groups, metrics

        return run

    return Program(call, start, at_once * gradient_flops(job))


def in_a_loop(step: Callable) -> Callable:
    """The same step of all members as a loop of steps of one."""

    def looped(states: TrainState, batch: PyTree, *shared: PyTree, **options: Any) -> tuple[TrainState, dict]:
        alone = jax.tree.map(lambda leaf: leaf[:, None], states)
        results = jax.lax.map(lambda state: step(state, batch, *shared, **options), alone)
        return jax.tree.map(lambda leaf: leaf[:, 0], results)

    return looped


def prediction(config) -> Program:
    """The logits of one batch of config.evaluation.batch_size examples, of one member."""
    job = make_job(config)
    forward = jax.vmap(job.prepared.model.apply, in_axes=(0, None), out_axes=-2)
    batch = next(iter(preparation.evaluation_batches(job.config, job.prepared.dataset.val)))

    def variables(state: TrainState) -> PyTree:
        return {"params": state.params, **state.model_state}

    def call(devices: Sequence[jax.Device]) -> Call:
        state = preparation.state_shapes(job.prepared, job.members[0])
        stacked = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), variables(state))
        return Call(parallel.forward_program(forward, devices=devices), (stacked, parts(batch.x, len(devices))))

    def start() -> Callable[[], PyTree]:
        outputs, state = parallel.pmapped_forward(forward), preparation.initial_state(job.prepared, job.members)
        held = parallel.replicated(variables(state))
        return lambda: outputs(held, batch)

    state = preparation.state_shapes(job.prepared, job.members[0])
    return Program(call, start, product_flops(job.prepared.model.apply, variables(state), shapes(batch.x)))


def gradient_flops(job: Job) -> int:
    """Operations of the products in one gradient of the network's cross-entropy at the config's batch."""
    few = preparation.few_examples(job.prepared, job.config)
    state = preparation.state_shapes(job.prepared, job.members[0])
    size = job.config.optimizer.batch_size
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), few)
    variables, mutable, rngs = state.model_state, list(state.model_state), {"dropout": state.key}

    def loss(params: PyTree, variables: PyTree, batch: Batch, rngs: PyTree):
        options = {"train": True, "mask": batch.mask, "mutable": mutable, "rngs": rngs}
        logits, _ = job.prepared.model.apply({"params": params, **variables}, batch.x, **options)
        return jnp.sum(losses.cross_entropy(logits, batch.y))

    return product_flops(jax.grad(loss), state.params, variables, batch, rngs)


def shapes(tree: PyTree) -> PyTree:
    """The shapes of all leaves."""
    return jax.eval_shape(lambda tree: tree, tree)


def parts(tree: PyTree, count: int, axis: int = 0) -> PyTree:
    """Shapes [count, ...] of one part for each device, of the axis filled up to a multiple of them."""

    def cut(leaf):
        length = -(-leaf.shape[axis] // count)
        return jax.ShapeDtypeStruct((count, *leaf.shape[:axis], length, *leaf.shape[axis + 1 :]), leaf.dtype)

    return jax.tree.map(cut, tree)
