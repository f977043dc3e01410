"""Training as the main job does it, on random images: its own input pipeline, program and meter, in timed stretches.

`fresh` is the loop's own path. `kept` repeats the same compiled step on one batch spec that stays on the device,
`ready` a step without the making of batches on one batch that stays there: what they take less is the host's and the
input's.
"""

import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs import cifar10
from focalgeo import data, models, parallel
from focalgeo.job import members, preparation, training
from focalgeo.training import loop, optimiser
from focalgeo.training.meter import Meter
from focalgeo.training.step import make_members_step
from focalgeo.types import Batch, Dataset, PyTree, Split, TrainState

# name -> (model, its options, examples of a batch on a CPU)
NETWORKS = {
    "ResNet-18": ("resnet18", {}, 32),
    "ResNet-50": ("resnet50", {}, 16),
    "WRN-26-10": ("wide_resnet26_10", {}, 8),
    "ResNet-20": ("resnet20", {}, 64),
    "small CNN": ("cnn", {"widths": (32, 64, 128)}, 128),
    "tiny ResNet": ("resnet20", {"blocks": (1, 2), "widths": (4, 8)}, 4),
    "tiny bottleneck ResNet": ("resnet50", {"blocks": (1, 1), "widths": (4, 8), "stem_width": 6}, 4),
}
Steps = Callable[[int], None]  # does that many training steps, and returns when they are done


class Training(NamedTuple):
    """What the main job has ready as training begins; `state` is of one member, in host memory."""

    config: PyTree
    split: Split
    pipeline: preparation.Pipeline
    program: parallel.Program
    step: Callable
    state: TrainState


def make_training(network: str, *, batch: int, examples: int, dtype: str) -> Training:
    """Training by the papers' recipe with cross-entropy, as focalgeo.job has it, on random images of CIFAR-10's size.

    dtype: of the network's layers, "float32" or "bfloat16".
    """
    config = cifar10.get_config()
    config.loss.name, config.optimizer.batch_size, config.optimizer.learning_rate = "cross_entropy", batch, 0.01
    dataset = random_dataset(examples)
    name, options, _ = NETWORKS[network]
    model = models.build(name, 10, dtype=jnp.dtype(dtype), axis_name=parallel.AXIS, **options)
    settings = {name: config.optimizer[name] for name in ("momentum", "nesterov", "weight_decay", "clip_norm")}
    tx = optimiser.make_optimiser("sgd", optimiser.step_schedule([10**6], 0.1), **settings)
    plan = loop.Plan(1, data.num_batches(dataset.train, batch), 50, 1000)
    schedule, objective = optimiser.step_schedule([10**6], 0.1), preparation.make_objective(config)
    step = preparation.step_of(config, model, objective, tx)
    prepared = preparation.Prepared(dataset, model, plan, objective, schedule, tx, step)
    only = members.make_members(config)
    state = preparation.initial_state(prepared, only)
    pipeline = preparation.make_pipeline(config, dataset, [config.seed])
    program, _ = training.choose_program(config, prepared, 1, state, pipeline)
    return Training(config, dataset.train, pipeline, program, step, state)


def random_dataset(examples: int) -> Dataset:
    """Random pixels and labels: the time of a step does not depend on them."""
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(examples, 32, 32, 3), dtype=np.uint8)
    split = Split(x, rng.integers(10, size=examples).astype(np.int32))
    return Dataset("random", split, split, split, tuple("0123456789"), "")


def fresh_steps(own: Training) -> Steps:
    """The loop's path: a fresh batch spec for every step, metrics read one step late."""
    groups, specs = own.program.place(own.state), endless_specs(own)
    meter = Meter({}, [{}], [False], sweep=False)

    def steps(count: int) -> None:
        nonlocal groups
        for number in range(count):
            groups, metrics, _ = own.program.step(groups, next(specs))
            meter.add(number, metrics)
        meter.settle()
        jax.block_until_ready(groups)

    return steps


def endless_specs(own: Training):
    """The batch specs of one epoch after another, leaves [1, examples, ...]."""
    return itertools.chain.from_iterable(own.pipeline.specs(epoch, 0) for epoch in itertools.count())


def lowered_on_a_spec(own: Training) -> tuple[jax.stages.Lowered, tuple[PyTree, ...]]:
    """The program's step, to be looked at or compiled, and what it takes after the state: a spec and all examples."""

    def step_of_spec(state: TrainState, spec: PyTree, *resident: Split) -> tuple[TrainState, dict]:
        return own.step(state, own.pipeline.make_batch(spec, *resident))

    inputs = (_shards(next(own.pipeline.specs(0, 0))), *parallel.replicated(own.pipeline.resident))
    step = parallel.pmapped(make_members_step(step_of_spec), num_shared=len(own.pipeline.resident))
    return step.lower(own.program.place(own.state)[0], *inputs), inputs


def lowered_on_a_batch(own: Training) -> tuple[jax.stages.Lowered, tuple[Batch]]:
    """The same step on a batch that is gathered, augmented and normalised already."""
    spec = jax.tree.map(lambda leaf: leaf[0], next(own.pipeline.specs(0, 0)))
    batch = jax.jit(own.pipeline.make_batch)(spec, *own.pipeline.resident)
    inputs = (_shards(jax.tree.map(lambda leaf: np.asarray(leaf)[None], batch)),)
    step = parallel.pmapped(make_members_step(own.step))
    return step.lower(own.program.place(own.state)[0], *inputs), inputs


def repeated_steps(own: Training, compiled: Callable, inputs: tuple[PyTree, ...]) -> Steps:
    """Steps on the same inputs, which lie on the device; nothing is read back."""
    group = own.program.place(own.state)[0]

    def steps(count: int) -> None:
        nonlocal group
        for _ in range(count):
            group = compiled(group, *inputs)[0]
        jax.block_until_ready(group)

    return steps


def host_milliseconds(own: Training, *, steps: int) -> dict[str, float]:
    """Least milliseconds of a spec, of a dispatch and of reading metrics that are there, with a device that waits.

    Where the backend runs a short program in the caller's thread (XLA does on a CPU), dispatch holds it.
    """
    groups, specs = own.program.place(own.state), endless_specs(own)
    took = {"spec": [], "dispatch": [], "metrics": []}
    for number in range(steps + 1):
        times = [time.perf_counter()]
        spec = next(specs)
        times.append(time.perf_counter())
        groups, metrics, _ = own.program.step(groups, spec)
        times.append(time.perf_counter())
        jax.block_until_ready((groups, metrics))
        meter, ready = Meter({}, [{}], [False], sweep=False), time.perf_counter()
        meter.add(number, metrics)
        meter.settle()
        times.append(times[-1] + time.perf_counter() - ready)
        for name, seconds in zip(took, np.diff(times), strict=True):
            took[name].append(1e3 * seconds)
    return {name: min(values[1:]) for name, values in took.items()}


def _shards(batch: PyTree) -> PyTree:
    """Leaves [1, examples, ...] of host memory as a compiled step takes them, on the devices."""
    return parallel.spread(parallel.shard(batch, axis=1))
