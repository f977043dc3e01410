"""The composition of both commands; the only package outside config that reads config fields."""

import importlib
from typing import Any

from focalgeo.files import say

# they import jax: on first use, so that bad input is answered without
_MODULES = {"run": "main", "run_and_print": "main", "check_config": "preparation", "describe_config": "preparation"}


def __getattr__(name: str) -> Any:
    """Import a function of the main job on first use."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"focalgeo.job.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
