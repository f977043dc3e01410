"""Training steps of the main job's loop, the same without the host, and of the same network in PyTorch."""

from collections.abc import Sequence
from typing import Any

import jax

from configs import cifar10
from experiments import programs, timing
from experiments.benchmarks import pytorch
from experiments.numbers import markdown
from focalgeo.job import preparation

NETWORKS = {  # name -> model, its options, examples of a batch on a CPU
    "ResNet-18": ("resnet18", {}, 32),
    "ResNet-50": ("resnet50", {}, 16),
    "WRN-26-10": ("wide_resnet26_10", {}, 8),
    "ResNet-20": ("resnet20", {}, 64),
    "tiny ResNet": ("resnet20", {"blocks": (1, 2), "widths": (4, 8)}, 4),
}
GPU_BATCH = 128  # the papers'
STRETCH = 5  # steps that are timed together


def measure(name: str, *, rounds: int = 5) -> dict[str, Any]:
    """Seconds of a step of ours as the loop does it, on one kept batch spec, and of PyTorch's on one batch; flops.

    By the papers' recipe with cross-entropy; layers compute in bfloat16 on a GPU. Flops are XLA's count of the program
    before it is optimised: after that, a GPU's convolutions are calls of a library, which the count leaves out.
    """
    on_cpu = jax.default_backend() == "cpu"
    model, options, batch = NETWORKS[name]
    batch, dtype = (batch, "float32") if on_cpu else (GPU_BATCH, "bfloat16")
    fields = {"loss.name": "cross_entropy", "optimizer.batch_size": batch, "optimizer.learning_rate": 0.01}
    fields |= {"model.name": model, "model.options": options, "model.dtype": dtype}
    made = programs.make_training(programs.changed(cifar10.get_config(), fields))
    state = preparation.state_shapes(made.prepared, made.members[0])
    ready = next(preparation.evaluation_batches(made.config, made.prepared.dataset.train))
    ready = jax.tree.map(lambda leaf: leaf[:batch], ready)
    looped, repeated = programs.looped_steps(made), programs.repeated_steps(made)
    calls = {"fresh": lambda: looped(STRETCH), "kept": lambda: repeated(STRETCH)}
    for way, step in pytorch.training_steps(name, state.params, ready, made.config).items():
        calls[way] = lambda step=step: [step() for _ in range(STRETCH)] and None
    times = timing.interleaved(calls, rounds=rounds)
    times = {kind: {way: seconds / STRETCH for way, seconds in values.items()} for kind, values in times.items()}
    flops = programs.training_step(made, jax.devices()).lower().cost_analysis()["flops"]
    return {"network": name, "batch": batch, "dtype": dtype, "flops": float(flops), **times}


def table(rows: Sequence[dict]) -> str:
    """A step by the clock and by its threads' on the processor, and how many times as long as it the loop's takes."""
    heads = ("network, batch", "dtype", "way", "ms a step", "median", "processor ms", "images/s", "times")
    lines = []
    for row in rows:
        for way, seconds in row["seconds"].items():
            clocks = (f"{1e3 * row[kind][way]:.4g}" for kind in ("seconds", "median seconds", "processor seconds"))
            times = f"{seconds / row['seconds']['fresh']:.2f}"
            what = [f"{row['network']}, {row['batch']}", row["dtype"], way]
            lines.append([*what, *clocks, f"{row['batch'] / seconds:,.4g}", "" if way == "fresh" else times])
    return markdown(heads, lines)
