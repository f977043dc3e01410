"""A sweep in one program against separate runs: whole wall time on digits, and steps, memory and images a second.

python -m experiments.benchmarks.sweep                     both parts, ten minutes; writes results_sweep.json
python -m experiments.benchmarks.sweep --parts steps       one part; the other stays as it is in the file
python -m experiments.benchmarks.sweep --quick             a small sweep, a minute; writes nothing
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from experiments.benchmarks.machine import describe
from experiments.benchmarks.training_steps import NETWORKS, measured_steps
from experiments.flags import Parser, at_least
from experiments.writing import plain

RESULTS = Path(__file__).parent / "results_sweep.json"
ROOT = Path(__file__).parent.parent.parent
PARTS = ("wall", "steps")
GAMMAS, SEEDS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0), (0, 1)


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables; writes results_sweep.json unless the run is a quick one."""
    parser = Parser("benchmarks.sweep", __doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--members", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=at_least(1), default=5, help="interleaved; the least time of each is reported")
    parser.add_argument("--peak", type=float, help="the device's peak in TFLOP/s, for the fraction that is reached")
    parser.add_argument("--quick", action="store_true", help="2 gammas, 1 seed, 2 members; writes nothing")
    options = parser.parse_args(arguments)
    gammas, seeds, config = GAMMAS, SEEDS, "configs/digits.py"
    if options.quick:
        gammas, seeds, config = GAMMAS[:2], SEEDS[:1], "configs/digits.py:quick"
        options.members, options.rounds, options.networks = [1, 2], 1, ["digits MLP"]
    found = {} if options.quick or not RESULTS.exists() else json.loads(RESULTS.read_text())
    found["machine"] = describe()
    if "wall" in options.parts:
        found["wall"] = wall(config, gammas, seeds)
    if "steps" in options.parts:
        found["steps"] = [
            row
            for network in options.networks
            for row in measured_steps(network, options.members, rounds=options.rounds, peak=options.peak)
        ]
    print(table(found))
    if not options.quick:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def wall(config: str, gammas: tuple[float, ...], seeds: tuple[int, ...]) -> dict:
    """Seconds from command to report: one sweep, and each of its members as a run of the main job, one by one."""
    with tempfile.TemporaryDirectory() as folder:
        together = _run(folder, "sweep", config, f"--config.sweep.gamma={gammas}", f"--config.sweep.seed={seeds}")
        apart = [
            _run(folder, f"run-{gamma}-{seed}", config, f"--config.loss.gamma={gamma}", f"--config.seed={seed}")
            for gamma in gammas
            for seed in seeds
        ]
    return {"config": config, "members": len(apart), "sweep": together, "separate": apart}


def _run(folder: str, name: str, config: str, *changes: str) -> float:
    command = [sys.executable, "-m", "focalgeo.run", f"--config={config}", f"--workdir={folder}/{name}", *changes]
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return round(time.perf_counter() - began, 2)


def table(found: dict) -> str:
    """The results as Markdown."""
    lines = [", ".join(f"{name} {value}" for name, value in found["machine"].items()), ""]
    if "wall" in found:
        each = found["wall"]
        total = sum(each["separate"])
        lines += [
            f"{each['members']} members of {each['config']}, from command to report: one sweep {each['sweep']:.1f} s, "
            f"separate runs {total:.0f} s ({np.mean(each['separate']):.1f} s each): {total / each['sweep']:.1f} times",
            "",
        ]
    if "steps" in found:
        heads = (
            "network, batch",
            "members",
            "ms a step of all",
            "times one by one",
            "members' images/s",
            "MB",
            "of peak",
        )
        lines += ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        for row in found["steps"]:
            peak = f"{100 * row['of_peak']:.1f}%" if "of_peak" in row else ""
            times, rate = row["one_by_one"] / row["seconds"], row["images_per_second"]
            lines.append(
                f"| {row['network']}, {row['batch']} | {row['members']} | {plain(1e3 * row['seconds'])} | "
                f"{times:.2f} | {rate:,.0f} | {plain(row['megabytes'])} | {peak} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
