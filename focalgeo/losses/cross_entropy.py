"""Cross-entropy per example, with smoothed labels and with class weights; and the Brier loss."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from focalgeo import checks
from focalgeo.losses.log_odds import (
    Labels,
    Logits,
    Numbers,
    PerExample,
    SoftLabels,
    behind_rival,
    class_numbers,
    difference,
    hot,
    labelled_rows,
    log_rest,
    margins,
    masked_mean,
    over_labels,
    softplus,
    true_class_log_odds,
)
from focalgeo.types import Array, InputError


@masked_mean
def cross_entropy(logits: Logits, labels: Labels | SoftLabels) -> PerExample:
    """Cross-entropy -log p_y in nats, with p = softmax(logits).

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; or float [..., classes] whose rows q sum to 1: -sum_k q_k log p_k.

    Returns:
        [...] float32, non-negative. It keeps its relative accuracy where p_y rounds to 1 (the loss at a gap of 17 is
        5.7e-8, not 0), and so do its derivatives up to the third. For finite logits up to 3.4e38 all of them are
        finite, see `log_odds`; a logit of NaN gives NaN. Tested in tests/losses/test_family.py and test_doors.py.

    Example:
        >>> print(np.asarray(losses.cross_entropy(logits, labels)).round(4))
        [0.4076 0.1698 1.1803 1.4644]
        >>> round(float(losses.cross_entropy(logits, labels, mask=labels < 2)), 4)  # the mean of the first two
        0.2887
    """
    return over_labels(lambda log_odds: softplus(-log_odds), logits, labels)


@masked_mean
def label_smoothed_cross_entropy(
    logits: Logits,
    labels: Labels,
    smoothing: Numbers,
) -> PerExample:
    """Cross-entropy in nats against the target (1 - a) e_y + a / classes, with a the smoothing.

    It is -log p_y + a mean_k(z_y - z_k): the smoothing adds a linear function of the logits, so that the Hessian is
    that of the cross-entropy for every a. The classes are those with a logit above -inf.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1.
        smoothing: Float scalar or [...] from 0 to 1, may be traced; 0 gives `cross_entropy` bit for bit.

    Returns:
        [...] float32, non-negative. Relative to float64 right to 2e-5 of the largest entry for the gradient and 1e-4
        for the Hessian. Tested in tests/losses/test_family.py.

    Source: Szegedy et al., arXiv 1512.00567; 0.05 in Mukhoti et al., arXiv 2002.09437.

    Example:
        >>> print(np.asarray(losses.label_smoothed_cross_entropy(logits, labels, 0.05)).round(4))
        [0.4576 0.2532 1.1803 1.456 ]
    """
    logits, labels = labelled_rows(logits, labels)
    checks.check_interval("smoothing", smoothing, 0, 1)
    smoothing = jnp.asarray(checks.number_array("smoothing", smoothing, labels.shape), logits.dtype)
    margin = margins(logits, labels)
    classes = jnp.sum(~jnp.isneginf(logits), axis=-1, dtype=logits.dtype)
    none = jnp.isneginf(logits) | hot(labels, logits)
    leads = jnp.where(none, 0, margin.gap[..., None] - margin.lag)  # over the other classes that can be
    loss, lead = softplus(log_rest(margin) - margin.gap), jnp.sum(leads / classes[..., None], axis=-1)
    return jnp.where(jnp.isposinf(loss), loss, difference(loss + smoothing * lead, jnp.zeros_like(loss)))


@masked_mean
def brier_loss(logits: Logits, labels: Labels) -> PerExample:
    """Brier loss sum_k (p_k - [k = y])^2, a pure number from 0 to 2, with p = softmax(logits).

    The sum runs over the classes; some programs take the mean, which is `classes` times smaller.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1.

    Returns:
        [...] float32, computed as (1 - p_y)^2 + p_o^2 (1 + sum_{k != y, o} exp(2 (z_k - z_o))) with o the strongest
        class but y, so that gradients keep their relative accuracy where one class outweighs all others, right or
        wrong. Tested in tests/losses/test_family.py.

    Source: Mukhoti et al., arXiv 2002.09437, section 5.

    Example:
        >>> print(np.asarray(losses.brier_loss(logits, labels)).round(4))
        [0.1801 0.0392 0.7712 1.0057]
    """
    logits, labels = labelled_rows(logits, labels)
    margin = margins(logits, labels)
    miss = jnp.exp(-2 * softplus(true_class_log_odds(logits, labels)))
    rival = jnp.exp(-2 * softplus(-true_class_log_odds(logits, margin.rival)))
    return miss + rival * (1 + jnp.sum(jnp.exp(2 * behind_rival(margin)), axis=-1))


def weighted_by_class(losses: PerExample, labels: Labels, alpha: Float[Array, " classes"]) -> PerExample:
    """Losses times the weight of their class, alpha[y] loss, in nats.

    Args:
        losses: Float [...], one per example, of any loss here.
        labels: Int [...], from 0 to classes - 1.
        alpha: Float [classes], finite and 0 or more, may be traced. Ones give the losses bit
            for bit. The weights are not normalised: a mean of the result is over examples, not over weights.

    Returns:
        [...] float32 (float64 for float64 losses). Tested in tests/losses/test_family.py.

    Source: Lin et al., arXiv 1708.02002, with one weight per class.

    Example:
        >>> focal, alpha = losses.focal_loss(logits, labels, 2.0), np.float32([0.5, 1, 2])
        >>> print(np.asarray(losses.weighted_by_class(focal, labels, alpha)).round(4))
        [0.0228 0.0041 1.133  1.7309]
    """
    losses, alpha = checks.floats(checks.number_array("losses", losses), checks.number_array("alpha", alpha))
    checks.check_interval("alpha", alpha, 0)
    checks.check_array("alpha", alpha, shape=(None,))
    if not checks.is_traced(labels) and np.max(labels, initial=0) >= alpha.size:
        what = f"alpha holds {alpha.size} weights, fewer than there are classes among the labels"
        raise InputError(f"{what}: give a weight for each class, in the order of the logits' columns")
    rows = jax.ShapeDtypeStruct((*losses.shape, *alpha.shape), losses.dtype)
    labels = class_numbers(labels, rows, "losses and alpha", traced=checks.is_traced(losses))
    return losses * jnp.take(alpha, labels, mode="clip")
