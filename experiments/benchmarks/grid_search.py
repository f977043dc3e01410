"""Time of the whole (gamma, temperature) search against loops over its points and the floor of one exp each."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import timing
from experiments.benchmarks import pytorch
from experiments.numbers import NOT, SHOWS, Claim, markdown, plain
from focalgeo import calibration

torch = pytorch.torch
NUM_BINS = 15
POINTS = 20  # of the loops that are timed in a round, and scaled to all
CRITERIA = ("ece", "adaptive_ece")
Point = Callable[[float, float], tuple[float, float]]  # (gamma, temperature) -> (equal-mass ECE, NLL)


def measure(
    num_examples: int, num_classes: int, *, rounds: int = 3, temperatures: Sequence[float] = calibration.TEMPERATURES
) -> dict[str, Any]:
    """Seconds of every way for the whole grid, wall and processor, and of our first calls, which compile."""
    logits, labels = predictions(num_examples, num_classes)
    grid = [(gamma, temperature) for gamma in calibration.GAMMAS for temperature in temperatures]
    sample = [grid[i] for i in np.linspace(0, len(grid) - 1, POINTS).astype(int)]

    def search(criterion: str) -> Callable:
        return lambda: calibration.grid_search(
            logits, labels, calibration.GAMMAS, temperatures, criterion=criterion, num_bins=NUM_BINS
        )

    def looped(point: Point) -> Callable:
        return lambda: [point(*values) for values in sample] and None

    columns, scales = jnp.asarray(logits.T), jnp.asarray(temperatures, jnp.float32)
    floor = jax.jit(exponentials)
    calls = {f"ours, {criterion}": search(criterion) for criterion in CRITERIA}
    first = {name: timing.timed(call) for name, call in calls.items()}
    loops = {"lean loop": lean_loop, "papers' way": papers_way} if torch else {}
    calls |= {name: looped(make(logits, labels)) for name, make in loops.items()}
    calls["floor"] = lambda: floor(columns, scales)
    times = timing.interleaved(calls, rounds=rounds)
    scale = {name: len(grid) / len(sample) if name in loops else 1 for name in calls}
    pairs = {name: [scale[name] * times[kind][name] for kind in ("seconds", "processor seconds")] for name in calls}
    sizes = {"examples": num_examples, "classes": num_classes, "points": len(grid)}
    return sizes | {"seconds": pairs, "first call": first}


def papers_way(logits: np.ndarray, labels: np.ndarray) -> Point:
    """The published search's steps at one point, written anew: edges from the sorted confidences, a mask per bin."""
    logits, labels = torch.from_numpy(logits), torch.from_numpy(labels).long()

    def point(gamma: float, temperature: float) -> tuple[float, float]:
        q = torch.softmax(logits / temperature, dim=1).clip(1e-12, 1 - 1e-12)
        h = q / ((1 - q) ** gamma - gamma * q * (1 - q) ** (gamma - 1) * torch.log(q))
        p = h / h.sum(dim=1, keepdim=True)
        nll = torch.nn.functional.nll_loss(torch.log(p.clip(1e-12)), labels)
        confidence, predicted = p.max(dim=1)
        confidence, hits = confidence.numpy(), (predicted == labels).numpy()
        size, total = len(hits), 0.0
        edges = np.interp(np.linspace(0, size, NUM_BINS + 1), np.arange(size), np.sort(confidence))
        for lower, upper in pairwise(edges):
            inside = (confidence > lower) & (confidence <= upper)
            if inside.any():
                total += inside.mean() * abs(hits[inside].mean() - confidence[inside].mean())
        return total, nll.item()

    return point


def lean_loop(logits: np.ndarray, labels: np.ndarray) -> Point:
    """The least that a loop over points has to do: one pow, the logarithm from log_softmax, bins by slicing."""
    logits, labels = torch.from_numpy(logits), torch.from_numpy(labels).long()[:, None]
    hits = (logits.argmax(dim=1) == labels[:, 0]).float()

    def point(gamma: float, temperature: float) -> tuple[float, float]:
        log_q = torch.log_softmax(logits / temperature, dim=1)
        q = log_q.exp()
        rest = (1 - q).clamp_(min=1e-7)
        h = q / ((rest - gamma * q * log_q) * rest ** (gamma - 1))
        total = h.sum(dim=1)
        nll = (total.log() - h.gather(1, labels)[:, 0].clamp(min=1e-30).log()).mean()
        confidence, order = (h.max(dim=1).values / total).sort()
        bins = torch.tensor_split(hits[order] - confidence, NUM_BINS)
        return sum(abs(part.sum().item()) for part in bins) / len(hits), nll.item()

    return point


def exponentials(columns: jax.Array, temperatures: jax.Array) -> jax.Array:
    """The floor: one float32 exp for every temperature, example and class."""
    return jax.lax.map(lambda temperature: jnp.sum(jnp.exp(columns / temperature), axis=0), temperatures)


def predictions(num_examples: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Random logits, and labels drawn from their softmax at temperature 2."""
    generator = np.random.default_rng(0)
    logits = 3 * generator.standard_normal((num_examples, num_classes), dtype=np.float32)
    return logits, (logits / 2 + generator.gumbel(size=logits.shape)).argmax(axis=1).astype(np.int32)


def claims(rows: Sequence[dict]) -> list[Claim]:
    """How many times as long as the search by ECE a lean loop over its points takes."""
    found = []
    for row in (row for row in rows if "lean loop" in row["seconds"]):  # else PyTorch was missing
        ratio = row["seconds"]["lean loop"][0] / row["seconds"]["ours, ece"][0]
        what = f"{row['examples']:,} x {row['classes']}"
        claim = f"the search by ECE of {what} is faster than a lean loop over its points"
        found.append(Claim("focalgeo", claim, SHOWS if ratio > 1 else NOT, f"{ratio:.0f} times"))
    return found


def table(rows: Sequence[dict]) -> str:
    """Seconds, and how many times as long as each of our searches the others take."""
    lines = []
    for row in rows:
        what = f"{row['examples']:,} x {row['classes']:,}, {row['points']:,}"
        ours = [row["seconds"][f"ours, {criterion}"][0] for criterion in CRITERIA]
        for name, (wall, processor) in row["seconds"].items():
            lines.append([what, name, plain(wall), plain(processor), *(plain(wall / own) for own in ours)])
        for name, (wall, processor) in row["first call"].items():
            lines.append([what, f"{name}, first call with compilation", plain(wall), plain(processor), "", ""])
    heads = ("examples x classes, points", "way", "seconds", "processor seconds", "times ece", "times adaptive_ece")
    return markdown(heads, lines)
