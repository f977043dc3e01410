"""What a training step with each form takes, and the noise of the form's estimate at the same parameters."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.trace_penalty.runs import FORMS, make_config, workdir
from focalgeo import parallel, trees
from focalgeo.config import with_values
from focalgeo.job import preparation
from focalgeo.job.members import make_members
from focalgeo.training import checkpoint
from focalgeo.training.step import member_state
from focalgeo.types import Batch, InputError, TrainState, shown


def measure(out: Path, name: str, seeds: int, *, data: str | None, rounds: int, probes: int) -> None:
    """Write measured/cost-NAME.json: seconds of steps, and noise before and after training without penalty.

    Raises:
        InputError: the runs of this task are not there.
    """
    checkpoints = workdir(out, name, "hessian") / "checkpoints"
    if not checkpoints.is_dir():
        raise InputError(f"{shown(checkpoints.parent, most=200)}: no run of {name} is there; --pieces train makes it")
    changes = {"data.name": data} if data else {}
    trained = with_values(make_config(name, "hessian", seeds), changes)
    prepared, members = preparation.prepare(trained), make_members(trained)
    states = preparation.initial_state(prepared, members)
    states = {"initial": states, "trained": checkpoint.restore_latest(checkpoints, states).state}
    state, after = (member_state(each, 0) for each in states.values())  # without penalty, seed 0
    pipeline = preparation.make_pipeline(trained, prepared.dataset, [members[0].config.seed])
    batch = pipeline.make_batch(jax.tree.map(lambda leaf: leaf[0], next(pipeline.specs(0, 0))), *pipeline.resident)

    objectives = {"none": preparation.make_objective(with_values(trained, {"sweep.trace_penalty": ()}))}
    objectives |= {form: preparation.make_objective(make_config(name, form, seeds)) for form in FORMS}
    steps = {
        form: parallel.pmapped(preparation.step_of(trained, prepared.model, objective, prepared.tx))
        for form, objective in objectives.items()
    }
    found = {"seconds": _seconds(steps, state, batch, rounds), "noise": {}}
    for form in FORMS:
        estimate = _estimate(prepared.model.apply, objectives[form].outputs)
        found["noise"][form] = {
            when: _noise(estimate, each, batch, probes) for when, each in (("initial", state), ("trained", after))
        }
    (out / "measured").mkdir(parents=True, exist_ok=True)
    (out / "measured" / f"cost-{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def _seconds(steps: dict[str, Callable], state: TrainState, batch: Batch, rounds: int) -> dict[str, dict[str, float]]:
    """Medians over rounds in which each form takes its steps in turn; the first round is not counted."""
    state, sharded = jax.device_get(state), parallel.shard(batch)
    repeats = 1 if sum(leaf.size for leaf in jax.tree.leaves(state.params)) > 50_000 else 50
    times = {form: np.empty((rounds, 2)) for form in steps}
    for number in range(-1, rounds):
        for form, step in steps.items():
            values = {"trace_penalty": jnp.float32(1e-4)} if form != "none" else {}
            current = parallel.replicated(state._replace(loss_values=state.loss_values | values))
            jax.block_until_ready(current)
            before = time.perf_counter(), time.process_time()
            for _ in range(repeats):
                current, _, _ = step(current, sharded)
            jax.block_until_ready(current)
            if number >= 0:
                times[form][number] = np.subtract((time.perf_counter(), time.process_time()), before) / repeats
    return {
        form: dict(zip(("wall", "processor"), np.median(own, 0).tolist(), strict=True))
        | dict(zip(("times", "processor times"), np.median(own / times["none"], 0).tolist(), strict=True))
        for form, own in times.items()
    }


def _estimate(apply: Callable, outputs: Callable) -> Callable:
    """(params, model state, batch, key) -> the estimate of the trace of a batch's mean loss, as a step takes it."""

    def estimate(params, model_state, batch, key):
        def network(params, batch=batch):
            variables = {"params": params, **model_state}
            return apply(variables, batch.x, train=True, mask=batch.mask, mutable=list(model_state), rngs={})

        penalty = outputs(network, params, batch, key, {"trace_penalty": jnp.float32(1)})[2]
        return penalty / jnp.sum(batch.mask, dtype=jnp.float32)

    return estimate


def _noise(estimate: Callable, state: TrainState, batch: Batch, probes: int) -> dict[str, Any]:
    """Mean and standard deviation of the estimate, and the noise of its gradient, over random vectors and orders.

    The batch is the same, its examples in another order each time. Noise of the gradient: the root of its total
    variance, over the norm of its mean, with the part of that norm which is noise taken off.
    """

    @jax.jit
    def once(params, model_state, key):
        own, order = jax.random.split(key)
        shuffled = jax.tree.map(lambda leaf: jax.random.permutation(order, leaf), batch)
        alone = jax.vmap(jax.value_and_grad(estimate), in_axes=None, axis_name=parallel.AXIS, axis_size=1)
        return jax.tree.map(lambda leaf: leaf[0], alone(params, model_state, shuffled, own))

    values, total, squares = [], None, 0.0
    for number in range(probes):
        value, gradient = once(state.params, state.model_state, jax.random.PRNGKey(number))
        values.append(float(value))
        total = gradient if total is None else trees.add(total, gradient)
        squares += float(trees.dot(gradient, gradient))
    of_mean = float(trees.dot(total, total)) / probes**2
    variance = (squares / probes - of_mean) * probes / (probes - 1)
    signal = max(of_mean - variance / probes, 0.0)
    return {
        "probes": probes,
        "mean": float(np.mean(values)),
        "error of mean": float(np.std(values, ddof=1) / probes**0.5),
        "sd": float(np.std(values, ddof=1)),
        "gradient noise": (variance / signal) ** 0.5 if signal else None,
    }
