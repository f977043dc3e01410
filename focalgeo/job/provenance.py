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

PACKAGES = "flax", "optax", "orbax-checkpoint"  # that train, beside those of every command


def versions(*packages: str) -> dict[str, str]:
    """The versions of Python, of what every command runs on, and of these packages."""
    packages = ("jax", "jaxlib", *packages, "numpy", "focalgeo")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}}


def of_program(command: Sequence[str], *packages: str) -> dict[str, Any]:
    """The manifest's entries on the program: versions, machine, command, and titles of methods and metrics."""
    return {
        "versions": versions(*packages),
        "git": _git_commit(),
        "platform": f"{platform.system()} {platform.machine()}, {jax.default_backend()}",
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "methods": {
            name: {"title": method.title, "criteria": method.criteria, "keeps_class": method.keeps_class}
            for name, method in calibration.METHODS.items()
        },
        "metrics": {name: entry.shown._asdict() for name, entry in calibration.METRICS.items()},
    }


def _git_commit() -> str:
    """The commit of the source tree, with a + where its Python files have changes; "unknown" where it is installed."""
    # reads only: a lock would stay behind where the process is killed
    git = ["git", "--no-optional-locks", "-C", Path(__file__).parent]
    try:
        commit = subprocess.check_output(
            [*git, "rev-parse", "--short=12", "HEAD"], text=True, timeout=10, stderr=subprocess.DEVNULL
        )
        changed = subprocess.run(
            [*git, "diff", "--quiet", "HEAD", "--", ":/*.py"], timeout=10, stderr=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return commit.strip() + ("+" if changed.returncode else "")
