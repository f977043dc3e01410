"""The composition of both commands; the only package outside config that reads config fields."""

import contextlib
import importlib
import sys
from typing import Any

from focalgeo import processes

# they import jax: on first use, so that bad input is answered without
_MODULES = {"run": "main", "run_and_print": "main", "check_config": "preparation", "describe_config": "preparation"}

__all__ = ["check_config", "describe_config", "run", "run_and_print", "say"]


def say(what: str) -> None:
    """Write a line to standard error, where it does not mix with results; of several processes, process 0 alone.

    A line that cannot be written, on a full disk, is lost; the run goes on.
    """
    with contextlib.suppress(OSError):
        if processes.is_first():
            print(what, file=sys.stderr, flush=True)


def __getattr__(name: str) -> Any:
    """Import a function of the main job on first use."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"focalgeo.job.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
