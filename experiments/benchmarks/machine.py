"""What the timings were taken on, without names or paths of the machine."""

import importlib.metadata
import os
import platform

import jax


def describe() -> dict[str, str]:
    """Processor, cores, accelerator and versions of the libraries that were timed."""
    versions = {name: version for name in ("jax", "numpy", "torch") if (version := _version(name))}
    device = jax.devices()[0]
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "jax device": device.device_kind if device.platform != "cpu" else "cpu",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
