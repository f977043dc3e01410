"""Calls timed in turn on one machine, and what the machine is."""

import importlib.metadata
import math
import os
import platform
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax


def timed(call: Callable[[], Any]) -> float:
    """Wall seconds of one call, results waited for."""
    before = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - before


def interleaved(calls: Mapping[str, Callable[[], Any]], *, rounds: int, seconds: float = 0.0) -> dict[str, float]:
    """Of each call the least wall seconds over rounds.

    In a round each call is repeated for about `seconds`, once at least: other work only adds to a time, to that of many
    threads most of all. Every other round goes backwards, so that no call always follows the same one.
    """
    repeats, least = {}, dict.fromkeys(calls, math.inf)
    for name, call in calls.items():
        timed(call)  # compiles
        repeats[name] = max(1, int(seconds / timed(call)))
    for number in range(rounds):
        for name in list(calls)[:: -1 if number % 2 else 1]:
            least[name] = min(least[name], *(timed(calls[name]) for _ in range(repeats[name])))
    return least


def machine() -> dict[str, str]:
    """Processor, cores, accelerator, and versions of what is installed of the libraries that are timed."""
    cpuinfo, device = Path("/proc/cpuinfo"), jax.devices()[0]
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    return {
        "processor": re.search(r"model name\s*: (.*)|$", text)[1] or platform.machine(),
        "cores": str(os.cpu_count()),
        "jax device": device.device_kind if device.platform != "cpu" else "cpu",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: found for name in ("jax", "numpy", "torch") if (found := version(name))},
    }


def version(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
