"""The largest Hessian eigenvalue of one network here and by other libraries: the first call, later ones, their error.

Each way runs in a process of its own on one core, at the same weights and examples, which are there when the clock
starts; nothing is compiled then. Seconds are the processor's, which work beside it on the machine hardly changes.
"""

import concurrent.futures
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.sparse import linalg

from experiments import peers, timing
from experiments.benchmarks import outputs, pytorch
from experiments.numbers import markdown, plain
from focalgeo import curvature, losses, models
from focalgeo.types import Array, PyTree

NETWORKS = {  # name -> model, options, image shape, examples
    "MLP": ("mlp", {"hidden": (32, 32)}, (8, 8, 1), 359),
    "CNN": ("cnn", {}, (16, 16, 3), 256),
}
TOLERANCE = 1e-3  # relative, where a library takes one
STEPS = 10  # where it does not and somebody chooses


class Problem(NamedTuple):
    """A mean cross-entropy of params, inputs and labels, and what it is made of."""

    loss: Callable[[PyTree, Array, Array], Array]
    params: PyTree
    x: Array
    y: Array


def problem(model_name: str, options: Mapping[str, Any], shape: tuple[int, ...], examples: int) -> Problem:
    """The network at its initial weights, which stretch a few eigenvalues far beyond the others, on random examples."""
    keys = jax.random.split(jax.random.key(0), 3)
    x, y = jax.random.normal(keys[0], (examples, *shape)), jax.random.randint(keys[1], (examples,), 0, 10)
    model = models.build(model_name, **options)
    variables = dict(jax.jit(model.init)(keys[2], x[:2]))
    params = variables.pop("params")

    def loss(at, x, y):
        return losses.cross_entropy(model.apply({"params": at, **variables}, x), y).mean()

    jax.block_until_ready((params, x, y))
    return Problem(loss, params, x, y)


# ---- the ways: each makes a search () -> (value, products) and a single product () -> its result


def _focalgeo(of):
    matvec = curvature.linearized_hvp(lambda at: of.loss(at, of.x, of.y), of.params)

    def search():
        top = curvature.lambda_max(matvec, of.params, jax.random.key(1), tolerance=TOLERANCE)
        return float(top.value), int(top.num_matvecs)

    return search, partial(matvec, of.params)


def _matfree(of):
    from matfree import decomp

    flat, tree = ravel_pytree(of.params)

    @jax.jit
    def product(vector, params, x):
        return ravel_pytree(curvature.hvp(lambda at: of.loss(at, x, of.y), params, tree(vector)))[0]

    @jax.jit
    def largest(start, *arguments):
        return jnp.linalg.eigvalsh(decomp.tridiag_sym(STEPS)(product, start, *arguments).J_small)[-1]

    arguments = jax.random.normal(jax.random.key(1), flat.shape), of.params, of.x
    return lambda: (float(largest(*arguments)), STEPS), partial(product, *arguments)


def _curvlinops(of):
    import curvlinops

    options = {"check_deterministic": False, "num_data": len(of.data[1])}
    leaves = list(of.model.parameters())
    operator = curvlinops.HessianLinearOperator(of.model, of.loss, leaves, [of.data], **options).to_scipy(np.float32)
    product, vector = operator.matvec, np.ones(operator.shape[0], np.float32)
    return partial(_arpack, product, operator.shape, np.float32, TOLERANCE), partial(product, vector)


def _arpack(matvec, shape, dtype, tolerance):
    calls = []
    counted = linalg.LinearOperator(shape, lambda vector: calls.append(1) or matvec(vector), dtype=dtype)
    start = np.random.default_rng(0).standard_normal(shape[0]).astype(dtype)
    [value] = linalg.eigsh(counted, 1, which="LA", tol=tolerance, v0=start, return_eigenvectors=False)
    return float(value), len(calls)


OURS = "focalgeo"
WAYS = {  # name -> package, maker; none where the rows are a record
    OURS: ("jax", _focalgeo),
    f"matfree, {STEPS} steps": ("matfree", _matfree),
    "PyHessian": ("pyhessian", None),
    f"hessian-eigenthings, {STEPS} steps": ("hessian-eigenthings", None),
    "hessian-eigenthings, its default": ("hessian-eigenthings", None),
    "hessian-eigenthings, Gauss-Newton": ("hessian-eigenthings", None),
    "curvlinops with eigsh": ("curvlinops-for-pytorch", _curvlinops),
}


def cases() -> Iterator[dict[str, str]]:
    """What each row is of, where the library is installed."""
    ways = [way for way, (package, make) in WAYS.items() if make and timing.version(package)]
    return ({"network": name, "way": way} for name in NETWORKS if pytorch.torch for way in ways)


def measured(of: Mapping[str, str], rounds: int) -> list[dict[str, Any]]:
    """The row of a way: seconds of its first call, of the fastest of later ones and of a product, and its error."""
    row = {**of, "version": timing.version(WAYS[of["way"]][0]), "machine": timing.machine()}
    return [row | alone(_timed, of["network"], of["way"], rounds)]


def alone(function: Callable, *arguments: Any) -> Any:
    """A call in a new process on one core."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _on_one_core) as pool:
        return pool.submit(function, *arguments).result()


def _on_one_core():
    jax.config.update("jax_enable_compilation_cache", False)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    if pytorch.torch:
        pytorch.torch.set_num_threads(1)


def _timed(name, way, rounds):
    jax.config.update("jax_numpy_rank_promotion", "allow")  # matfree's functions promote
    of, (package, make), found = problem(*NETWORKS[name]), WAYS[way], []
    theirs = pytorch.at(of.params, of.x, of.y)

    def first():
        found.extend(make(of if package in ("jax", "matfree") else theirs))
        found.extend(found[0]())

    seconds = {"first": _seconds(lambda: peers.quietly(first))}
    search, product, value, products = found
    seconds["later"] = min(_seconds(search) for _ in range(rounds))
    seconds["product"] = min(_seconds(product) for _ in range(5 * rounds))
    truth = exact(theirs)
    return seconds | {"value": value, "exact": truth, "error": abs(value / truth - 1), "products": products}


def _seconds(call):
    before = time.process_time()
    jax.block_until_ready(call())
    return time.process_time() - before


def exact(of: pytorch.Measured) -> float:
    """The eigenvalue by ARPACK and PyTorch's double backward in float64, to 1e-10."""
    torch, model = pytorch.torch, of.model.double()
    leaves = list(model.parameters())

    def flat(leaves):
        return torch.cat([leaf.reshape(-1) for leaf in leaves])

    loss = of.loss(model(of.data[0].double()), of.data[1])
    slopes = flat(torch.autograd.grad(loss, leaves, create_graph=True))

    def matvec(vector):
        return flat(torch.autograd.grad(slopes, leaves, torch.from_numpy(vector), retain_graph=True)).numpy()

    return _arpack(matvec, 2 * slopes.shape, np.float64, 1e-10)[0]


def eigenvalues_table(eigenvalues) -> str:
    """Processor seconds of a first call and of a later one, products, error of the value against float64 ARPACK.

    Asked for is a relative 1e-3 where a library takes a tolerance, else ten steps. The Gauss-Newton matrix is another,
    and its largest eigenvalue too. "Times" are of ours. A later call finds its programs, or its graph. Rows of
    PyHessian and of hessian-eigenthings are a record.
    """
    ours = {row["network"]: row for row in eigenvalues if row["way"] == OURS}
    lines = []
    for row in sorted(eigenvalues, key=lambda row: (row["network"] != "MLP", [*WAYS].index(row["way"]))):
        what, beside = ["network", "way", "products"], ours.get(row["network"], row)
        numbers = [number for name in ("first", "later") for number in (row[name], row[name] / beside[name])]
        error = "" if "Gauss" in row["way"] else f"{row['error']:.1e}"
        line = [*map(plain, numbers), error, plain(1e3 * row["product"])]
        lines.append([*(str(row[name]) for name in what), *line])
    heads = ("network", "way", "products", "seconds first", "times", "later", "times", "error", "ms a product")
    versions = {f"{WAYS[row['way']][0]} {row['version']}": None for row in eigenvalues}
    return f"{outputs.machines(eigenvalues)}; {', '.join(versions)}\n\n{markdown(heads, lines)}"
