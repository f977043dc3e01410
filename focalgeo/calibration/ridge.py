"""Least NLL plus a ridge, over parameters of class scores, by Newton steps with conjugate gradients."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg
from jaxtyping import Bool, Float, Int

from focalgeo.calibration.binning import Labels, Scalar
from focalgeo.types import Array, PyTree

Scores = Callable[[PyTree], Float[Array, "examples classes"]]

_MOST_STEPS = 60
_MOST_PRODUCTS = 200  # with the curvature, in one step
_RESIDUAL = 0.03  # of a step's linear system, relative: steps are then nearly Newton's, at a third of the products
_SHORTENINGS = 12  # halvings of a step that does not lower the objective
_GAIN = {"float32": 1e-8, "float64": 1e-14}  # nats: no further step where the last promised less
_CONVERGED = 100  # times that; in float32 an objective of 4 nats is not known better than to 5e-7


class RidgeFit(NamedTuple):
    """Parameters, the penalised NLL that they have, whether it is least, and the steps taken."""

    params: PyTree
    objective: Scalar  # nats per example
    converged: Bool[Array, ""]
    steps: Int[Array, ""]


class _Descent(NamedTuple):
    params: PyTree
    objective: Array
    gain: Array  # nats that the last step promised
    moved: Array  # bool
    step: Array


def ridge_fit(
    scores: Scores, start: PyTree, ridge: PyTree, labels: Labels, weight: Float[Array, " examples"]
) -> RidgeFit:
    """The params with the least mean NLL of softmax(scores(params)) plus the sum of ridge * params^2, from `start` on.

    Newton steps by conjugate gradients, halved until they lower the objective, so the result is never worse than the
    start. The curvature is J' (diag p - p p') J plus the ridge (Schraudolph, Neural Computation 14, 2002): the Hessian
    itself where the scores are linear in the params, and positive where they are not. No LAPACK is called, see `fits`.

    Args:
        scores: scores(params) -> [examples, classes], differentiable; a constant added to a row changes nothing.
        start: Tree of float arrays.
        ridge: Tree of the same structure whose leaves broadcast against those of `start`, 0 or more.
        labels: Int32 [examples].
        weight: Float [examples], how often each example counts.

    Returns:
        RidgeFit; for use inside jit and vmap. Converged where a further step promises less than 1e-6 nats in float32,
        1e-12 in float64.
    """
    objective = _objective(scores, ridge, labels, weight)
    tolerance = _GAIN[weight.dtype.name]

    def advance(state: _Descent) -> _Descent:
        direction, gain = _newton_step(scores, objective, state.params, ridge, weight)
        params, value = _shortened(objective, state, direction)
        moved = value < state.objective
        params = jax.tree.map(lambda new, old: jnp.where(moved, new, old), params, state.params)
        return _Descent(params, jnp.where(moved, value, state.objective), gain, moved, state.step + 1)

    def going(state: _Descent) -> Array:
        return state.moved & (state.gain > tolerance) & (state.step < _MOST_STEPS)

    first = _Descent(start, objective(start), jnp.full((), jnp.inf, weight.dtype), jnp.ones((), bool), jnp.int32(0))
    found = jax.lax.while_loop(going, advance, first)
    return RidgeFit(found.params, found.objective, found.gain <= _CONVERGED * tolerance, found.step)


def _objective(scores: Scores, ridge: PyTree, labels: Array, weight: Array) -> Callable[[PyTree], Array]:
    def value(params: PyTree) -> Array:
        log_probs = jax.nn.log_softmax(scores(params))
        is_true = jax.nn.one_hot(labels, log_probs.shape[-1], dtype=bool)
        nll = -jnp.sum(weight * jnp.sum(jnp.where(is_true, log_probs, 0), axis=-1)) / jnp.sum(weight)
        return nll + sum(jax.tree.leaves(jax.tree.map(lambda k, x: jnp.sum(k * (x * x)), ridge, params)))

    return value


def _newton_step(
    scores: Scores, objective: Callable, params: PyTree, ridge: PyTree, weight: Array
) -> tuple[PyTree, Array]:
    """The step, and the nats that it promises."""
    slope = jax.grad(objective)(params)
    rows, forward = jax.linearize(scores, params)
    backward = jax.linear_transpose(forward, params)
    probs, share = jax.nn.softmax(rows), (weight / jnp.sum(weight))[:, None]

    def curvature(direction: PyTree) -> PyTree:
        along = forward(direction)
        along = share * probs * (along - jnp.sum(probs * along, axis=-1, keepdims=True))
        return jax.tree.map(lambda x, k, d: x + 2 * k * d, backward(along)[0], ridge, direction)

    step = cg(curvature, jax.tree.map(jnp.negative, slope), tol=_RESIDUAL, maxiter=_MOST_PRODUCTS)[0]
    return step, -0.5 * sum(jax.tree.leaves(jax.tree.map(lambda s, d: jnp.sum(s * d), slope, step)))


def _shortened(objective: Callable, state: _Descent, direction: PyTree) -> tuple[PyTree, Array]:
    """Where the first of the halved steps that lowers the objective ends, and its value there; else the last."""

    def tried(halvings: Array) -> tuple[PyTree, Array]:
        size = jnp.exp2(-halvings.astype(state.objective.dtype))
        params = jax.tree.map(lambda x, d: x + size * d, state.params, direction)
        return params, objective(params)

    def halve(carry: tuple) -> tuple:
        return carry[0] + 1, *tried(carry[0] + 1)

    def higher(carry: tuple) -> Array:
        return ~(carry[2] < state.objective) & (carry[0] < _SHORTENINGS)

    return jax.lax.while_loop(higher, halve, (jnp.int32(0), *tried(jnp.int32(0))))[1:]
