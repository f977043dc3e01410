"""Networks trained with one loss throughout, and those that go on from their checkpoints with either loss."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from experiments import jobs
from experiments.curvature_rows import numbers, train_accuracy
from focalgeo.rows import Diagnostic, Eigenvalue, ReliabilityBin, Seconds, Trace, select

CONFIG = "configs/digits.py"
GAMMAS = (0.0, 3.0)  # cross-entropy, and the focal loss
EPOCHS, HALF, MORE, EVERY = 60, 30, 30, 2  # of the first training, half of it, of what follows, between measurements
STEPS_PER_EPOCH = 17
SECONDS = 14  # of a core, for one run with its measurements
MEASURED = {
    "curvature.splits": ("val",),
    "curvature.every": EVERY,
    "curvature.density_probes": 0,
    "diagnostics.every": EVERY,
    "diagnostics.splits": ("val",),
    "evaluation.methods": ("temperature_scaling",),
    "evaluation.num_resamples": 100,
}


class Way(NamedTuple):
    """What a network goes on from, and with what. at 0: it is trained from random weights to the end."""

    source: float  # gamma of the first training
    at: int  # the epoch of the checkpoint
    optimizer: str  # "fresh" or "kept"
    gamma: float  # of what follows


def ways() -> Iterator[Way]:
    """The two throughout, then those from half way and from the end; the end's have a fresh optimiser."""
    yield from (Way(gamma, 0, "fresh", gamma) for gamma in GAMMAS)
    for at, optimizer in ((HALF, "kept"), (HALF, "fresh"), (EPOCHS, "fresh")):
        yield from (Way(source, at, optimizer, gamma) for source in GAMMAS for gamma in GAMMAS)


def workdir_of(out: Path, way: Way, seeds: int) -> Path:
    """The folder of a way's job."""
    return out / f"{way.source:g} to {way.gamma:g}, {way.at}, {way.optimizer}, seeds={seeds}".replace(" ", "_")


def fields_of(out: Path, way: Way, seeds: int) -> dict[str, Any]:
    """What the job of a way has beside the config.

    From half way the schedule is what was left of it; from the end the rate is a tenth, and a hundredth for the last
    ten epochs.
    """
    own = MEASURED | {"loss.gamma": way.gamma, "sweep.seed": tuple(range(seeds))}
    if not way.at:
        return own | {"checkpoint.every": HALF * STEPS_PER_EPOCH, "checkpoint.keep": 2}
    rate, decays = (0.1, (10, 20)) if way.at == HALF else (0.01, (20,))
    return own | {
        "start.run": str(workdir_of(out, Way(way.source, 0, "fresh", way.source), seeds)),
        "start.step": way.at * STEPS_PER_EPOCH,
        "start.optimizer": way.optimizer,
        "optimizer.learning_rate": rate,
        "optimizer.epochs": MORE,
        "optimizer.decay_epochs": decays,
    }


def train(out: Path, way: Way, seeds: int, fields: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Run a job, or go on with it, and return its runs. fields: what it has beside, as for a quick test.

    Raises:
        CalledProcessError: the job failed; it has said why.
    """
    workdir = workdir_of(out, way, seeds)
    if not jobs.finished(workdir):
        jobs.run(CONFIG, workdir, fields_of(out, way, seeds) | (fields or {}))
    return measured(workdir, way)


def measured(workdir: Path, way: Way) -> list[dict[str, Any]]:
    """The runs of a finished job: final numbers, and "path", numbers by epoch, of cross-entropy's Hessian on val.

    The record's seconds are those of the whole job, all its runs together.
    """
    rows = jobs.rows_of(workdir)
    record = jobs.record(workdir, CONFIG) | {"seconds": round(sum(row.value for row in select(rows, Seconds)), 1)}
    found = []
    for seed in sorted({row.seed for row in select(rows, Trace, name="trace")}):
        own = [row for row in rows if row.seed == seed]
        run = way._asdict() | {"seed": seed, "train accuracy": train_accuracy(own), "path": path_of(own)}
        kept = {name: value for name, value in numbers(own) if not name.startswith("trace,")}
        found.append(run | kept | {"record": record})
    return found


def path_of(rows: list) -> dict[str, list[float]]:
    """Numbers on val by epoch: "epoch", "ece" (25 bins), "nll", "p_y", "lambda_max", "trace"; the last after training.

    ECE and NLL in nats and shares, curvature of cross-entropy.
    """
    epochs = sorted({row.epoch for row in select(rows, Diagnostic, split="val") if row.epoch is not None})
    found: dict[str, list[float]] = {"epoch": epochs}
    for name, kind in (("nll", "nll"), ("p_y", "true_class_probability")):
        of_epoch = {row.epoch: row.value for row in select(rows, Diagnostic, name=kind, split="val", outcome=None)}
        found[name] = [of_epoch[epoch] for epoch in epochs]
    bins = select(rows, ReliabilityBin, name="reliability", split="val", method=None)
    found["ece"] = [
        sum(row.share * abs(row.value - row.confidence) for row in bins if row.epoch == epoch) for epoch in epochs
    ]
    for name, kind in (("lambda_max", Eigenvalue), ("trace", Trace)):
        every = select(rows, kind, name=name, split="val", loss="cross_entropy")
        of_epoch = {epochs[-1] if row.epoch is None else row.epoch: row.value for row in every}
        found[name] = [of_epoch[epoch] for epoch in epochs]
    return found
