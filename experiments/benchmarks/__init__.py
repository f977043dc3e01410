"""How fast the search, curvature, sweeps, training and the command are, beside loops and other libraries.

All calls of a part are made in turn, and each reports the least of its rounds: other work on a machine only adds to a
time. Loops are timed on 20 of their points and scaled to all. Papers' way: the published search's steps, written
anew: clipped map, edges interpolated from the sorted confidences, a mask for each of 15 bins. Lean loop: log_softmax,
one pow, the true class gathered, bins by slicing the sorted order. Ours: grid_search with bins of equal width ("ece")
and of equal mass ("adaptive_ece", the papers' choice). The papers' way, PyTorch's and its tools' rows in "products",
PyTorch's in "training" and all under "record", as fits beside other libraries', were measured on commit 2d99825: the
command measures them no more.

Products: each call is compared with the plain gradient of its own library and sees the data anew; temporary memory is
what the compiled function asks beside arguments and results. Training: a step of CIFAR's size whole, batch made,
forward with batch statistics, backward, SGD with momentum and weight decay; "fresh" is the loop's, with metrics read
one step late, "kept" the same step on one batch that stays on the device; PyTorch's has channels_last, autocast to
bfloat16 where ours computes in it, fused SGD; "times" is how many of the loop's steps it takes.

The command, and fits: logits of 2 times standard normals, labels drawn from their softmax, outputs 1.7 times the
logits, so too sure. Val and test are of one size. Fits of a pair were in one process, threads as each library has them.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import product, starmap
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import jobs, programs, timing
from experiments.benchmarks import commands, pytorch
from experiments.numbers import NOT, SHOWS, Claim, markdown, plain
from experiments.question import Flags, Job, Parts, Question, at_least
from focalgeo import calibration, curvature, losses, models, trees

# ---- the whole (gamma, temperature) search against loops over its points

SIZES = ((5_000, 100), (10_000, 200))  # examples, classes
POINTS = 20  # of the loops that are timed in a round, and scaled to all
CRITERIA, LOOP = ("ece", "adaptive_ece"), "lean loop"


def search(num_examples: int, num_classes: int, rounds: int) -> dict[str, Any]:
    """Seconds of every way for the whole grid."""
    logits, labels = predictions(num_examples, num_classes)
    grid = list(product(calibration.GAMMAS, calibration.TEMPERATURES))
    sample = [grid[place] for place in np.linspace(0, len(grid) - 1, POINTS).astype(int)]
    calls = {
        f"ours, {criterion}": partial(calibration.grid_search, logits, labels, criterion=criterion)
        for criterion in CRITERIA
    }
    if pytorch.torch:
        point = pytorch.lean_loop(logits, labels)
        calls[LOOP] = lambda: list(starmap(point, sample))
    seconds = timing.interleaved(calls, rounds=rounds)
    if LOOP in seconds:
        seconds[LOOP] *= len(grid) / len(sample)
    return {"examples": num_examples, "classes": num_classes, "points": len(grid), "seconds": seconds}


def predictions(num_examples: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Random logits, and labels drawn from their softmax at temperature 2."""
    generator = np.random.default_rng(0)
    logits = 3 * generator.standard_normal((num_examples, num_classes), dtype=np.float32)
    return logits, (logits / 2 + generator.gumbel(size=logits.shape)).argmax(axis=1).astype(np.int32)


def claims(grid_search):
    """How many times as long as the search by ECE a lean loop over its points takes."""
    for row in grid_search["rows"]:
        if LOOP in row["seconds"]:  # else PyTorch was missing
            ratio = row["seconds"][LOOP] / row["seconds"]["ours, ece"]
            size = f"{row['examples']:,} x {row['classes']}"
            words = f"the search by ECE of {size} is faster than a lean loop over its points"
            yield Claim("focalgeo", words, SHOWS if ratio > 1 else NOT, f"{ratio:.0f} times")


def search_table(grid_search) -> str:
    """Seconds, and how many times as long as each of our searches the others take."""
    lines = []
    for row in grid_search["rows"]:
        what = f"{row['examples']:,} x {row['classes']:,}, {row['points']:,}"
        ours = [row["seconds"][f"ours, {criterion}"] for criterion in CRITERIA]
        for name, seconds in row["seconds"].items():
            lines.append([what, name, plain(seconds), *(plain(seconds / ours_seconds) for ours_seconds in ours)])
    heads = ("examples x classes, points", "way", "seconds", "times ece", "times adaptive_ece")
    return _on(grid_search, markdown(heads, lines))


def _on(part, table):
    machine = ", ".join(f"{name} {value}" for name, value in part["machine"].items())
    return f"{machine}\n\n{table}"


# ---- Hessian products and trace-regularised gradients against a plain gradient

NETWORKS = {  # name -> model, options, image shape, batch: that of the papers' image recipes
    "digits MLP": ("mlp", {"hidden": (32, 32)}, (8, 8, 1), 359),
    "MLP": ("mlp", {"hidden": (512, 512)}, (28, 28, 1), 256),
    "ResNet-20": ("resnet20", {}, (32, 32, 3), 128),
}
LEAST_SECONDS = 0.2  # of a round of one call, which repeats it as often as fits
WEIGHT = 0.1  # of the trace in the regularised loss


def products(name: str, rounds: int) -> dict[str, Any]:
    """Seconds of every call, and megabytes of temporary memory of our compiled ones.

    The network is in evaluation mode at its initial weights, the examples are random: time depends on neither.
    """
    model_name, options, shape, examples = NETWORKS[name]
    keys = jax.random.split(jax.random.key(0), 3)
    x, y = jax.random.normal(keys[0], (examples, *shape)), jax.random.randint(keys[1], (examples,), 0, 10)
    model = models.build(model_name, **options)
    variables = dict(jax.jit(model.init)(keys[2], x[:2]))
    params = variables.pop("params")

    def loss(params, vector, key, x, y):
        return losses.cross_entropy(model.apply({"params": params, **variables}, x), y).mean()

    def hvp(params, vector, *rest):
        return curvature.hvp(lambda at: loss(at, vector, *rest), params, vector)

    def regularised(params, vector, key, *examples):
        value, trace = curvature.value_and_trace(lambda at: loss(at, vector, key, *examples), params, key)
        return value + WEIGHT * trace

    functions = {"gradient": jax.grad(loss), "hvp": hvp, "trace-regularised gradient": jax.grad(regularised)}
    arguments = params, trees.gaussian(jax.random.key(1), params), jax.random.key(2), x, y
    compiled = {name: jax.jit(call).lower(*arguments).compile() for name, call in functions.items()}
    calls = {name: partial(call, *arguments) for name, call in compiled.items()}
    seconds = timing.interleaved(calls, rounds=rounds, seconds=LEAST_SECONDS)
    megabytes = {name: call.memory_analysis().temp_size_in_bytes / 1e6 for name, call in compiled.items()}
    sizes = {"network": name, "parameters": trees.size(params), "batch": examples}
    return sizes | {"seconds": seconds, "megabytes": megabytes}


def products_table(curvature) -> str:
    """Each call beside the plain gradient of its own library."""
    lines = []
    for row in curvature["rows"]:
        what = f"{row['network']}, {row['parameters']:,}, {row['batch']}"
        for name, seconds in row["seconds"].items():
            megabytes, memory, reference = row["megabytes"], "", "torch gradient"
            if name in megabytes:
                reference = "gradient"
                memory = f"{megabytes[name]:.3g} ({megabytes[name] / megabytes[reference]:.2f})"
            lines.append([what, name, f"{1e3 * seconds:.4g}", f"{seconds / row['seconds'][reference]:.2f}", memory])
    heads = ("network, parameters, batch", "call", "ms", "times its own gradient", "temporary MB (times)")
    return _on(curvature, markdown(heads, lines))


# ---- a sweep in one program against separate runs

CONFIG, GAMMAS, SEEDS = "configs/digits.py", (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0), (0, 1)


def wall() -> dict[str, Any]:
    """Seconds from command to report: one sweep, and each of its members as a run of the main job, one by one."""

    def seconds(fields):
        with tempfile.TemporaryDirectory() as folder:
            return round(timing.timed(lambda: jobs.trained(CONFIG, Path(folder) / "run", fields)), 2)

    together = seconds({"sweep.gamma": GAMMAS, "sweep.seed": SEEDS})
    apart = [seconds({"loss.gamma": gamma, "seed": seed}) for gamma, seed in product(GAMMAS, SEEDS)]
    return {"config": CONFIG, "members": len(apart), "sweep": together, "separate": apart}


def sweep_table(sweep) -> str:
    """The wall times in a line."""
    wall, total = sweep["wall"], sum(sweep["wall"]["separate"])
    words = (
        f"{wall['members']} members of {wall['config']}, from command to report: one sweep {wall['sweep']:.1f} s, "
        f"separate runs {total:.0f} s ({total / wall['members']:.1f} s each): {total / wall['sweep']:.1f} times\n"
    )
    return _on(sweep, words)


# ---- steps of the main job's loop, and the same without the host

TRAINED = {"ResNet-18": ("resnet18", 32), "ResNet-20": ("resnet20", 64)}  # model, examples of a batch on a CPU
GPU_BATCH = 128  # the papers'
STRETCH = 5  # steps that are timed together


def steps(name: str, rounds: int) -> dict[str, Any]:
    """Seconds of a step as the loop does it, and on one kept batch spec.

    By the papers' recipe with cross-entropy; layers compute in bfloat16 on a GPU.
    """
    model, batch = TRAINED[name]
    batch, dtype = (batch, "float32") if jax.default_backend() == "cpu" else (GPU_BATCH, "bfloat16")
    fields = {"loss.name": "cross_entropy", "optimizer.batch_size": batch, "optimizer.learning_rate": 0.01}
    fields |= {"model.name": model, "model.dtype": dtype}
    made = programs.make_training(jobs.load("configs/cifar10.py", fields))
    ways = {"fresh": programs.looped_steps(made), "kept": programs.repeated_steps(made)}
    calls = {way: partial(steps, STRETCH) for way, steps in ways.items()}
    seconds = {way: time / STRETCH for way, time in timing.interleaved(calls, rounds=rounds).items()}
    return {"network": name, "batch": batch, "dtype": dtype, "seconds": seconds}


def training_table(training) -> str:
    """A step by the clock, and how many times as long as it the loop's takes."""
    lines = []
    for row in training["rows"]:
        for way, seconds in row["seconds"].items():
            times = "" if way == "fresh" else f"{seconds / row['seconds']['fresh']:.2f}"
            rate = f"{row['batch'] / seconds:,.4g}"
            lines.append([f"{row['network']}, {row['batch']}", row["dtype"], way, f"{1e3 * seconds:.4g}", rate, times])
    heads = ("network, batch", "dtype", "way", "ms a step", "images/s", "times")
    return _on(training, markdown(heads, lines))


# ---- the question


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """A part for each benchmark; of the command a row for each size."""
    make = {
        "grid_search": lambda rounds: {"rows": [search(*size, rounds) for size in SIZES]},
        "curvature": lambda rounds: {"rows": [products(name, rounds) for name in NETWORKS]},
        "sweep": lambda rounds: {"wall": wall()},
        "training": lambda rounds: {"rows": [steps(name, rounds) for name in TRAINED]},
    }
    for part in [part for part in flags.parts if part in make]:
        yield Job({}, (), lambda out, make=make[part]: {"machine": timing.machine()} | make(flags.rounds), part=part)
    if "command" in flags.parts:
        for of in commands.cases():
            yield Job(of, (), lambda out, of=of: commands.measured(of, out), part="command")


PARTS = ["grid_search", "curvature", "sweep", "training", "command"]
QUESTION = Question(
    "benchmarks",
    "How fast are the search, curvature, sweeps and training, beside loops and other libraries?",
    claims,
    tables={
        "search": search_table,
        "products": products_table,
        "sweep": sweep_table,
        "training": training_table,
        "sizes": commands.sizes_table,
    },
    figures={"sizes": commands.sizes_figure},
    jobs=plan,
    keys={name: () for name in ("examples", "classes")},
    cost="minutes each on 2 cores",
    seeds=None,
    flags={
        "--parts": {"nargs": "+", "choices": PARTS, "default": PARTS, "help": "benchmarks (default: all)"},
        "--rounds": {"type": at_least(1), "default": 5, "help": "of all calls in turn (default 5)"},
    },
)
