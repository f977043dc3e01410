"""Compilation for TPUs by libtpu's compiler, on a machine that has none."""

import importlib.metadata
import importlib.util
import multiprocessing
import os
import platform
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from experiments.accelerators.cases import HOST, ONE, Case, cases
from experiments.accelerators.steps import Program
from focalgeo.types import InputError

MEMORY = 16e9  # bytes of a v5e
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # it would lock itself against another compilation at the same time
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def has_compiler() -> bool:
    """Whether libtpu is installed."""
    return importlib.util.find_spec("libtpu") is not None


def check_compiler() -> None:
    """Refuse a machine without libtpu.

    Raises:
        InputError: no TPU compiler is installed.
    """
    if not has_compiler():
        raise InputError("no TPU compiler here: install it by pip install -e '.[tpu]' (libtpu, 0.7 GB installed)")


def devices_of(topology: str) -> Sequence[jax.Device]:
    """The devices of a topology, which need not exist.

    Raises:
        InputError: no TPU compiler is installed.
    """
    check_compiler()
    from jax.experimental import topologies

    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    name = HOST if topology == ONE else topology
    devices = topologies.get_topology_desc(name, platform="tpu").devices
    return devices[:1] if topology == ONE else devices


def row_of_child(case: Case, topology: str) -> dict[str, Any]:
    """The row of a program compiled in a process of its own, so that a compiler that crashes takes nothing with it.

    Raises:
        ChildProcessError: the process ended by an error that is not the compiler's, or somebody stopped it.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_row, args=(case.key(topology), sender))
    child.start()
    sender.close()  # the child alone holds it now: when it ends, nothing more can come
    try:
        return receiver.recv()
    except EOFError:
        child.join()
        if -child.exitcode not in CRASHES:
            raise ChildProcessError(f"{case.label}, {topology}: exit code {child.exitcode}") from None
        return _first_fields(case, topology) | {"compiles": False, "error": f"crash (signal {-child.exitcode})"}
    finally:
        child.kill()  # where this process was told to stop
        child.join()


def _send_row(key: tuple, sender: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    [(case, topology)] = [(case, on) for case in cases() for on in case.on if case.key(on) == key]
    sender.send(compiled_row(case, topology))


def compiled_row(case: Case, topology: str) -> dict[str, Any]:
    """The row of a program compiled for a topology; where it does not compile, with the compiler's words."""
    devices = devices_of(topology)
    row = _first_fields(case, topology)
    program = case.make()
    began = time.perf_counter()
    lowered = program.call(devices).lower()
    row |= {"seconds_to_lower": time.perf_counter() - began}
    jax.config.update("jax_exec_time_optimization_effort", case.effort)
    began, used = time.perf_counter(), time.process_time()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return row | {"compiles": False, "error": str(error).splitlines()[0][:300]}
    finally:
        jax.config.update("jax_exec_time_optimization_effort", 0.0)
    row |= {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - used}
    return row | {"compiles": True} | costs(compiled, program, len(devices))


def _first_fields(case: Case, topology: str) -> dict[str, Any]:
    row = {"program": case.name, "kind": case.kind, "dtype": case.dtype, "topology": topology}
    return row | {"devices": len(devices_of(topology)), "members": case.members, "load": os.getloadavg()[0]}


def costs(compiled: Any, program: Program, devices: int) -> dict[str, Any]:
    """Operations of all devices, those of the computation's own products; bytes and estimated cycles of one device.

    The cycles are the sum of what the TPU compiler writes beside each of its kernels, its own forecast; the body of a
    loop counts once, in them as in the operations.
    """
    memory, text = compiled.memory_analysis(), compiled.as_text()
    arguments = memory.argument_size_in_bytes + memory.generated_code_size_in_bytes
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes  # what is donated is not there twice
    held = {"arguments": arguments, "outputs": outputs, "temporaries": memory.temp_size_in_bytes}
    found = {"flops": devices * compiled.cost_analysis().get("flops", 0.0), "own_flops": program.own}
    found |= held | {"fits": sum(held.values()) <= MEMORY, "loops": " while(" in text}
    return found | cycles_of(text)


def cycles_of(text: str) -> dict[str, int]:
    """Cycles that a compiled program's text forecasts, and those of them outside of loops; of a CPU there are none."""
    entry = text.partition("\nENTRY ")[2].partition("\n}")[0]
    every, outside = (sum(map(int, _CYCLES.findall(part))) for part in (text, entry))
    return {"cycles": every, "cycles_outside_loops": outside} if every else {}


def machine() -> dict[str, Any]:
    """What compiles: versions, and the processor."""
    names = ("jax", "jaxlib", "flax", *(["libtpu"] if has_compiler() else []))
    versions = {name: importlib.metadata.version(name) for name in names}
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.machine()
    return {"versions": versions, "processor": processor, "cores": os.cpu_count()}
