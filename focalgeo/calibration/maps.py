"""Maps from logits or log-probabilities to calibrated log-probabilities; each keeps the predicted class.

A row that holds NaN or infinity, or nothing but minus infinity, becomes NaN. Shapes and types that do not fit, and a
concrete gamma or temperature out of range, raise InputError.

Everything is carried by the top class's log-odds, the one number that rounding of p to 1 would lose. Every other class
has p <= 1/2, where log(1 - p) is safe to take directly.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from focalgeo.checks import check_above, number_array, score_rows
from focalgeo.types import Array

Rows = Float[Array, "*batch classes"]
Numbers = Float[Array, "*#batch"] | float  # one for all rows, or one for each

_SERIES_FROM = 16.0  # log-odds above which (1 - p) / p is so small that three terms of a series are exact in float64
_LOG_ZERO = -1000.0  # log-odds below which p is 0 in float32 and float64 alike


def temperature_scaling(logits: Rows, temperature: Numbers) -> Rows:
    """Log-probabilities of softmax(logits / temperature).

    Args:
        logits: Float [..., classes]; types narrower than float32 are computed in float32.
        temperature: Float scalar or [...], above 0; a traced one that is not gives NaN.

    Returns:
        [..., classes] float32, normalised; argmax equals that of the logits. The top entry is log_sigmoid of its
        log-odds: -1e-26 stays -1e-26. Absolute error 2e-5 plus 2e-6 of the value, tested in
        tests/calibration/test_maps.py.

    Source: Komisarenko & Kull, arXiv 2408.11598, section 2.
    """
    logits = score_rows("logits", logits)
    temperature = _checked_temperature(temperature, logits)
    logits = wide(logits)
    return normalised(scaled(logits, temperature), top_class(logits))


def focal_calibration(log_probs: Rows, gamma: Numbers) -> Rows:
    """Focal calibration map: p_j proportional to h(q_j) = q_j / [(1-q_j)^gamma - gamma q_j (1-q_j)^(gamma-1) log q_j].

    Args:
        log_probs: Float [..., classes], log q; a constant added to a row changes nothing, so logits do as well.
        gamma: Float scalar or [...], above -1; a traced one that is not gives NaN. Zero is the identity. For a model
            trained with focal loss of this gamma it is the loss-implied map. From about -0.885 to 0 it softens
            confident predictions.

    Returns:
        [..., classes] float32 log-probabilities, normalised, with the argmax of the input, differentiable in both
        arguments. Absolute error 2e-5 plus 2e-6 of the value, tested in tests/calibration/test_maps.py.

    Source: Komisarenko & Kull, arXiv 2408.11598, Proposition 4, Eq. (1). The map need not raise the top probability
    where that is below 1/2: their Proposition 5 is false for four or more classes.
    """
    log_probs = score_rows("log_probs", log_probs)
    gamma = _checked_gamma(gamma, log_probs)
    log_probs = wide(log_probs)
    return _focal(log_probs, gamma, top_class(log_probs))


def focal_temperature_scaling(logits: Rows, gamma: Numbers, temperature: Numbers) -> Rows:
    """Focal calibration of softmax(logits / temperature): the temperature first, then the map.

    Args:
        logits: Float [..., classes]; types narrower than float32 are computed in float32.
        gamma: Float scalar or [...], above -1; a traced one that is not gives NaN. Zero gives temperature scaling.
        temperature: Float scalar or [...], above 0; a traced one that is not gives NaN.

    Returns:
        [..., classes] float32 log-probabilities, normalised, with the argmax of the logits. Accuracy as
        `focal_calibration`, also for logits [60, 0, -40] with gamma 5 and temperature 0.01.

    Source: Komisarenko & Kull, arXiv 2408.11598, section 4.2 (their published code offers the other order, which
    differs).
    """
    logits = score_rows("logits", logits)
    gamma, temperature = _checked_gamma(gamma, logits), _checked_temperature(temperature, logits)
    logits = wide(logits)
    return _focal(scaled(logits, temperature), gamma, top_class(logits))


def _checked_gamma(gamma: Numbers, rows: Array) -> Array:
    check_above("gamma", gamma, -1)
    return number_array("gamma", gamma, rows.shape[:-1])


def _checked_temperature(temperature: Numbers, rows: Array) -> Array:
    check_above("temperature", temperature, 0)
    return number_array("temperature", temperature, rows.shape[:-1])


def binary_focal_calibration(log_odds: Numbers, gamma: Numbers) -> Float[Array, "*batch"]:
    """Focal calibration of two classes: (1 + gamma) s + log[(1 + gamma u(-s)) / (1 + gamma u(s))] of the log-odds s.

    Here u(s) = -q log(q) / (1 - q) with q = sigmoid(s): the paper's quotient with q and 1 - q taken out.

    Args:
        log_odds: Float [...], the difference of the two logits, s = log(q / (1 - q)).
        gamma: Float scalar or of the shape of `log_odds`, above -1; a traced one that is not gives NaN. Zero is the
            identity.

    Returns:
        [...] float32 (float64 for float64), the log-odds of the calibrated probability: odd in s, with slope
        gamma + (1 + gamma (1 - log 2)) / (1 + gamma log 2) at 0 and (1 + gamma) s - log(1 + gamma) far out. Absolute
        error 2e-5 plus 2e-6 of the value for gamma from -0.9 to 100 and |s| up to 1000, tested in
        tests/calibration/test_binary_map.py; below -0.9 rounding grows as 1 / (1 + gamma).

    Source: Komisarenko & Kull, arXiv 2408.11598, Proposition 2.
    """
    check_above("gamma", gamma, -1)
    log_odds = wide(number_array("log_odds", log_odds))
    gamma = jnp.asarray(number_array("gamma", gamma, log_odds.shape), log_odds.dtype)
    gamma = jnp.where((gamma > -1) & (gamma < jnp.inf), gamma, jnp.nan)
    likely, unlikely = surprise_ratio(log_odds), surprise_ratio(-log_odds)
    return (log_odds + gamma * log_odds) + (jnp.log1p(gamma * unlikely) - jnp.log1p(gamma * likely))


def log_focal_weight(log_p: Array, log_complement: Array, gamma: Array) -> Array:
    """The log of h, log p - gamma log(1 - p) - log1p(gamma u), with u = log1p(x) / x in (0, 1) and x = (1 - p) / p.

    Equal to the definition of `focal_calibration` with (1 - p)^gamma taken out, and free of cancellation for
    every gamma above -1.
    """
    return log_p - gamma * log_complement - jnp.log1p(gamma * surprise_ratio(log_p - log_complement))


def surprise_ratio(log_odds: Array) -> Array:
    """The ratio u = log1p(x) / x for x = exp(-log_odds): -p log(p) / (1 - p), 0 to 1."""
    confident = log_odds > _SERIES_FROM
    x = jnp.exp(-jnp.maximum(log_odds, _SERIES_FROM))
    ordinary = jnp.clip(log_odds, _LOG_ZERO, _SERIES_FROM)
    return jnp.where(confident, 1 - x / 2 + x * x / 3, jax.nn.softplus(-ordinary) * jnp.exp(ordinary))


def _focal(scores: Array, gamma: Array, top: Array) -> Array:
    """The focal map of softmax(scores), where `top` marks one largest entry of each row."""
    gamma = per_row(gamma, scores)
    gamma = jnp.where((gamma > -1) & (gamma < jnp.inf) & has_top(scores), gamma, jnp.nan)
    log_odds = top_log_odds(scores, top)
    log_p = jnp.where(top, -1.0, _rest(scores, top, log_odds))
    log_p_top, log_complement_top = jax.nn.log_sigmoid(log_odds), jax.nn.log_sigmoid(-log_odds)
    weights = jnp.where(
        top,
        log_focal_weight(log_p_top, log_complement_top, gamma),
        log_focal_weight(log_p, jnp.log1p(-jnp.exp(log_p)), gamma),
    )
    return normalised(weights, top)


def normalised(scores: Array, top: Array) -> Array:
    """log_softmax of scores whose top entry keeps its 1 - p; the others stay below it, whatever rounding does."""
    log_odds = top_log_odds(scores, top)
    log_top = jax.nn.log_sigmoid(log_odds)
    rest = _rest(scores, top, log_odds)
    bound = jnp.nextafter(jax.lax.stop_gradient(log_top), jnp.full_like(log_top, -jnp.inf))
    excess = jnp.maximum(jax.lax.stop_gradient(rest) - bound, 0)
    return jnp.where(top, log_top, rest - excess)


def _rest(scores: Array, top: Array, log_odds: Array) -> Array:
    """Log-probability of the classes that are not the top one; meaningless at the top."""
    top_score = jnp.sum(jnp.where(top, scores, 0), axis=-1, keepdims=True)
    return (scores - top_score) + jax.nn.log_sigmoid(log_odds)


def top_log_odds(scores: Array, top: Array) -> Array:
    """[..., 1]: the top score minus the logsumexp of the others."""
    top_score = jnp.sum(jnp.where(top, scores, 0), axis=-1, keepdims=True)
    return top_score - jax.nn.logsumexp(scores, axis=-1, keepdims=True, where=~top)


def top_class(scores: Array) -> Array:
    """Marks the first largest entry of each row. It is found before any arithmetic that could tie two entries."""
    return jax.nn.one_hot(jnp.argmax(scores, axis=-1), scores.shape[-1], dtype=bool)


def has_top(scores: Array) -> Array:
    """Whether each row's largest score is finite, [..., 1]: one of NaN, infinity or minus infinity alone has no top."""
    return jnp.isfinite(jnp.max(scores, axis=-1, keepdims=True))


def scaled(logits: Array, temperature: Array) -> Array:
    """(z - max z) / T: the difference is taken first, because a small T would blow up the rounding of z / T.

    It is the difference of halves, which is exact and stays in range for every finite z.
    """
    temperature = per_row(temperature, logits)
    valid = (temperature > 0) & (temperature < jnp.inf) & has_top(logits)
    half = logits / 2 - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True)) / 2
    return half / jnp.where(valid, temperature, jnp.nan) * 2


def per_row(value: Array, rows: Array) -> Array:
    """A scalar, or one value per row as [..., 1], in the type of `rows`."""
    value = jnp.asarray(value, rows.dtype)
    return value[..., None] if value.ndim else value


def wide(values: Array) -> Array:
    """The values as float32, or as float64 where they are float64."""
    values = jnp.asarray(values)
    return values.astype(jnp.float64 if values.dtype == jnp.float64 else jnp.float32)
