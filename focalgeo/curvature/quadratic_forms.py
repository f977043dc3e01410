"""Quadratic forms v' A v without a product A v: parts of v' H v, and samples of many traces at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from focalgeo.checks import check_key, count, described, is_traced
from focalgeo.curvature.arguments import (
    MOST_PRODUCTS,
    check_bytes,
    check_callable,
    check_finite_tree,
    check_matches,
    check_params,
    scalar,
)
from focalgeo.curvature.matvec import flat_matvec, layout_of, unravel
from focalgeo.curvature.traces import sign_probe
from focalgeo.precision import at_highest
from focalgeo.types import Array, InputError, PyTree


class Parts(NamedTuple):
    """The two parts of v' H v, which sum to it."""

    gauss_newton: Array  # of the loss in the outputs, zdot' H_out zdot
    residual: Array  # of the network, grad_z L . zddot


@at_highest
def quadratic_parts(
    network: Callable[[PyTree], PyTree],
    losses: Mapping[str, Callable[[PyTree], Array]],
    params: PyTree,
    vector: PyTree,
) -> dict[str, Parts]:
    """The parts of v' H v = zdot' H_out zdot + grad_z L . zddot, for every loss L of the outputs z(params) at once.

    zdot and zddot are the network's first two derivatives along v. One forward pass of second order gives both, and no
    reverse pass is made; further losses cost nothing beside it. The first part is the Gauss-Newton part: it is never
    negative for cross-entropy, but may be for focal loss. The second, the residual, vanishes in the trace of a network
    whose outputs are linear in each single parameter, as with ReLU and batch norm in evaluation mode.

    Args:
        network: params -> tree of outputs (logits of all examples, say).
        losses: name -> function of those outputs that gives one floating-point number.
        params: tree of floating-point arrays.
        vector: tree of the same structure and shapes.

    Returns:
        name -> Parts of scalars, in the unit of the loss times the vector's squared.

    Raises:
        InputError: losses are no dict of functions, a loss is not scalar, `params` is empty or holds integers, or
            `vector` does not match.

    Accuracy: float rounding; against dense float64 matrices in tests/curvature/test_quadratic_forms.py.

    Source: Schraudolph, Fast curvature matrix-vector products for second-order gradient descent (2002).
    """
    check_params(params)
    check_matches(vector, params)
    check_callable(network, name="network")
    if not isinstance(losses, Mapping) or not losses:
        raise InputError("losses is no dict of at least one function; give {name: function of the outputs}")

    def along(point: PyTree) -> tuple[PyTree, PyTree]:
        return jax.jvp(network, (point,), (vector,))

    (outputs, first), (_, second) = jax.jvp(along, (params,), (vector,))
    return {
        name: Parts(_second_derivative(scalar(loss), outputs, first), jax.jvp(scalar(loss), (outputs,), (second,))[1])
        for name, loss in losses.items()
    }


def _second_derivative(loss: Callable, outputs: PyTree, tangent: PyTree) -> Array:
    def slope(point: PyTree) -> Array:
        return jax.jvp(loss, (point,), (tangent,))[1]

    return jax.jvp(slope, (outputs,), (tangent,))[1]


def trace_samples(
    form: Callable[[PyTree], PyTree],
    like: PyTree,
    key: Array,
    num_samples: int,
    *,
    basis: Float[Array, "rows size"] | None = None,
) -> PyTree:
    """Unbiased samples of Tr A for every quadratic form v' A v that `form` returns, all from the same sign vectors.

    A sample is sum_i q_i' A q_i + w' A w, with q_i the rows of `basis` and w a sign vector projected away from them.
    The first sum is exact, and the better the basis spans the large eigenvalues, the less the samples scatter. What is
    linear in the forms holds sample by sample: parts of a form sum to the whole, and differences carry the error of a
    difference. To be called outside jit: the loop is Python's.

    Args:
        form: tree -> tree of scalars, each quadratic in its argument; jitted for speed by the caller.
        like: tree of arrays with the shapes and dtypes that `form` takes; its values are not used.
        key: PRNG key of the probes.
        num_samples: number of samples, 1 to 100,000; `form` is called once for each, and once for each row of `basis`.
        basis: orthonormal rows [rows, dimension] in the order of `ravel_pytree`, as `dominant_basis` gives; None: none.

    Returns:
        The tree that `form` returns, its leaves NumPy arrays [num_samples]; `sample_mean` makes estimates of them.

    Raises:
        InputError: num_samples out of range, `like` is empty or not floating-point, `basis` has another shape, `form`
            gives something else than scalars, or a value is traced.
        RunError: a value of `form` is not finite.

    Accuracy: the mean over all sign vectors is the trace; tests/curvature/test_quadratic_forms.py.

    Source: Hutchinson (1990); the exact part as in Meyer et al., Hutch++ (2021).
    """
    check_params(like, name="like")
    check_key(key)
    check_callable(form, name="form")
    num_samples = count("num_samples", num_samples, 1, MOST_PRODUCTS)
    layout = layout_of(like)
    if basis is not None and (np.ndim(basis) != 2 or np.shape(basis)[1] != layout.size):
        raise InputError(f"basis is {described(basis)}; give rows of {layout.size} numbers, as dominant_basis does")
    form = _checked_form(form)
    probes = (unravel(sign_probe(key, jnp.int32(index), basis, layout=layout), layout) for index in range(num_samples))
    samples = _gathered([form(probe) for probe in probes])
    if basis is None:
        return samples
    inside = _gathered([form(unravel(row, layout)) for row in basis])
    return jax.tree.map(lambda each, exact: each + exact.sum(), samples, inside)


def dominant_basis(
    matvecs: Sequence[Callable], like: PyTree, key: Array, num_products: int
) -> Float[Array, "rows size"]:
    """Orthonormal rows that span products of the matvecs with random signs: mostly their largest eigenvectors.

    Args:
        matvecs: symmetric linear maps, tree -> tree; each makes `num_products` products.
        like: tree of arrays with the shapes and dtypes that they take; its values are not used.
        key: PRNG key of the signs.
        num_products: 1 to 100,000.

    Returns:
        [rows, dimension], rows at most len(matvecs) * num_products and at most the dimension.

    Raises:
        InputError: no matvec, num_products out of range or more than memory holds, `like` is empty or not
            floating-point, or a product that is no tree like its vector.
        RunError: a concrete product is not finite; the leaf is named.

    Accuracy: orthonormal to rounding; tests/curvature/test_quadratic_forms.py.

    Source: Meyer et al., Hutch++ (2021), the sketch of Algorithm 1.
    """
    check_params(like, name="like")
    check_key(key)
    num_products = count("num_products", num_products, 1, MOST_PRODUCTS)
    if not isinstance(matvecs, Sequence) or not matvecs:
        raise InputError(f"matvecs is {type(matvecs).__name__}; give a list of at least one function")
    layout = layout_of(like)
    products = [flat_matvec(matvec, layout) for matvec in matvecs]
    share = max(1, min(num_products, layout.size // len(products)))
    needed = (2 * len(products) + 1) * share * layout.nbytes
    check_bytes(needed, what=f"{len(products)} x {share} vectors of {layout.size} numbers for num_products")
    signs = jax.random.rademacher(key, (share, layout.size), layout.dtype)
    return _span([product(row) for product in products for row in signs][: layout.size])


@jax.jit
def _span(rows: list[Array]) -> Float[Array, "rows size"]:
    return jnp.linalg.qr(jnp.stack(rows).T)[0].T


def _checked_form(form: Callable) -> Callable:
    form = at_highest(form)

    def checked(vector: PyTree) -> PyTree:
        values = form(vector)
        for path, leaf in jax.tree_util.tree_leaves_with_path(values):
            if np.shape(leaf) != ():
                where = jax.tree_util.keystr(path)
                raise InputError(f"form returns {described(leaf)}{f' at {where}' if where else ''}, not one number")
        if is_traced(values):
            raise InputError("trace_samples gathers values; call it outside jit, vmap and grad, or use trace there")
        check_finite_tree(values, name="a value of form")
        return values

    return checked


def _gathered(values: list[PyTree]) -> PyTree:
    """Each leaf's values as one array on the host, where the few numbers that are left cost no compilation."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(values))
