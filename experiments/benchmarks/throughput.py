"""Training steps against the same network in PyTorch, and against themselves without the host, on one device.

python -m experiments.benchmarks.throughput                     both parts; writes results_throughput.json
python -m experiments.benchmarks.throughput --peak 989          with the device's peak in TFLOP/s, for its fraction
python -m experiments.benchmarks.throughput --networks ResNet-18 --batch 512 --parts pytorch
python -m experiments.benchmarks.throughput --quick             a tiny network, seconds; writes nothing

On a GPU: `pip install -e '.[gpu,benchmarks]'`; both libraries then share it in this process. Layers compute in bfloat16
there unless --dtype says otherwise. Results are kept by device, network, batch and dtype: a run replaces its own only.
"""

import argparse
import functools
import json
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from experiments.benchmarks import training_path as path
from experiments.benchmarks.machine import describe
from experiments.benchmarks.throughput_tables import table
from experiments.flags import Parser, at_least

try:
    from experiments.benchmarks import torch_training
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    torch_training = None

RESULTS = Path(__file__).parent / "results_throughput.json"
PARTS = {"pytorch": ("ResNet-18", "ResNet-50", "WRN-26-10"), "host": ("small CNN", "ResNet-20", "ResNet-18")}
EXAMPLES, GPU_BATCH = 45_000, 128  # CIFAR-10's training images; the papers' batch
LEAST_SECONDS = 1.0  # of a stretch of steps, which is as long as it takes


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables; writes results_throughput.json unless the run is a quick one."""
    # read when jax first looks for its devices: else jax takes most of a GPU's memory and leaves PyTorch none
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    options = _parser().parse_args(arguments)
    on_cpu = jax.default_backend() == "cpu"
    _check_devices(on_cpu, options.parts)
    modes = options.modes or (torch_training.modes() if torch_training else ())
    settings = {"dtype": options.dtype or ("float32" if on_cpu else "bfloat16"), "rounds": options.rounds}
    settings |= {"examples": EXAMPLES, "seconds": LEAST_SECONDS}
    if options.quick:
        options.networks, modes = ["tiny ResNet"], modes[:1]
        settings |= {"rounds": 1, "examples": 64, "seconds": 0.0}
    measures = {"pytorch": functools.partial(pytorch_row, modes=modes, peak=options.peak), "host": host_row}
    machine = describe()
    results = {} if options.quick or not RESULTS.exists() else json.loads(RESULTS.read_text())
    found = results.setdefault(machine["jax device"], {})
    found |= {"machine": machine}
    if "pytorch" in options.parts:
        found["missing"] = [] if torch_training else ["torch"]
    for part in options.parts:
        for name in options.networks or PARTS[part]:
            batch = options.batch or (path.NETWORKS[name][2] if on_cpu else GPU_BATCH)
            row = measures[part](name, batch=batch, **settings)
            found[part] = [other for other in found.get(part, []) if _setting(other) != _setting(row)] + [row]
            print(f"measured {name}", file=sys.stderr, flush=True)
            if not options.quick:
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(table(found))


def _setting(row: dict) -> tuple:
    return row["network"], row["batch"], row["dtype"]


def _check_devices(on_cpu: bool, parts: list[str]) -> None:
    """Raise SystemExit unless both libraries have one and the same device (a CPU may be several to jax)."""
    backend, count = jax.default_backend(), jax.device_count()
    if not on_cpu and count > 1:
        raise SystemExit(f"jax sees {count} devices: let it see one, with CUDA_VISIBLE_DEVICES=0")
    if torch_training and "pytorch" in parts and (torch_training.device().type == "cpu") != on_cpu:
        raise SystemExit(f"jax runs on {backend}, PyTorch on {torch_training.device()}: install both for one device")


def _parser() -> argparse.ArgumentParser:
    parser = Parser("benchmarks.throughput", __doc__)
    parser.add_argument("--networks", nargs="+", choices=path.NETWORKS, help="of both parts; each has its own else")
    parser.add_argument("--batch", type=int, help=f"{GPU_BATCH} on a GPU, fewer on a CPU")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="interleaved; least and median are reported")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="of the layers; bfloat16 on a GPU")
    parser.add_argument("--peak", type=float, help="the device's peak in TFLOP/s, for the fraction that is reached")
    parser.add_argument("--modes", nargs="+", help="PyTorch's: eager, and torch.compile's default, reduce-overhead ...")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="a tiny network, one round; writes nothing")
    return parser


def pytorch_row(
    name: str,
    *,
    batch: int,
    dtype: str,
    rounds: int,
    examples: int,
    seconds: float,
    modes: tuple[str, ...],
    peak: float | None,
) -> dict:
    """Seconds of a training step of ours, as the loop does it, and of PyTorch's in each mode; flops; memory.

    peak: the device's in TFLOP/s. Both sides' fractions of it count the flops of our program.
    """
    own = path.make_training(name, batch=batch, examples=examples, dtype=dtype)
    temporary = own.program.temporary(own.state, next(own.pipeline.specs(0, 0)))
    held = sum(leaf.nbytes for leaf in jax.tree.leaves((own.state, own.pipeline.resident)))
    row = {"network": name, "batch": batch, "dtype": dtype, "flops": flops(path.lowered_on_a_spec(own)[0])}
    row |= {"megabytes": {"ours": (temporary + held) / 1e6}, "failed": {}}
    calls = {"ours": path.fresh_steps(own)}
    for mode in modes if torch_training and name in torch_training.NAMES else ():
        way = f"PyTorch, {mode}"
        try:
            calls[way], row["megabytes"][way] = torch_training.ready_steps(
                name, own.split, own.config, dtype=dtype, mode=mode
            )
        except Exception as error:  # whatever its compiler raises: the others are timed
            row["failed"][way] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    row |= _summary(interleaved(calls, rounds=rounds, seconds=seconds, least=1))
    if peak:
        row["of peak"] = {way: row["flops"] / took / (1e12 * peak) for way, took in row["seconds"].items()}
    return row


def host_row(name: str, *, batch: int, dtype: str, rounds: int, examples: int, seconds: float) -> dict:
    """Seconds of a step with fresh batch specs, on one kept on the device and on one ready batch; the host's own."""
    own = path.make_training(name, batch=batch, examples=examples, dtype=dtype)
    calls = {"fresh": path.fresh_steps(own)}
    for way, lower in (("kept", path.lowered_on_a_spec), ("ready", path.lowered_on_a_batch)):
        lowered, inputs = lower(own)
        calls[way] = path.repeated_steps(own, lowered.compile(), inputs)
    times = interleaved(calls, rounds=rounds, seconds=seconds, least=3)
    clock = {way: np.array(values)[:, 0] for way, values in times.items()}
    ratios = {way: float(np.median(clock["fresh"] / clock[way])) for way in ("kept", "ready")}
    row = {"network": name, "batch": batch, "dtype": dtype, **_summary(times), "median of rounds": ratios}
    return row | {"host milliseconds": path.host_milliseconds(own, steps=10 if seconds else 1)}


def flops(lowered: jax.stages.Lowered) -> float:
    """Floating-point operations of one call on one device, by XLA's count of the program before it is optimised.

    After that, a GPU's convolutions are calls of a library, which the count leaves out. Products with padding are not
    counted.
    """
    return float(lowered.cost_analysis()["flops"])


class Timing(NamedTuple):
    """Seconds of a step, by the clock and of all the process's threads on the processor."""

    seconds: float
    processor: float


def interleaved(calls: dict[str, path.Steps], *, rounds: int, seconds: float, least: int) -> dict[str, list[Timing]]:
    """The time of a step in every round, from stretches of at least that many steps and about that many seconds.

    Every other round goes backwards, so that nobody always follows the same one.
    """
    counts = {}
    for way, call in calls.items():
        timed(call, 1)  # compilation
        counts[way] = max(least, int(seconds / timed(call, least).seconds))
    times = {way: [] for way in calls}
    for number in range(rounds):
        for way in list(calls)[:: 1 if number % 2 == 0 else -1]:
            times[way].append(timed(calls[way], counts[way]))
    return times


def timed(call: path.Steps, count: int) -> Timing:
    """The mean time of a step in one stretch of them."""
    began, processor = time.perf_counter(), time.process_time()
    call(count)
    return Timing((time.perf_counter() - began) / count, (time.process_time() - processor) / count)


def _summary(times: dict[str, list[Timing]]) -> dict[str, dict[str, float]]:
    columns = {way: np.array(values) for way, values in times.items()}
    return {
        "seconds": {way: float(values[:, 0].min()) for way, values in columns.items()},
        "median seconds": {way: float(np.median(values[:, 0])) for way, values in columns.items()},
        "processor seconds": {way: float(values[:, 1].min()) for way, values in columns.items()},
    }


if __name__ == "__main__":
    main()
