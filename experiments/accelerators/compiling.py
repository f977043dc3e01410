"""Programs compiled by XLA's TPU compiler (libtpu), which needs no TPU, and what it says of them."""

import concurrent.futures
import importlib.metadata
import importlib.util
import multiprocessing
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import jax

from experiments import timing
from experiments.accelerators import cases
from experiments.accelerators.cases import HOST, ONE, Case
from focalgeo.types import InputError

MEMORY = 16e9  # bytes of a v5e
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # it would lock itself against another compilation at the same time
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def devices_of(topology: str) -> Sequence[jax.Device]:
    """The devices of a topology, which need not exist.

    Raises:
        InputError: no TPU compiler is installed.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise InputError("no TPU compiler here: install it by pip install -e '.[tpu]' (libtpu, 0.7 GB installed)")
    from jax.experimental import topologies

    os.environ.update(_QUIET)
    devices = topologies.get_topology_desc(HOST if topology == ONE else topology, platform="tpu").devices
    return devices[:1] if topology == ONE else devices


def row_of_child(case: Case) -> dict[str, Any]:
    """The row of a program compiled in a process of its own, so that a compiler that crashes takes nothing with it."""
    devices = len(devices_of(case.topology))
    row = case.of | {"devices": devices, "members": case.members}
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return row | pool.submit(compiled, case.label).result()
        except BrokenProcessPool:
            return row | {"compiles": False, "error": "crash"}


def compiled(label: str) -> dict[str, Any]:
    """What compiling the program of that label costs; where it does not compile, the compiler's words."""
    jax.config.update("jax_platforms", "cpu")
    [case] = [case for case in cases.every() if case.label == label]
    devices = devices_of(case.topology)
    lowered = case.make(devices).lower()
    jax.config.update("jax_exec_time_optimization_effort", case.effort)
    began, used = time.perf_counter(), time.process_time()
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return {"compiles": False, "error": str(error).splitlines()[0][:300]}
    seconds = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - used}
    return seconds | {"compiles": True} | costs(program, len(devices))


def costs(compiled: Any, devices: int) -> dict[str, Any]:
    """Operations of all devices; bytes and estimated cycles of one device.

    The cycles are the sum of what the TPU compiler writes beside each of its kernels, its own forecast; the body of a
    loop counts once, in them as in the operations.
    """
    memory, text = compiled.memory_analysis(), compiled.as_text()
    held = {
        "arguments": memory.argument_size_in_bytes + memory.generated_code_size_in_bytes,
        "outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,  # what is donated is not there twice
        "temporaries": memory.temp_size_in_bytes,
    }
    entry = text.partition("\nENTRY ")[2].partition("\n}")[0]
    every, outside = (sum(map(int, _CYCLES.findall(part))) for part in (text, entry))
    return held | {
        "flops": devices * compiled.cost_analysis().get("flops", 0.0),
        "fits": sum(held.values()) <= MEMORY,
        "loops": " while(" in text,
        "cycles": every,
        "cycles_outside_loops": outside,
    }


def machine() -> dict[str, Any]:
    """What compiles: versions, and the processor."""
    versions = {name: timing.version(name) for name in ("jax", "jaxlib", "flax", "libtpu")}
    return {"versions": versions, "processor": timing.machine()["processor"], "cores": os.cpu_count()}
