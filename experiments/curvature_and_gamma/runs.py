"""The sweeps over gamma, one job for each network and seeds, and the numbers of each run."""

from pathlib import Path
from typing import Any

from experiments import jobs
from experiments.curvature_rows import numbers, train_accuracy
from focalgeo.rows import Seconds, Trace, select

DIGITS = "digits"
NETWORKS = {  # name -> title
    DIGITS: "two layers, digits",
    "resnet18": "small ResNet",
    "resnet18_2w": "ResNet of double width",
    "mobilenet_v2": "MobileNet-v2",
    "vit": "ViT",
    "vgg19": "VGG",
}
SEEDS = {DIGITS: 20}  # of the others 3
SPLITS = ("val", "train")
SECONDS = {DIGITS: 3, "resnet18": 190, "resnet18_2w": 510, "mobilenet_v2": 230, "vit": 350, "vgg19": 220}  # of a core


def seeds_of(network: str, seeds: int | None) -> int:
    """How many seeds are run: as asked, else 20 on digits and 3 on CIFAR-10."""
    return seeds or SEEDS.get(network, 3)


def pieces(networks: list[str], seeds: int | None) -> list[tuple[str, tuple[int, ...]]]:
    """Network and seeds of each job, in order: digits in one, of the others all networks of a seed before the next."""
    found = [(DIGITS, tuple(range(seeds_of(DIGITS, seeds))))] if DIGITS in networks else []
    others = [name for name in networks if name != DIGITS]
    most = max((seeds_of(name, seeds) for name in others), default=0)
    return found + [(name, (seed,)) for seed in range(most) for name in others]


def config_of(network: str, scale: str) -> str:
    """The config with its words."""
    if network == DIGITS:
        return "configs/digits_gamma.py"
    return f"configs/cifar10_curvature.py:{network}{',paper' if scale == 'paper' else ''}"


def train(out: Path, network: str, seeds: tuple[int, ...], data: str | None, scale: str) -> list[dict[str, Any]]:
    """Run a job, or go on with it, and return its runs.

    Raises:
        CalledProcessError: the job failed; it has said why.
    """
    workdir = out / f"{network}-{scale}-seeds={'-'.join(map(str, (seeds[0], seeds[-1])))}"
    fields = {"sweep.seed": seeds} | ({"data.name": data} if data and network != DIGITS else {})
    if not jobs.finished(workdir):
        jobs.run(config_of(network, scale), workdir, fields)
    return measured(workdir, network, config_of(network, scale))


def measured(workdir: Path, network: str, config: str) -> list[dict[str, Any]]:
    """The runs of a finished job: network, gamma, seed, record and the numbers of `curvature_rows`.

    The record's seconds are those of the whole job, all its runs together, with the curvature's measurement.
    """
    rows = jobs.rows_of(workdir)
    record = jobs.record(workdir, config) | {"seconds": round(sum(row.value for row in select(rows, Seconds)), 1)}
    members = dict.fromkeys((row.gamma, row.seed) for row in select(rows, Trace, name="trace"))
    found = []
    for gamma, seed in members:
        own = [row for row in rows if (row.gamma, row.seed) == (gamma, seed)]
        run = {"network": network, "gamma": gamma, "seed": seed, "train accuracy": train_accuracy(own)}
        found.append(run | dict(numbers(own)) | {"record": record})
    return found
