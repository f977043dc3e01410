"""MMCE: penalties on a batch that measure its miscalibration by a kernel on confidence."""

import jax
import jax.numpy as jnp

from focalgeo import checks
from focalgeo.losses.log_odds import above_infinity, softplus, true_class_log_odds
from focalgeo.types import Array

WIDTH = 0.4  # of the Laplacian kernel exp(-|r_i - r_j| / WIDTH)


def mmce(
    logits: Array,
    labels: Array,
    mask: Array | None = None,
) -> Array:
    """Maximum mean calibration error sqrt(sum_ij (c_i - r_i)(c_j - r_j) k(r_i, r_j)) / m, a pure number from 0 to 1.

    r is the largest softmax probability, c is 1 where its class is the label, k(r, s) = exp(-|r - s| / 0.4), m counts
    the examples. Memory and time grow with m^2.

    Args:
        logits: Float [examples, classes]; bfloat16 and float16 are computed in float32.
        labels: Int [examples], from 0 to classes - 1.
        mask: Bool [examples]; False counts for nothing, whatever its logits and label.

    Returns:
        Scalar float32. First and second derivatives are finite; where the penalty is 0, at the tip of a cone, they are
        given as 0. Tested in tests/losses/test_kernel.py.

    Source: Kumar et al., ICML 2018. The code published with arXiv 2002.09437 leaves the square root out
    (the square of this value) and multiplies by the batch size.

    Example:
        >>> round(float(losses.mmce(logits, labels)), 4)
        0.1819
    """
    return _kernel_norm(logits, labels, mask, lambda right, wrong: jnp.sum(right + wrong))


def weighted_mmce(
    logits: Array,
    labels: Array,
    mask: Array | None = None,
) -> Array:
    """Weighted MMCE: as `mmce`, with residuals of right and wrong examples averaged separately, a pure number.

    sqrt(sum_ij u_i u_j k(r_i, r_j)) with u_i = (1 - r_i) / n_right where right and -r_i / n_wrong where wrong. A kind
    that is absent from the batch adds nothing.

    Args:
        logits: Float [examples, classes]; bfloat16 and float16 are computed in float32.
        labels: Int [examples], from 0 to classes - 1.
        mask: Bool [examples]; False counts for nothing, whatever its logits and label.

    Returns:
        Scalar float32. Derivatives as for `mmce`. Tested in tests/losses/test_kernel.py.

    Source: Kumar et al., ICML 2018. The code published with arXiv 2002.09437 divides by the squared counts
    twice, which gives 0.0801 where this gives 0.2723 on the papers' example.

    Example:
        >>> round(float(losses.weighted_mmce(logits, labels)), 4)
        0.3639
    """
    return _kernel_norm(logits, labels, mask, lambda right, wrong: jnp.where(right > 0, jnp.sum(right), jnp.sum(wrong)))


def _kernel_norm(logits, labels, mask, count):
    """The norm sqrt(u' K u) of residuals u, correctness minus confidence, divided by count(right, wrong).

    right and wrong are 1 or 0 for each example, both 0 where the mask leaves it out.
    """
    logits = above_infinity(checks.score_rows("logits", logits))
    examples = checks.predicted_logits(logits, labels, mask, stacklevel=4)
    top = jnp.argmax(examples.rows, axis=-1)
    is_right, counts = top == jnp.asarray(examples.labels, top.dtype), examples.weight > 0
    log_odds = true_class_log_odds(examples.rows, top)
    confidence = jnp.exp(-softplus(-log_odds))
    # 1 - confidence from the log-odds, which keep it where confidence rounds to 1
    residual = jnp.where(is_right, jnp.exp(-softplus(log_odds)), -confidence)
    right, wrong = ((counts & kind).astype(residual.dtype) for kind in (is_right, ~is_right))
    residual = jnp.where(counts, residual, 0) / jnp.maximum(count(right, wrong), 1)
    # Scaled to 1 first: where all are confident the square would leave float32.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(residual)))
    scaled = residual / jnp.where(largest > 0, largest, 1)
    kernel = jnp.exp(-jnp.abs(confidence[:, None] - confidence[None, :]) / WIDTH)
    square = jnp.vdot(scaled, jnp.matmul(kernel, scaled, precision="highest"), precision="highest")
    positive = square > 0
    return jnp.where(positive, largest * jnp.sqrt(jnp.where(positive, square, 1)), 0)
