"""Training steps of the main job's loop, the same without the host, and of the same network in PyTorch."""

from typing import Any

import jax

from configs import cifar10
from experiments import programs, timing
from experiments.benchmarks import pytorch
from experiments.numbers import markdown
from focalgeo.job import preparation

NETWORKS = {  # name -> model, examples of a batch on a CPU
    "ResNet-18": ("resnet18", 32),
    "ResNet-50": ("resnet50", 16),
    "WRN-26-10": ("wide_resnet26_10", 8),
    "ResNet-20": ("resnet20", 64),
}
GPU_BATCH = 128  # the papers'
STRETCH = 5  # steps that are timed together


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Seconds of a step of ours as the loop does it, on one kept batch spec, and of PyTorch's on one batch.

    By the papers' recipe with cross-entropy; layers compute in bfloat16 on a GPU.
    """
    model, batch = NETWORKS[name]
    batch, dtype = (batch, "float32") if jax.default_backend() == "cpu" else (GPU_BATCH, "bfloat16")
    fields = {"loss.name": "cross_entropy", "optimizer.batch_size": batch, "optimizer.learning_rate": 0.01}
    fields |= {"model.name": model, "model.dtype": dtype}
    made = programs.make_training(programs.changed(cifar10.get_config(), fields))
    params = preparation.state_shapes(made.prepared, made.members[0]).params
    ready = next(preparation.evaluation_batches(made.config, made.prepared.dataset.train))
    steps = pytorch.training_steps(name, params, ready.x[:batch], ready.y[:batch], made.config)
    calls = {"fresh": programs.looped_steps(made), "kept": programs.repeated_steps(made), **steps}
    calls = {way: lambda step=step: step(STRETCH) for way, step in calls.items()}
    seconds = {way: time / STRETCH for way, time in timing.interleaved(calls, rounds=rounds).items()}
    return {"network": name, "batch": batch, "dtype": dtype, "seconds": seconds}


def table(part: dict[str, Any]) -> str:
    """A step by the clock, and how many times as long as it the loop's takes."""
    lines = []
    for row in part["rows"]:
        for way, seconds in row["seconds"].items():
            times = "" if way == "fresh" else f"{seconds / row['seconds']['fresh']:.2f}"
            rate = f"{row['batch'] / seconds:,.4g}"
            lines.append([f"{row['network']}, {row['batch']}", row["dtype"], way, f"{1e3 * seconds:.4g}", rate, times])
    return markdown(("network, batch", "dtype", "way", "ms a step", "images/s", "times"), lines)
