"""Exact matrix-vector products with the Hessian and the Gauss-Newton matrix, and the dense Hessian as their oracle."""

import jax
import jax.numpy as jnp

from focalgeo.curvature.arguments import check_matches, check_params, scalar
from focalgeo.curvature.flattening import layout_of, ravel, unravel
from focalgeo.types import Array, InputError, PyTree

DENSE_LIMIT = 5000
DENSE_ROWS_AT_ONCE = 64


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


def linearized_hvp(loss, params: PyTree):
    """The function v -> H v with the gradient linearised once, for many products at one point.

    It keeps the gradient's intermediate values in memory for as long as it lives, and recomputes none of them.

    Args:
        loss: params -> one floating-point number.
        params: tree of floating-point arrays.

    Returns:
        matvec: tree -> tree, to be jitted by the caller or not.

    Raises:
        InputError: as for `hvp`.

    Accuracy: equal to `hvp` up to rounding; tests/curvature/test_products.py.
    """
    check_params(params)
    return jax.linearize(jax.grad(scalar(loss)), params)[1]


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
    predictions, pull_back = jax.vjp(outputs, params)
    tangent = jax.jvp(outputs, (params,), (vector,))[1]
    return pull_back(hvp(output_loss, predictions, tangent))[0]


def dense_hessian(loss, params: PyTree) -> Array:
    """The whole Hessian as a matrix [n, n], rows and columns in the order of `jax.flatten_util.ravel_pytree`.

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
