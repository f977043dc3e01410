"""Sweeps over seeds and rates for each method and strength, those of equal cost, and the operations of a step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments import jobs
from experiments.curvature_rows import numbers, train_accuracy
from focalgeo import parallel
from focalgeo.config import load_config, with_values
from focalgeo.job import check_config, preparation
from focalgeo.job.members import make_members
from focalgeo.rows import Metric, Seconds, Trace, select
from focalgeo.training.step import member_state

CONFIG = "configs/digits_gamma.py"
RATES = (0.03, 0.1)  # of which the one with the lower NLL on val is taken
EPOCHS, DECAYS = 60, (40, 50)
SECONDS = 4  # of a core, for one run of EPOCHS


class Method(NamedTuple):
    """A way to flatten: its title, the field of its strength, the strengths, and what its job has beside."""

    title: str
    field: str
    strengths: tuple[float, ...]
    fields: dict[str, Any]


METHODS = {
    "plain": Method("cross-entropy", "", (0.0,), {}),
    "sam": Method("SAM", "optimizer.sam_radius", (0.02, 0.05, 0.1, 0.2, 0.4), {}),
    "asam": Method("ASAM", "optimizer.sam_radius", (0.25, 0.5, 1.0, 2.0, 4.0), {"optimizer.sam_adaptive": True}),
    "hessian": Method("trace of the Hessian", "loss.trace_penalty", (0.0003, 0.001, 0.003, 0.01), {}),
    "gauss_newton": Method(
        "trace of Gauss-Newton", "loss.trace_penalty", (0.0003, 0.001, 0.003, 0.01), {"loss.trace_of": "gauss_newton"}
    ),
}


class Job(NamedTuple):
    """A method at a strength, and for how many times EPOCHS; longer ones have the rate that was chosen."""

    method: str
    strength: float
    times: float = 1.0
    rate: float | None = None


def equal_epochs() -> Iterator[Job]:
    """Every method at every strength."""
    return (Job(name, strength) for name, method in METHODS.items() for strength in method.strengths)


def fields_of(job: Job, seeds: int) -> dict[str, Any]:
    """What a job has beside the config; the schedule is drawn out with the epochs."""
    method = METHODS[job.method]
    own = {
        "loss.name": "cross_entropy",
        "sweep.gamma": (),
        "sweep.seed": tuple(range(seeds)),
        "evaluation.methods": ("temperature_scaling",),
        "evaluation.num_resamples": 100,
        "optimizer.epochs": round(EPOCHS * job.times),
        "optimizer.decay_epochs": tuple(round(epoch * job.times) for epoch in DECAYS),
    }
    own |= {"sweep.learning_rate": RATES} if job.rate is None else {"optimizer.learning_rate": job.rate}
    return own | method.fields | ({method.field: job.strength} if method.field else {})


def train(out: Path, job: Job, seeds: int, fields: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Run a job, or go on with it, and return its runs. fields: what it has beside, as for a quick test.

    Raises:
        CalledProcessError: the job failed; it has said why.
    """
    workdir = out / f"{job.method},{job.strength:g},{job.times:g},seeds={seeds}"
    if not jobs.finished(workdir):
        jobs.run(CONFIG, workdir, fields_of(job, seeds) | (fields or {}))
    return measured(workdir, job)


def measured(workdir: Path, job: Job) -> list[dict[str, Any]]:
    """The runs of a finished job; "val nll" is of the outputs as trained, the record's seconds of the whole job."""
    rows = jobs.rows_of(workdir)
    record = jobs.record(workdir, CONFIG) | {"seconds": round(sum(row.value for row in select(rows, Seconds)), 1)}
    found = []
    members = dict.fromkeys((row.learning_rate, row.seed) for row in select(rows, Trace, name="trace"))
    for rate, seed in members:
        own = [row for row in rows if (row.learning_rate, row.seed) == (rate, seed)]
        (val,) = (
            row for row in select(own, Metric, name="nll", split="val", method="uncalibrated") if row.epoch is None
        )
        run = {"method": job.method, "strength": job.strength, "times": job.times, "rate": job.rate or round(rate, 6)}
        kept = {name: value for name, value in numbers(own) if not name.startswith("trace,")}
        found.append(
            run
            | {"seed": seed, "val nll": val.value, "train accuracy": train_accuracy(own)}
            | kept
            | {"record": record}
        )
    return found


def cost(method: str) -> float:
    """Floating-point operations of a training step on one device, as XLA counts them."""
    own = fields_of(Job(method, METHODS[method].strengths[-1]), 1) | {"sweep.learning_rate": (), "sweep.seed": ()}
    config = check_config(with_values(load_config(jobs.ROOT / CONFIG, ""), own))
    prepared, members = preparation.prepare(config), make_members(config)
    state = member_state(preparation.initial_state(prepared, members), 0)
    pipeline = preparation.make_pipeline(config, prepared.dataset, [members[0].config.seed])
    batch = pipeline.make_batch(jax.tree.map(lambda leaf: leaf[0], next(pipeline.specs(0, 0))), *pipeline.resident)
    alone = jax.vmap(prepared.step, in_axes=None, axis_name=parallel.AXIS, axis_size=1)
    return float(jax.jit(alone).lower(state, batch).compile().cost_analysis()["flops"])
