"""How fast the search, curvature, sweeps and training are, beside loops and other libraries."""

from collections.abc import Callable, Iterator
from typing import Any

from experiments import timing
from experiments.benchmarks import curvature as products
from experiments.benchmarks import grid_search as search
from experiments.benchmarks import sweep as sweeps
from experiments.benchmarks import training as steps
from experiments.question import Flags, Job, Parts, Question, at_least

MAKE = {  # part -> rounds -> what is measured beside the machine
    "grid_search": lambda rounds: {"rows": [search.measure(*size, rounds) for size in ((5_000, 100), (10_000, 200))]},
    "curvature": lambda rounds: {"rows": [products.measure(name, rounds) for name in products.NETWORKS]},
    "sweep": lambda rounds: {
        "wall": sweeps.wall(),
        "rows": [row for name in sweeps.NETWORKS for row in sweeps.steps(name, rounds)],
    },
    "training": lambda rounds: {"rows": [steps.measure(name, rounds) for name in steps.NETWORKS]},
}


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """A part for each benchmark."""
    for part in flags.parts:
        make = lambda out, part=part: {"machine": timing.machine()} | MAKE[part](flags.rounds)  # noqa: E731
        yield Job({}, (), make, part=part)


def _on(part: dict[str, Any], table: Callable[..., str]) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in part["machine"].items())
    return f"{machine}\n\n{table(part)}"


QUESTION = Question(
    "benchmarks",
    "How fast are the search, curvature, sweeps and training, beside loops and other libraries?",
    search.claims,
    tables={
        "search": lambda grid_search: _on(grid_search, search.table),
        "products": lambda curvature: _on(curvature, products.table),
        "sweep": lambda sweep: _on(sweep, sweeps.table),
        "training": lambda training: _on(training, steps.table),
    },
    jobs=plan,
    cost="minutes each on 2 cores",
    seeds=None,
    flags={
        "--parts": {"nargs": "+", "choices": MAKE, "default": list(MAKE), "help": "benchmarks (default: all)"},
        "--rounds": {"type": at_least(1), "default": 5, "help": "of all calls in turn (default 5)"},
    },
)
