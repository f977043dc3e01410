"""Cross-entropy per example, with smoothed labels and with class weights; and the Brier loss."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from focalgeo.checks import (
    array_of,
    check_interval,
    in_classes,
    in_interval,
    is_traced,
    label_array,
    marked,
    number_array,
)
from focalgeo.losses.log_odds import behind_rival, labelled_rows, log_rest, margins, softplus, true_class_log_odds
from focalgeo.types import Array, InputError

_HUGE = 2.0**64  # beyond it a sum of many logits might leave float32


def cross_entropy(
    logits: Float[Array, "*batch classes"], labels: Integer[Array, "*batch"] | int
) -> Float[Array, "*batch"]:
    """Cross-entropy -log p_y in nats, with p = softmax(logits).

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; a traced one outside gives NaN, with derivatives of 0.

    Returns:
        [...] float32, non-negative. It keeps its relative accuracy where p_y rounds to 1 (the loss at a gap of 17 is
        5.7e-8, not 0), and so do its derivatives up to the third. For finite logits up to 3.4e38 all of them are
        finite, see `log_odds`; logits that are not finite give NaN. Tested in tests/losses/test_losses.py.
    """
    logits, labels, valid = labelled_rows(logits, labels)
    return marked(valid, softplus(-true_class_log_odds(logits, labels)))


def label_smoothed_cross_entropy(
    logits: Float[Array, "*batch classes"],
    labels: Integer[Array, "*batch"] | int,
    smoothing: Float[Array, "..."] | float,
) -> Float[Array, "*batch"]:
    """Cross-entropy in nats against the target (1 - a) e_y + a / classes, with a the smoothing.

    It is -log p_y + a mean_k(z_y - z_k): the smoothing adds a linear function of the logits, so that the Hessian is
    that of the cross-entropy for every a.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; a traced one outside gives NaN, with derivatives of 0.
        smoothing: Float scalar or [...] from 0 to 1, may be traced; 0 gives `cross_entropy` bit for bit. A traced one
            outside that range, whose target is no distribution, gives NaN.

    Returns:
        [...] float32, non-negative. Relative to float64 right to 2e-5 of the largest entry for the gradient and 1e-4
        for the Hessian. Tested in tests/losses/test_family.py.

    Source: Szegedy et al., arXiv 1512.00567; 0.05 in Mukhoti et al., arXiv 2002.09437.
    """
    logits, labels, valid = labelled_rows(logits, labels)
    check_interval("smoothing", smoothing, 0, 1)
    smoothing = jnp.asarray(number_array("smoothing", smoothing, labels.shape), logits.dtype)
    small, scale = _scaled_down(logits)
    is_true = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    true_logit = jnp.sum(jnp.where(is_true, small, 0), axis=-1, keepdims=True)
    loss = softplus(-true_class_log_odds(logits, labels))
    # A huge loss is the log-odds without the softplus, which alone may be cut: it is taken from the small logits.
    huge = log_rest(margins(logits, labels)) * scale - margins(small, labels).gap
    loss = jnp.where(loss > 2 * _HUGE, huge, loss * scale)
    smoothed = _scaled_up(loss + smoothing * jnp.mean(true_logit - small, axis=-1), scale)
    return marked(valid & in_interval(smoothing, 0, 1), smoothed)


def _scaled_down(logits: Array) -> tuple[Array, Array]:
    """Logits whose sum stays in range, and the power of two they are multiplied by: 1 but for huge ones."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(logits), axis=-1))
    scale = jnp.where(largest > _HUGE, 1 / _HUGE, 1).astype(logits.dtype)
    return logits * scale[..., None], scale


@jax.custom_jvp
def _scaled_up(loss: Array, scale: Array) -> Array:
    """The loss divided by the scale, cut at the largest finite number; its derivative is that of one not cut."""
    largest = jnp.finfo(loss.dtype).max
    return jnp.clip(loss / scale, -largest, largest)


@_scaled_up.defjvp
def _scaled_up_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return _scaled_up(*primals), tangents[0] / primals[1]


def brier_loss(
    logits: Float[Array, "*batch classes"], labels: Integer[Array, "*batch"] | int
) -> Float[Array, "*batch"]:
    """Brier loss sum_k (p_k - [k = y])^2, a pure number from 0 to 2, with p = softmax(logits).

    The sum runs over the classes; some programs take the mean, which is `classes` times smaller.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; a traced one outside gives NaN, with derivatives of 0.

    Returns:
        [...] float32, computed as (1 - p_y)^2 + p_o^2 (1 + sum_{k != y, o} exp(2 (z_k - z_o))) with o the strongest
        class but y, so that gradients keep their relative accuracy where one class outweighs all others, right or
        wrong. Tested in tests/losses/test_family.py.

    Source: Mukhoti et al., arXiv 2002.09437, section 5.
    """
    logits, labels, valid = labelled_rows(logits, labels)
    margin = margins(logits, labels)
    miss = jnp.exp(-2 * softplus(true_class_log_odds(logits, labels)))
    rival = jnp.exp(-2 * softplus(-true_class_log_odds(logits, margin.rival)))
    return marked(valid, miss + rival * (1 + jnp.sum(jnp.exp(2 * behind_rival(margin)), axis=-1)))


def weighted_by_class(
    losses: Float[Array, "*batch"], labels: Integer[Array, "*batch"] | int, alpha: Float[Array, " classes"]
) -> Float[Array, "*batch"]:
    """Losses times the weight of their class, alpha[y] loss, in nats.

    Args:
        losses: Float [...], one per example, of any loss here.
        labels: Int [...], from 0 to classes - 1; a traced one outside gives NaN, with derivatives of 0.
        alpha: Float [classes], finite and 0 or more (traced, others give NaN), may be traced. Ones give the losses bit
            for bit. The weights are not normalised: a mean of the result is over examples, not over weights.

    Returns:
        [...] in the losses' type. Tested in tests/losses/test_family.py.

    Source: Lin et al., arXiv 1708.02002, with one weight per class.
    """
    losses = jnp.asarray(number_array("losses", losses))
    losses = losses if jnp.issubdtype(losses.dtype, jnp.floating) else losses.astype(jnp.float32)
    check_interval("alpha", alpha, 0, jnp.inf)
    alpha = jnp.asarray(number_array("alpha", alpha), losses.dtype)
    if alpha.ndim != 1:
        raise InputError(f"alpha has shape {alpha.shape}: give one weight for each class")
    rows = jax.ShapeDtypeStruct((*losses.shape, *alpha.shape), losses.dtype)
    padding = np.asarray(array_of("labels", labels)) != -1 if is_traced(losses) and not is_traced(labels) else None
    labels = jnp.asarray(label_array(labels, rows, "losses and alpha", counted=padding))
    weight = jnp.take(alpha, labels.astype(jnp.int32), mode="clip")
    return marked(in_classes(labels, alpha.size) & in_interval(weight, 0, jnp.inf), losses * weight)
