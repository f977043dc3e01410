"""Products with the Fisher information of a softmax classifier."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from focalgeo.curvature.arguments import check_matches, check_params
from focalgeo.curvature.products import ggn_vp
from focalgeo.types import Array, InputError, PyTree


def fisher_vp(logits: Callable[[PyTree], Array], params: PyTree, vector: PyTree, *, key: Array | None = None) -> PyTree:
    """Fisher product F v, F the mean over examples of J' (diag p - p p') J, J the Jacobian of an example's logits.

    The labels are the model's own, not the data's: this is not the "empirical Fisher". It is the Gauss-Newton matrix of
    cross-entropy, never negative, and so the part to take where a solver needs that: the Gauss-Newton matrix of the
    focal loss is another, with negative eigenvalues where p_y is small, and the Hessian is another again.

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

    Accuracy: float rounding; against dense float64 in tests/curvature/test_fisher.py.

    Source: Martens, New insights and perspectives on the natural gradient method (2020), sections 5 and 9.
    """
    logits = _with_classes(logits)
    if key is None:
        return ggn_vp(logits, _mean_log_partition, params, vector)
    check_params(params)
    check_matches(vector, params)
    outputs, pull_back = jax.vjp(logits, params)
    tangent = jax.jvp(logits, (params,), (vector,))[1]
    labels = jax.random.categorical(key, outputs)
    drawn = jax.nn.one_hot(labels, outputs.shape[-1], dtype=bool)
    others = jnp.where(drawn, 0, jax.nn.softmax(outputs))
    gradient = jnp.where(
        drawn, -jnp.sum(others, axis=-1, keepdims=True), others
    )  # p - 1 would be 0 where p rounds to 1
    slope = jnp.sum(gradient * tangent, axis=-1, keepdims=True)
    return pull_back(gradient * slope / labels.size)[0]


def _mean_log_partition(logits: Array) -> Array:
    """Cross-entropy but for the true class's logit, which is linear and adds nothing to a second derivative."""
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1))


def _with_classes(logits: Callable[[PyTree], Array]) -> Callable[[PyTree], Array]:
    def checked(params: PyTree) -> Array:
        outputs = logits(params)
        if getattr(outputs, "ndim", 0) < 1:
            raise InputError("the function of the logits returns no array [..., classes]; return the logits, no loss")
        return outputs

    return checked
