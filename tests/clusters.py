"""Clusters on one machine: processes as a user starts them, on loopback, and what two runs have ended with.

No process outlives its cluster: each has a group of its own, which is killed at the limit and on every way out, and
dies with the process that started it.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).parent.parent
PROGRAM = ("-m", "focalgeo.run")  # as Python starts it
TIMES = ("seconds", "examples_per_second")  # names of rows that no two runs share
DEVICES = "--xla_force_host_platform_device_count"
# argv: largest bytes of a file or -1, the command. As a program of its own: a fork of this process, which has threads,
# must run no Python of its own.
_LAUNCH = """
import ctypes, os, resource, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if int(sys.argv[1]) >= 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""
_NUMBERS = {"value", "low", "high", "stderr", "residual", "confidence", "lower", "upper", "p_value", "share"}


class Ended(NamedTuple):
    """How a process ended: its exit code, negative for a signal, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What the command itself says of its end: one line, or none after a success."""
        return [line for line in self.err.splitlines() if line.startswith("focalgeo: ")]


class Cluster:
    """Processes that run, and where each writes; of `cluster` only."""

    def __init__(self, processes: list[subprocess.Popen], folders: list[Path], outputs: list[tuple[Path, Path]]):
        self.processes, self.folders, self._outputs = processes, folders, outputs

    def signal(self, index: int, signum: int) -> None:
        """Send a signal to one process, if it still runs."""
        if self.processes[index].poll() is None:
            self.processes[index].send_signal(signum)

    def ended(self, index: int) -> Ended:
        """How a process has ended; of one that runs, what it wrote so far, and code None."""
        texts = (path.read_text(errors="replace") for path in self._outputs[index])
        return Ended(self.processes[index].poll(), *texts)

    def wait(self, limit: float, only: Sequence[int] | None = None) -> list[Ended]:
        """Wait for all processes, or those given.

        Raises:
            AssertionError: one still runs after `limit` seconds; it says what each has written.
        """
        chosen, until = range(len(self.processes)) if only is None else only, time.monotonic() + limit
        while any(self.processes[index].poll() is None for index in chosen):
            if time.monotonic() > until:
                self.end()
                raise AssertionError(f"not ended after {limit} s\n{self.text()}")
            time.sleep(0.02)
        return [self.ended(index) for index in chosen]

    def wait_for(self, holds: Callable[[], bool], limit: float = 120) -> None:
        """Wait for a moment, such as a step in metrics.jsonl.

        Raises:
            AssertionError: it did not come within `limit` seconds, or a process ended before.
        """
        until = time.monotonic() + limit
        while not holds():
            if time.monotonic() > until or any(each.poll() is not None for each in self.processes):
                self.end()
                raise AssertionError(f"the moment never came\n{self.text()}")
            time.sleep(0.01)

    def text(self) -> str:
        """What every process wrote last."""
        every = [self.ended(index) for index in range(len(self.processes))]
        return "\n".join(f"process {i}: code {e.code}\n{e.out[-1000:]}\n{e.err[-3000:]}" for i, e in enumerate(every))

    def end(self) -> None:
        """Kill what still runs, stopped or hung."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def cluster(
    processes: int,
    devices: int,
    arguments: Sequence[str] | Callable[[int], Sequence[str]],
    folder: Path,
    *,
    env: Mapping[str, str | None] | None = None,
    own: Callable[[int], Mapping[str, str]] | None = None,
    program: Sequence[str] = PROGRAM,
    largest_file: int = -1,
) -> Iterator[Cluster]:
    """Start `processes` processes of `devices` CPU devices each; N = 1 is a plain command without flags.

    Process 0 runs in `folder`, the others in empty folders beside it, which they have no business to write to: give a
    relative --workdir, and it is one that only process 0 can see.

    arguments: of all, or index -> those of a process. env: variables beside this process' own; None takes one away.
    own: index -> variables by which a process finds the others; the flags are then left out.
    largest_file: bytes at which process 0's disk is full.
    """
    folder = Path(folder)
    folders = [folder] + [folder.with_name(f"{folder.name}.process{i}") for i in range(1, processes)]
    outputs = folder.with_name(f"{folder.name}.output")
    for each in (*folders, outputs):
        each.mkdir(parents=True, exist_ok=True)
    port, started, written = free_port(), [], []
    running = Cluster(started, folders, written)
    try:
        for index, cwd in enumerate(folders):
            flags = [] if own or processes == 1 else flags_of(port, processes, index)
            variables = environment(devices, {**(env or {}), **(own(index) if own else {})})
            limit = str(largest_file if index == 0 else -1)
            command = [sys.executable, *program, *(arguments(index) if callable(arguments) else arguments), *flags]
            written.append(tuple(outputs / f"{index}.{name}" for name in ("out", "err")))
            with written[-1][0].open("wb") as out, written[-1][1].open("wb") as err:
                process = subprocess.Popen(
                    [sys.executable, "-S", "-E", "-c", _LAUNCH, limit, *command],
                    cwd=cwd,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            started.append(process)
        yield running
    finally:
        running.end()


def run_cluster(
    processes: int,
    devices: int,
    arguments: Sequence[str] | Callable[[int], Sequence[str]],
    folder: Path,
    *,
    limit: float = 240,
    **options,
) -> list[Ended]:
    """Run a cluster to its end; options: those of `cluster`.

    Raises:
        AssertionError: a process still ran after `limit` seconds, or one but the first wrote a file.
    """
    with cluster(processes, devices, arguments, folder, **options) as running:
        ended = running.wait(limit)
    strangers = [str(path) for each in running.folders[1:] for path in each.iterdir()]
    assert not strangers, f"only process 0 writes files: {strangers}"
    return ended


def flags_of(port: int, processes: int, index: int) -> list[str]:
    """The flags by which a process finds the others."""
    return [f"--coordinator=127.0.0.1:{port}", f"--processes={processes}", f"--process={index}"]


def environment(devices: int, env: Mapping[str, str | None]) -> dict[str, str]:
    """The variables of a process with this number of CPU devices."""
    flags = re.sub(rf"{DEVICES}=\d+", "", os.environ.get("XLA_FLAGS", ""))
    found = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{flags} {DEVICES}={devices}".strip()}
    found |= {"PYTHONPATH": str(ROOT), **env}
    return {name: value for name, value in found.items() if value is not None}


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def rows_of(workdir: Path) -> list[dict]:
    """All rows but those of times, which no two runs share."""
    rows = [json.loads(line) for line in (Path(workdir) / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["name"] not in TIMES]


def steps_done(workdir: Path) -> int:
    """The last step that the run has a row of; 0 before its first."""
    rows = Path(workdir) / "metrics.jsonl"
    lines = rows.read_text().splitlines() if rows.exists() else []
    return max((json.loads(line).get("step", 0) for line in lines if line.endswith("}")), default=0)


def last_state(workdir: Path, checkpoints: str = "checkpoints") -> dict[str, np.ndarray]:
    """Every array of the newest checkpoint by its path."""
    import jax
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager((Path(workdir) / checkpoints).absolute()) as manager:
        items = ocp.args.Composite(state=ocp.args.StandardRestore())
        state = manager.restore(manager.latest_step(), args=items)["state"]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def differences(first: Path, second: Path, tolerance: float = 0.0) -> dict[str, float]:
    """The largest relative difference of two workdirs by kind of row or file, where it is above the tolerance.

    Tolerance 0 compares bit for bit, and rows in their order. A number's difference is relative to itself, but to no
    less than a thousandth of the largest of its name; that of two metrics, or a part of a whole, is relative to the
    largest of those; a metric's to 1; a p-value's, and the mean confidence of a bin, to 100; an array's to its largest
    value. What only one of them has is infinitely different.
    """
    found = _of_rows(rows_of(first), rows_of(second), ordered=tolerance == 0)
    arrays = [_arrays(Path(workdir)) for workdir in (first, second)]
    for name in arrays[0].keys() | arrays[1].keys():
        if any(name not in each for each in arrays):
            found[f"{name} of one alone"] = np.inf
            continue
        kind = name.partition(":")[0]
        found[kind] = max(found.get(kind, 0.0), _of_arrays(*(each[name] for each in arrays)))
    return {kind: float(largest) for kind, largest in found.items() if largest > tolerance}


def _of_rows(first: list[dict], second: list[dict], *, ordered: bool) -> dict[str, float]:
    sides = [[(_identity(row), row) for row in rows] for rows in (first, second)]
    found = {}
    if not ordered:
        sides = [sorted(side, key=lambda pair: pair[0]) for side in sides]
    elif sides[0] != sides[1]:
        found["order of rows"] = 0.0 if [key for key, _ in sides[0]] == [key for key, _ in sides[1]] else np.inf
        sides = [sorted(side, key=lambda pair: pair[0]) for side in sides]
    keys = [[key for key, _ in side] for side in sides]
    for key in {*keys[0]} ^ {*keys[1]}:
        found[f"{json.loads(key)[0]} of one alone: {key}"] = np.inf
    if keys[0] != keys[1]:
        found["rows"] = np.inf
        return found
    largest: dict[tuple, float] = {}
    pairs = [
        (_kind(one), name, one[name], other[name])
        for (_, one), (_, other) in zip(*sides, strict=True)
        for name in sorted(_NUMBERS & one.keys())
    ]
    for kind, _, a, b in pairs:
        largest[kind] = max(largest.get(kind, 0.0), abs(a), abs(b))
    for kind, name, a, b in pairs:
        if a != b:
            of = max(largest[kind], largest.get(kind.replace("difference", "metric", 1).removesuffix("_difference"), 0))
            least = of if kind.startswith(("difference", "attribution")) else 1e-3 * of
            if kind.startswith("metric"):  # sums that cancel, of shares
                least = 1
            # by its error; a bin may have one example, and a fit's parameters are the root of 1e-6, as its objective is
            if name in ("p_value", "confidence"):
                least = 100
            found[kind] = max(found.get(kind, 0.0), abs(a - b) / max(abs(a), abs(b), least))
    return found


def _kind(row: dict) -> str:
    return f"{row['kind']} {row['name']}"


def _identity(row: dict) -> str:
    """What a row is of: all its fields but the numbers that were measured."""
    kept = {name: value for name, value in row.items() if name not in _NUMBERS}
    present = sorted(_NUMBERS & row.keys())
    return json.dumps([_kind(row), *sorted(kept.items()), present])


def _arrays(workdir: Path) -> dict[str, np.ndarray]:
    """Every array of predictions, searches and the newest checkpoints."""
    found = {}
    for path in sorted(workdir.rglob("*.npz")):
        with np.load(path) as file:
            found |= {f"{path.relative_to(workdir)}:{name}": file[name] for name in file.files}
    for folder in sorted(workdir.glob("checkpoints*")):
        found |= {f"{folder.name}:{name}": leaf for name, leaf in last_state(workdir, folder.name).items()}
    return found


def _of_arrays(first: np.ndarray, second: np.ndarray) -> float:
    if first.dtype != second.dtype or first.shape != second.shape:
        return np.inf
    if first.tobytes() == second.tobytes():
        return 0.0
    if first.dtype.kind not in "fiu":
        return np.inf
    first, second = first.astype(np.float64), second.astype(np.float64)
    largest = np.abs(first - second).max() / max(np.abs(first).max(), 1e-30)
    return float(largest) if np.isfinite(largest) else np.inf  # NaN in one of them, or in both elsewhere
