"""The jobs: focal loss and the loss of its bound at every gamma, and networks of half the data that go on with all."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import jobs
from focalgeo import records
from focalgeo.job.members import names_in
from focalgeo.training import checkpoint

CONFIG = "configs/digits_gamma.py"
GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0)
HALF_GAMMAS = (0.0, 1.0, 3.0, 7.0)
HALF = 539  # of 1,079 training images, those that the prior has seen
SECONDS = 3  # of a core, for one run
MEASURED = {
    "curvature.splits": ("val",),
    "curvature.num_probes": 30,
    "evaluation.methods": ("temperature_scaling",),
    "evaluation.num_resamples": 100,
}


class Job(NamedTuple):
    """A sweep over gamma and seeds: its name, gammas, and what it has beside."""

    name: str
    gammas: tuple[float, ...]
    fields: dict[str, Any]


FOCAL = Job("focal", GAMMAS, {})
PENALISED = Job("penalised", GAMMAS, {"loss.name": "confidence_penalised_cross_entropy"})
PRIOR = Job("prior", HALF_GAMMAS, {"data.train_size": HALF, "curvature.examples": 0})
POSTERIOR = Job(  # from the prior's networks, at a rate that leaves them near
    "posterior",
    HALF_GAMMAS,
    {"curvature.examples": 0, "optimizer.learning_rate": 0.01, "optimizer.epochs": 20, "optimizer.decay_epochs": (15,)},
)
JOBS = (FOCAL, PENALISED, PRIOR, POSTERIOR)


def workdir_of(out: Path, job: Job, seeds: int) -> Path:
    """The folder of a job."""
    return out / f"{job.name},seeds={seeds}"


def fields_of(out: Path, job: Job, seeds: int) -> dict[str, Any]:
    """What a job has beside the config."""
    own = MEASURED | {"sweep.gamma": job.gammas, "sweep.seed": tuple(range(seeds))} | job.fields
    return own | ({"start.run": str(workdir_of(out, PRIOR, seeds))} if job is POSTERIOR else {})


def train(out: Path, job: Job, seeds: int, fields: dict[str, Any] | None = None) -> Path:
    """Run a job, or go on with it, and return its folder. fields: what it has beside, as for a quick test.

    Raises:
        CalledProcessError: the job failed; it has said why.
    """
    workdir = workdir_of(out, job, seeds)
    if not jobs.finished(workdir):
        jobs.run(CONFIG, workdir, fields_of(out, job, seeds) | (fields or {}))
    return workdir


def networks(workdir: Path) -> dict[tuple[float, int], Any]:
    """(gamma, seed) -> parameters after training, of every member of a sweep over both."""
    saved = checkpoint.read(checkpoint.find(workdir / "checkpoints"))["params"]
    found = {}
    for index, name in enumerate(names_in(records.read_manifest(workdir))):
        values = dict(part.split("=") for part in name.split(","))
        found[float(values["gamma"]), int(values["seed"])] = jax.tree.map(lambda leaf: np.asarray(leaf[index]), saved)  # noqa: B023
    return found
