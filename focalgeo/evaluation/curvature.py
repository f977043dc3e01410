"""Eigenvalue, trace and spectral density of the Hessian of a trained network's losses, and their sharpness, as rows."""

from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from focalgeo import curvature, parallel
from focalgeo.rows import DENSITY_LINEAR_WIDTH, DensityBin, Eigenvalue, Sharpness, Trace, finite
from focalgeo.trees import at_highest
from focalgeo.types import Array, Batch, InputError, PyTree

NUM_BINS = 60


class Problem(NamedTuple):
    """Losses of a network at fixed parameters, each the mean over fixed batches of one shape."""

    apply: Callable  # (variables, x) -> logits, in evaluation mode
    losses: dict[str, Callable]  # row name -> (logits, labels) -> [examples], in nats
    params: PyTree
    model_state: PyTree
    batches: list[Batch]


class Curvature(NamedTuple):
    """Rows, and for each loss the Hessian-vector product and the eigenpair that they come from."""

    rows: list[Eigenvalue | Trace]
    matvecs: dict[str, Callable]
    tops: dict[str, curvature.Eigenpairs]


def as_argument(function: Callable) -> Partial:
    """The function as a jax.tree_util.Partial, which jit takes as an argument: equal functions share one program.

    Its arrays are the leaves of a tree, so the same loss with other values compiles nothing.
    """
    return function if isinstance(function, Partial) else Partial(function)


def on_device(problem: Problem) -> Problem:
    """The problem with its arrays on the devices, where every product reads them again.

    The examples of each batch are spread over all devices and everything else is replicated.
    """
    losses = {name: as_argument(loss) for name, loss in problem.losses.items()}
    params, model_state, losses = parallel.everywhere((problem.params, problem.model_state, losses))
    return Problem(as_argument(problem.apply), losses, params, model_state, parallel.spread(problem.batches))


def count_examples(problem: Problem) -> int:
    """Number of unmasked examples.

    Raises:
        InputError: there is none.
    """
    count = sum(int(np.sum(parallel.to_host(batch.mask))) for batch in problem.batches)
    if count == 0:
        raise InputError("batches hold no example that counts: curvature is a mean over one or more")
    return count


def make_batch_loss(apply: Callable, loss: Callable, num_examples: int) -> Callable:
    """Jitted (params, model_state, batch) -> the batch's share of a mean loss: sum of unmasked losses / num_examples.

    In nats, network in evaluation mode; summed over the batches of `num_examples` examples it is their mean loss. The
    determinism check and the products use the same function, so that what tracing has frozen is the same in both: the
    check is of the very function whose Hessian is taken. Parameters, state and batch are arguments and never frozen.
    """
    return Partial(_batch_loss, as_argument(apply), as_argument(loss), num_examples)


@jax.jit
@at_highest
def _batch_loss(apply, loss, num_examples, params, model_state, batch):
    losses = loss(apply({"params": params, **model_state}, batch.x), batch.y)
    return jnp.sum(jnp.where(batch.mask, losses, 0.0)) / num_examples


def data_matvec(batch_loss: Callable, params: PyTree, model_state: PyTree, batches: Iterable[Batch]) -> Callable:
    """Hessian-vector product of the sum of batch_loss over the batches, with one batch's activations in memory.

    params, model_state and batches (of one shape) should lie on the device: they are read at each product. Batches that
    are made again at each iteration keep memory nearly flat in their number.
    """
    arguments = (batch_loss, params, model_state)
    zeros = jax.tree.map(jnp.zeros_like, params)

    @at_highest
    def matvec(vector):
        total = zeros
        for batch in batches:
            total = add_product(total, vector, *arguments, batch)
        return parallel.in_turn(total)

    return matvec


@jax.jit
def add_product(
    total: PyTree, vector: PyTree, batch_loss: Partial, params: PyTree, model_state: PyTree, batch: Batch
) -> PyTree:
    """`total` plus the Hessian-vector product of one batch; compiled once for all products of one problem's shape."""
    share = partial(batch_loss, model_state=model_state, batch=batch)
    return jax.tree.map(jnp.add, total, curvature.hvp(share, params, vector))


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

    Every batch passes the determinism check first.

    Raises:
        InputError: there is no example, an option is out of range, or a loss changes from call to call.
        RunError: a loss, gradient or product is not finite.
    """
    n, problem = count_examples(problem), on_device(problem)
    params, model_state, batches = problem.params, problem.model_state, problem.batches
    key_lambda, key_trace = jax.random.split(key)
    measured = Curvature([], {}, {})
    for name, loss in problem.losses.items():
        batch_loss, of_loss = make_batch_loss(problem.apply, loss, n), {"n": n, "split": split, "loss": name}
        for batch in batches:  # one by one: gradients of all together would hold all their activations
            curvature.check_deterministic(partial(batch_loss, model_state=model_state, batch=batch), params)
        matvec = data_matvec(batch_loss, params, model_state, batches)
        top = curvature.lambda_max(matvec, params, key_lambda, max_products=max_products, tolerance=tolerance)
        total = curvature.trace(matvec, params, key_trace, num_probes, method=trace_method)
        trace = {**total._asdict(), **of_loss, "probes": num_probes, "estimator": trace_method}
        measured.matvecs[name], measured.tops[name] = matvec, top
        eigenvalue = Eigenvalue("lambda_max", top.value, top.residual, top.num_matvecs, top.converged, **of_loss)
        measured.rows.extend(map(finite, (eigenvalue, Trace("trace", **trace))))
    return measured


def density_rows(
    problem: Problem, measured: Curvature, key: Array, *, split: str, num_probes: int, steps: int
) -> list[DensityBin]:
    """Rows "spectral_density": the share of each Hessian's eigenvalues between `lower` and `upper`, for all losses.

    The bins are the same for all losses, even in asinh(eigenvalue / width), so that the bulk near 0 and the outliers
    both show. value is the mean over probes of stochastic Lanczos quadrature, stderr its standard error.

    Args:
        problem: what was measured.
        measured: of the same problem, by `measure_curvature`.
        key: PRNG key of the probes, the same for all losses.
        split: name for the rows.
        num_probes: 2 or more starting vectors.
        steps: products from each of them, 1 or more.

    Raises:
        InputError: num_probes or steps out of range.

    Accuracy: shares of a known spectrum within errors; tests/curvature/test_density.py. Eigenvalues closer together
    than Lanczos steps tell apart share a bin or its neighbour.
    """
    densities = {
        name: curvature.spectral_density(matvec, problem.params, key, num_probes=num_probes, steps=steps)
        for name, matvec in measured.matvecs.items()
    }
    nodes = np.concatenate([np.ravel(density.nodes) for density in densities.values()])
    largest = float(np.max(np.abs(nodes)))
    width = DENSITY_LINEAR_WIDTH * largest if largest > 0 else 1.0
    low, high = np.arcsinh(np.array([np.min(nodes), np.max(nodes)], np.float64) / width)
    margin = 0.01 * (high - low) + 0.01  # so that rounding leaves no node outside
    edges = (width * np.sinh(np.linspace(low - margin, high + margin, NUM_BINS + 1))).astype(np.float32)
    n, rows = count_examples(problem), []
    for name, density in densities.items():
        shares = jax.device_get(curvature.share_in_bins(density, edges))
        bins = zip(shares.value, shares.stderr, range(NUM_BINS), edges[:-1], edges[1:], strict=True)
        rows += [
            finite(DensityBin("spectral_density", *numbers, num_probes, density.num_matvecs, n, split, name))
            for numbers in bins
        ]
    return rows


def sharpness_rows(problem: Problem, key: Array, *, split: str) -> list[Sharpness]:
    """Rows of each loss's mean over the batches, and of the network's Fisher-Rao norm.

    "adaptive_sharpness": the worst rise within the ball of radius 0.5, "average_sharpness": the mean rise by noise of
    0.1, both measured by each weight's size. "pac_bayes_sigma": the noise that adds 0.1 nats to the loss,
    "relative_sigma": that adds a tenth of the loss. "fisher_rao_norm": w' F w, as of cross-entropy. Errors are of
    starts and noise, that of the last of examples.

    Args:
        problem: its losses pass the determinism check of `measure_curvature`.
        key: PRNG key of starts and noise, the same for all losses.
        split: name for the rows.

    Raises:
        RunError: a number is not finite, or no noise gives the rise.

    Accuracy: as the functions of focalgeo.curvature say; equal to those of all examples at once in
    tests/evaluation/test_sharpness_rows.py.
    """
    n, (apply, losses, params, model_state, batches) = count_examples(problem), on_device(problem)

    def over_batches(function):
        """The sum of function(params, model_state, batch), as a function of params."""
        return lambda at: reduce(
            partial(jax.tree.map, jnp.add), (parallel.in_turn(function(at, model_state, batch)) for batch in batches)
        )

    by_batch = [parallel.to_host(_fisher_rao(apply, params, model_state, batch)) for batch in batches]
    shares = np.concatenate([share[mask] for share, mask in by_batch])
    measures = {("fisher_rao_norm", "cross_entropy"): curvature.sample_mean(shares)}
    for name, loss in losses.items():
        batch_loss = make_batch_loss(apply, loss, n)
        mean, slope = over_batches(batch_loss), over_batches(partial(_value_and_grad, batch_loss))
        measures |= {
            ("adaptive_sharpness", name): curvature.adaptive_sharpness(slope, params, key, radius=0.5),
            ("average_sharpness", name): curvature.sample_mean(
                curvature.noise_rises(mean, params, key, 0.1, adaptive=True)
            ),
            ("pac_bayes_sigma", name): curvature.pac_bayes_sigma(mean, params, key, rise=0.1),
            ("relative_sigma", name): curvature.pac_bayes_sigma(mean, params, key, rise=0.1 * mean(params)),
        }
    return [finite(Sharpness(name, *found[:2], loss, n, split)) for (name, loss), found in measures.items()]


@jax.jit
def _value_and_grad(batch_loss, params, model_state, batch):
    return jax.value_and_grad(batch_loss)(params, model_state, batch)


@jax.jit
def _fisher_rao(apply, params, model_state, batch):
    return curvature.fisher_rao(lambda at: apply({"params": at, **model_state}, batch.x), params), batch.mask
