"""One sweep over seeds for each way of training, and the numbers of each run."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import jobs
from experiments.curvature_rows import numbers, train_accuracy
from focalgeo import records
from focalgeo.rows import Seconds, Trace, select

CONFIG = "configs/digits_gamma.py"
SECONDS = 5  # of a core, for one run


class Training(NamedTuple):
    """A way of training: its title, and what its job has beside the config."""

    title: str
    fields: dict[str, Any]


def _loss(name: str, **more: Any) -> dict[str, Any]:
    return {"loss.name": name} | {f"loss.{field}": value for field, value in more.items()}


TRAININGS = {
    "ce": Training("cross-entropy", _loss("cross_entropy")),
    "ls": Training("label smoothing, 0.05", _loss("label_smoothed_cross_entropy", smoothing=0.05)),
    "brier": Training("Brier", _loss("brier_loss")),
    "mmce": Training("MMCE", _loss("mmce", penalty_weight=2.0)),
    "fl1": Training("focal, γ = 1", _loss("focal_loss", gamma=1.0)),
    "fl3": Training("focal, γ = 3", _loss("focal_loss", gamma=3.0)),
    "fl5": Training("focal, γ = 5", _loss("focal_loss", gamma=5.0)),
    "flsd53": Training("FLSD-53", _loss("flsd_53")),
    "adafocal": Training("AdaFocal", _loss("adafocal_loss")),
    "dual": Training("dual focal, γ = 3", _loss("dual_focal_loss", gamma=3.0)),
    "trace": Training("trace penalty, 0.004", _loss("cross_entropy", trace_penalty=0.004)),
    "gn_trace": Training(
        "Gauss-Newton penalty, 0.004", _loss("cross_entropy", trace_penalty=0.004, trace_of="gauss_newton")
    ),
    "sam": Training("SAM, 0.05", _loss("cross_entropy") | {"optimizer.sam_radius": 0.05}),
    "asam": Training("ASAM, 1", _loss("cross_entropy") | {"optimizer.sam_radius": 1.0, "optimizer.sam_adaptive": True}),
}


def train(out: Path, name: str, seeds: int, fields: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Run a job, or go on with it, and return its runs. fields: what it has beside, as for a quick test.

    Raises:
        CalledProcessError: the job failed; it has said why.
    """
    workdir = out / f"{name},seeds={seeds}"
    own = {"sweep.gamma": (), "sweep.seed": tuple(range(seeds)), "evaluation.methods": ("temperature_scaling",)}
    if not jobs.finished(workdir):
        jobs.run(CONFIG, workdir, TRAININGS[name].fields | own | (fields or {}))
    return measured(workdir, name)


def measured(workdir: Path, name: str) -> list[dict[str, Any]]:
    """The runs of a finished job; "p_y" is the mean probability of the label on test.

    The record's seconds are those of the whole job, all its runs together, with the curvature's measurement.
    """
    rows = jobs.rows_of(workdir)
    record = jobs.record(workdir, CONFIG) | {"seconds": round(sum(row.value for row in select(rows, Seconds)), 1)}
    found = []
    for seed in dict.fromkeys(row.seed for row in select(rows, Trace, name="trace")):
        own = [row for row in rows if row.seed == seed]
        test = records.read_predictions(workdir / "members" / f"seed={seed}", "test")
        log_probs = np.asarray(jax.nn.log_softmax(test.logits))
        known = float(np.exp(log_probs[np.arange(len(test.labels)), test.labels]).mean())
        run = {"training": name, "seed": seed, "train accuracy": train_accuracy(own), "p_y": known}
        found.append(run | dict(numbers(own)) | {"record": record})
    return found
