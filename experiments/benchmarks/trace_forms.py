"""What a gradient with each form of the trace penalty costs, in plain gradients: time, and floating-point operations.

python -m experiments.benchmarks.trace_forms                     time on this machine; writes results_trace_forms.json
python -m experiments.benchmarks.trace_forms --tpu v5e:2x2       operations as the TPU compiler counts them, without one
python -m experiments.benchmarks.trace_forms --quick             a small network, one round; writes nothing
"""

import importlib.util
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.benchmarks.machine import describe
from experiments.benchmarks.problems import Problem, make_problem
from experiments.flags import Parser, at_least
from focalgeo import curvature, losses
from focalgeo.types import PyTree

RESULTS = Path(__file__).parent / "results_trace_forms.json"
BATCHES = {"MLP": 256, "ResNet-20": 128}
WEIGHT = 0.001  # of the trace in the penalised loss
FORMS = {  # name -> matrix, and the part of the batch whose trace is taken as one over it
    "hessian": ("hessian", 1),
    "gauss_newton": ("gauss_newton", 1),
    "gauss_newton, quarter": ("gauss_newton", 4),
    "gauss_newton, eighth": ("gauss_newton", 8),
}


def main(arguments: list[str] | None = None) -> None:
    """Prints the table; results of other versions of jax and of other compilers stay in the file."""
    parser = Parser("benchmarks.trace_forms", __doc__)
    parser.add_argument("--rounds", type=at_least(1), default=9, help="of all calls in turn, for medians (default 9)")
    parser.add_argument("--tpu", metavar="TOPOLOGY", help="compile for it, as v5e:2x2, and run nothing")
    parser.add_argument("--quick", action="store_true", help="a small network, one round; writes nothing")
    options = parser.parse_args(arguments)
    if options.tpu and importlib.util.find_spec("libtpu") is None:
        parser.error("--tpu needs the TPU compiler: pip install -e '.[tpu]' (libtpu, 0.7 GB installed)")
    batches, rounds = ({"digits MLP": 32}, 1) if options.quick else (BATCHES, options.rounds)
    problems = [make_problem(*item) for item in batches.items()]
    rows = [operations(each, options.tpu) if options.tpu else timed(each, rounds=rounds) for each in problems]
    where = f"{options.tpu or 'cpu'}, jax {jax.__version__}"
    found = {} if options.quick or not RESULTS.exists() else json.loads(RESULTS.read_text())
    found[where] = {"machine": describe(), "rows": [row for several in rows for row in several]}
    print(table(found))
    if not options.quick:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def functions(problem: Problem) -> dict[str, Callable]:
    """The gradients of (params, key, x, y) to be compiled: of summed cross-entropy, and with each form of penalty."""

    def loss(params, key, x, y):
        return _summed(problem.apply({"params": params, **problem.model_state}, x), y)

    return {"gradient": jax.grad(loss)} | {name: jax.grad(_penalised(problem, *form)) for name, form in FORMS.items()}


def _summed(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return losses.cross_entropy(logits, labels).sum()


def _penalised(problem: Problem, of: str, parts: int) -> Callable:
    """As training has it: of a part of the batch by a second pass, beside the plain one over all of it."""

    def total(params, key, x, y):
        def network(params: PyTree, x: jax.Array = x) -> tuple:
            return problem.apply({"params": params, **problem.model_state}, x), ()

        part, labels = x[::parts], y[::parts]
        trace = curvature.outputs_and_trace(
            lambda p: network(p, part), lambda logits: _summed(logits, labels), params, key, of=of
        )
        logits = trace[0] if parts == 1 else network(params)[0]
        return _summed(logits, y) + WEIGHT * parts * trace[2]

    return total


def inputs(problem: Problem) -> tuple:
    """Parameters, the key of the random vector, and the batch."""
    return problem.params, jax.random.key(0), problem.x, problem.y


def timed(problem: Problem, *, rounds: int) -> list[dict[str, Any]]:
    """Wall and processor seconds of each call, medians over rounds in which all are called, and of the ratios."""
    given = inputs(problem)
    calls = {name: jax.jit(call).lower(*given).compile() for name, call in functions(problem).items()}
    times = {name: np.empty((rounds, 2)) for name in calls}
    for number in range(-1, rounds):  # the first round is not counted
        for name, call in calls.items():
            before = time.perf_counter(), time.process_time()
            jax.block_until_ready(call(*given))
            if number >= 0:
                times[name][number] = np.subtract((time.perf_counter(), time.process_time()), before)
    plain, counted = times["gradient"], calls["gradient"].cost_analysis()["flops"]
    return [
        {"network": problem.name, "batch": len(problem.y), "call": name}
        | dict(zip(("seconds", "processor seconds"), np.median(own, 0).tolist(), strict=True))
        | dict(zip(("times", "processor times"), np.median(own / plain, 0).tolist(), strict=True))
        | {"operations, times": calls[name].cost_analysis()["flops"] / counted}
        for name, own in times.items()
    ]


def operations(problem: Problem, topology: str) -> list[dict[str, Any]]:
    """Floating-point operations of each call as the compiler of a TPU counts them; needs libtpu, and no TPU."""
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    from jax.experimental.topologies import get_topology_desc
    from jax.sharding import SingleDeviceSharding

    device = SingleDeviceSharding(get_topology_desc(topology, platform="tpu").devices[0])
    shapes = jax.eval_shape(lambda: inputs(problem))
    counted = {}
    for name, call in functions(problem).items():
        compiled = jax.jit(call, in_shardings=device, out_shardings=device).lower(*shapes).compile()
        counted[name] = compiled.cost_analysis()["flops"]
    return [
        {"network": problem.name, "batch": len(problem.y), "call": name, "operations": number}
        | {"operations, times": number / counted["gradient"]}
        for name, number in counted.items()
    ]


def table(found: dict) -> str:
    """Markdown, a row for each call."""
    lines = [
        "| compiled for | network, batch | call | ms (processor) | times a gradient (processor) | operations, times |",
        "|---|---|---|---|---|---|",
    ]
    for where, results in found.items():
        for row in results["rows"]:
            milliseconds, times = (
                f"{scale * row[name]:.{digits}f} ({scale * row[f'processor {name}']:.{digits}f})" if name in row else ""
                for name, scale, digits in (("seconds", 1e3, 0), ("times", 1, 2))
            )
            network = f"{row['network']}, {row['batch']}"
            cells = (where, network, row["call"], milliseconds, times, f"{row['operations, times']:.2f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
