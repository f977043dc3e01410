"""MMCE: penalties on a batch that measure its miscalibration by a kernel on confidence."""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Integer

from focalgeo.losses.log_odds import in_float32, softplus, true_class_log_odds
from focalgeo.types import Array

WIDTH = 0.4  # of the Laplacian kernel exp(-|r_i - r_j| / WIDTH)


def mmce(
    logits: Float[Array, "examples classes"],
    labels: Integer[Array, " examples"],
    mask: Bool[Array, " examples"] | None = None,
) -> Float[Array, ""]:
    """Maximum mean calibration error sqrt(sum_ij (c_i - r_i)(c_j - r_j) k(r_i, r_j)) / m, a pure number from 0 to 1.

    r is the largest softmax probability, c is 1 where its class is the label, k(r, s) = exp(-|r - s| / 0.4), m counts
    the examples. Memory and time grow with m^2.

    Args:
        logits: Float [examples, classes]; bfloat16 and float16 are computed in float32.
        labels: Int [examples].
        mask: Bool [examples]; False counts for nothing, whatever its logits. All False gives 0.

    Returns:
        Scalar float32. First and second derivatives are finite; where the penalty is 0, at the tip of a cone, they are
        given as 0. Tested in tests/losses/test_kernel.py.

    Source: Kumar et al., ICML 2018. The code published with arXiv 2002.09437 leaves the square root out
    (the square of this value) and multiplies by the batch size.
    """
    confidence, residual, _, mask = _residuals(logits, labels, mask)
    return _kernel_norm(residual / jnp.maximum(jnp.sum(mask.astype(residual.dtype)), 1), confidence)


def weighted_mmce(
    logits: Float[Array, "examples classes"],
    labels: Integer[Array, " examples"],
    mask: Bool[Array, " examples"] | None = None,
) -> Float[Array, ""]:
    """Weighted MMCE: as `mmce`, with residuals of right and wrong examples averaged separately, a pure number.

    sqrt(sum_ij u_i u_j k(r_i, r_j)) with u_i = (1 - r_i) / n_right where right and -r_i / n_wrong where wrong. A kind
    that is absent from the batch adds nothing.

    Args:
        logits: Float [examples, classes]; bfloat16 and float16 are computed in float32.
        labels: Int [examples].
        mask: Bool [examples]; False counts for nothing, whatever its logits. All False gives 0.

    Returns:
        Scalar float32. Derivatives as for `mmce`. Tested in tests/losses/test_kernel.py.

    Source: Kumar et al., ICML 2018. The code published with arXiv 2002.09437 divides by the squared counts
    twice, which gives 0.0801 where this gives 0.2723 on the papers' example.
    """
    confidence, residual, right, mask = _residuals(logits, labels, mask)
    num_right = jnp.sum((right & mask).astype(residual.dtype))
    num_wrong = jnp.sum((~right & mask).astype(residual.dtype))
    return _kernel_norm(residual / jnp.maximum(jnp.where(right, num_right, num_wrong), 1), confidence)


def _residuals(logits, labels, mask):
    """Confidence, correctness minus confidence (from the log-odds, exact where confidence rounds to 1), right, mask."""
    logits = in_float32(logits)
    mask = jnp.ones(logits.shape[:-1], bool) if mask is None else jnp.asarray(mask, bool)
    logits = jnp.where(mask[..., None], logits, 0)
    top = jnp.argmax(logits, axis=-1)
    right = top == jnp.asarray(labels, top.dtype)
    log_odds = true_class_log_odds(logits, top)
    confidence = jnp.exp(-softplus(-log_odds))
    residual = jnp.where(right, jnp.exp(-softplus(log_odds)), -confidence)
    return confidence, jnp.where(mask, residual, 0), right, mask


def _kernel_norm(residual, confidence):
    """The norm sqrt(u^T K u), with u scaled to 1 first: its square would leave float32 where all are confident."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(residual)))
    scaled = residual / jnp.where(largest > 0, largest, 1)
    kernel = jnp.exp(-jnp.abs(confidence[:, None] - confidence[None, :]) / WIDTH)
    square = jnp.vdot(scaled, jnp.matmul(kernel, scaled, precision="highest"), precision="highest")
    positive = square > 0
    return jnp.where(positive, largest * jnp.sqrt(jnp.where(positive, square, 1)), 0)
