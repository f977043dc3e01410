"""The main job's own programs, on stand-ins of its data: to be timed, or compiled for devices that are not there."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from focalgeo import data, parallel
from focalgeo.job import preparation, training
from focalgeo.types import Dataset, PyTree, Split

_CIFAR = ((45_000, 5_000, 10_000), (32, 32, 3), np.uint8, ())
STAND_INS = {  # config.data.name -> examples of each split, shape and type of x, shape of y, classes, words
    "tfds:cifar10": (*_CIFAR, 10, 0),
    "tfds:cifar100": (*_CIFAR, 100, 0),
    "tiny_imagenet": ((90_000, 10_000, 10_000), (64, 64, 3), np.uint8, (), 200, 0),
    "newsgroups": ((15_098, 900, 3_999), (1000,), np.int32, (), 20, 20_000),
    "sst": ((6_920, 872, 1_821), (111, 3), np.int32, (111,), 2, 20_000),  # 56 leaves, the Treebank's most
}


class Program(NamedTuple):
    """A function of jit or pmap with the shapes of its arguments, for some devices."""

    function: Callable
    arguments: tuple

    def lower(self) -> Any:
        """What jax lowers for the devices of function and arguments."""
        return self.function.lower(*self.arguments)


class Training(NamedTuple):
    """A config, checked, and what a run has ready as its training begins; step: of all members."""

    config: Any
    prepared: preparation.Prepared
    members: list[preparation.Member]
    pipeline: preparation.Pipeline
    step: Callable


def stand_in(name: str) -> Dataset:
    """A data set of the shapes of the one that config.data.name calls `name`, all zero; digits are themselves.

    What is compiled depends on shapes alone, and time does not depend on values.
    """
    if name.partition(":")[0] == "sst":
        name = "sst"
    if name not in STAND_INS:
        return data.load_dataset(name, split_seed=1)
    counts, shape, dtype, of_labels, classes, words = STAND_INS[name]
    splits = [Split(np.zeros((n, *shape), dtype), np.zeros((n, *of_labels), np.int32)) for n in counts]
    return Dataset(name, *splits, tuple(map(str, range(classes))), "none", tuple(map(str, range(words))))


def make_training(config: Any) -> Training:
    """The training of all members of the config's sweep, or of its only run."""
    config = preparation.check_config(config)
    prepared, of_sweep = preparation.prepare(config, stand_in(config.data.name)), preparation.make_members(config)
    pipeline = preparation.make_pipeline(config, prepared.dataset, preparation.stream_seeds(of_sweep))
    return Training(config, prepared, of_sweep, pipeline, training.members_step(prepared, pipeline))


def training_step(made: Training, devices: Sequence[jax.Device]) -> Program:
    """The step of all members in one call; they are spread over the devices where these divide them, as in the job."""
    resident, at_once = made.pipeline.resident, len(made.members)
    apart = len(devices) > 1 and at_once % len(devices) == 0
    batch, state = next(made.pipeline.specs(0, 0)), preparation.state_shapes(made.prepared, made.members[0])
    state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((at_once, *leaf.shape), leaf.dtype), state)
    arguments = (parts(state, len(devices)), shapes(batch)) if apart else (state, parts(batch, len(devices), 1))
    function = parallel.pmapped(made.step, apart=apart, num_shared=len(resident), devices=devices)
    return Program(function, (*arguments, *shapes(resident)))


def looped_steps(made: Training) -> Callable[[int], PyTree]:
    """Do so many steps as the job's loop does them: a fresh batch for each, metrics read one step late."""
    program = parallel.make_program(made.step, at_once=len(made.members), shared=made.pipeline.resident)
    groups = program.place(preparation.initial_state(made.prepared, made.members))
    specs = itertools.chain.from_iterable(made.pipeline.specs(epoch, 0) for epoch in itertools.count())

    def steps(count):
        nonlocal groups
        late = None
        for _ in range(count):
            groups, metrics, _ = program.step(groups, next(specs))
            jax.device_get(late)
            late = metrics
        return groups, late

    return steps


def repeated_steps(made: Training) -> Callable[[int], PyTree]:
    """Do so many steps on one batch spec that stays on the devices; nothing is read back."""
    function = parallel.pmapped(made.step, num_shared=len(made.pipeline.resident))
    state = parallel.replicated(preparation.initial_state(made.prepared, made.members))
    batch = parallel.spread(parallel.shard(next(made.pipeline.specs(0, 0)), axis=1))
    resident = parallel.replicated(made.pipeline.resident)

    def steps(count):
        nonlocal state
        for _ in range(count):
            state = parallel.in_turn(function(state, batch, *resident))[0]
        return state

    return steps


def prediction(config: Any, devices: Sequence[jax.Device]) -> Program:
    """The logits of one batch of config.evaluation.batch_size examples, of one member."""
    made = make_training(config)
    model, state = made.prepared.model, preparation.state_shapes(made.prepared, made.members[0])
    variables = {"params": state.params, **state.model_state}
    stacked = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), variables)
    x = next(preparation.evaluation_batches(made.config, made.prepared.dataset.val)).x
    forward = jax.vmap(model.apply, in_axes=(0, None), out_axes=-2)
    return Program(parallel.forward_program(forward, devices=devices), (stacked, parts(x, len(devices))))


def shapes(tree: PyTree) -> PyTree:
    """The shapes of all leaves."""
    return jax.eval_shape(lambda tree: tree, tree)


def parts(tree: PyTree, count: int, axis: int = 0) -> PyTree:
    """Shapes [count, ...] of one part for each device, of the axis filled up to a multiple of them."""

    def cut(leaf):
        length = -(-leaf.shape[axis] // count)
        return jax.ShapeDtypeStruct((count, *leaf.shape[:axis], length, *leaf.shape[axis + 1 :]), leaf.dtype)

    return jax.tree.map(cut, tree)
