"""A trained state and its loss become a matvec and curvature rows."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from focalgeo import curvature, trees
from focalgeo.evaluation.problem import Problem, as_argument, count_examples, on_device
from focalgeo.evaluation.rows import make_row
from focalgeo.types import Array, Batch, PyTree


class Curvature(NamedTuple):
    """Rows, and for each loss the Hessian-vector product and the eigenpair that they come from."""

    rows: list[dict]
    matvecs: dict[str, Callable]
    tops: dict[str, curvature.Eigenpairs]


def make_batch_loss(apply: Callable, loss: Callable, num_examples: int) -> Callable[[PyTree, PyTree, Batch], Array]:
    """Jitted (params, model_state, batch) -> the batch's share of a mean loss: sum of unmasked losses / num_examples.

    In nats, network in evaluation mode; summed over the batches of `num_examples` examples it is their mean loss. One
    such function serves the determinism gate and the products: what tracing has frozen is the same in both, so the gate
    tests the very function whose Hessian is taken. Parameters, state and batch are arguments and never frozen.
    """
    return Partial(_batch_loss, as_argument(apply), as_argument(loss), num_examples)


@jax.jit
def _batch_loss(
    apply: Partial, loss: Partial, num_examples: int, params: PyTree, model_state: PyTree, batch: Batch
) -> Array:
    losses = loss(apply({"params": params, **model_state}, batch.x), batch.y)
    return jnp.sum(jnp.where(batch.mask, losses, 0.0)) / num_examples


def data_matvec(batch_loss: Callable, params: PyTree, model_state: PyTree, batches: Iterable[Batch]) -> Callable:
    """Hessian-vector product of the sum of batch_loss over the batches, with one batch's activations in memory.

    params, model_state and batches (of one shape) should lie on the device: they are read at each product. Batches that
    are made anew at each iteration keep memory nearly flat in their number.
    """
    arguments = (as_argument(batch_loss), params, model_state)
    zeros = jax.tree.map(jnp.zeros_like, params)

    def matvec(vector: PyTree) -> PyTree:
        total = zeros
        for batch in batches:
            total = add_product(total, vector, *arguments, batch)
        return total

    return matvec


@jax.jit
def add_product(
    total: PyTree, vector: PyTree, batch_loss: Partial, params: PyTree, model_state: PyTree, batch: Batch
) -> PyTree:
    """`total` plus the Hessian-vector product of one batch; compiled once for all products of one problem's shape."""
    share = partial(batch_loss, model_state=model_state, batch=batch)
    return trees.add(total, curvature.hvp(share, params, vector))


def measure_curvature(
    problem: Problem,
    key: Array,
    *,
    split: str,
    max_products: int,
    tolerance: float,
    num_probes: int,
    trace_method: str,
) -> Curvature:
    """lambda_max (with residual) and trace (with standard error) of the Hessian of each loss's mean over the batches.

    Every batch passes the determinism gate first.
    """
    problem = on_device(problem)
    n = count_examples(problem)
    key_lambda, key_trace = jax.random.split(key)
    measured = Curvature([], {}, {})
    for name, loss in problem.losses.items():
        matvec = _gated_matvec(problem, loss, n)
        top = curvature.lambda_max(matvec, problem.params, key_lambda, max_products=max_products, tolerance=tolerance)
        total = curvature.trace(matvec, problem.params, key_trace, num_probes, method=trace_method)
        measured.matvecs[name], measured.tops[name] = matvec, top
        place = {"split": split, "loss": name}
        row = make_row({"name": "lambda_max", **place}, {"value": top.value, "residual": top.residual})
        row |= {"products": int(top.num_matvecs), "converged": bool(top.converged), "n": n}
        numbers = {"value": total.value, "low": total.low, "high": total.high, "stderr": total.stderr}
        spread = make_row({"name": "trace", **place}, numbers)
        measured.rows.extend([row, {**spread, "probes": num_probes, "method": trace_method, "n": n}])
    return measured


def _gated_matvec(problem: Problem, loss: Callable, n: int) -> Callable:
    params, model_state, batches = problem.params, problem.model_state, problem.batches
    batch_loss = make_batch_loss(problem.apply, loss, n)
    for batch in batches:  # one by one: gradients of all together would hold all their activations
        curvature.check_deterministic(partial(batch_loss, model_state=model_state, batch=batch), params)
    return data_matvec(batch_loss, params, model_state, batches)
