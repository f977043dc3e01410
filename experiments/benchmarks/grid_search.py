"""Time of the whole (gamma, temperature) search against loops over its points."""

from collections.abc import Sequence
from functools import partial
from itertools import product, starmap
from typing import Any

import numpy as np

from experiments import timing
from experiments.benchmarks import pytorch
from experiments.numbers import NOT, SHOWS, Claim, markdown, plain
from focalgeo import calibration

POINTS = 20  # of the loops that are timed in a round, and scaled to all
CRITERIA = ("ece", "adaptive_ece")


def measure(
    num_examples: int, num_classes: int, rounds: int, *, temperatures: Sequence[float] = calibration.TEMPERATURES
) -> dict[str, Any]:
    """Seconds of every way for the whole grid."""
    logits, labels = predictions(num_examples, num_classes)
    grid = list(product(calibration.GAMMAS, temperatures))
    sample = [grid[place] for place in np.linspace(0, len(grid) - 1, POINTS).astype(int)]
    search = partial(calibration.grid_search, logits, labels, calibration.GAMMAS, temperatures)
    calls = {f"ours, {criterion}": partial(search, criterion=criterion) for criterion in CRITERIA}
    points = {name: make(logits, labels) for name, make in pytorch.SEARCHES.items()}
    calls |= {name: lambda point=point: list(starmap(point, sample)) for name, point in points.items()}
    times = timing.interleaved(calls, rounds=rounds)
    seconds = {name: times[name] * (len(grid) / len(sample) if name in points else 1) for name in calls}
    return {"examples": num_examples, "classes": num_classes, "points": len(grid), "seconds": seconds}


def predictions(num_examples: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Random logits, and labels drawn from their softmax at temperature 2."""
    generator = np.random.default_rng(0)
    logits = 3 * generator.standard_normal((num_examples, num_classes), dtype=np.float32)
    return logits, (logits / 2 + generator.gumbel(size=logits.shape)).argmax(axis=1).astype(np.int32)


def claims(grid_search) -> list[Claim]:
    """How many times as long as the search by ECE a lean loop over its points takes."""
    told = []
    for row in grid_search["rows"]:
        if "lean loop" in row["seconds"]:  # else PyTorch was missing
            ratio = row["seconds"]["lean loop"] / row["seconds"]["ours, ece"]
            size = f"{row['examples']:,} x {row['classes']}"
            words = f"the search by ECE of {size} is faster than a lean loop over its points"
            told.append(Claim("focalgeo", words, SHOWS if ratio > 1 else NOT, f"{ratio:.0f} times"))
    return told


def table(part: dict[str, Any]) -> str:
    """Seconds, and how many times as long as each of our searches the others take."""
    lines = []
    for row in part["rows"]:
        what = f"{row['examples']:,} x {row['classes']:,}, {row['points']:,}"
        ours = [row["seconds"][f"ours, {criterion}"] for criterion in CRITERIA]
        for name, seconds in row["seconds"].items():
            lines.append([what, name, plain(seconds), *(plain(seconds / own) for own in ours)])
    return markdown(("examples x classes, points", "way", "seconds", "times ece", "times adaptive_ece"), lines)
