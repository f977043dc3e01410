"""The composition of both commands; the only room that reads config fields."""

import importlib
from typing import Any

_MODULES = {"run": "main", "run_and_print": "main"}  # they import jax: on first use, so bad input is answered without

__all__ = ["run", "run_and_print"]


def __getattr__(name: str) -> Any:
    """Functions of the main job."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"focalgeo.job.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
