"""Losses per example: cross-entropy, also smoothed and by class weights, Brier, and focal losses with their bound."""

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

    Source: Mukhoti et al., ICLR 2020 submission, section 5.

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

    The model learns P(k) in proportion to alpha_k: `calibration.focal_calibration` says how to undo it.

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


@masked_mean
def focal_loss(logits: Logits, labels: Labels | SoftLabels, gamma: Numbers) -> PerExample:
    """Focal loss -(1 - p_y)^gamma log p_y in nats, with p = softmax(logits).

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; or float [..., classes] whose rows q sum to 1, which gives the
            expected loss -sum_k q_k (1 - p_k)^gamma log p_k.
        gamma: Float scalar or [...], 0 or more; it may be traced and differentiated. Zero gives `cross_entropy` bit
            for bit. Below zero the loss is not convex and its gradient in p has no bound: not a loss to train with.

    Returns:
        [...] float32, non-negative, computed as exp(gamma log(1 - p_y)) times -log p_y from the log-odds. Value and
        derivatives up to the third are finite for any finite logits, up to 3.4e38 (see `log_odds`), where the power of
        a rounded 1 - p gives NaN for gamma < 1. Relative to
        float64 the gradient is right to 2e-5, the Hessian to 1e-4, down to where float32 underflows.
        Tested in tests/losses/test_family.py and test_doors.py.

    Source: Mukhoti et al., ICLR 2020 submission, section 4; Kimura & Naganuma, arXiv 2405.00442, Eq. 3.

    Example:
        >>> print(np.asarray(losses.focal_loss(logits, labels, 2.0)).round(4))
        [0.0457 0.0041 0.5665 0.8655]
        >>> slope = jax.grad(losses.focal_loss, argnums=2)(logits[0], 0, 2.0)  # by gamma
        >>> round(float(slope), 4)
        -0.05
    """
    return over_labels(lambda r: _weighted(r, _finite(gamma, r[..., None]) * -softplus(r)), logits, labels)


def sigmoid_focal_loss(
    logits: Logits,
    labels: Array,
    gamma: Numbers,
    alpha: Numbers | None = None,
    mask: Array | None = None,
) -> SoftLabels | PerExample:
    """Focal loss of classes that may be right together, -a (1 - p)^gamma log p in nats, p = sigmoid(+-logit).

    The sign is + where the label is 1, and a is alpha there, 1 - alpha where it is 0; without alpha it is 1. A label t
    between them gives the expected loss, t times that of 1 and 1 - t times that of 0, as soft labels of `focal_loss` do
    (torchvision and optax multiply the cross-entropy of t by (1 - t p - (1 - t)(1 - p))^gamma).

    With alpha the optimum is not P(1) = p but a p / (a p + (1 - a)(1 - p)) behind the map of gamma: after
    `calibration.focal_calibration` take log(alpha / (1 - alpha)) from the log-odds, or fit `platt_scaling`.

    Args:
        logits: Float [..., classes], log-odds; bfloat16 and float16 are computed in float32.
        labels: Int [..., classes], 0 or 1; or float [..., classes] from 0 to 1.
        gamma: Float scalar or [..., classes], 0 or more, may be traced.
        alpha: Float scalar from 0 to 1.
        mask: Truth values or weights [...] or [..., classes]; what has weight 0 may hold anything.

    Returns:
        [..., classes] float32, with a mask its mean: `focal_loss` of the two logits 0 and the log-odds, as accurate.
        Tested in tests/losses/test_doors.py.

    Source: Lin et al., arXiv 1708.02002, Eq. 5.

    Example:
        >>> both = np.array([1, 1, 0])  # of three labels the first two
        >>> print(np.asarray(losses.sigmoid_focal_loss(logits[0], both, 2.0, alpha=0.25)).round(4))
        [0.0005 0.0057 0.13  ]
        >>> print(np.asarray(losses.sigmoid_focal_loss(logits[0], np.float32([0.9, 1, 0.2]), 2.0)).round(4))
        [0.1666 0.0227 0.1733]
    """
    logits, labels = jnp.asarray(checks.array_of("logits", logits)), checks.array_of("labels", labels)
    checks.check_array(f"labels for logits {logits.shape}", labels, shape=logits.shape, dtype=np.number)
    if alpha is not None:
        checks.check_interval("alpha", alpha, 0, 1)
    if mask is not None and jnp.ndim(mask := checks.array_of("mask", mask)) < logits.ndim:
        mask = jnp.repeat(jnp.asarray(mask)[..., None], logits.shape[-1], axis=-1)

    def losses(two, labels):
        share, two = checks.floats(labels, two)
        weight = 1 if alpha is None else share * alpha + (1 - share) * (1 - alpha)
        if jnp.issubdtype(labels.dtype, jnp.floating):
            checks.check_interval("labels", labels, 0, 1)
            if alpha is not None:
                share = jnp.where(weight > 0, share * alpha / weight, share)
            share = jnp.where((labels >= 0) & (labels <= 1), share, jnp.nan)  # a traced one is not refused
            labels = jnp.stack([1 - share, share], axis=-1)
        return weight * focal_loss(two, labels, gamma)

    return masked_mean(losses)(jnp.stack([jnp.zeros_like(logits), logits], axis=-1), labels, mask=mask)


def _weighted(log_odds, exponent):
    """Cross-entropy of the log-odds times exp(exponent).

    The exponent is 0 where p_y underflows, as it is there with its derivatives, which a huge loss would multiply.
    """
    in_reach = log_odds > 1.25 * jnp.log(jnp.finfo(log_odds.dtype).tiny)
    return jnp.exp(jnp.where(in_reach, exponent, 0)) * softplus(-log_odds)


def _finite(gamma, logits):
    """Gamma in the type of the logits [..., classes]: a finite scalar, or one for each row."""
    checks.check_finite("gamma", gamma)
    return jnp.asarray(checks.number_array("gamma", gamma, logits.shape[:-1]), logits.dtype)


@masked_mean
def signed_focal_loss(logits: Logits, labels: Labels, gamma: Numbers) -> PerExample:
    """Focal loss for gamma >= 0 and its inverse -(1 + p_y)^|gamma| log p_y for gamma < 0, in nats.

    The branch below zero is not the focal loss's own formula at a negative gamma, which has no bounded gradient in p.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1.
        gamma: Float scalar or [...] of either sign, may be traced. Zero gives `cross_entropy` bit for bit, and above
            zero `focal_loss` bit for bit.

    Returns:
        [...] float32, non-negative. The branches are joined in the exponent, where both are finite for all logits, so
        that the branch not taken never reaches a derivative as NaN. Tested in tests/losses/test_family.py.

    Source: Ghosh et al., AdaFocal, arXiv 2211.11838, the inverse-focal loss; the published code uses 1 + p.

    Example:
        >>> gamma = np.float32([2, 0, -2, -2])  # of each example its own
        >>> print(np.asarray(losses.signed_focal_loss(logits, labels, gamma)).round(4))
        [0.0457 0.1698 2.0168 2.2199]
    """
    logits, labels = labelled_rows(logits, labels)
    gamma, log_odds = _finite(gamma, logits), true_class_log_odds(logits, labels)
    log_one_plus_p = jnp.log1p(jnp.exp(-softplus(-log_odds)))
    exponent = jnp.where(gamma >= 0, gamma * -softplus(log_odds), -gamma * log_one_plus_p)
    return _weighted(log_odds, exponent)


@masked_mean
def dual_focal_loss(logits: Logits, labels: Labels, gamma: Numbers) -> PerExample:
    """Dual focal loss -(1 - p_y + p_j)^gamma log p_y in nats; p_j is the largest probability strictly below p_y.

    Where no class lies strictly below p_y, p_j is 0. Ties with the true class are left out, as in the published code;
    they are decided on the logits, where float32 distinguishes more classes than on the probabilities. The choice of j
    jumps at ties, and so does the loss.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1.
        gamma: Float scalar or [...], 0 or more, may be traced. Zero gives `cross_entropy` bit for bit.

    Returns:
        [...] float32, non-negative, finite through second derivatives: 1 - p_y + p_j is (1 - p_y)(1 + w_j) with w_j the
        share of j among the classes but y. Tested in tests/losses/test_family.py.

    Source: Tao et al., arXiv 2305.13665.

    Example:
        >>> print(np.asarray(losses.dual_focal_loss(logits, labels, 2.0)).round(4))
        [0.1369 0.0124 0.9122 1.21  ]
    """
    logits, labels = labelled_rows(logits, labels)
    gamma = _finite(gamma, logits)
    margin = margins(logits, labels)
    rest = log_rest(margin)
    true_logit = jnp.sum(jnp.where(hot(labels, logits), logits, 0), axis=-1, keepdims=True)
    below = ~jnp.isneginf(logits) & (logits < true_logit)
    nearest = jnp.argmax(jnp.where(below, logits, -jnp.inf), axis=-1)
    lag = jnp.sum(jnp.where(below & hot(nearest, logits), margin.lag, 0), axis=-1)
    share = jnp.where(jnp.any(below, axis=-1), jnp.exp(lag - rest), 0)  # of j among the classes but y
    return _weighted(margin.gap - rest, gamma * (jnp.log1p(share) - softplus(margin.gap - rest)))


# A logit so far behind the largest has no probability in float32.
_FAR = 200.0


@masked_mean
def confidence_penalised_cross_entropy(logits: Logits, labels: Labels, gamma: Numbers) -> PerExample:
    """Cross-entropy and gamma KL(p || uniform), -log p_y + gamma (log classes - H(p)), in nats; H is the entropy of p.

    Focal loss is at least this less gamma log classes, since (1 - p_y)^gamma >= 1 - gamma p_y (gamma >= 1).

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1.
        gamma: Float scalar or [...], 0 or more, may be traced. Zero gives `cross_entropy` bit for bit.

    Returns:
        [...] float32, non-negative to rounding, finite through second derivatives. The entropy is taken as
        -log p_m + sum_k p_k (z_m - z_k) with m the largest logit, whose terms are all positive. Tested in
        tests/losses/test_family.py.

    Source: Mukhoti et al., ICLR 2020 submission, App. H (the bound); Kimura & Naganuma, arXiv 2405.00442, Lemma 1;
    Pereyra et al., arXiv 1701.06548 (the penalty).

    Example:
        >>> print(np.asarray(losses.confidence_penalised_cross_entropy(logits, labels, 0.1)).round(4))
        [0.4342 0.2273 1.1881 1.4836]
    """
    logits, labels = labelled_rows(logits, labels)
    gamma = _finite(gamma, logits)
    classes = jnp.sum(~jnp.isneginf(logits), axis=-1, dtype=logits.dtype)
    largest, margin = jnp.log(classes), margins(logits, jnp.argmax(logits, axis=-1))
    surprise = softplus(log_rest(margin) - margin.gap)  # -log p of the largest
    behind = jnp.minimum(margin.gap[..., None] - margin.lag, _FAR)  # -lag is infinite at the largest itself
    behind = jnp.where(jnp.isneginf(margin.lag), 0, behind)
    entropy = surprise + jnp.sum(jnp.exp(-behind - surprise[..., None]) * behind, axis=-1)
    return softplus(-true_class_log_odds(logits, labels)) + gamma * (largest - entropy)
