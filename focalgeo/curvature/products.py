"""Exact products with the Hessian, Gauss-Newton and Fisher matrices, of all parameters or some; the dense Hessian."""

import difflib
from collections.abc import Callable
from fnmatch import fnmatchcase

import jax
import jax.numpy as jnp
from jaxtyping import Float

from focalgeo.checks import check_key, described
from focalgeo.curvature.arguments import check_callable, check_matches, check_params, scalar
from focalgeo.curvature.matvec import layout_of, ravel, unravel
from focalgeo.precision import at_highest
from focalgeo.types import Array, InputError, PyTree

DENSE_LIMIT = 5000
DENSE_ROWS_AT_ONCE = 64


@at_highest
def hvp(loss, params: PyTree, vector: PyTree) -> PyTree:
    """Hessian-vector product H v, exact, as the derivative of the gradient along v (forward over reverse).

    Args:
        loss: params -> one floating-point number.
        params: tree of floating-point arrays.
        vector: tree of the same structure and shapes.

    Returns:
        H v, a tree like `params`; about two gradients of time. Not finite where the loss has no second derivative.

    Raises:
        InputError: the loss is not scalar, `params` is empty or holds integers, or `vector` does not match.

    Accuracy: float rounding; against a float64 NumPy Hessian in tests/curvature/test_products.py.

    Source: Pearlmutter, Fast exact multiplication by the Hessian (1994).
    """
    check_params(params)
    check_matches(vector, params)
    return jax.jvp(jax.grad(scalar(loss)), (params,), (vector,))[1]


@at_highest
def linearized_hvp(loss, params: PyTree):
    """The function v -> H v with the gradient linearised once, for many products at one point.

    It keeps the gradient's intermediate values in memory for as long as it lives, and recomputes none of them.

    Args:
        loss: params -> one floating-point number.
        params: tree of floating-point arrays.

    Returns:
        matvec: tree -> tree, to be jitted by the caller or not.

    Raises:
        InputError: as for `hvp`; the product's own argument is checked as `vector` there.

    Accuracy: equal to `hvp` up to rounding; tests/curvature/test_products.py.
    """
    check_params(params)
    linear, like = jax.linearize(jax.grad(scalar(loss)), params)[1], jax.eval_shape(lambda: params)

    def product(vector: PyTree) -> PyTree:
        check_matches(vector, like)
        return linear(vector)

    return product


@at_highest
def ggn_vp(outputs, output_loss, params: PyTree, vector: PyTree) -> PyTree:
    """Generalised Gauss-Newton product J' H_out J v: J the Jacobian of the outputs, H_out the loss's Hessian in them.

    H_out of cross-entropy is positive semi-definite, that of focal loss is NOT: it has negative eigenvalues wherever
    p_y is small. Cholesky, conjugate gradients and log-determinants that assume it is fail there.

    Args:
        outputs: params -> tree of outputs (logits of all examples, say).
        output_loss: that tree -> one floating-point number.
        params: tree of floating-point arrays.
        vector: tree of the same structure and shapes.

    Returns:
        A tree like `params`.

    Raises:
        InputError: as for `hvp`.

    Accuracy: float rounding; against float64 NumPy in tests/curvature/test_products.py.

    Source: Schraudolph, Fast curvature matrix-vector products for second-order gradient descent (2002).
    """
    check_params(params)
    check_matches(vector, params)
    check_callable(outputs, name="outputs")
    predictions, pullback = jax.vjp(outputs, params)
    check_params(predictions, name="what outputs returns")
    tangent = jax.jvp(outputs, (params,), (vector,))[1]
    return pullback(hvp(output_loss, predictions, tangent))[0]


@at_highest
def dense_hessian(loss, params: PyTree) -> Float[Array, "size size"]:
    """The full Hessian as a matrix [n, n], rows and columns in the order of `jax.flatten_util.ravel_pytree`.

    An oracle for small problems: n products, n squared numbers.

    Args:
        loss: params -> one floating-point number.
        params: tree of floating-point arrays, at most 5,000 numbers in all.

    Returns:
        [n, n] in float32, or in float64 if a leaf is float64; symmetric up to rounding.

    Raises:
        InputError: more than 5,000 parameters; else as for `hvp`.

    Accuracy: float rounding; against float64 NumPy in tests/curvature/test_products.py.
    """
    check_params(params)
    layout = layout_of(params)
    if layout.size > DENSE_LIMIT:
        raise InputError(
            f"dense_hessian: {layout.size} parameters, at most {DENSE_LIMIT}; use hvp, trace or lambda_max"
        )

    def row(unit):
        return ravel(hvp(loss, params, unravel(unit, layout)), layout)

    units = jnp.eye(layout.size, dtype=layout.dtype)
    return jax.lax.map(row, units, batch_size=min(DENSE_ROWS_AT_ONCE, layout.size))


@at_highest
def fisher_vp(logits: Callable[[PyTree], Array], params: PyTree, vector: PyTree, *, key: Array | None = None) -> PyTree:
    """Fisher product F v, F the mean over examples of J' (diag p - p p') J, J the Jacobian of an example's logits.

    The labels are the model's own, not the data's: this is not the "empirical Fisher". F is the Gauss-Newton matrix of
    cross-entropy and positive semi-definite, so it serves solvers that need such a matrix. The Gauss-Newton matrix of
    the focal loss differs from it: that has negative eigenvalues where p_y is small. The Hessian differs from both.

    Args:
        logits: params -> [..., classes], all examples.
        params: tree of floating-point arrays.
        vector: tree of the same structure and shapes.
        key: None takes the expectation over labels; a PRNG key draws one label for each example, whose F is the mean of
            J' g g' J with g = p - e_y. One key is one matrix: keep it for all products of a measurement.

    Returns:
        F v, a tree like `params`.

    Raises:
        InputError: the logits are not an array with a last axis of classes; else as for `hvp`.

    Accuracy: float rounding; against dense float64 in tests/curvature/test_products.py.

    Source: Martens, New insights and perspectives on the natural gradient method (2020), sections 5 and 9.
    """
    logits = _with_classes(logits)
    if key is None:
        return ggn_vp(logits, _mean_log_partition, params, vector)
    check_key(key)
    check_params(params)
    check_matches(vector, params)
    outputs, pullback = jax.vjp(logits, params)
    tangent = jax.jvp(logits, (params,), (vector,))[1]
    labels = jax.random.categorical(key, outputs)
    drawn = jax.nn.one_hot(labels, outputs.shape[-1], dtype=bool)
    others = jnp.where(drawn, 0, jax.nn.softmax(outputs))
    # p - 1 would be 0 where p rounds to 1
    gradient = jnp.where(drawn, -jnp.sum(others, axis=-1, keepdims=True), others)
    slope = jnp.sum(gradient * tangent, axis=-1, keepdims=True)
    return pullback(gradient * slope / labels.size)[0]


def _mean_log_partition(logits: Array) -> Array:
    """Cross-entropy but for the true class's logit, which is linear and adds nothing to a second derivative."""
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1))


def _with_classes(logits: Callable[[PyTree], Array]) -> Callable[[PyTree], Array]:
    check_callable(logits, name="logits")

    def checked(params: PyTree) -> Array:
        outputs = logits(params)
        fits = getattr(outputs, "ndim", 0) > 0 and outputs.size and jnp.issubdtype(outputs.dtype, jnp.floating)
        if not fits or outputs.shape[-1] < 2:
            raise InputError(
                f"the function of the logits returns {described(outputs)}, no array [..., classes] of floating-point "
                "numbers, 2 or more classes; return the logits, no loss"
            )
        return outputs

    return checked


def restrict(
    function: Callable[[PyTree], PyTree], params: PyTree, *patterns: str
) -> tuple[Callable[[dict[str, Array]], PyTree], dict[str, Array]]:
    """`function` of the leaves whose path matches a pattern, the others constant; and those leaves.

    Hessian, Gauss-Newton and Fisher matrix of the restricted function are the principal blocks of the full ones, so
    hvp, ggn_vp, trace, lambda_max and the rest serve a layer as they serve a network.

    Args:
        function: params -> a loss, or outputs.
        params: tree of floating-point arrays.
        patterns: globs of paths such as "Dense_0/kernel": "Dense_0/*", "*/bias"; "*" also crosses "/".

    Returns:
        (kept -> function(params with these leaves), kept), kept a dict from path to leaf.

    Raises:
        InputError: `params` is empty or holds integers; no pattern is given, or one matches nothing (the nearest path
        is named), or two leaves have the same path; the function is given a leaf that was not kept.

    Accuracy: equal to the blocks of a dense Hessian; tests/curvature/test_products.py.
    """
    check_params(params)
    check_callable(function, name="function")
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    named = {_name(path): leaf for path, leaf in leaves}
    if len(named) < len(leaves):
        raise InputError(f'two leaves have one path, as "a/b" and a -> b have: {_repeated(leaves)}; rename one')
    if not patterns:
        raise InputError(f'no pattern of parameters is given; give one such as "{next(iter(named))}"')
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise InputError(f'a pattern is {type(pattern).__name__}, not text; give one such as "{next(iter(named))}"')
        if not any(fnmatchcase(name, pattern) for name in named):
            nearest = difflib.get_close_matches(pattern, named, n=1, cutoff=0.0)[0]
            raise InputError(f'no parameter matches "{pattern}"; did you mean "{nearest}"?')
    kept = {name: leaf for name, leaf in named.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}

    def restricted(some: dict[str, Array]) -> PyTree:
        for name in some:
            if name not in kept:
                raise InputError(f'"{name}" is none of the leaves that were kept: {", ".join(kept)}')
        return function(structure.unflatten([some.get(name, leaf) for name, leaf in named.items()]))

    return restricted, kept


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _repeated(leaves: list) -> str:
    names = [_name(path) for path, _ in leaves]
    return next(name for name in names if names.count(name) > 1)
