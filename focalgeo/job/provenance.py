"""Provenance: the manifest, which identifies a run, and by which it goes on with the same config and data alone."""

import datetime
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from focalgeo import calibration, losses, parallel, records
from focalgeo.types import Dataset, InputError, shown


def check_workdir(workdir: Path, config, shard: str | None) -> str:
    """Whether a run starts "fresh" in `workdir` or goes on there ("resume").

    Raises:
        InputError: the folder holds something else, another config or another shard.
    """
    how = records.check_workdir(workdir, config.to_dict())
    there = records.read_manifest(workdir).get("shard") if how == "resume" else shard
    if there != shard:
        parts = [f"shard {shown(part, most=24)}" if part else "all of the sweep" for part in (there, shard)]
        raise InputError(f"{workdir} holds {parts[0]}, this run is {parts[1]}; choose another --workdir")
    return how


def begin(
    workdir: Path, how: str, config, dataset: Dataset, parameters: int, began_from: dict[str, str], shard: str | None
) -> None:
    """Write the manifest of a "fresh" run; of one that goes on, refuse other data than it began with.

    parameters: of one member's network. began_from: see `start.described`.
    """
    if how == "resume":
        began_with = records.read_manifest(workdir).get("data", {}).get("checksum")
        if began_with != dataset.checksum:
            raise InputError(
                f"{dataset.name} has changed since the run in {workdir} began (checksum {shown(began_with, most=12)} "
                f"there, {dataset.checksum[:12]} now); restore the data or choose another --workdir"
            )
        return
    splits = {name: len(getattr(dataset, name).y) for name in ("train", "val", "test")}
    words = [word.encode(errors="replace").decode() for word in sys.argv[1:]]
    manifest = {
        "config": config.to_dict(),
        **({"shard": shard} if shard else {}),
        **({"start": began_from} if began_from else {}),
        "data": {"name": dataset.name, "checksum": dataset.checksum, "classes": list(dataset.class_names), **splits},
        "devices": [str(device.device_kind) for device in jax.devices()],
        "processes": parallel.count(),
        "loss_values": list(losses.hyperparameters(losses.FUNCTIONS[config.loss.name])),
        "parameters": parameters,
        **of_program(["python", "-m", "focalgeo.run", *words]),
    }
    records.write_manifest(workdir, manifest)


def of_program(command: Sequence[str]) -> dict[str, Any]:
    """The manifest's entries on the program: versions, machine, command, and titles of methods and metrics."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "focalgeo")
    return {
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        },
        "git": _git_commit(),
        "platform": f"{platform.system()} {platform.machine()}, {jax.default_backend()}",
        "command": list(command),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "methods": {
            name: {"title": method.title, "criteria": list(method.criteria), "keeps_class": method.keeps_class}
            for name, method in calibration.METHODS.items()
        },
        "metrics": {name: entry.shown._asdict() for name, entry in calibration.METRICS.items()},
    }


def _git_commit() -> str:
    """The commit of the source tree, with a + where it has changes; "unknown" for an installed package."""
    here = str(Path(__file__).parent)
    describe = ["describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    # reads only: a lock would stay behind where the process is killed
    describe = ["git", "--no-optional-locks", "-C", here, *describe]
    try:
        return subprocess.run(describe, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
