"""The manifest: what is needed to know and repeat a run, and to go on with it only on the same data."""

import datetime
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

from focalgeo import records, trees
from focalgeo.types import Dataset, InputError, TrainState


def make_manifest(config, dataset: Dataset, state: TrainState) -> dict[str, Any]:
    """What is needed to know and repeat a run."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "focalgeo")
    splits = {name: len(getattr(dataset, name).y) for name in ("train", "val", "test")}
    return {
        "config": config.to_dict(),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        },
        "git": _git_commit(),
        "devices": [str(device.device_kind) for device in jax.devices()],
        "platform": f"{platform.system()} {platform.machine()}, {jax.default_backend()}",
        "data": {"name": dataset.name, "checksum": dataset.checksum, "classes": list(dataset.class_names), **splits},
        "command": ["python", "-m", "focalgeo.run", *sys.argv[1:]],
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "parameters": trees.size(state.params),
    }


def _git_commit() -> str:
    """The commit of the source tree, with a + where it has changes; "unknown" for an installed package."""
    describe = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty=+",
        "--abbrev=12",
        "--exclude=*",
    ]
    try:
        return subprocess.run(describe, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def check_data(workdir: Path, dataset: Dataset) -> None:
    """Refuse to go on with other data than the run began with."""
    began_with = records.read_manifest(workdir).get("data", {}).get("checksum")
    if began_with != dataset.checksum:
        raise InputError(
            f"{dataset.name} has changed since the run in {workdir} began (checksum {str(began_with)[:12]} there, "
            f"{dataset.checksum[:12]} now); restore the data or choose another --workdir"
        )
