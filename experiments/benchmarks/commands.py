"""Seconds and peak memory of whole processes: `python -m focalgeo.calibrate` against examples and classes."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator

from experiments import figures, jobs, timing
from experiments.benchmarks import outputs
from experiments.numbers import markdown, plain

SIZES = (  # examples of val and of test, classes; least work first
    *((1_000, 10), (5_000, 10), (5_000, 100), (25_000, 10), (5_000, 1_000)),
    *((100_000, 10), (25_000, 1_000), (300, 50_000), (1_000_000, 10)),
)
RUNS, SECONDS = 3, 20.0  # of the runs that find their programs: so many at most, none begins after so many seconds
# Linux counts what a process held before it became the command: a small one starts it, and tells what it used.
METER = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
seconds, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] if done.returncode else []
peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps({"code": done.returncode, "said": said, "seconds": seconds, "bytes": peak,
                  "processor": used.ru_utime + used.ru_stime}))
"""


def cases() -> Iterator[dict[str, int]]:
    """What each row is of."""
    for examples, classes in SIZES:
        yield {"examples": examples, "classes": classes}


def metered(command: Sequence[str], programs: Path) -> dict[str, Any]:
    """Exit code, wall and processor seconds, and the most bytes held at once by a command; compiled programs kept."""
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(programs)}
    meter = [sys.executable, "-S", "-c", METER, *command]
    done = subprocess.run(meter, check=True, stdout=subprocess.PIPE, cwd=jobs.ROOT, env=environment)
    return json.loads(done.stdout)


def measured(of: Mapping[str, int], out: Path) -> list[dict[str, Any]]:
    """The row of a size: the run that compiles all of its programs, and of those that find them the fastest."""
    row, runs = {**of, "machine": timing.machine()}, []
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        folder = Path(folder)
        splits = {"val": folder / "val.npz", "test": folder / "test.npz"}
        made = outputs.made(of["examples"], of["classes"], seeds=(0, 1))
        for path, (logits, labels) in zip(splits.values(), made, strict=True):
            np.savez(path, logits=logits, labels=labels)
        while len(runs) <= RUNS and sum(run["seconds"] for run in runs[1:]) < SECONDS:
            flags = [f"--{split}={path}" for split, path in splits.items()]
            command = [sys.executable, "-m", "focalgeo.calibrate", *flags, f"--out={folder / str(len(runs))}"]
            runs.append(metered(command, folder / "programs"))
            if runs[-1]["code"]:
                told = runs[-1]["said"] or ["nothing said"]
                return [row | {"error": f"exit code {runs[-1]['code']}: {told[0]}".replace(str(folder), "...")}]
    first, *found = ({name: run[name] for name in ("seconds", "processor", "bytes")} for run in runs)
    return [row | {"runs": len(found), "first": first, "again": min(found, key=lambda run: run["seconds"])}]


def sizes_table(command) -> str:
    """Seconds and peak memory (the resident set) of `python -m focalgeo.calibrate`, from start to exit.

    Val and test have so many examples each. First: it compiles all programs; again: it finds them in its folder, the
    fastest of at most three runs within about twenty seconds, one at least. Processor seconds are of all cores.
    """
    lines = []
    for row in sorted(command, key=lambda row: (row["classes"], row["examples"])):
        size = [f"{row['examples']:,}", f"{row['classes']:,}"]
        if "error" in row:
            lines.append([*size, row["error"], "", "", "", ""])
            continue
        again, first = row["again"], row["first"]
        seconds = [plain(number) for number in (again["seconds"], again["processor"])]
        lines.append([*size, *seconds, _gibibytes(again), plain(first["seconds"]), _gibibytes(first)])
    heads = ("examples", "classes", "seconds again", "of processors", "GiB", "seconds first", "GiB first")
    return f"{outputs.machines(command)}\n\n{markdown(heads, lines)}"


def _gibibytes(run):
    return f"{run['bytes'] / 2**30:.2f}"


def sizes_figure(command):
    """Seconds and memory of a run that finds its programs against examples, a line for each number of classes."""
    figure, [axes] = figures.panels(1, 2, 7.5, 3.6)
    rows = [row for row in command if "error" not in row]
    numbers = {
        "seconds from start to exit": lambda run: run["seconds"],
        "GiB at most": lambda run: run["bytes"] / 2**30,
    }
    for axis, (label, number) in zip(axes, numbers.items(), strict=True):
        for place, classes in enumerate(sorted({row["classes"] for row in rows})):
            line = sorted((row["examples"], number(row["again"])) for row in rows if row["classes"] == classes)
            axis.plot(*zip(*line, strict=True), label=f"{classes:,} classes", linewidth=1.2, **figures.look(place))
        figures.logarithmic(axis, "x", "y")
        axis.xaxis.set_major_locator(LogLocator())
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set(xlabel="examples of val, and of test", ylabel=label)
    figures.legend(figure)
    return figure
