"""Kill the digits run at random moments, give the same command again, and compare what it ends with.

python tests/kill_and_resume.py --times=10 [--chain] [--processes=2] [more flags of focalgeo.run ...]

Every time: start, kill -9, start again to the end; parameters and rows must equal the uninterrupted run's bit for bit.
Kills fall at a random part of the run's wall time and at a random training step in turn; with --chain all fall on one
run. With --processes=N the run is of N processes, of which one is killed or stopped for ever (SIGSTOP), the last and
the first in turn: each other must then end within 20 seconds, with one line and exit code 3. Exit code 1 if anything
differs, or if no kill left a checkpoint to go on from.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import clusters

ENDS_WITHIN = 20  # seconds, of the processes that are left
HEARTBEAT = 10
VICTIMS = ((-1, signal.SIGKILL), (0, signal.SIGKILL), (-1, signal.SIGSTOP), (0, signal.SIGSTOP))


class Command(NamedTuple):
    """The command of all runs: focalgeo.run with these flags, in so many processes of so many devices."""

    flags: list[str]
    processes: int
    devices: int

    def start(self, workdir: Path):
        """The processes, as `clusters.cluster` gives them."""
        named = [flag.removeprefix("--config=") for flag in self.flags if flag.startswith("--config=")]
        config = [f"--config={Path(each).absolute()}" for each in named or [clusters.ROOT / "configs" / "digits.py"]]
        others = [flag for flag in self.flags if not flag.startswith("--config=")]
        patience = [f"--heartbeat={HEARTBEAT}"] if self.processes > 1 else []
        arguments = [*config, f"--workdir={workdir.name}", *others, *patience]
        # what is killed while it writes a compiled program must not be found by the next one
        env = {"JAX_COMPILATION_CACHE_DIR": ""}
        return clusters.cluster(self.processes, self.devices, arguments, workdir.parent, env=env)


def finish(workdir: Path, command: Command) -> float:
    """Run to the end; returns the seconds it took."""
    began = time.perf_counter()
    with command.start(workdir) as running:
        ended = running.wait(1200)
        assert all(each.code == 0 for each in ended), running.text()
    return time.perf_counter() - began


def kill(workdir: Path, command: Command, victim: int, signum: int, *, seconds: float, step: int | None) -> str:
    """Start the run and kill or stop a process after some seconds, or once its rows have reached a step; says where."""
    with command.start(workdir) as running:
        began = time.perf_counter()
        victim %= command.processes
        if command.processes > 1:  # a process that is gone before it has joined is awaited for minutes
            running.wait_for(lambda: all("\nprocess " in f"\n{running.ended(i).err}" for i in range(command.processes)))
        while running.processes[victim].poll() is None:
            late = time.perf_counter() - began > seconds
            if late if step is None else clusters.steps_done(workdir) >= step:
                running.signal(victim, signum)
                others = [index for index in range(command.processes) if index != victim]
                said = survivors(running, others) if others else ""
                running.end()
                saved = [int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()]
                where = f"at step {clusters.steps_done(workdir)} with checkpoint {max(saved, default=0)}"
                return f"process {victim} by {signal.Signals(signum).name} {where}{said}"
            time.sleep(0.005)
    return "not at all: it had ended"


def survivors(running: clusters.Cluster, others: list[int]) -> str:
    """What the others have ended with, after checking that it was in time, in one line and alike."""
    began = time.perf_counter()
    ended = running.wait(ENDS_WITHIN, only=others)
    took = time.perf_counter() - began
    if all(each.code == 0 for each in ended):
        return "; the others had ended"
    assert {each.code for each in ended} == {3}, running.text()
    assert all(len(each.lines) == 1 and "Traceback" not in each.err for each in ended), running.text()
    return f"; the others ended after {took:.1f} s: {ended[0].lines[0]}"


def compare(times: int, command: Command, *, seed: int, chain: bool) -> bool:
    """Whether every killed run ended as the uninterrupted one, and some had a checkpoint to go on from."""
    generator = random.Random(seed)
    agreed, continued = True, False
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole" / "run"
        seconds = finish(whole, command)
        steps = clusters.steps_done(whole)
        print(f"uninterrupted: {seconds:.1f} s, {steps} steps", flush=True)
        for number in range(times):
            workdir = Path(folder) / ("chain" if chain else f"killed{number}") / "run"
            # every other kill falls into training, which is a small part of a short run's time; in a chain all do
            step = generator.randrange(1, steps) if number % 2 else None
            if chain:
                done = clusters.steps_done(workdir)
                step = generator.randint(done, (done + steps) // 2)
            victim, signum = VICTIMS[number // 2 % len(VICTIMS)] if command.processes > 1 else VICTIMS[0]
            where = kill(workdir, command, victim, signum, seconds=generator.uniform(0.02, 0.9) * seconds, step=step)
            continued |= "with checkpoint" in where and "checkpoint 0" not in where
            print(f"killed {where}", flush=True)
            if chain and number < times - 1:
                continue
            finish(workdir, command)
            found = clusters.differences(workdir, whole)
            agreed &= not found
            print(f"parameters and rows: {f'DIFFER: {found}' if found else 'equal'}", flush=True)
    if not continued:
        print("no kill left a checkpoint to go on from: nothing was shown", flush=True)
    return agreed and continued


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chain", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--devices", type=int, default=1, help="of each process")
    known, rest = parser.parse_known_args()
    asked = Command(rest, known.processes, known.devices)
    sys.exit(0 if compare(known.times, asked, seed=known.seed, chain=known.chain) else 1)
