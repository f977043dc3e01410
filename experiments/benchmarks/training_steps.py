"""Training steps of k members in one call, and of the same members one after another in the same process."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import losses, models
from focalgeo.training import optimiser
from focalgeo.training.step import make_members_step, make_step, stack
from focalgeo.types import Batch, TrainState

# name -> (model, options, image shape, batch, repetitions of a timed call)
NETWORKS = {
    "digits MLP": ("mlp", {"hidden": (32, 32)}, (8, 8, 1), 64, 50),
    "small CNN": ("cnn", {"widths": (32, 64, 128)}, (32, 32, 3), 128, 2),
}


def measured_steps(network: str, counts: list[int], *, rounds: int, peak: float | None) -> list[dict]:
    """A row for each number of members: least seconds of a step of all, at once and one by one; memory; throughput.

    Learning rate and gamma differ between members, batches do not. peak: the device's, in TFLOP/s.
    """
    name, options, shape, batch_size, repeat = NETWORKS[network]
    step, state = _step(name, options, shape)
    batch = _batch(shape, batch_size)
    compiled = {count: jax.jit(make_members_step(step)).lower(_stacked(state, count), batch) for count in counts}
    compiled = {count: lowered.compile() for count, lowered in compiled.items()}
    single, one = jax.jit(make_members_step(step)), _stacked(state, 1)
    calls = {count: _repeated(compiled[count], _stacked(state, count), batch, repeat) for count in counts}
    alone = _repeated(single, one, batch, repeat)
    seconds = {count: np.inf for count in counts}
    least_alone = np.inf
    for _ in range(rounds + 1):  # the first round warms up
        least_alone = min(least_alone, _timed(alone) / repeat)
        for count, call in calls.items():
            seconds[count] = min(seconds[count], _timed(call) / repeat)
    return [
        _row(network, batch_size, count, seconds[count], count * least_alone, compiled[count], peak) for count in counts
    ]


def _step(name: str, options: dict, shape: tuple) -> tuple[Callable, TrainState]:
    model = models.build(name, 10, **options)
    schedule = optimiser.step_schedule([10**6], 0.1)
    settings = {"momentum": 0.9, "nesterov": False, "weight_decay": 5e-4, "clip_norm": 0.0}
    tx = optimiser.make_optimiser("sgd", schedule, **settings)
    variables = dict(jax.jit(model.init)(jax.random.PRNGKey(0), jnp.zeros((2, *shape))))
    params = variables.pop("params")
    values, rate = {"gamma": jnp.float32(2)}, jnp.float32(0.01)
    state = TrainState(jnp.int32(0), params, variables, tx.init(params), jax.random.PRNGKey(1), values, rate)
    return make_step(model.apply, losses.make_loss("focal_loss"), tx, lambda tree: tree), state


def _batch(shape: tuple, batch_size: int) -> Batch:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, batch_size, *shape)).astype(np.float32)
    return jax.device_put(
        Batch(x, rng.integers(0, 10, (1, batch_size)).astype(np.int32), np.ones((1, batch_size), bool))
    )


def _stacked(state: TrainState, count: int) -> TrainState:
    gammas = np.linspace(0, 5, count, dtype=np.float32)
    states = [state._replace(loss_values={"gamma": gamma}) for gamma in gammas]
    return jax.device_put(stack(states))


def _repeated(step: Callable, state: TrainState, batch: Batch, repeat: int) -> Callable:
    def call():
        current = state
        for _ in range(repeat):
            current, metrics = step(current, batch)
        return current, metrics

    return call


def _timed(call: Callable) -> float:
    began = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began


def _row(network: str, batch: int, count: int, seconds: float, one_by_one: float, compiled, peak: float | None) -> dict:
    memory = compiled.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    row = {"network": network, "batch": batch, "members": count, "seconds": seconds, "one_by_one": one_by_one}
    row |= {"images_per_second": count * batch / seconds, "megabytes": held / 1e6}
    costs = compiled.cost_analysis() or {}
    if peak and "flops" in costs:
        row["of_peak"] = costs["flops"] / seconds / (1e12 * peak)
    return row
