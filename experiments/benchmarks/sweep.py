"""A sweep in one program against separate runs: wall time from command to report, and steps of its members."""

import tempfile
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from configs import cifar10, digits
from experiments import jobs, programs, timing
from experiments.numbers import markdown, plain

CONFIG, GAMMAS, SEEDS = "configs/digits.py", (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0), (0, 1)
COUNTS = (1, 2, 4, 8, 16, 32)  # members
NETWORKS = {  # name -> config, fields, steps of a timed call
    "digits MLP": (digits, {}, 50),
    "small CNN": (cifar10, {"model.name": "cnn", "model.options": {"widths": (32, 64, 128)}}, 2),
}


def wall() -> dict[str, Any]:
    """Seconds from command to report: one sweep, and each of its members as a run of the main job, one by one."""

    def seconds(**fields):
        named = {name.replace("__", "."): value for name, value in fields.items()}
        with tempfile.TemporaryDirectory() as folder:
            return round(timing.timed(lambda: jobs.trained(CONFIG, Path(folder) / "run", named))[0], 2)

    together = seconds(sweep__gamma=GAMMAS, sweep__seed=SEEDS)
    apart = [seconds(loss__gamma=gamma, seed=seed) for gamma, seed in product(GAMMAS, SEEDS)]
    return {"config": CONFIG, "members": len(apart), "sweep": together, "separate": apart}


def steps(name: str, rounds: int) -> list[dict[str, Any]]:
    """A row for each number of members: least seconds of a step of all, at once and one by one."""
    module, fields, repeat = NETWORKS[name]
    calls = {}
    for count in COUNTS:
        sweep = {"sweep.gamma": tuple(np.linspace(0, 5, count).tolist()), "sweep.seed": (0,)}
        config = programs.changed(module.get_config(), {**fields, "loss.name": "focal_loss", **sweep})
        calls[count] = partial(programs.repeated_steps(programs.make_training(config)), repeat)
    seconds = {count: time / repeat for count, time in timing.interleaved(calls, rounds=rounds).items()}
    of = {"network": name, "batch": config.optimizer.batch_size}
    return [of | {"members": n, "seconds": seconds[n], "one_by_one": n * seconds[1]} for n in COUNTS]


def table(part: dict[str, Any]) -> str:
    """The wall times in a line; steps of members at once against one by one."""
    wall, lines = part["wall"], []
    total = sum(wall["separate"])
    words = (
        f"{wall['members']} members of {wall['config']}, from command to report: one sweep {wall['sweep']:.1f} s, "
        f"separate runs {total:.0f} s ({total / wall['members']:.1f} s each): {total / wall['sweep']:.1f} times\n\n"
    )
    for row in part["rows"]:
        times, rate = row["one_by_one"] / row["seconds"], row["members"] * row["batch"] / row["seconds"]
        what = f"{row['network']}, {row['batch']}"
        lines.append([what, row["members"], plain(1e3 * row["seconds"]), f"{times:.2f}", f"{rate:,.0f}"])
    return words + markdown(
        ("network, batch", "members", "ms a step of all", "times one by one", "members' images/s"), lines
    )
