"""Provenance: the versions, machine and command that a run was made by."""

import datetime
import importlib.metadata
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from focalgeo import calibration


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
