"""Kill the digits run at random moments, give the same command again, and compare what it ends with.

python tests/kill_and_resume.py --times=10 [--chain] [more flags of focalgeo.run ...]

Every time: start, kill -9, start again to the end; parameters and rows must equal the uninterrupted run's bit for bit.
Kills fall at a random part of the run's wall time and at a random training step in turn; with --chain all fall on one
run. Exit code 1 if anything differs, or if no kill left a checkpoint to go on from.
"""

import argparse
import json
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


def kill(workdir: Path, flags: list[str], *, seconds: float, step: int | None) -> str:
    """Start the run and kill -9 it after some seconds, or once its rows have reached a step; says where it was."""
    process = subprocess.Popen(command(workdir, flags), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    began = time.perf_counter()
    while process.poll() is None:
        late = time.perf_counter() - began > seconds
        if late if step is None else steps_done(workdir) >= step:
            process.kill()
            process.wait()
            saved = [int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()]
            return f"at step {steps_done(workdir)} with checkpoint {max(saved, default=0)}"
        time.sleep(0.005)
    return "not at all: it had ended"


def steps_done(workdir: Path) -> int:
    """The last step that the run has a row of; 0 before its first."""
    rows = workdir / "metrics.jsonl"
    lines = rows.read_text().splitlines() if rows.exists() else []
    return max((json.loads(line).get("step", 0) for line in lines if line.endswith("}")), default=0)


def timeless_rows(workdir: Path) -> list[dict]:
    """All rows but those of times, which no two runs share."""
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["name"] not in ("seconds", "examples_per_second")]


def last_state(workdir: Path) -> dict[str, np.ndarray]:
    """Every array of the newest checkpoint by its path."""
    import jax

    with ocp.CheckpointManager((workdir / "checkpoints").absolute()) as manager:
        items = ocp.args.Composite(state=ocp.args.StandardRestore())
        state = manager.restore(manager.latest_step(), args=items)["state"]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def same(left: dict, right: dict) -> bool:
    return left.keys() == right.keys() and all(left[name].tobytes() == right[name].tobytes() for name in left)


def compare(times: int, flags: list[str], *, seed: int, chain: bool) -> bool:
    """Whether every killed run ended as the uninterrupted one, and some had a checkpoint to go on from."""
    generator = random.Random(seed)
    agreed, continued = True, False
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        seconds = finish(whole, flags)
        state, rows = last_state(whole), timeless_rows(whole)
        steps = steps_done(whole)
        print(f"uninterrupted: {seconds:.1f} s, {steps} steps", flush=True)
        for number in range(times):
            workdir = Path(folder) / ("chain" if chain else f"killed{number}")
            # every other kill falls into training, which is a small part of a short run's time; in a chain all do
            step = generator.randrange(1, steps) if number % 2 else None
            if chain:
                step = generator.randint(steps_done(workdir), (steps_done(workdir) + steps) // 2)
            where = kill(workdir, flags, seconds=generator.uniform(0.02, 0.9) * seconds, step=step)
            continued |= "checkpoint" in where and not where.endswith(" 0")
            print(f"killed {where}", flush=True)
            if chain and number < times - 1:
                continue
            finish(workdir, flags)
            equal = same(last_state(workdir), state), timeless_rows(workdir) == rows
            agreed &= all(equal)
            print("parameters and rows: {}, {}".format(*("equal" if each else "DIFFER" for each in equal)), flush=True)
    if not continued:
        print("no kill left a checkpoint to go on from: nothing was shown", flush=True)
    return agreed and continued


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chain", action="store_true")
    known, rest = parser.parse_known_args()
    sys.exit(0 if compare(known.times, rest, seed=known.seed, chain=known.chain) else 1)
