"""Kill the digits run at random moments, give the same command again, and compare what it ends with.

python tests/kill_and_resume.py --times=10 [--chain] [more flags of focalgeo.run ...]

Every time: start, kill -9 after a random part of the uninterrupted run's wall time, start again to the end; the
parameters must equal the uninterrupted run's bit for bit. With --chain all kills fall on one run. Exit code 1 if
anything differs.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

ROOT = Path(__file__).parent.parent


def command(workdir: Path, flags: list[str]) -> list[str]:
    config = (
        [] if any(flag.startswith("--config=") for flag in flags) else [f"--config={ROOT / 'configs' / 'digits.py'}"]
    )
    return [sys.executable, "-m", "focalgeo.run", *config, f"--workdir={workdir}", *flags]


def finish(workdir: Path, flags: list[str]) -> float:
    """Run to the end; returns the seconds it took."""
    began = time.perf_counter()
    subprocess.run(command(workdir, flags), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def kill(workdir: Path, flags: list[str], seconds: float) -> None:
    """Start the run and kill it after some seconds."""
    process = subprocess.Popen(command(workdir, flags), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_state(workdir: Path) -> dict[str, np.ndarray]:
    """Every array of the newest checkpoint by its path."""
    import jax

    with ocp.CheckpointManager((workdir / "checkpoints").absolute()) as manager:
        items = ocp.args.Composite(state=ocp.args.StandardRestore())
        state = manager.restore(manager.latest_step(), args=items)["state"]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def same(left: dict, right: dict) -> bool:
    return left.keys() == right.keys() and all(left[name].tobytes() == right[name].tobytes() for name in left)


def compare(times: int, flags: list[str], *, seed: int, chain: bool) -> int:
    """Number of runs that ended with other parameters than the uninterrupted one."""
    differ = 0
    generator = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        seconds = finish(whole, flags)
        expected = last_state(whole)
        print(f"uninterrupted: {seconds:.1f} s", flush=True)
        if chain:
            moments = [[generator.uniform(0.3, 1.0) * seconds for _ in range(times)]]
        else:
            moments = [[generator.uniform(0.02, 1.0) * seconds] for _ in range(times)]
        for number, kills in enumerate(moments):
            workdir = Path(folder) / f"killed{number}"
            for moment in kills:
                kill(workdir, flags, moment)
            finish(workdir, flags)
            equal = same(last_state(workdir), expected)
            differ += not equal
            at = ", ".join(f"{moment:.1f}" for moment in kills)
            print(f"killed at {at} s: parameters {'equal' if equal else 'DIFFER'}", flush=True)
    return differ


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chain", action="store_true")
    known, rest = parser.parse_known_args()
    sys.exit(min(compare(known.times, rest, seed=known.seed, chain=known.chain), 1))
