"""Hessian products, trace-regularised gradients and curvature estimates against a plain gradient and PyTorch's tools.

python -m experiments.benchmarks.curvature                    all parts, 15 minutes; writes results_curvature.json
python -m experiments.benchmarks.curvature --parts products   one part; the others stay as they are in the file
python -m experiments.benchmarks.curvature --quick            small problems, seconds; writes nothing
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from experiments.benchmarks import products_memory
from experiments.benchmarks.estimates import estimates
from experiments.benchmarks.hessian_peers import MISSING, torch_calls
from experiments.benchmarks.machine import describe
from experiments.benchmarks.problems import Problem, make_problem
from experiments.flags import Parser, at_least
from focalgeo import curvature, trees
from focalgeo.types import PyTree

RESULTS = Path(__file__).parent / "results_curvature.json"
PARTS = ("products", "estimates", "memory")
BATCHES = {"digits MLP": 359, "MLP": 256, "ResNet-20": 128}  # that of the papers' image recipes
LEAST_SECONDS = 0.2  # of a round of one call, which repeats it as often as fits
WEIGHT = 0.1  # of the trace in the regularised loss


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables; writes results_curvature.json unless the run is a quick one."""
    parser = Parser("benchmarks.curvature", __doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=at_least(1), default=7, help="interleaved; the least time of each is reported")
    parser.add_argument("--seeds", type=at_least(1), default=10, help="random starts of every estimate")
    parser.add_argument("--images", type=int, nargs="+", default=[500, 1000, 5000], help="through ResNet-18")
    parser.add_argument("--quick", action="store_true", help="small networks, one round; writes nothing")
    options = parser.parse_args(arguments)
    batches, epochs, wanted, network, batch = BATCHES, 60, 0.02, "ResNet-18", 50
    if options.quick:
        batches, epochs, wanted, network, batch = {"digits MLP": 32}, 1, 1.0, "digits MLP", 4
        options.rounds, options.seeds, options.images = 1, 2, [4, 8]
    found = {} if options.quick or not RESULTS.exists() else json.loads(RESULTS.read_text())
    found |= {"machine": describe(), "missing": MISSING}
    if "products" in options.parts:
        found["products"] = [timed(make_problem(*item), rounds=options.rounds) for item in batches.items()]
    if "estimates" in options.parts:
        found["estimates"] = estimates(epochs=epochs, seeds=options.seeds, wanted=wanted)
    if "memory" in options.parts:
        found["memory"] = [products_memory.measured(n, batch=batch, network=network) for n in options.images]
    print(table(found))
    if not options.quick:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def timed(problem: Problem, *, rounds: int) -> dict:
    """Seconds of every call, the least and the median of interleaved rounds, and megabytes of our compiled ones."""
    inputs = _inputs(problem)
    compiled = {name: jax.jit(call).lower(*inputs).compile() for name, call in our_functions(problem).items()}
    calls = {name: lambda call=call: jax.block_until_ready(call(*inputs)) for name, call in compiled.items()}
    calls |= _linearised(problem, inputs[1]) | torch_calls(problem)
    repeats = {name: max(1, int(LEAST_SECONDS / _second_call(call))) for name, call in calls.items()}
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(_seconds(call, repeats[name]))
    return {
        "network": problem.name,
        "parameters": trees.size(problem.params),
        "batch": len(problem.y),
        "seconds": {name: min(values) for name, values in times.items()},
        "median seconds": {name: float(np.median(values)) for name, values in times.items()},
        "megabytes": {name: _megabytes(call) for name, call in compiled.items()},
    }


def our_functions(problem: Problem) -> dict[str, Callable]:
    """Functions of (params, vector, key, x, y) to be compiled; the key draws the probe, as training does."""

    def gradient(params, vector, key, x, y):
        return jax.grad(problem.loss)(params, x, y)

    def product(params, vector, key, x, y):
        return curvature.hvp(lambda p: problem.loss(p, x, y), params, vector)

    def regularised(form):
        def total(params, key, x, y):
            value, trace = curvature.value_and_trace(lambda p: problem.loss(p, x, y), params, key, form=form)
            return value + WEIGHT * trace

        return lambda params, vector, key, x, y: jax.grad(total)(params, key, x, y)

    forms = {f"trace-regularised gradient, {form}": regularised(form) for form in curvature.penalty.FORMS}
    return {"gradient": gradient, "hvp": product} | forms


def _inputs(problem: Problem) -> tuple:
    return problem.params, trees.gaussian(jax.random.key(1), problem.params), jax.random.key(2), problem.x, problem.y


def _linearised(problem: Problem, vector: PyTree) -> dict[str, Callable]:
    """A product at one kept point; linearising and compiling lie outside of the time."""
    matvec = jax.jit(curvature.linearized_hvp(lambda p: problem.loss(p, problem.x, problem.y), problem.params))
    return {"linearized_hvp, point kept": lambda: jax.block_until_ready(matvec(vector))}


def _megabytes(compiled) -> dict[str, float]:
    """Temporary buffers, and the peak with arguments and results."""
    memory = compiled.memory_analysis()
    whole = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    return {"temporary": memory.temp_size_in_bytes / 1e6, "peak": whole / 1e6}


def _second_call(call: Callable) -> float:
    _seconds(call, 1)
    return _seconds(call, 1)


def _seconds(call: Callable, repeats: int) -> float:
    """The least of single calls: threads of other work only add, and to a short call many times its own length."""
    least = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return least


def table(found: dict) -> str:
    """Markdown: the machine, then a table for every part that was measured."""
    machine = ", ".join(f"{key} {value}" for key, value in found["machine"].items())
    absent = f"; not installed: {', '.join(found['missing'])}" if found["missing"] else ""
    lines = [machine + absent]
    if "products" in found:
        lines += ["", *_products_table(found["products"])]
    if "estimates" in found:
        lines += ["", *_estimates_table(found["estimates"])]
    if "memory" in found:
        lines += [
            "",
            "| network | images | batch | seconds of one product | images MB | before MB | peak MB |",
            "|---|---|---|---|---|---|---|",
        ]
        columns = ("network", "images", "batch", "seconds", "images MB", "before MB", "peak MB")
        lines += ["| " + " | ".join(str(row[column]) for column in columns) + " |" for row in found["memory"]]
    return "\n".join(lines)


def _products_table(rows: list[dict]) -> list[str]:
    lines = [
        "| network, parameters, batch | call | ms | times its own gradient (medians) | temporary MB (times) "
        "| peak MB (times) |"
    ]
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        what = f"{row['network']}, {row['parameters']:,}, {row['batch']}"
        base = row["megabytes"]["gradient"]
        for name, seconds in row["seconds"].items():
            theirs = name.startswith(("torch", "PyHessian", "curvlinops"))
            own = "torch gradient" if theirs else "gradient"
            ratio = seconds / row["seconds"][own]
            of_medians = row["median seconds"][name] / row["median seconds"][own]
            cells = (
                [
                    f"{row['megabytes'][name][kind]:.3g} ({row['megabytes'][name][kind] / base[kind]:.2f})"
                    for kind in base
                ]
                if name in row["megabytes"]
                else ["", ""]
            )
            times = f"{1e3 * seconds:.4g} | {ratio:.2f} ({of_medians:.2f})"
            lines.append(f"| {what} | {name} | {times} | {cells[0]} | {cells[1]} |")
    return lines


def _estimates_table(found: dict) -> list[str]:
    what = f"{found['parameters']:,} parameters, {found['examples']} examples"
    lines = [f"Digits MLP, {what}: lambda_max {found['lambda_max']:.6g}, trace {found['trace']:.6g} (dense)", ""]
    lines += ["| quantity | way | products | claimed error | true error, median | worst |", "|---|---|---|---|---|---|"]
    for quantity, rows in (("lambda_max", found["eigenvalue rows"]), ("trace", found["trace rows"])):
        for row in rows:
            if "missing" in row:
                lines.append(f"| {quantity} | {row['way']} | not installed | | | |")
                continue
            claimed = "none" if row["claimed error"] is None else f"{row['claimed error']:.2g}"
            errors = f"{row['true error, median']:.2g} | {row['true error, worst']:.2g}"
            products = " to ".join(str(n) for n in sorted(set(row["products"])))
            lines.append(f"| {quantity} | {row['way']} | {products} | {claimed} | {errors} |")
    return lines


if __name__ == "__main__":
    main()
