"""The same programs run and timed on the devices at hand."""

import statistics
import time
from typing import Any

import jax

from experiments.accelerators.cases import Case

REPEATS = 9


def check_accelerator() -> None:
    """Refuse a machine that has a CPU alone: its seconds say nothing of an accelerator's.

    Raises:
        InputError: jax finds no other device.
    """
    from focalgeo.types import InputError

    if jax.default_backend() == "cpu":
        raise InputError("--run needs a GPU or TPU, jax finds a CPU alone: leave --run out to compile for TPUs instead")


def timed_row(case: Case) -> dict[str, Any]:
    """The row of a program run on all devices: its first call, which compiles it, and the median of REPEATS more."""
    program = case.make()
    row = {"program": case.name, "kind": case.kind, "dtype": case.dtype, "members": case.members}
    row |= {"own_flops": program.own}
    run = program.start()
    first = _seconds(run)
    took = [_seconds(run) for _ in range(REPEATS)]
    return row | {"first_seconds": first, "seconds": statistics.median(took), "least": min(took), "most": max(took)}


def _seconds(run) -> float:
    began = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - began


def device() -> dict[str, str]:
    """What the programs ran on."""
    found = jax.devices()
    return {"device": found[0].device_kind, "devices": str(len(found)), "jax": jax.__version__}
