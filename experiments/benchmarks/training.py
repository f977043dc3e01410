"""Training steps against the same network in PyTorch, and against themselves without the host, on one device."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from configs import cifar10
from experiments import programs, timing
from experiments.benchmarks import pytorch
from experiments.numbers import markdown
from focalgeo.job import preparation

# name -> model, its options, examples of a batch on a CPU
NETWORKS: dict[str, tuple[str, Mapping[str, Any], int]] = {
    "ResNet-18": ("resnet18", {}, 32),
    "ResNet-50": ("resnet50", {}, 16),
    "WRN-26-10": ("wide_resnet26_10", {}, 8),
    "ResNet-20": ("resnet20", {}, 64),
    "small CNN": ("cnn", {"widths": (32, 64, 128)}, 128),
    "tiny ResNet": ("resnet20", {"blocks": (1, 2), "widths": (4, 8)}, 4),
}
WITH_PYTORCH, WITH_HOST = ("ResNet-18", "ResNet-50", "WRN-26-10"), ("small CNN", "ResNet-18", "ResNet-20")
GPU_BATCH = 128  # the papers'
LEAST_SECONDS = 1.0  # of a stretch of steps


def measure(name: str, *, rounds: int = 5, host: bool = False) -> dict[str, Any]:
    """Seconds of a step of ours as the loop does it, on one kept batch spec if `host`, else in PyTorch's modes; flops.

    By the papers' recipe with cross-entropy; layers compute in bfloat16 on a GPU. Flops are XLA's count of the program
    before it is optimised: after that, a GPU's convolutions are calls of a library, which the count leaves out.
    """
    on_cpu = jax.default_backend() == "cpu"
    model, options, batch = NETWORKS[name]
    batch, dtype = (batch, "float32") if on_cpu else (GPU_BATCH, "bfloat16")
    fields = {"loss.name": "cross_entropy", "optimizer.batch_size": batch, "optimizer.learning_rate": 0.01}
    fields |= {"model.name": model, "model.options": dict(options), "model.dtype": dtype}
    made = programs.make_training(programs.changed(cifar10.get_config(), fields))
    state = preparation.state_shapes(made.prepared, made.members[0])
    lowered = programs.training_step(made, jax.devices()).lower()
    stretches, failed = {"fresh" if host else "ours": programs.looped_steps(made)}, {}
    if host:
        stretches["kept"] = programs.repeated_steps(made)
    for mode in () if host else pytorch.modes():
        way, split = f"PyTorch, {mode}", made.prepared.dataset.train
        try:
            network = pytorch.network(name, state.params)
            step = pytorch.training_steps(network, split, made.config, low_precision=not on_cpu, mode=mode)
            step(1)
            stretches[way] = step
        except Exception as error:  # whatever its compiler raises: the others are timed
            failed[way] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    for step in stretches.values():
        step(1)  # compiles
    counts = {
        way: max(1, int(LEAST_SECONDS / timing.timed(lambda step=step: step(1))[0])) for way, step in stretches.items()
    }
    calls = {way: lambda step=step, n=counts[way]: step(n) for way, step in stretches.items()}
    times = timing.interleaved(calls, rounds=rounds)
    times = {kind: {way: value / counts[way] for way, value in values.items()} for kind, values in times.items()}
    row = {"network": name, "batch": batch, "dtype": dtype, "flops": float(lowered.cost_analysis()["flops"])}
    temporary = lowered.compile().memory_analysis().temp_size_in_bytes
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((made.pipeline.resident, state)))
    return row | {"megabytes": {"ours": (temporary + held) / 1e6}, "failed": failed} | times


def table(rows: Sequence[dict]) -> str:
    """A step of ours and of PyTorch's, by its clock and by its threads' on the processor."""
    heads = ("network, batch", "dtype", "way", "ms a step", "median", "processor ms", "images/s", "times", "MB")
    lines = []
    for row in rows:
        what = [f"{row['network']}, {row['batch']}", row["dtype"]]
        for way, seconds in row["seconds"].items():
            times = "" if way == "ours" else f"{seconds / row['seconds']['ours']:.2f}"
            clocks = (f"{1e3 * row[kind][way]:.4g}" for kind in ("seconds", "median seconds", "processor seconds"))
            megabytes = row["megabytes"].get(way)
            lines.append([*what, way, *clocks, f"{row['batch'] / seconds:,.4g}", times])
            lines[-1].append("" if megabytes is None else f"{megabytes:,.0f}")
        lines += [[*what, f"{way}: {why}", *[""] * 6] for way, why in row["failed"].items()]
    return markdown(heads, lines)


def host_table(rows: Sequence[dict]) -> str:
    """What a fresh step takes more than one on a batch spec that stays on the device, by least and median times."""
    lines = []
    for row in rows:
        more = [row[kind]["fresh"] / row[kind]["kept"] - 1 for kind in ("seconds", "median seconds")]
        milliseconds = (f"{1e3 * row['seconds'][way]:.4g}" for way in ("fresh", "kept"))
        what = [f"{row['network']}, {row['batch']}", row["dtype"]]
        lines.append([*what, *milliseconds, *(f"{100 * share:+.1f}%" for share in more)])
    return markdown(("network, batch", "dtype", "ms a step", "spec kept", "more: least", "median"), lines)
