"""Newton's method: roots of one number in a bracket, least values of two in a box, and least NLL plus a ridge.

For jit and vmap. No root is differentiated through: `implicit_step` gives it its derivatives afterwards. No LAPACK is
called, see `fits`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg
from jaxtyping import Bool, Float

from focalgeo import trees
from focalgeo.calibration.binning import of_label
from focalgeo.types import Array, PyTree

Points = Float[Array, "*batch"]

_MOST_STEPS = 100  # in a bracket, where ten are usual; each fourth is a bisection until Newton's steps are short
_NEAR = 0.1  # a Newton step shorter than this is in reach of quadratic convergence, for functions of scale 1
_GOLDEN = 0.6180339887498949
_MOST_DESCENTS = 60
_SMALLEST = 2**-12  # share of a step that is tried
_MOST_PRODUCTS = 200  # with the curvature, in one step
_RESIDUAL = 0.03  # of a step's linear system, relative: steps are then nearly Newton's, at a third of the products
_GAIN = {"float32": 1e-8, "float64": 1e-14}  # nats: no further step where the last promised less
_CONVERGED = 100  # times that; in float32 an objective of 4 nats is not known better than to 5e-7


class Root(NamedTuple):
    """A root, and whether the search for it converged."""

    point: Points
    converged: Bool[Array, "*batch"]


class _Bracket(NamedTuple):
    point: Array
    low: Array
    high: Array
    moving: Array  # bool
    step: Array  # int32 scalar


def newton_in_bracket(
    function: Callable[[Array], tuple[Array, Array]],
    start: Points,
    low: Points,
    high: Points,
    *,
    settled: Callable[[Array, Array], Array] | None = None,
) -> Root:
    """The root of a function that rises through zero in a bracket, by Newton's steps with bisection as safeguard.

    Args:
        function: function(x) -> (value, slope) for x [...], each element by itself. The value is at most 0 at `low`
            and at least 0 at `high`, and crosses zero once between them; the slope may have any sign in between.
        start: Float [...], inside the bracket.
        low: Float [...].
        high: Float [...].
        settled: settled(value, slope) -> bool [...], whether the next step is the last. If None, steps end where they
            are shorter than 16 eps max(|x|, 1).

    Returns:
        Root [...], where the last step has been taken; not converged after 100 steps.
    """
    tolerance = 16 * jnp.finfo(start.dtype).eps

    def advance(state):
        value, slope = function(state.point)
        low = jnp.where(value <= 0, state.point, state.low)
        high = jnp.where(value >= 0, state.point, state.high)
        newton = state.point - value / jnp.maximum(slope, jnp.finfo(slope.dtype).tiny)
        far = (jnp.abs(newton - state.point) > _NEAR) & (state.step % 4 == 3)
        outside = ~((newton >= low) & (newton <= high))
        point = jnp.where(far | outside, low + (high - low) / 2, newton)
        small = tolerance * jnp.maximum(jnp.abs(state.point), 1)
        last = jnp.abs(newton - state.point) <= small if settled is None else settled(value, slope)
        moving = state.moving & ~last & (high - low > small)
        # An accepted Newton step is taken even when it is the last: it costs nothing and only improves the point.
        point = jnp.where(moving, point, jnp.clip(newton, low, high))
        return _Bracket(jnp.where(state.moving, point, state.point), low, high, moving, state.step + 1)

    state = _Bracket(start, low, high, jnp.ones(start.shape, bool), jnp.zeros((), jnp.int32))
    state = jax.lax.while_loop(lambda s: jnp.any(s.moving) & (s.step < _MOST_STEPS), advance, state)
    return Root(state.point, ~state.moving)


def implicit_step(root: Points, value: Points, slope: Points) -> Points:
    """One Newton step root - value / slope, whose derivatives are those of the root as an implicit function.

    Args:
        root: Float [...]; no derivative is taken through it.
        value: The function at stop_gradient(root), as a function of what the root is to be differentiated by.
        slope: Its derivative by the root, not 0; no derivative is taken through it, so the first order is right alone.
    """
    return jax.lax.stop_gradient(root) - value / jax.lax.stop_gradient(slope)


def bisection(is_below: Callable[[Array], Array], low: Points, high: Points, *, num_halvings: int) -> Points:
    """The middle of the bracket [...] around a root after `num_halvings`; is_below(x) says that x is below the root."""

    def halve(_, ends):
        middle = ends[0] / 2 + ends[1] / 2
        below = is_below(middle)
        return jnp.where(below, middle, ends[0]), jnp.where(below, ends[1], middle)

    low, high = jax.lax.fori_loop(0, num_halvings, halve, (low, high))
    return low / 2 + high / 2


def golden_section(function: Callable[[Array], Array], low: Points, high: Points, *, num_sections: int) -> Points:
    """The minimum point of a function [...] -> [...] that falls, then rises; a section divides the bracket by 1.618."""

    def section(_, ends):
        low, high = ends
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        falls = function(left) > function(right)
        return jnp.where(falls, left, low), jnp.where(falls, high, right)

    low, high = jax.lax.fori_loop(0, num_sections, section, (low, high))
    return low / 2 + high / 2


class Descent(NamedTuple):
    """A point of a descent."""

    point: PyTree
    value: Array
    gain: Array  # nats that the last step promised
    moved: Array  # bool
    step: Array


def descend(
    objective: Callable[[PyTree], Array],
    start: PyTree,
    value: Array,
    newton_step: Callable[[PyTree], tuple[PyTree, Array]],
    *,
    tolerance: float,
    inside: Callable[[PyTree], PyTree] = lambda point: point,
    last_step: bool = True,
) -> Descent:
    """Newton steps from `start`, each halved until it lowers the objective, while they promise more than `tolerance`.

    The objective stands in the program once, and so takes half as long to compile.

    Args:
        objective: objective(point) -> scalar.
        start: Tree of float arrays.
        value: The objective there.
        newton_step: newton_step(point) -> the step, and what it promises to gain.
        tolerance: Of the gain.
        inside: inside(point) -> the nearest point where the objective is defined.
        last_step: Whether the first step that promises less is still taken.
    """

    def advance(descent):
        direction, gain = newton_step(descent.point)

        def attempt(carry):
            size = carry[0]
            point = inside(jax.tree.map(lambda x, d: x + size * d, descent.point, direction))
            return size / 2, point, objective(point)

        def searching(carry):
            size, _, value = carry
            return ~(value < descent.value) & (size >= _SMALLEST) & (last_step | (gain > tolerance))

        nowhere = jnp.ones_like(gain), descent.point, jnp.full_like(gain, jnp.inf)
        _, point, value = jax.lax.while_loop(searching, attempt, nowhere)
        moved = value < descent.value
        kept = jax.tree.map(lambda new, old: jnp.where(moved, new, old), (point, value), (descent.point, descent.value))
        return Descent(*kept, gain, moved, descent.step + 1)

    def going(descent):
        return descent.moved & (descent.gain > tolerance) & (descent.step < _MOST_DESCENTS)

    first = Descent(start, value, jnp.full_like(value, jnp.inf), jnp.ones((), bool), jnp.int32(0))
    return jax.lax.while_loop(going, advance, first)


def box_descent(
    objective: Callable[[Array], Array],
    start: Float[Array, "2"],
    value: Array,
    low: Float[Array, "2"],
    high: Float[Array, "2"],
    *,
    tolerance: float,
) -> Descent:
    """`descend` of two numbers from `low` to `high`; at an edge that the slope presses on, along that edge only."""
    axes = jnp.eye(2, dtype=start.dtype)

    def newton_step(point):
        def along(pair):  # forwards, a pair of directions at a time: 2/3 of jax.hessian's compilation
            slope = lambda at: jax.jvp(objective, (at,), (pair[0],))[1]  # noqa: E731
            return jax.jvp(slope, (point,), (pair[1],))

        slopes, curvatures = jax.lax.map(along, (axes[np.array([0, 0, 1])], axes[np.array([0, 1, 1])]))
        slope, curvature = slopes[np.array([0, 2])], curvatures[np.array([[0, 1], [1, 2]])]
        held = ((point <= low) & (slope > 0)) | ((point >= high) & (slope < 0))
        free = (~held).astype(point.dtype)
        slope, curvature = slope * free, curvature * free[:, None] * free[None, :] + jnp.diag(1 - free)
        values, vectors = _eigenpairs(curvature)
        # A direction of negative curvature is gone down as if it were as strongly curved upwards.
        strength = jnp.maximum(jnp.abs(values), 1e-6 * jnp.max(jnp.abs(values)) + jnp.finfo(point.dtype).tiny)
        uphill = trees.matmul(vectors.T, slope)
        return -trees.matmul(vectors, uphill / strength), 0.5 * jnp.sum(uphill * uphill / strength)

    inside = lambda point: jnp.clip(point, low, high)  # noqa: E731
    return descend(objective, start, value, newton_step, tolerance=tolerance, inside=inside, last_step=False)


def _eigenpairs(matrix):
    """The eigenvalues [2] of a symmetric matrix [2, 2] in no order, and unit eigenvectors in the columns.

    By one Jacobi rotation (Golub and Van Loan, Matrix Computations, 4th ed., section 8.5), without LAPACK: on the CPU
    of jaxlib 0.10.2 an `eigh` waits in a thread of the pool for work it has left to the same pool, so that as many fits
    in one program as there are cores wait for ever. In curvature/ no program has two of them.
    """
    (a, b), (_, d) = matrix
    half = (d - a) / 2
    tangent = jnp.where(half < 0, -b, b) / jnp.maximum(jnp.abs(half) + jnp.hypot(half, b), jnp.finfo(b.dtype).tiny)
    cosine = jax.lax.rsqrt(1 + tangent * tangent)
    sine = tangent * cosine
    return jnp.stack([a - tangent * b, d + tangent * b]), jnp.stack([cosine, sine, -sine, cosine]).reshape(2, 2)


class RidgeFit(NamedTuple):
    """Parameters of the least penalised NLL, and whether it is least."""

    params: PyTree
    converged: Bool[Array, ""]


def ridge_fit(
    scores: Callable[[PyTree], Float[Array, "examples classes"]],
    start: PyTree,
    ridge: PyTree,
    labels: Array,
    weight: Float[Array, " examples"],
) -> RidgeFit:
    """The params with the least mean NLL of softmax(scores(params)) plus the sum of ridge * params^2, from `start` on.

    Newton steps by conjugate gradients, halved until they lower the objective, so the result is never worse than the
    start. The curvature is J' (diag p - p p') J plus the ridge (Schraudolph, Neural Computation 14, 2002): the Hessian
    itself where the scores are linear in the params, and positive where they are not.

    Args:
        scores: scores(params) -> [examples, classes], differentiable; a constant added to a row changes nothing.
        start: Tree of float arrays.
        ridge: Tree of the same structure whose leaves broadcast against those of `start`, 0 or more.
        labels: Int32 [examples], or shares of the classes [examples, classes].
        weight: Float [examples], how often each example counts.

    Returns:
        RidgeFit. Converged where a further step promises less than 1e-6 nats in float32, 1e-12 in float64.
    """
    share, tolerance = weight / jnp.sum(weight), _GAIN[weight.dtype.name]

    def total(tree):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree))

    def objective(params):
        log_probs = jax.nn.log_softmax(scores(params))
        nll = -jnp.sum(weight * of_label(log_probs, labels)) / jnp.sum(weight)
        return nll + total(jax.tree.map(lambda k, x: k * (x * x), ridge, params))

    def newton_step(params):
        slope = jax.grad(objective)(params)
        rows, forward = jax.linearize(scores, params)
        backward = jax.linear_transpose(forward, params)
        probs = jax.nn.softmax(rows)

        def curvature(direction):
            along = forward(direction)
            along = share[:, None] * probs * (along - jnp.sum(probs * along, axis=-1, keepdims=True))
            return jax.tree.map(lambda x, k, d: x + 2 * k * d, backward(along)[0], ridge, direction)

        step = cg(curvature, jax.tree.map(jnp.negative, slope), tol=_RESIDUAL, maxiter=_MOST_PRODUCTS)[0]
        return step, -0.5 * total(jax.tree.map(jnp.multiply, slope, step))

    minimum = descend(objective, start, objective(start), newton_step, tolerance=tolerance)
    return RidgeFit(minimum.point, minimum.gain <= _CONVERGED * tolerance)
