"""A job for each way of training and seed, and the operations of a step."""

from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments import jobs
from experiments.curvature_rows import numbers, train_accuracy
from focalgeo import parallel
from focalgeo.config import load_config, with_values
from focalgeo.job import check_config, preparation
from focalgeo.job.members import make_members
from focalgeo.rows import Seconds, select
from focalgeo.training.step import member_state

CONFIG = "configs/sst.py"
SECONDS = 180  # of a core, for a run without penalty
NETWORK = {
    "model.name": "transformer",
    "model.options.embedding_size": 64,
    "model.options.width": 64,
    "model.options.dropout": 0.2,
    "optimizer.name": "adam",
    "optimizer.learning_rate": 0.001,
    "optimizer.weight_decay": 0.0,
    "optimizer.batch_size": 50,
    "curvature.examples": 100,
    "curvature.batch_size": 100,
    "curvature.max_products": 10,
    "curvature.num_probes": 24,
    "curvature.density_probes": 0,
    "evaluation.methods": ("temperature_scaling",),
    "evaluation.num_resamples": 100,
}


class Training(NamedTuple):
    """A way of training: its title, the loss's word of the config, and what its job has beside."""

    title: str
    word: str
    fields: dict[str, Any]


TRAININGS = {
    "ce": Training("cross-entropy", "ce", {}),
    "fl3": Training("focal, γ = 3", "fl3", {}),
    "hessian": Training("trace of the Hessian, 0.0003", "ce", {"loss.trace_penalty": 0.0003}),
    "gauss_newton": Training(
        "trace of Gauss-Newton, 0.0003", "ce", {"loss.trace_penalty": 0.0003, "loss.trace_of": "gauss_newton"}
    ),
}


def fields_of(name: str, seed: int, data: str | None) -> dict[str, Any]:
    """What a job has beside the config."""
    return NETWORK | TRAININGS[name].fields | {"seed": seed} | ({"data.name": data} if data else {})


def train(out: Path, name: str, seed: int, data: str | None, fields: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a job, or go on with it, and return its numbers. fields: what it has beside, as for a quick test.

    Raises:
        CalledProcessError: the job failed; it has said why.
    """
    workdir, config = out / f"{name},seed={seed}", f"{CONFIG}:small,{TRAININGS[name].word}"
    if not jobs.finished(workdir):
        jobs.run(config, workdir, fields_of(name, seed, data) | (fields or {}))
    rows = jobs.rows_of(workdir)
    record = jobs.record(workdir, config) | {"seconds": round(sum(row.value for row in select(rows, Seconds)), 1)}
    trained = sum(row.value for row in select(rows, Seconds, phase="train"))
    run = {"training": name, "seed": seed, "train seconds": trained, "train accuracy": train_accuracy(rows)}
    kept = {key: value for key, value in numbers(rows) if not key.startswith("trace,")}
    return run | kept | {"record": record}


def cost(name: str, data: str | None) -> float:
    """Floating-point operations of a training step on one device, as XLA counts them."""
    config = with_values(load_config(jobs.ROOT / CONFIG, f"small,{TRAININGS[name].word}"), fields_of(name, 0, data))
    config = check_config(config)
    prepared, members = preparation.prepare(config), make_members(config)
    state = member_state(preparation.initial_state(prepared, members), 0)
    pipeline = preparation.make_pipeline(config, prepared.dataset, [members[0].config.seed])
    batch = pipeline.make_batch(jax.tree.map(lambda leaf: leaf[0], next(pipeline.specs(0, 0))), *pipeline.resident)
    alone = jax.vmap(prepared.step, in_axes=None, axis_name=parallel.AXIS, axis_size=1)
    return float(jax.jit(alone).lower(state, batch).compile().cost_analysis()["flops"])
