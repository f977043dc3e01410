"""Cross-entropy per example, with smoothed labels and with class weights; and the Brier loss."""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Integer

from focalgeo.losses.log_odds import behind_rival, in_float32, margins, softplus, true_class_log_odds
from focalgeo.types import Array


def cross_entropy(
    logits: Float[Array, "*batch classes"], labels: Integer[Array, "*batch"] | int
) -> Float[Array, "*batch"]:
    """Cross-entropy -log p_y in nats, with p = softmax(logits).

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; what lies outside gives a meaningless finite value.

    Returns:
        [...] float32, non-negative. It keeps its relative accuracy where p_y rounds to 1 (the loss at a gap of 17 is
        5.7e-8, not 0), and so do its derivatives up to the third. Tested in tests/losses/test_losses.py.
    """
    return softplus(-true_class_log_odds(logits, labels))


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
        labels: Int [...], from 0 to classes - 1; what lies outside gives a meaningless finite value.
        smoothing: Float scalar or [...] from 0 to 1, may be traced; 0 gives `cross_entropy` bit for bit. Outside that
            range the formula is followed, though its target is no distribution.

    Returns:
        [...] float32, non-negative. Relative to float64 right to 2e-5 of the largest entry for the gradient and 1e-4
        for the Hessian. Tested in tests/losses/test_family.py.

    Source: Szegedy et al., arXiv 1512.00567; 0.05 in Mukhoti et al., arXiv 2002.09437.
    """
    logits = in_float32(logits)
    is_true = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    true_logit = jnp.sum(jnp.where(is_true, logits, 0), axis=-1, keepdims=True)
    return cross_entropy(logits, labels) + jnp.asarray(smoothing, logits.dtype) * jnp.mean(true_logit - logits, axis=-1)


def brier_loss(
    logits: Float[Array, "*batch classes"], labels: Integer[Array, "*batch"] | int
) -> Float[Array, "*batch"]:
    """Brier loss sum_k (p_k - [k = y])^2, a pure number from 0 to 2, with p = softmax(logits).

    The sum runs over the classes; some programs take the mean, which is `classes` times smaller.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; what lies outside gives a meaningless finite value.

    Returns:
        [...] float32, computed as (1 - p_y)^2 + p_o^2 (1 + sum_{k != y, o} exp(2 (z_k - z_o))) with o the strongest
        class but y, so that gradients keep their relative accuracy where one class outweighs all others, right or
        wrong. Tested in tests/losses/test_family.py.

    Source: Mukhoti et al., arXiv 2002.09437, section 5.
    """
    margin = margins(logits, labels)
    miss = jnp.exp(-2 * softplus(true_class_log_odds(logits, labels)))
    rival = jnp.exp(-2 * softplus(-true_class_log_odds(logits, margin.rival)))
    return miss + rival * (1 + jnp.sum(jnp.exp(2 * behind_rival(margin)), axis=-1))


def weighted_by_class(
    losses: Float[Array, "*batch"], labels: Integer[Array, "*batch"] | int, alpha: Float[Array, " classes"]
) -> Float[Array, "*batch"]:
    """Losses times the weight of their class, alpha[y] loss, in nats.

    Args:
        losses: Float [...], one per example, of any loss here.
        labels: Int [...], from 0 to classes - 1; what lies outside takes the nearest class's weight.
        alpha: Float [classes], 0 or more, may be traced. Ones give the losses bit for bit. The weights are not
            normalised: a mean of the result is over examples, not over weights.

    Returns:
        [...] in the losses' type. Tested in tests/losses/test_family.py.

    Source: Lin et al., arXiv 1708.02002, with one weight per class.
    """
    losses = jnp.asarray(losses)
    return losses * jnp.take(jnp.asarray(alpha, losses.dtype), jnp.asarray(labels, jnp.int32), mode="clip")
