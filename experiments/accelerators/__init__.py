"""Whether the main job's programs compile for TPUs, which takes none, and what they cost there.

Compiled for: v5e:2x2 is a host of 4 chips, v5e:4x4 a pod of 16 chips and 4 processes, v6e:2x2 a host of the next
kind, "one v5e" a single chip. A step's batch is the recipe's, divided among the chips. s to compile is this machine's
time; CPU s its processor time. Gflop is the compiler's count for all chips; of a loop inside a program it counts the
body once. Mcycles is the sum of the cycles that the compiler itself forecasts for its kernels, on one chip. MB in all
are arguments (45,000 training images of 138 MB among them), outputs, temporaries and code on one chip. Data are
stand-ins of the papers' sizes. Texts have 20,000 words; trees have 56 leaves, the Treebank's most. Search and
bootstrap run on one chip. A Lanczos step beside its product is done by every chip for itself.

Members: configs/cifar10_gamma.py, batch 512, bfloat16; those one after another are a record, below. Forms: ResNet-20,
batch 128, float32, v5e:2x2.

Seen beside the rows, once, with the same versions: a batch gathered from uint8[45000, 32, 32, 3] copied all images in
every step, 6.87 of 6.91 Mcycles, and takes 0.04 from rows of 3,072; eight members at once take 1.47 times the cycles
of eight alone at 32 channels, 1.79 at 64, 0.98 at 128; eight residual blocks of 16 channels take 147 s of a core to
compile unrolled and 17 s in a scan, whose step is 14.4 times slower on a CPU; a Hessian product of the small CNN at
full precision takes 0.349 Mcycles, at the default 0.128; a Lanczos step of ResNet-18 with 40 vectors takes 41.8
Mcycles beside 40.9 of its product. --programs=TEXT names programs by any text of "kind: name, dtype, topology".
"""

import concurrent.futures
import importlib.util
import multiprocessing
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import jax
import pandas as pd

from experiments import timing
from experiments.accelerators import cases
from experiments.accelerators.cases import HOST, NEWER, ONE, POD, Case, Devices
from experiments.numbers import NOT, SHOWS, Claim, plain, rows_where
from experiments.question import Flags, Job, Parts, Question
from focalgeo.types import InputError

TOPOLOGIES = (HOST, ONE, POD, NEWER)
HEAD = (
    *("kind", "program", "dtype", "compiled for", "compiles", "s to compile", "CPU s", "Gflop", "Mcycles"),
    *("MB of temporaries", "MB in all", "fits in 16 GB"),
)
MEMORY = 16e9  # bytes of a v5e
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_QUIET = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # it would lock itself against another compilation at the same time
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


# ---- programs compiled by XLA's TPU compiler (libtpu), which needs no TPU, and what it says of them


def devices_of(topology: str) -> Devices:
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
    row = case.of | {"devices": devices}
    try:
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
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
    memory = compiled.memory_analysis()
    held = {
        "arguments": memory.argument_size_in_bytes + memory.generated_code_size_in_bytes,
        "outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,  # what is donated is not there twice
        "temporaries": memory.temp_size_in_bytes,
    }
    return held | {
        "flops": devices * compiled.cost_analysis().get("flops", 0.0),
        "fits": sum(held.values()) <= MEMORY,
        "cycles": sum(map(int, _CYCLES.findall(compiled.as_text()))),
    }


def machine() -> dict[str, Any]:
    """What compiles: versions, and the processor."""
    versions = {name: timing.version(name) for name in ("jax", "jaxlib", "flax", "libtpu")}
    return {"versions": versions, "processor": timing.machine()["processor"], "cores": os.cpu_count()}


# ---- the question


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """Program by program, those that take longest last."""
    yield Job({}, (), lambda out: machine(), part="machine")
    for case in cases.every():
        if flags.programs in case.label:
            make = lambda out, case=case: [row_of_child(case)]  # noqa: E731
            yield Job(case.of, (), make, part="rows")


def claims(rows):
    """Whether every program compiles and fits, by topology."""
    for topology, group in pd.DataFrame(rows).groupby("topology", sort=False):
        good = group.fits.eq(True)
        words = f"{topology}: every program compiles and fits in memory"
        yield Claim("focalgeo", words, SHOWS if good.all() else NOT, f"{good.sum()} of {len(good)} programs")


def with_bytes(rows: list[dict], **tags: str) -> pd.DataFrame:
    """The rows of these tags, with the bytes of a device in all."""
    rows = rows_where(pd.DataFrame(rows), **tags)
    return rows.assign(bytes=rows.arguments + rows.outputs + rows.temporaries)


def made_with(machine) -> str:
    """A line on versions and machine."""
    named = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return f"With {named}, on {machine['cores']} CPU cores ({machine['processor']}).\n"


def programs_table(rows):
    """A line for each row, kind by kind."""
    yield HEAD
    for row in with_bytes(rows).sort_values("kind", kind="stable").itertuples():
        on = row.topology if row.topology == ONE else f"{row.topology} ({row.devices})"
        first = row.kind, row.program, row.dtype, on
        if row.compiles:
            took = f"{row.seconds:.0f}", f"{row.cpu_seconds:.0f}"
            cost = plain(row.flops / 1e9), plain(row.cycles / 1e6)
            mega = f"{row.temporaries / 1e6:,.0f}", f"{row.bytes / 1e6:,.0f}"
            yield *first, "yes", *took, *cost, *mega, "yes" if row.fits else "no"
        else:
            yield *first, f"no: {row.error.replace('|', '/')}", *["-"] * 7


def forms_table(rows):
    """Steps with the trace penalty against the same network's plain step."""
    base = with_bytes(rows, kind="training step", program="resnet20", dtype="float32", topology=HOST)
    yield "step", "Gflop", "of a plain step", "Mcycles", "of a plain step", "MB of temporaries", "of a plain step's"
    units = {"flops": 1e9, "cycles": 1e6, "temporaries": 1e6}
    for _, row in pd.concat([base, with_bytes(rows, kind="trace penalty")]).iterrows():
        pairs = [(plain(row[name] / unit), f"{row[name] / base[name].item():.2f}") for name, unit in units.items()]
        yield row.program, *(cell for pair in pairs for cell in pair)


QUESTION = Question(
    "accelerators",
    "Do the job's programs compile for TPUs, and what do they cost there?",
    claims,
    tables={
        "versions": made_with,
        "forms": forms_table,
        "programs": programs_table,
    },
    jobs=plan,
    keys={
        "topology": TOPOLOGIES,
        "kind": (),
        "program": [case.name for case in cases.every()],
        "dtype": cases.DTYPES,
    },
    cost="hours of 2 cores, row by row; no TPU",
    seeds=None,
    flags={"--programs": {"default": "", "help": "programs with this text in 'kind: name, dtype, topology'"}},
)
