"""Processes of the main job as a user starts them, on loopback, and how what two runs have written differs."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
TIMES = ("seconds", "examples_per_second")  # names of rows that no two runs share
DEVICES = "--xla_force_host_platform_device_count"


class Process(subprocess.Popen):
    """A process of focalgeo.run in a folder of its own."""

    def __init__(self, folder: Path, devices: int, *flags: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.log = folder, folder.with_suffix(".log")
        xla = re.sub(rf"{DEVICES}=\d+", "", os.environ.get("XLA_FLAGS", ""))
        env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{xla} {DEVICES}={devices}"}
        command = [sys.executable, "-m", "focalgeo.run", *flags]
        with self.log.open("wb") as log:
            super().__init__(command, cwd=folder, env=env | {"PYTHONPATH": str(ROOT)}, stdout=log, stderr=log)

    @property
    def lines(self) -> list[str]:
        """What the command says of its end: one line, or none after a success."""
        return [line for line in self.log.read_text().splitlines() if line.startswith("focalgeo: ")]

    def ends(self, code: int, limit: float = 240) -> list[str]:
        """Its lines, once it has ended with this code."""
        assert self.wait(limit) == code, self.log.read_text()[-3000:]
        return self.lines


@contextmanager
def cluster(folder: Path, processes: int, devices: int, *flags: str) -> Iterator[list[Process]]:
    """Start processes of so many devices each; none is left running.

    Process 0 runs in `folder`, the others in empty ones beside it: a relative --workdir is seen by process 0 alone. A
    flag "ONE|OTHER" is ONE for process 0 and OTHER for the others.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = []
    try:
        for index in range(processes):
            where = [f"--coordinator=127.0.0.1:{port}", f"--processes={processes}", f"--process={index}"]
            own = [flag.split("|")[min(index, flag.count("|"))] for flag in (*flags, *(where if processes > 1 else ()))]
            running.append(Process(folder.with_name(f"{folder.name}-{index}") if index else folder, devices, *own))
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def run_cluster(folder: Path, processes: int, devices: int, *flags: str, code: int = 0) -> list[list[str]]:
    """Run to an end with this code of all processes; returns the lines of each. Process 0 alone writes."""
    with cluster(folder, processes, devices, *flags) as running:
        lines = [process.ends(code) for process in running]
    assert not [path for process in running[1:] for path in process.folder.iterdir()]
    return lines


def wait_for(holds: Callable[[], bool], limit: float = 120) -> None:
    """Wait for a moment, such as a step in metrics.jsonl."""
    last = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < last, "the moment never came"
        time.sleep(0.02)


def steps_done(workdir: Path) -> int:
    """The last step that the run has a row of; 0 before its first."""
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return max((json.loads(line).get("step") or 0 for line in lines if line.endswith("}")), default=0)


def last_state(folder: Path) -> dict[str, np.ndarray]:
    """Every array of the newest checkpoint by its path."""
    import jax
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(folder.absolute()) as manager:
        items = ocp.args.Composite(state=ocp.args.StandardRestore())
        state = manager.restore(manager.latest_step(), args=items)["state"]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def contents(workdir: Path) -> dict[str, object]:
    """Every row but those of times, every stored array and the newest checkpoint of a workdir, by names."""
    rows = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    found = {f"row {number}": row for number, row in enumerate(row for row in rows if row["name"] not in TIMES)}
    for path in workdir.rglob("*.npz"):
        with np.load(path) as file:
            found |= {f"{path.relative_to(workdir)}:{name}": file[name].tobytes() for name in file.files}
    return found | {name: leaf.tobytes() for name, leaf in last_state(workdir / "checkpoints").items()}


def differences(first: Path, second: Path) -> list[str]:
    """Names of all that differs in any bit between two workdirs."""
    one, other = contents(first), contents(second)
    return [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]
