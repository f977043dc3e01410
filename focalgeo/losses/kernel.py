"""MMCE: penalties on a batch that measure its miscalibration by a kernel on confidence."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer

from focalgeo.checks import TABLE, array_of, is_traced, label_array, marked, mask_array, score_rows
from focalgeo.losses.log_odds import softplus, true_class_log_odds, valid_rows
from focalgeo.types import Array, InputError

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
        labels: Int [examples], from 0 to classes - 1.
        mask: Bool [examples]; False counts for nothing, whatever its logits and label. All False gives 0.

    Returns:
        Scalar float32. First and second derivatives are finite; where the penalty is 0, at the tip of a cone, they are
        given as 0. Logits that are not finite, or a traced label outside, give NaN where they count. Tested in
        tests/losses/test_kernel.py.

    Source: Kumar et al., ICML 2018. The code published with arXiv 2002.09437 leaves the square root out
    (the square of this value) and multiplies by the batch size.
    """
    given, mask = _checked(logits, labels, mask)
    confidence, residual, _ = _residuals(given, mask)
    norm = _kernel_norm(residual / jnp.maximum(jnp.sum(mask.astype(residual.dtype)), 1), confidence)
    return marked(jnp.all(given.valid | ~mask), norm)


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
        labels: Int [examples], from 0 to classes - 1.
        mask: Bool [examples]; False counts for nothing, whatever its logits and label. All False gives 0.

    Returns:
        Scalar float32. Derivatives as for `mmce`. Tested in tests/losses/test_kernel.py.

    Source: Kumar et al., ICML 2018. The code published with arXiv 2002.09437 divides by the squared counts
    twice, which gives 0.0801 where this gives 0.2723 on the papers' example.
    """
    given, mask = _checked(logits, labels, mask)
    confidence, residual, right = _residuals(given, mask)
    num_right = jnp.sum((right & mask).astype(residual.dtype))
    num_wrong = jnp.sum((~right & mask).astype(residual.dtype))
    norm = _kernel_norm(residual / jnp.maximum(jnp.where(right, num_right, num_wrong), 1), confidence)
    return marked(jnp.all(given.valid | ~mask), norm)


def _checked(logits, labels, mask):
    """The rows, and the mask as truth values; what it leaves out may hold anything."""
    table = score_rows("logits", logits, shape=TABLE)
    if len(table) == 0:
        raise InputError("logits and labels are empty: give at least one example")
    mask = mask_array(mask, array_of("labels", labels))
    labels = label_array(labels, table, "logits", counted=mask)
    if mask is not None and mask.dtype != bool and not is_traced(mask) and not np.isin(np.asarray(mask), (0, 1)).all():
        raise InputError("mask holds counts: give truth values, every example counts once")
    mask = jnp.ones(len(table), bool) if mask is None else jnp.asarray(mask).astype(bool)
    return valid_rows(table, labels), mask


def _residuals(given, mask):
    """Confidence, correctness minus confidence (from the log-odds, exact where confidence rounds to 1), right."""
    logits = jnp.where(mask[..., None], given.logits, 0)
    top = jnp.argmax(logits, axis=-1)
    right = top == jnp.asarray(given.labels, top.dtype)
    log_odds = true_class_log_odds(logits, top)
    confidence = jnp.exp(-softplus(-log_odds))
    residual = jnp.where(right, jnp.exp(-softplus(log_odds)), -confidence)
    return confidence, jnp.where(mask, residual, 0), right


def _kernel_norm(residual, confidence):
    """The norm sqrt(u^T K u), with u scaled to 1 first: its square would leave float32 where all are confident."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(residual)))
    scaled = residual / jnp.where(largest > 0, largest, 1)
    kernel = jnp.exp(-jnp.abs(confidence[:, None] - confidence[None, :]) / WIDTH)
    square = jnp.vdot(scaled, jnp.matmul(kernel, scaled, precision="highest"), precision="highest")
    positive = square > 0
    return jnp.where(positive, largest * jnp.sqrt(jnp.where(positive, square, 1)), 0)
