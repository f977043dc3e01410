"""Exact products with the Hessian, Gauss-Newton and Fisher matrices, of all parameters or some; the dense Hessian.

And the check that a loss is the same at every call, which comes before any of them.
"""

import fnmatch
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import checks
from focalgeo.curvature.matvec import layout_of, ravel, unravel
from focalgeo.trees import at_highest
from focalgeo.types import Array, InputError, PyTree, shown

# A dense matrix of 5,000 parameters takes 100 MB in float32; beyond it, products and Lanczos serve.
DENSE_LIMIT = 5000
# Rows are products with unit vectors: 64 at once hold 64 gradients, not one for each parameter.
DENSE_ROWS_AT_ONCE = 64
FORMS = ("forward_over_reverse", "reverse_over_reverse")
_REVERSE = (
    "the loss has a jax.custom_vjp, which has no forward derivative: "
    'give form="reverse_over_reverse", to hvp or linearized_hvp'
)


def _check(params, vector):
    checks.check_params("params", params)
    checks.check_alike("vector", vector, "params", params)


@at_highest
def hvp(loss, params: PyTree, vector: PyTree, *, form: str = FORMS[0]) -> PyTree:
    """Hessian-vector product H v, exact, as the derivative of the gradient along v (forward over reverse).

    Args:
        loss: params -> one floating-point number.
        params: tree of floating-point arrays.
        vector: tree of the same structure and shapes.
        form: "reverse_over_reverse" takes the gradient of gradient' v instead: exact too, slower, and all that a loss
            with a jax.custom_vjp in it allows.

    Returns:
        H v, a tree like `params`; about two gradients of time. Not finite where the loss has no second derivative.

    Raises:
        InputError: the loss is not scalar, `params` is empty or holds integers, or `vector` does not match.

    Accuracy: float rounding; against a float64 NumPy Hessian in tests/curvature/test_products.py.

    Source: Pearlmutter, Fast exact multiplication by the Hessian (1994).

    Example:
        >>> vector = {"b": jnp.float32(1), "w": jnp.float32([0, 1])}
        >>> curvature.hvp(loss, params, vector)
        {'b': Array(3., dtype=float32), 'w': Array([1., 4.], dtype=float32)}
    """
    _check(params, vector)
    if form != FORMS[0]:
        return linearized_hvp(loss, params, form=form)(vector)
    with forward_derivative(_REVERSE):
        return jax.jvp(jax.grad(checks.scalar(loss)), (params,), (vector,))[1]


@contextmanager
def forward_derivative(otherwise: str) -> Iterator[None]:
    """Within the block a `jax.custom_vjp`, which has no forward derivative, is an InputError that says `otherwise`."""
    try:
        yield
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
        raise InputError(otherwise) from error


@at_highest
def linearized_hvp(loss, params: PyTree, *, form: str = FORMS[0]):
    """The function v -> H v with the gradient linearised once, for many products at one point.

    It keeps the gradient's intermediate values in memory for as long as it lives, and recomputes none of them. The loss
    is traced as by jax.jit: it may not branch on values in Python.

    Args:
        loss: params -> one floating-point number.
        params: tree of floating-point arrays.
        form: As for `hvp`.

    Returns:
        matvec: tree -> tree, of one program; jitting it again gains nothing.

    Raises:
        InputError: as for `hvp`; a vector that is not like `params` is refused by JAX itself.

    Accuracy: equal to `hvp` up to rounding; tests/curvature/test_products.py.

    Example:
        >>> product = curvature.linearized_hvp(loss, params)
        >>> product(params)
        {'b': Array(2.5, dtype=float32), 'w': Array([ 2.5, -4. ], dtype=float32)}
    """
    checks.check_params("params", params)
    checks.check_choice("form", form, FORMS)
    gradient = jax.jit(jax.grad(checks.scalar(loss)))  # else each operation would be a program
    if form == FORMS[1]:
        pullback = jax.vjp(gradient, params)[1]
        return lambda vector: pullback(vector)[0]
    with forward_derivative(_REVERSE):
        return jax.linearize(gradient, params)[1]


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

    Example:
        >>> rows = jnp.float32([[1, 2], [0, 1]])
        >>> outputs = lambda params: rows @ params["w"] + params["b"]
        >>> curvature.ggn_vp(outputs, lambda z: jnp.mean(z**2), params, params)
        {'b': Array(-1., dtype=float32), 'w': Array([-0.5, -1.5], dtype=float32)}
    """
    _check(params, vector)
    predictions, pullback = jax.vjp(outputs, params)
    tangent = jax.jvp(outputs, (params,), (vector,))[1]
    return pullback(hvp(output_loss, predictions, tangent))[0]


@at_highest
def dense_hessian(loss, params: PyTree) -> Array:
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

    Example:
        >>> print(curvature.dense_hessian(loss, params))
        [[3. 1. 0.]
         [1. 2. 0.]
         [0. 0. 4.]]
    """
    checks.check_params("params", params)
    layout = layout_of(params)
    if layout.size > DENSE_LIMIT:
        raise InputError(f"params hold {layout.size} numbers: dense_hessian takes at most {DENSE_LIMIT}")

    def row(unit):
        return ravel(hvp(loss, params, unravel(unit, layout)), layout)

    return jax.lax.map(row, jnp.eye(layout.size, dtype=layout.dtype), batch_size=min(DENSE_ROWS_AT_ONCE, layout.size))


def fisher_vp(logits: Callable[[PyTree], Array], params: PyTree, vector: PyTree) -> PyTree:
    """Fisher product F v, F the mean over examples of J' (diag p - p p') J, J the Jacobian of an example's logits.

    The labels are the model's own, not the data's: this is not the "empirical Fisher". F is the Gauss-Newton matrix of
    cross-entropy and positive semi-definite, so it serves solvers that need such a matrix. The Gauss-Newton matrix of
    the focal loss differs from it: that has negative eigenvalues where p_y is small. The Hessian differs from both.

    Args:
        logits: params -> [..., classes], all examples.
        params: tree of floating-point arrays.
        vector: tree of the same structure and shapes.

    Returns:
        F v, a tree like `params`.

    Raises:
        InputError: the logits are not an array with a last axis of classes; else as for `hvp`.

    Accuracy: float rounding; against dense float64 in tests/curvature/test_products.py.

    Source: Martens, New insights and perspectives on the natural gradient method (2020), sections 5 and 9.

    Example:
        >>> outputs = lambda params: jnp.stack([params["w"], params["w"] ** 2]) * params["b"]  # logits [2, 2]
        >>> product = curvature.fisher_vp(outputs, params, params)
        >>> print(np.asarray(product["b"]).round(4), np.asarray(product["w"]).round(4))
        0.3932 [ 0.0983 -0.0983]
    """
    return ggn_vp(
        lambda point: checks.floats(checks.score_rows("logits", logits(point)))[0],
        # cross-entropy but for the true class's logit, which is linear and adds nothing to a second derivative
        lambda rows: jnp.mean(jax.nn.logsumexp(rows, axis=-1)),
        params,
        vector,
    )


def empirical_fisher_vp(losses: Callable[[PyTree], Array], params: PyTree, vector: PyTree) -> PyTree:
    """Product with the "empirical Fisher", the mean over examples of g g', g the gradient of an example's own loss.

    The labels are the data's. It is a scatter of gradients, not a curvature: it nears the Fisher matrix only where the
    model's probabilities are the labels' own.

    Args:
        losses: params -> [examples], the loss of each.
        params: tree of floating-point arrays.
        vector: tree of the same structure and shapes.

    Returns:
        The product, a tree like `params`.

    Raises:
        InputError: the losses are no array [examples] of floating-point numbers; else as for `hvp`.

    Accuracy: float rounding; against dense float64 in tests/curvature/test_products.py.

    Source: Kunstner, Balles and Hennig, Limitations of the empirical Fisher approximation (2019).

    Example:
        >>> each = lambda params: jnp.stack([loss(params), params["w"] @ params["w"]])  # two examples
        >>> curvature.empirical_fisher_vp(each, params, params)
        {'b': Array(9.6875, dtype=float32), 'w': Array([ 13.6875, -19.5   ], dtype=float32)}
    """

    def checked(point):
        values = losses(point)
        checks.check_array("losses", values, shape=(None,), dtype=jnp.floating)
        checks.count("the number of losses", len(values), 1)
        return values

    return ggn_vp(checked, lambda values: jnp.mean(values**2) / 2, params, vector)  # whose Hessian is 1/n


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

    Example:
        >>> of_w, w = curvature.restrict(loss, params, "w")
        >>> print(curvature.dense_hessian(of_w, w))
        [[2. 0.]
         [0. 4.]]
    """
    checks.check_params("params", params)
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    if len(named) < len(leaves):
        raise InputError(f'two leaves have one path, as "a/b" and a -> b have, among {", ".join(named)}: rename one')
    kept = {}
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise InputError(f"patterns are {shown(patterns)}: give globs of paths, as {min(named)!r}")
    for pattern in patterns:
        names = fnmatch.filter(named, pattern)
        if not names:
            raise InputError.of_choice("pattern of parameters", pattern, named)
        kept |= {name: named[name] for name in names}

    def restricted(some):
        if not some.keys() <= kept.keys():
            raise InputError(f"{', '.join(some)} are not all among the leaves that were kept: {', '.join(kept)}")
        return function(jax.tree.unflatten(structure, [some.get(name, leaf) for name, leaf in named.items()]))

    return restricted, kept


@at_highest
def check_deterministic(loss, params: PyTree, *, tolerance: float = 1e-5) -> None:
    """Evaluates loss and gradient twice and refuses a loss that is not the same function of `params` both times.

    A loss that changes between two calls has no Hessian, so this comes before any measurement of one.

    The losses may differ by `tolerance` relatively, the gradients by `tolerance` times their norm: a GPU reorders sums
    by about 1e-6, dropout or another batch changes far more. `tolerance=0.0` asks for equal bits. Only differences
    between calls are detected: dropout with a fixed key, or batch statistics of one fixed batch, are deterministic and
    pass. A loss that is already jitted keeps what it read when it was traced; pass it unjitted if it reads anything but
    its argument.

    Args:
        loss: params -> one floating-point number.
        params: tree of concrete floating-point arrays.
        tolerance: relative difference that still passes, 0 or more.

    Raises:
        InputError: the two evaluations differ; the arguments are traced; else as for `hvp`.
        RunError: the loss or the gradient is not finite; the leaf is named.

    Accuracy: noise of 1e-3 is caught and a sum in another order passes; tests/curvature/test_products.py.

    Example:
        >>> curvature.check_deterministic(loss, params)
        >>> noise = np.random.default_rng(0)
        >>> curvature.check_deterministic(lambda params: loss(params) * noise.uniform(), params)
        Traceback (most recent call last):
            ...
        focalgeo.types.InputError: the loss changes from call to call (by 1.4, its size is 2.5): ...
    """
    checks.check_params("params", params)
    checks.check_interval("tolerance", tolerance, 0, float("inf"))
    if checks.is_traced(params):
        raise InputError("check_deterministic compares values; call it outside jit, vmap and grad")
    evaluate = jax.value_and_grad(checks.scalar(loss))
    for what, before, after in zip(("loss", "gradient"), evaluate(params), evaluate(params), strict=True):
        checks.check_finite_tree(what, before)
        before, after = (np.asarray(ravel(tree, layout_of(tree)), np.float64) for tree in (before, after))
        difference, size = np.linalg.norm(after - before), np.linalg.norm(before)
        # Written so that a second evaluation that is NaN is refused too.
        if not difference <= tolerance * size:
            raise InputError(
                f"the {what} changes from call to call (by {difference:.2g}, its size is {size:.2g}): "
                "switch off dropout, use batch statistics in evaluation mode, and fix the data and their order"
            )
