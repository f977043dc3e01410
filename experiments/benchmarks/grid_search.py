"""Time of the whole (gamma, temperature) search against loops over its points and against the floor of one exp each.

python -m experiments.benchmarks.grid_search            both sizes, a few minutes; writes results.json
python -m experiments.benchmarks.grid_search --quick    a small problem, seconds; writes nothing
"""

import json
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.loops import LIBRARY, Point, lean_loop, papers_way
from experiments.benchmarks.machine import describe
from experiments.benchmarks.verdicts import head
from experiments.flags import Parser, at_least
from focalgeo.calibration import GAMMAS, TEMPERATURES, grid_search

RESULTS = Path(__file__).parent / "results.json"
CRITERIA = ("ece", "adaptive_ece")
COLUMNS = ("ours, ece", "ours, adaptive_ece", "lean loop", "papers' way", "floor")


def main(arguments: list[str] | None = None) -> None:
    """Prints the table; writes results.json unless the run is a quick one."""
    parser = Parser("benchmarks.grid_search", __doc__)
    parser.add_argument("--sizes", nargs="+", default=["5000x100", "10000x200"], help="examples x classes")
    parser.add_argument(
        "--rounds", type=at_least(1), default=3, help="interleaved repetitions; the least time of each is reported"
    )
    parser.add_argument("--points", type=int, default=20, help="points of the loops that are timed in a round")
    parser.add_argument("--temperatures", type=int, default=500, help="temperatures of the grid")
    parser.add_argument("--quick", action="store_true", help="200x5, 20 temperatures, one round")
    options = parser.parse_args(arguments)
    if options.quick:
        options.sizes, options.rounds, options.points, options.temperatures = ["200x5"], 1, 2, 20
    temperatures = TEMPERATURES[:: max(1, len(TEMPERATURES) // options.temperatures)]
    rows = [
        compared(*map(int, size.split("x")), temperatures, rounds=options.rounds, points=options.points)
        for size in options.sizes
    ]
    found: dict = {"machine": describe(), "loops in": LIBRARY, "gammas": len(GAMMAS), "rows": rows}
    print(table(found))
    if not options.quick:
        RESULTS.write_text(json.dumps(head(found, str(date.today())) | found, indent=1) + "\n")


def compared(num_examples: int, num_classes: int, temperatures: tuple, *, rounds: int, points: int) -> dict:
    """Seconds of every way for the whole grid, each the least of interleaved rounds, and of our first calls.

    Other work on the machine only adds to a time, and to that of many threads most of all: the least is the fairest.
    """
    logits, labels = predictions(num_examples, num_classes)
    grid = [(gamma, temperature) for gamma in GAMMAS for temperature in temperatures]
    sample = [grid[i] for i in np.linspace(0, len(grid) - 1, points).astype(int)]
    loops = {"lean loop": lean_loop(logits, labels), "papers' way": papers_way(logits, labels)}
    ours = {f"ours, {name}": lambda name=name: search(logits, labels, temperatures, name) for name in CRITERIA}
    first = {name: seconds(call) for name, call in ours.items()}
    columns, floor = jnp.asarray(logits.T), jax.jit(exponentials)
    jax.block_until_ready(floor(columns, np.float32(temperatures)))
    times = {name: [] for name in COLUMNS}
    for _ in range(rounds):
        for name, call in ours.items():
            times[name].append(seconds(call))
        times["floor"].append(seconds(lambda: jax.block_until_ready(floor(columns, np.float32(temperatures)))))
        for name, point in loops.items():
            times[name].append(seconds(lambda point=point: looped(point, sample)) * (len(grid) / points))
    return {
        "examples": num_examples,
        "classes": num_classes,
        "points": len(grid),
        "seconds": {name: np.min(values, axis=0).tolist() for name, values in times.items()},
        "all rounds": {name: np.array(values).tolist() for name, values in times.items()},
        "first call": {name: value.tolist() for name, value in first.items()},
    }


def search(logits: np.ndarray, labels: np.ndarray, temperatures: tuple, criterion: str) -> None:
    """The whole search; it returns NumPy arrays, so nothing is left to wait for."""
    grid_search(logits, labels, GAMMAS, temperatures, criterion=criterion)


def looped(point: Point, sample: list[tuple[float, float]]) -> None:
    """Some points, one after another."""
    for gamma, temperature in sample:
        point(gamma, temperature)


def exponentials(columns: jax.Array, temperatures: jax.Array) -> jax.Array:
    """The floor: one float32 exp for every temperature, example and class."""
    return jax.lax.map(lambda temperature: jnp.sum(jnp.exp(columns / temperature), axis=0), temperatures)


def predictions(num_examples: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Random logits, and labels drawn from their softmax at temperature 2."""
    generator = np.random.default_rng(0)
    logits = 3 * generator.standard_normal((num_examples, num_classes), dtype=np.float32)
    labels = (logits / 2 + generator.gumbel(size=logits.shape)).argmax(axis=1)
    return logits, labels.astype(np.int32)


def seconds(call: Callable[[], None]) -> np.ndarray:
    """Wall time of one call, and processor time of all its threads."""
    before = time.perf_counter(), time.process_time()
    call()
    return np.subtract((time.perf_counter(), time.process_time()), before)


def table(found: dict) -> str:
    """Markdown: the machine, then seconds and how many times as long as each of our searches the others take."""
    machine = ", ".join(f"{key} {value}" for key, value in found["machine"].items())
    lines = [f"{machine}; loops in {found['loops in']}; {found['gammas']} gammas", ""]
    lines.append("| examples x classes, points | way | seconds | processor seconds | times ece | times adaptive_ece |")
    lines.append("|---|---|---|---|---|---|")
    for row in found["rows"]:
        taken, what = row["seconds"], f"{row['examples']:,} x {row['classes']:,}, {row['points']:,}"
        ours = [taken[f"ours, {criterion}"][0] for criterion in CRITERIA]
        for name in COLUMNS:
            wall, processor = taken[name]
            ratios = " | ".join(f"{wall / own:.3g}" for own in ours)
            lines.append(f"| {what} | {name} | {wall:.3g} | {processor:.3g} | {ratios} |")
        for name, (wall, processor) in row["first call"].items():
            lines.append(f"| {what} | {name}, first call with compilation | {wall:.3g} | {processor:.3g} | | |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
