"""Training jobs of questions: run as a user runs them, and the numbers of each of their runs from its rows."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict, FrozenConfigDict

from experiments.question import HERE, Flags, Job
from focalgeo import parallel, records
from focalgeo.config import load_config, with_values
from focalgeo.job import check_config, preparation
from focalgeo.job.preparation import make_members
from focalgeo.rows import AttributionPart, Eigenvalue, Fit, Metric, Scalar, Seconds, Sharpness, Trace, select
from focalgeo.training import checkpoint
from focalgeo.training.step import member_state
from focalgeo.types import Batch, TrainState

ROOT = HERE.parent
PARTS = ("gauss_newton", "residual", "rank_one", "scale_only")
T_ALONE = {"evaluation.methods": ("temperature_scaling",), "evaluation.num_resamples": 100}


def trained(config: str, workdir: Path, fields: Mapping[str, Any]) -> Path:
    """The workdir of `python -m focalgeo.run` with this config ("configs/cifar.py:small,ce") and fields, finished.

    A job that was stopped goes on. Its page is made last.

    Raises:
        CalledProcessError: the job failed, or refused its config; it has said why.
    """
    if not (workdir / "report.html").exists():
        flags = [f"--config.{name}={value}" for name, value in fields.items()]
        command = [sys.executable, "-m", "focalgeo.run", f"--config={ROOT / config}", f"--workdir={workdir}", *flags]
        subprocess.run(command, check=True, cwd=ROOT)
    return workdir


def record(workdir: Path, config: str, rows: list | None = None) -> dict[str, Any]:
    """What made a run: commit, config words, versions, date, and the seconds of its training.

    rows: of a sweep, whose seconds are then those of all runs together, with the curvature's measurement.
    """
    manifest = json.loads((workdir / records.MANIFEST).read_text(encoding="utf-8"))
    versions = {name: manifest["versions"][name] for name in ("python", "jax", "flax")}
    timed = select(records.read_rows(workdir), Seconds, phase="train") if rows is None else select(rows, Seconds)
    seconds = round(sum(row.value for row in timed), 1)
    return {
        "commit": manifest["git"],
        "config": config,
        "date": manifest["created"][:10],
        "versions": versions,
        "seconds": seconds,
    }


def data_of(flags: Flags) -> dict[str, str]:
    """The field of a job for --data, where that was asked for."""
    return {"data.name": flags.data} if flags.data else {}


def folder(of: Mapping[str, Any], seeds: Sequence[int]) -> str:
    """The name of a sweep's workdir."""
    return ",".join([*map(str, of.values()), f"seeds={seeds[0]}-{seeds[-1]}"])


def sweep(
    of: Mapping[str, Any], seeds: Sequence[int], config: str, fields: Any, *, seconds: float = 0.0, **how: Any
) -> Job:
    """A job of a question: a sweep over these seeds with these fields beside, its runs as `measured`.

    fields: or a function of the folder of runs. seconds: of a core, for one seed. how: keywords of `measured`.
    """

    def make(out):
        beside = fields(out) if callable(fields) else fields
        workdir = trained(config, out / folder(of, seeds), {**beside, "sweep.seed": tuple(seeds)})
        return measured(workdir, config, of, **how)

    return Job(of, seeds, make, seconds)


def measured(
    workdir: Path,
    config: str,
    of: Mapping[str, Any],
    *,
    tags: Mapping[str, str] = {"seed": "seed"},
    parts: bool = False,
    more: Callable[[dict, list, Path], Mapping[str, Any]] = lambda run, rows, workdir: {},
    stopped: Mapping[str, Any] = {},
) -> list[dict[str, Any]]:
    """The runs of a finished job: what they have in common, their tags, numbers after training, and the record.

    tags: name in the run -> in the rows, as {"rate": "learning_rate", "seed": "seed"}. more: further numbers of a run,
    of its rows and the workdir. parts: those of the traces too. stopped: what a run has whose loss was no longer
    finite; if nothing, it is left out.
    """
    rows = records.read_rows(workdir)
    made, runs = {"record": record(workdir, config, rows)}, []
    for values, group in members(rows, tags):
        run = {**of, **values}
        if select(group, Metric, name="accuracy", split="test"):
            run["train accuracy"] = train_accuracy(group)
            run |= {name: value for name, value in numbers(group) if parts or not name.startswith("trace,")}
            runs.append(run | more(run, group, workdir) | made)
        elif stopped and None not in values.values():  # else the rows of the job as a whole
            runs.append(run | stopped | made)
    return runs


def members(rows: list, tags: Mapping[str, str]) -> Iterator[tuple[dict[str, Any], list]]:
    """The values of the tags of each run of a sweep, and its rows."""
    every: dict[tuple, list] = {}
    for row in rows:
        every.setdefault(tuple(getattr(row, tag) for tag in tags.values()), []).append(row)
    return ((dict(zip(tags, values, strict=True)), group) for values, group in every.items())


def load(config: str, fields: Mapping[str, Any] = {}) -> ConfigDict:
    """A config by its file and words, "configs/cifar.py:small,ce", with other values of some fields."""
    path, _, words = config.partition(":")
    return with_values(load_config(ROOT / path, words), fields)


def config_of(workdir: Path) -> FrozenConfigDict:
    """The checked config of a job, from its manifest."""
    return check_config(ConfigDict(records.read_manifest(workdir)["config"]))


def networks(workdir: Path) -> dict[tuple[float, int], Any]:
    """(gamma, seed) -> parameters after training, of every member of a sweep over both."""
    saved = checkpoint.read(checkpoint.find(workdir / "checkpoints"))["params"]
    members = enumerate(make_members(config_of(workdir)))
    return {
        (member.tags["gamma"], member.tags["seed"]): jax.tree.map(lambda leaf, at=at: np.asarray(leaf[at]), saved)
        for at, member in members
    }


def train_accuracy(rows: list) -> float:
    """The accuracy of the training steps of the last rows, those that end in the last epoch.

    A row is of config.log_every steps, so that of few steps an epoch more than one epoch counts.
    """
    steps = list(select(rows, Scalar, name="accuracy", split="train"))
    last = max(row.epoch for row in steps) - 1
    steps = [row for row in steps if row.epoch > last + 1e-6]
    return sum(row.value * row.n for row in steps) / sum(row.n for row in steps)


def numbers(rows: list) -> Iterator[tuple[str, float]]:
    """Name -> number after training: "trace CE val", "trace own train", "ece", "ece after T", "temperature", ...

    CE is the Hessian of cross-entropy, own that of the trained loss where it is another.
    """
    rows = [row for row in rows if row.epoch is None]
    for row in select(rows, Metric, split="test", method="uncalibrated"):
        yield row.name, row.value
    for row in select(rows, Metric, name="nll", split="val", method="uncalibrated"):
        yield "val nll", row.value
    for row in select(rows, Metric, split="test", method="temperature_scaling", criterion="nll"):
        yield f"{row.name} after T", row.value
    for row in select(rows, Fit, method="temperature_scaling", criterion="nll"):
        yield row.name, row.value
    of_losses = (*select(rows, Eigenvalue | Trace | Sharpness), *select(rows, AttributionPart, of="trace"))
    for row in of_losses:
        name = f"trace, {row.part}" if isinstance(row, AttributionPart) else row.name
        if not isinstance(row, AttributionPart) or row.part in PARTS:
            yield f"{name} {'CE' if row.loss == 'cross_entropy' else 'own'} {row.split}", row.value


def operations(config: str, fields: Mapping[str, Any]) -> float:
    """Floating-point operations of a training step of one run on one device, as XLA counts them."""
    prepared, states, batch = ready(check_config(load(config, fields)))
    alone = jax.vmap(prepared.step, in_axes=None, axis_name=parallel.AXIS, axis_size=1)
    return flops(alone, member_state(states, 0), batch)


def flops(function: Callable, *arguments: Any) -> float:
    """Floating-point operations of a call, as XLA counts them."""
    return float(jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"])


def ready(config) -> tuple[preparation.Prepared, TrainState, Batch]:
    """What a checked config trains with, the states of its members before training, and the first batch."""
    prepared, members = preparation.prepare(config), make_members(config)
    states = preparation.initial_state(prepared, members)
    pipeline = preparation.make_pipeline(config, prepared.dataset, [members[0].config.seed])
    batch = pipeline.make_batch(jax.tree.map(lambda leaf: leaf[0], next(pipeline.specs(0, 0))), *pipeline.resident)
    return prepared, states, batch
