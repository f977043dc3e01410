"""A sweep in one program against separate runs: wall time from command to report, and steps of its members."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from configs import cifar10, digits
from experiments import programs, timing
from experiments.numbers import markdown, plain

ROOT = Path(__file__).parents[2]
GAMMAS, SEEDS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0), (0, 1)
NETWORKS = {  # name -> config, fields, steps of a timed call
    "digits MLP": (digits, {}, 50),
    "small CNN": (cifar10, {"model.name": "cnn", "model.options": {"widths": (32, 64, 128)}}, 2),
}


def wall(config: str = "configs/digits.py", gammas: Sequence[float] = GAMMAS, seeds: Sequence[int] = SEEDS) -> dict:
    """Seconds from command to report: one sweep, and each of its members as a run of the main job, one by one."""
    with tempfile.TemporaryDirectory() as folder:

        def run(**fields: Any) -> float:
            flags = [f"--config.{name.replace('__', '.')}={value}" for name, value in fields.items()]
            workdir = f"--workdir={folder}/{len(list(Path(folder).iterdir()))}"
            command = [sys.executable, "-m", "focalgeo.run", f"--config={config}", workdir, *flags]
            began = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
            return round(time.perf_counter() - began, 2)

        together = run(sweep__gamma=tuple(gammas), sweep__seed=tuple(seeds))
        apart = [run(loss__gamma=gamma, seed=seed) for gamma in gammas for seed in seeds]
    return {"config": config, "members": len(apart), "sweep": together, "separate": apart}


def steps(name: str, counts: Sequence[int] = (1, 2, 4, 8, 16, 32), *, rounds: int = 5) -> list[dict[str, Any]]:
    """A row for each number of members: least seconds of a step of all, at once and one by one."""
    module, fields, repeat = NETWORKS[name]
    calls, batch = {}, 0
    for count in ("alone", *counts):
        members = {
            "sweep.gamma": tuple(np.linspace(0, 5, 1 if count == "alone" else count).tolist()),
            "sweep.seed": (0,),
        }
        config = programs.changed(module.get_config(), {**fields, "loss.name": "focal_loss", **members})
        batch = config.optimizer.batch_size
        calls[count] = partial(programs.repeated_steps(programs.make_training(config)), repeat)
    seconds = timing.interleaved(calls, rounds=rounds)["seconds"]
    return [
        {
            "network": name,
            "batch": batch,
            "members": count,
            "seconds": seconds[count] / repeat,
            "one_by_one": count * seconds["alone"] / repeat,
        }
        for count in counts
    ]


def wall_words(found: dict[str, Any]) -> str:
    """The wall times in a line."""
    total, separate = sum(found["separate"]), np.mean(found["separate"])
    return (
        f"{found['members']} members of {found['config']}, from command to report: one sweep {found['sweep']:.1f} s, "
        f"separate runs {total:.0f} s ({separate:.1f} s each): {total / found['sweep']:.1f} times\n"
    )


def table(rows: Sequence[dict]) -> str:
    """Steps of members at once against one by one."""
    lines = []
    for row in rows:
        times, rate = row["one_by_one"] / row["seconds"], row["members"] * row["batch"] / row["seconds"]
        what = [f"{row['network']}, {row['batch']}", str(row["members"]), plain(1e3 * row["seconds"])]
        lines.append([*what, f"{times:.2f}", f"{rate:,.0f}"])
    return markdown(("network, batch", "members", "ms a step of all", "times one by one", "members' images/s"), lines)
