"""The inverse of the focal calibration map: safeguarded Newton steps, differentiated by the implicit function.

The one unknown of a row is the log-odds r of its top class: h(q_j) / h(q_top) = p_j / p_top gives every other q_j,
and r solves log sum_j q_j = log(1 - q_top), whose difference rises with r. Nothing is solved in q, which rounds to 1.
"""

import jax
import jax.numpy as jnp

from focalgeo.calibration.maps import (
    Numbers,
    Rows,
    has_top,
    log_focal_weight,
    normalised,
    per_row,
    surprise_ratio,
    top_class,
    top_log_odds,
    wide,
)
from focalgeo.calibration.roots import newton_in_bracket
from focalgeo.checks import check_interval, number_array, score_rows
from focalgeo.types import Array

_FAR = 1e20  # a log-probability this far below the top stands for -inf; unlike that, it can be multiplied by 0
_LARGEST_EXPONENT = 80.0  # of e^r in float32


def inverse_focal_calibration(log_probs: Rows, gamma: Numbers) -> Rows:
    """Log q with focal_calibration(log q, gamma) = log_probs: what a focal-loss minimiser predicts where p is true.

    With h of `focal_calibration` and lambda such that the q_j sum to 1, q_j = h^-1(lambda p_j).

    Args:
        log_probs: Float [..., classes], two classes or more; a constant added to a row changes nothing; -inf stays.
        gamma: Float scalar or [...], 0 or more; a traced one that is not gives NaN. Zero is the identity.

    Returns:
        [..., classes] float32 log-probabilities (float64 for float64), normalised, with the argmax of the input.
        Derivatives of every order in both arguments, forward and reverse. focal_calibration followed by this gives
        back log q to 1e-5 plus 2e-6 of the value, for gamma up to 10 and logits that span up to 100; in general to
        1e-5 plus 1e-6 of the larger of |log q| and |log p|, because so much is lost in float32 where log p is written
        down. Float64: 1e-12 of the same. Tested in tests/calibration/test_inverse.py.

    Source: the map is Komisarenko & Kull, arXiv 2408.11598, Proposition 4; they state that it is bijective, and give
    its inverse for two classes only in words.
    """
    log_probs = score_rows("log_probs", log_probs)
    check_interval("gamma", gamma, 0, jnp.inf)
    gamma = number_array("gamma", gamma, log_probs.shape[:-1])
    log_probs = wide(log_probs)
    gamma = per_row(gamma, log_probs)
    valid = (gamma >= 0) & (gamma < jnp.inf) & has_top(log_probs)
    return jnp.where(valid, _inverse(log_probs, jnp.where(valid, gamma, 0)), jnp.nan)


@jax.custom_jvp
def _inverse(log_probs: Array, gamma: Array) -> Array:
    top = top_class(log_probs)
    behind = jnp.where(top, -_FAR, log_probs - jnp.max(log_probs, axis=-1, keepdims=True))
    behind = jnp.maximum(behind, -_FAR)
    log_odds, others = _solve(behind, gamma)
    others = jnp.where(top, -jnp.inf, others)
    top_score = log_odds + jax.nn.logsumexp(others, axis=-1, keepdims=True)
    log_q = normalised(jnp.where(top, top_score, others), top)
    return jnp.where(log_probs == -jnp.inf, log_probs, log_q)


@_inverse.defjvp
def _inverse_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """From H(log q_j) = log p_j + c, sum q_j = 1: d log q_j = (t_j - sum_k w_k t_k) / H'_j, w proportional to q / H'.

    Here t = d log p - dH/dgamma dgamma, and H' is taken by log q. At the top H' is e^r times a number near gamma.
    """
    log_probs, gamma = primals
    log_q = _inverse(log_probs, gamma)
    top = top_class(log_probs)
    log_odds, log_complement = _class_log_odds(log_q, top)
    ratio = surprise_ratio(log_odds)
    q = jax.nn.sigmoid(log_odds)
    excess = gamma * (q - (ratio - q) / (1 + gamma * ratio))
    damping = jnp.exp(-jnp.clip(log_odds, 0, _LARGEST_EXPONENT))  # 1 where e^r < 1, so that e^r stays in range
    growth = jnp.exp(jnp.minimum(log_odds, 0))
    slope = damping + (damping + growth) * excess  # H' e^-max(r, 0)
    weights = jax.nn.softmax(log_q - jnp.maximum(log_odds, 0) - jnp.log(slope), axis=-1)
    shift = -log_complement - ratio / (1 + gamma * ratio)
    given = jnp.where(log_q == -jnp.inf, 0, tangents[0]) - shift * tangents[1]
    mean = jnp.sum(weights * given, axis=-1, keepdims=True)
    return log_q, damping / slope * (given - mean)


def _class_log_odds(log_q: Array, top: Array) -> tuple[Array, Array]:
    """Log-odds of every class and log(1 - q), both [..., classes] and finite; exact at the top as elsewhere."""
    at_top = top_log_odds(log_q, top)
    finite = jnp.where(top, -1.0, jnp.maximum(log_q, -_FAR))
    log_complement = jnp.log1p(-jnp.exp(finite))
    at_top = jnp.minimum(at_top, _FAR)
    return (
        jnp.where(top, at_top, finite - log_complement),
        jnp.where(top, jax.nn.log_sigmoid(-at_top), log_complement),
    )


def _solve(behind: Array, gamma: Array) -> tuple[Array, Array]:
    """Log-odds of the top class, [..., 1], and log q of the others, from log p_j - log p_top (-_FAR at the top)."""
    num_classes = behind.shape[-1]
    rivals = jax.nn.logsumexp(behind, axis=-1, keepdims=True)
    low = jnp.full_like(rivals, -jnp.log(float(num_classes - 1)))
    high = jnp.maximum(-rivals, 0)  # p_top >= q_top wherever q_top >= 1/2
    start = jnp.clip((high + jnp.log1p(gamma)) / (1 + gamma), low, high)

    def residual(log_odds: Array) -> tuple[Array, Array]:
        log_top, slope_top = _weight_and_slope(log_odds, gamma)
        others = _others(log_top + behind, gamma)
        slope = _weight_and_slope(others - jnp.log1p(-jnp.exp(others)), gamma)[1] / (1 - jnp.exp(others))
        total = jax.nn.logsumexp(others, axis=-1, keepdims=True)
        rate = slope_top * jnp.sum(jnp.exp(others - total) / slope, axis=-1, keepdims=True)
        return total + jax.nn.softplus(log_odds), rate + jax.nn.sigmoid(log_odds)

    log_odds = newton_in_bracket(residual, start, low, high).point
    return log_odds, _others(_weight_and_slope(log_odds, gamma)[0] + behind, gamma)


def _others(log_weight: Array, gamma: Array) -> Array:
    """Log q <= log 1/2 with log h(q) = log_weight; log 1/2 where that is too large."""
    half = -jnp.log(jnp.asarray(2.0, log_weight.dtype))
    low = jnp.minimum(log_weight + gamma * half, half)
    high = jnp.minimum(log_weight + jnp.log1p(-gamma * half), half)

    def residual(log_q: Array) -> tuple[Array, Array]:
        log_complement = jnp.log1p(-jnp.exp(log_q))
        value, slope = _weight_and_slope(log_q - log_complement, gamma)
        return value - log_weight, slope / jnp.exp(log_complement)

    return newton_in_bracket(residual, jnp.clip(log_weight, low, high), low, high).point


def _weight_and_slope(log_odds: Array, gamma: Array) -> tuple[Array, Array]:
    """The log of h, and its derivative by the log-odds."""
    log_p, log_complement = jax.nn.log_sigmoid(log_odds), jax.nn.log_sigmoid(-log_odds)
    ratio, p = surprise_ratio(log_odds), jax.nn.sigmoid(log_odds)
    slope = jnp.exp(log_complement) + gamma * (p - (ratio - p) / (1 + gamma * ratio))
    return log_focal_weight(log_p, log_complement, gamma), slope
