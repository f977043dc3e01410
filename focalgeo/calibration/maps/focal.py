"""Maps from logits or log-probabilities to calibrated log-probabilities, for jit, vmap and grad.

Everything is carried by the top class's log-odds, the one number that rounding of p to 1 would lose. Every other class
has p <= 1/2, where log(1 - p) is safe to take directly. A logit of -inf is a class that cannot be: it stays -inf, and
the others are as without it. A row that holds NaN or infinity, or nothing but -inf, becomes NaN.
"""

import functools
import inspect
from collections.abc import Callable
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from focalgeo import checks
from focalgeo.calibration.newton import newton_in_bracket
from focalgeo.trees import matmul, namespace
from focalgeo.types import Array

Rows = Float[Array, "*batch classes"]
Numbers = Float[Array, "*#batch"] | float  # one for all rows, or one for each
Scalar = Float[Array, ""]
PerClass = Float[Array, " classes"]
Ascending = Float[Array, " numbers"]

_SERIES_FROM = 16.0  # log-odds above which (1 - p) / p is so small that three terms of a series are exact in float64
_LOG_ZERO = -1000.0  # log-odds below which p is 0 in float32 and float64 alike
FAR = -1e20  # a log-probability this far below the top stands for -inf; unlike that, it can be multiplied by 0
_LARGEST_EXPONENT = 80.0  # of e^r in float32

quiet = np.errstate(all="ignore")  # a decorator: infinities and NaN are said by the result


def _of_possible(calibration_map: Callable) -> Callable:
    """The map of rows where what is -inf is far below the top, and stays -inf."""
    signature = inspect.signature(calibration_map)
    name = next(iter(signature.parameters))

    @functools.wraps(calibration_map)
    def mapped(*given, **named):
        rows, *numbers = signature.bind(*given, **named).args
        rows = rows_beside(name, rows, *numbers)
        space = namespace(rows)
        with np.errstate(all="ignore"):
            never = (rows == -np.inf) & _has_top(rows)
            far = space.where(never, space.max(rows, axis=-1, keepdims=True) + FAR, rows)
            return space.where(never, -np.inf, calibration_map(far, *numbers))

    return mapped


def rows_beside(name: str, rows: object, *numbers: object) -> Array:
    """Scores [..., classes] as floats: on the host, unless they or one of the numbers are JAX's, traced or not."""
    rows = checks.score_rows(name, rows)
    if not checks.is_traced(rows) and checks.look_like_probabilities(rows):  # surely: a map is used on every output
        checks.check_logits(name, rows, stacklevel=5)
    if any(isinstance(value, jax.Array) for value in (rows, *numbers)):
        return checks.floats(rows)[0]
    return np.asarray(rows, jnp.result_type(float) if rows.dtype == np.float64 else np.float32)


def _constant(array):
    """The array, through which no derivative is taken."""
    return array if isinstance(array, np.ndarray) else jax.lax.stop_gradient(array)


def log_sigmoid(log_odds):
    """The log of 1 / (1 + exp(-log_odds))."""
    return -namespace(log_odds).logaddexp(-log_odds, 0.0)


def log_sum(scores, where=None):
    """The log of the sum of exp(scores) over the classes, [..., 1]; with `where`, over those."""
    if namespace(scores) is jnp:
        return jax.nn.logsumexp(scores, axis=-1, keepdims=True, where=where)
    where = True if where is None else where
    largest = np.max(scores, axis=-1, keepdims=True, where=where, initial=-np.inf)
    return largest + np.log(np.sum(np.exp(scores - largest), axis=-1, keepdims=True, where=where))


@_of_possible
def temperature_scaling(logits: Rows, temperature: Numbers) -> Rows:
    """Log-probabilities of softmax(logits / temperature).

    Args:
        logits: Float [..., classes]; types narrower than float32 are computed in float32.
        temperature: Float scalar or [...], above 0.

    Returns:
        [..., classes] float32, normalised; argmax equals that of the logits. The top entry is log_sigmoid of its
        log-odds: -1e-26 stays -1e-26. Absolute error 2e-5 plus 2e-6 of the value, tested in
        tests/calibration/test_maps.py.

    Source: Komisarenko & Kull, arXiv 2408.11598, section 2.

    Example:
        >>> print(np.exp(calibration.temperature_scaling(logits, 2.0)).round(4))
        [[0.5065 0.3072 0.1863]
         [0.1402 0.6285 0.2312]
         [0.4192 0.2543 0.3265]
         [0.2272 0.481  0.2918]]
    """
    return normalised(scaled(logits, _per_row("temperature", temperature, logits, above=0)), top_class(logits))


@_of_possible
def focal_calibration(log_probs: Rows, gamma: Numbers) -> Rows:
    """Focal calibration map: p_j proportional to h(q_j) = q_j / [(1-q_j)^gamma - gamma q_j (1-q_j)^(gamma-1) log q_j].

    Args:
        log_probs: Float [..., classes], log q; a constant added to a row changes nothing, so logits do as well.
        gamma: Float scalar or [...], above -1. Zero is the identity. For a model trained with focal loss of this gamma
            it is the loss-implied map. From about -0.885 to 0 it softens confident predictions.

    Returns:
        [..., classes] float32 log-probabilities, normalised, with the argmax of the input, differentiable in both
        arguments. Absolute error 2e-5 plus 2e-6 of the value, tested in tests/calibration/test_maps.py.

    A loss with class weights alpha makes each p_j alpha_j times as large before normalisation, and the map keeps that:
    log_softmax(result - log(alpha)) undoes it, for two classes log(alpha / (1 - alpha)) off the log-odds. Platt or
    vector scaling after the map finds it from data.

    Source: Komisarenko & Kull, arXiv 2408.11598, Proposition 4, Eq. (1). The map need not raise the top probability
    where that is below 1/2: their Proposition 5 is false for four or more classes.

    Example:
        >>> print(np.exp(calibration.focal_calibration(log_probs, 2.0)).round(4))
        [[0.8838 0.0875 0.0287]
         [0.0029 0.9895 0.0076]
         [0.6478 0.1187 0.2334]
         [0.0552 0.8455 0.0993]]
    """
    return _focal(log_probs, _per_row("gamma", gamma, log_probs, above=-1), top_class(log_probs))


@_of_possible
def focal_temperature_scaling(logits: Rows, gamma: Numbers, temperature: Numbers) -> Rows:
    """Focal calibration of softmax(logits / temperature): the temperature first, then the map.

    Args:
        logits: Float [..., classes]; types narrower than float32 are computed in float32.
        gamma: Float scalar or [...], above -1. Zero gives temperature scaling.
        temperature: Float scalar or [...], above 0.

    Returns:
        [..., classes] float32 log-probabilities, normalised, with the argmax of the logits. Accuracy as
        `focal_calibration`, also for logits [60, 0, -40] with gamma 5 and temperature 0.01.

    Source: Komisarenko & Kull, arXiv 2408.11598, section 4.2 (their published code offers the other order, which
    differs).

    Example:
        >>> print(np.exp(calibration.focal_temperature_scaling(logits, 2.0, 2.0)).round(4))
        [[0.6478 0.2334 0.1187]
         [0.0552 0.8455 0.0993]
         [0.4866 0.2087 0.3047]
         [0.1627 0.6064 0.231 ]]
    """
    gamma = _per_row("gamma", gamma, logits, above=-1)
    temperature = _per_row("temperature", temperature, logits, above=0)
    return _focal(scaled(logits, temperature), gamma, top_class(logits))


def loss_implied_temperature_scaling(logits: Rows, trained_gamma: Numbers, temperature: Numbers) -> Rows:
    """Log-probabilities of softmax(log p / T), with p the focal calibration map of softmax(logits).

    The other order than `focal_temperature_scaling`, whose arguments it shares: the map of the gamma of the training is
    the theory's, known and applied first, and T is fitted to what the theory leaves.

    Source: our own; the map is Komisarenko & Kull, arXiv 2408.11598, Proposition 4.

    Example:
        >>> calibrated = calibration.maps.loss_implied_temperature_scaling(logits, 3.0, 2.0)
        >>> print(np.exp(calibrated[:2]).round(4))
        [[0.751  0.1618 0.0872]
         [0.0225 0.9409 0.0366]]
    """
    return temperature_scaling(focal_temperature_scaling(logits, trained_gamma, 1.0), temperature)


@quiet
def ensemble_temperature_scaling(logits: Rows, temperature: Numbers, shares: Float[Array, "3"]) -> Rows:
    """Log-probabilities of shares[0] softmax(z / T) + shares[1] softmax(z) + shares[2] / K, for K classes.

    Args:
        logits: Float [..., classes].
        temperature: Float scalar or [...], above 0.
        shares: Float [3], each 0 or more, with the sum 1.

    Returns:
        [..., classes] float32 log-probabilities, normalised, with the argmax of the logits.

    Source: Zhang, Kailkhura & Han, arXiv 2003.07329, section 3.2 (ensemble temperature scaling).

    Example:
        >>> shares = np.float32([0.6, 0.3, 0.1])
        >>> print(np.exp(calibration.maps.ensemble_temperature_scaling(logits[:2], 2.0, shares)).round(4))
        [[0.5368 0.2911 0.1721]
         [0.1301 0.6636 0.2063]]
    """
    checks.check_distribution("shares", shares)
    parts = ensemble_parts(rows_beside("logits", logits, temperature, shares), temperature)
    space, shares = namespace(parts[1]), _shaped("shares", shares, (3,), parts[1])
    scores = reduce(space.logaddexp, map(sum, zip(parts, space.log(shares), strict=True)))
    return normalised_possible(scores, parts[1], top_class(parts[1]))


@quiet
def ensemble_parts(logits: Rows, temperature: Numbers) -> tuple[Rows, Rows, Rows]:
    """Log-probabilities of the three parts."""
    cooled, plain = temperature_scaling(logits, temperature), temperature_scaling(logits, 1.0)
    space = namespace(plain)
    of_possible = space.where(plain == -np.inf, plain, 0)
    return cooled, plain, of_possible - log_sum(of_possible)


def focal_vector_scaling(
    logits: Rows, gamma: Numbers, temperature: Numbers, scales: PerClass, biases: PerClass
) -> Rows:
    """Log-probabilities of softmax(scales * w + biases), with w of `focal_temperature_scaling`.

    Vector scaling is gamma = 0; scales of 1 and biases of 0 give focal temperature scaling. The two meet in
    temperature scaling alone: focal temperature scaling treats all classes alike, which vector scaling does only with
    equal scales and equal biases; and for two classes its log-odds are odd in s = log(q / (1 - q)), which
    scales[0] log q - scales[1] log(1 - q) + bias is only as a multiple of s, while those of gamma other than 0 have
    slope gamma + (1 + gamma (1 - log 2)) / (1 + gamma log 2) at 0 and 1 + gamma far out. So one bends all confidences
    by one curve, the other moves classes against each other, and both together do what neither does.

    Args:
        logits: Float [..., classes]; w is normalised, so a constant added to a row changes nothing.
        gamma: Float scalar or [...], above -1.
        temperature: Float scalar or [...], above 0.
        scales: Float [classes], of any sign.
        biases: Float [classes].

    Returns:
        [..., classes] float32 log-probabilities, normalised. The predicted class may differ from that of the logits.

    Source: our own; of its parts Komisarenko & Kull, arXiv 2408.11598, section 4.2, and Guo et al., arXiv 1706.04599,
    section 4.2.

    Example:
        >>> scales, biases = np.float32([1, 0.8, 1]), np.float32([0, 0, 0.3])
        >>> print(np.exp(calibration.focal_vector_scaling(logits, 0.0, 1.5, scales, biases)).round(4))
        [[0.4965 0.3268 0.1767]
         [0.0867 0.6853 0.228 ]
         [0.3765 0.2593 0.3642]
         [0.1675 0.5168 0.3156]]
    """
    log_probs = focal_temperature_scaling(rows_beside("logits", logits, scales, biases), gamma, temperature)
    scales = _shaped("scales", scales, log_probs.shape[-1:], log_probs)
    return _shifted(lambda rows: namespace(rows).broadcast_to(scales, rows.shape) * rows, log_probs, biases)


def focal_matrix_scaling(
    logits: Rows, gamma: Numbers, temperature: Numbers, weights: Float[Array, "classes classes"], biases: PerClass
) -> Rows:
    """Log-probabilities of softmax(w @ weights.T + biases), with w of `focal_temperature_scaling`.

    Matrix scaling is gamma = 0. A diagonal of weights is `focal_vector_scaling`, whose arguments and result it shares;
    row k of weights [classes, classes] makes the score of class k.

    Source: Guo et al., arXiv 1706.04599, section 4.2, for the matrix.

    Example:
        >>> weights, biases = np.float32([[1, 0.2, 0], [0, 1, 0], [0, 0, 1]]), np.float32([0, 0, 0.3])
        >>> print(np.exp(calibration.maps.focal_matrix_scaling(logits[:2], 0.0, 1.5, weights, biases)).round(4))
        [[0.473  0.3113 0.2157]
         [0.0854 0.6746 0.24  ]]
    """
    log_probs = focal_temperature_scaling(rows_beside("logits", logits, weights, biases), gamma, temperature)
    weights = _shaped("weights", weights, log_probs.shape[-1:] * 2, log_probs)
    return _shifted(
        lambda rows: rows @ weights.T if namespace(rows) is np else matmul(rows, weights.T), log_probs, biases
    )


@quiet
def _shifted(linear, log_probs, biases):
    """Log-probabilities of softmax(linear(log_probs) + biases), of the classes that can be."""
    space, biases = namespace(log_probs), _shaped("biases", biases, log_probs.shape[-1:], log_probs)
    scores = linear(space.where(log_probs == -np.inf, 0, log_probs)) + space.broadcast_to(biases, log_probs.shape)
    return normalised_possible(scores, log_probs)


@quiet
def normalised_possible(scores, log_probs, top=None):
    """`normalised` scores of classes that can be, and -inf where log_probs are that."""
    space, never = namespace(scores), log_probs == -np.inf
    scores = space.where(never, FAR, scores)
    return space.where(never, -np.inf, normalised(scores, top_class(scores) if top is None else top))


@_of_possible
def histogram_binning(logits: Rows, edges: Float[Array, " edges"], accuracies: Float[Array, " bins"]) -> Rows:
    """Log-probabilities with the accuracy of its bin for the top class; the others share the rest in proportion.

    Args:
        logits: Float [..., classes].
        edges: Float [bins - 1], ascending: log-odds log(p / (1 - p)) of the top class at which the bins end, which
            belong to the bin below. Log-odds tell apart what probabilities round to 1.
        accuracies: Float [bins], above 0 and below 1.

    Returns:
        [..., classes] float32, normalised. The predicted class may differ from that of the logits where the accuracy
        of a bin is below 1/2.

    Source: Zadrozny & Elkan, ICML 2001, applied to the top label as in Gupta & Ramdas, arXiv 2107.08353.

    Example:
        >>> edges, accuracies = np.float32([0, 1]), np.float32([0.4, 0.55, 0.75])
        >>> print(np.exp(calibration.maps.histogram_binning(logits[:2], edges, accuracies)).round(4))
        [[0.55   0.329  0.121 ]
         [0.0672 0.75   0.1828]]
    """
    checks.check_finite("edges", edges)
    log_probs = temperature_scaling(logits, 1.0)
    space = namespace(log_probs)
    accuracies = _shaped("accuracies", accuracies, (len(edges) + 1,), log_probs)
    top = top_class(log_probs)
    log_odds = top_log_odds(log_probs, top)
    index = space.searchsorted(space.asarray(edges, log_probs.dtype), log_odds, side="left")
    accuracy = space.where(log_odds > -FAR / 2, 1, accuracies[index])  # the only class that can be
    behind = logits - space.max(space.where(top, -np.inf, logits), axis=-1, keepdims=True)
    rest = behind - log_sum(behind, ~top) + space.log1p(-accuracy)
    return space.where(space.isnan(log_odds), np.nan, space.where(top, space.log(accuracy), rest))


def isotonic_calibration(logits: Rows, thresholds: Ascending, probabilities: Ascending) -> Rows:
    """Log-probabilities of f(p_k) / sum_j f(p_j), with f linear in log p between the thresholds.

    Args:
        logits: Float [..., classes].
        thresholds: Float [numbers], ascending values of log p; beyond the ends, f is constant.
        probabilities: Float [numbers], ascending and above 0: f there.

    Returns:
        [..., classes] float32 log-probabilities, normalised, with the argmax of the logits.

    Source: Zadrozny & Elkan, KDD 2002; pooled as IRM of Zhang, Kailkhura & Han, arXiv 2003.07329, section 3.2.

    Example:
        >>> thresholds, probabilities = np.log(np.float32([0.1, 0.5, 0.9])), np.float32([0.2, 0.4, 0.7])
        >>> print(np.exp(calibration.maps.isotonic_calibration(logits[:2], thresholds, probabilities)).round(4))
        [[0.5163 0.2944 0.1892]
         [0.1846 0.6156 0.1998]]
    """
    log_probs = temperature_scaling(logits, 1.0)
    thresholds = _shaped("thresholds", thresholds, np.shape(thresholds), log_probs)
    space, probabilities = namespace(log_probs), _shaped("probabilities", probabilities, thresholds.shape, log_probs)
    values = space.interp(log_probs, thresholds, probabilities).astype(log_probs.dtype)
    return normalised_possible(space.log(values), log_probs, top_class(log_probs))


def binary_focal_calibration(log_odds: Numbers, gamma: Numbers) -> Float[Array, "*batch"]:
    """Focal calibration of two classes: (1 + gamma) s + log[(1 + gamma u(-s)) / (1 + gamma u(s))] of the log-odds s.

    Here u(s) = -q log(q) / (1 - q) with q = sigmoid(s): the paper's quotient with q and 1 - q taken out.

    Args:
        log_odds: Float [...], the difference of the two logits, s = log(q / (1 - q)).
        gamma: Float scalar or of the shape of `log_odds`, above -1. Zero is the identity.

    Returns:
        [...] float32 (float64 for float64), the log-odds of the calibrated probability: odd in s, with slope
        gamma + (1 + gamma (1 - log 2)) / (1 + gamma log 2) at 0 and (1 + gamma) s - log(1 + gamma) far out. Absolute
        error 2e-5 plus 2e-6 of the value for gamma from -0.9 to 100 and |s| up to 1000, tested in
        tests/calibration/test_maps.py; below -0.9 rounding grows as 1 / (1 + gamma).

    Source: Komisarenko & Kull, arXiv 2408.11598, Proposition 2.

    Example:
        >>> print(np.asarray(calibration.binary_focal_calibration(np.float32([-1, 0, 2]), 2.0)).round(4))
        [-2.6817  0.      5.3984]
    """
    checks.check_above("gamma", gamma, -1)
    log_odds, gamma = checks.broadcast(log_odds=log_odds, gamma=gamma)
    likely, unlikely = surprise_ratio(log_odds), surprise_ratio(-log_odds)
    return (log_odds + gamma * log_odds) + (jnp.log1p(gamma * unlikely) - jnp.log1p(gamma * likely))


def inverse_focal_calibration(log_probs: Rows, gamma: Numbers) -> Rows:
    """Log q with focal_calibration(log q, gamma) = log_probs: what a focal-loss minimiser predicts where p is true.

    With h of `focal_calibration` and lambda such that the q_j sum to 1, q_j = h^-1(lambda p_j). The one unknown of a
    row is the log-odds r of its top class: h(q_j) / h(q_top) = p_j / p_top gives every other q_j, and r solves
    log sum_j q_j = log(1 - q_top), whose difference rises with r. Nothing is solved in q, which rounds to 1.

    Args:
        log_probs: Float [..., classes], two classes or more; a constant added to a row changes nothing; -inf stays.
        gamma: Float scalar or [...], 0 or more. Zero is the identity.

    Returns:
        [..., classes] float32 log-probabilities (float64 for float64), normalised, with the argmax of the input.
        Derivatives of every order in both arguments, forward and reverse. focal_calibration followed by this gives
        back log q to 1e-5 plus 2e-6 of the value, for gamma up to 10 and logits that span up to 100; in general to
        1e-5 plus 1e-6 of the larger of |log q| and |log p|, because so much is lost in float32 where log p is written
        down. Float64: 1e-12 of the same. Tested in tests/calibration/test_maps.py.

    Source: the map is Komisarenko & Kull, arXiv 2408.11598, Proposition 4; they state that it is bijective, and give
    its inverse for two classes only in words.

    Example:
        >>> focal = calibration.inverse_focal_calibration(log_probs, 2.0)  # a minimiser is less sure
        >>> print(np.exp(np.asarray(focal)).round(4))
        [[0.5208 0.3264 0.1528]
         [0.1096 0.6308 0.2596]
         [0.4309 0.2372 0.3319]
         [0.2075 0.4941 0.2984]]
    """
    checks.check_interval("gamma", gamma, 0)
    (log_probs,) = checks.floats(rows_beside("log_probs", log_probs))
    valid = _has_top(log_probs)
    log_q = _inverse(jnp.where(valid, log_probs, 0), jnp.broadcast_to(_per_row("gamma", gamma, log_probs), valid.shape))
    return jnp.where(valid, log_q, jnp.nan)


@jax.custom_jvp
def _inverse(log_probs, gamma):
    top = top_class(log_probs)
    behind = jnp.where(top, FAR, log_probs - jnp.max(log_probs, axis=-1, keepdims=True))
    behind = jnp.maximum(behind, FAR)
    rivals = jax.nn.logsumexp(behind, axis=-1, keepdims=True)
    low = jnp.full_like(rivals, -np.log(behind.shape[-1] - 1))
    high = jnp.maximum(-rivals, 0)  # p_top >= q_top wherever q_top >= 1/2
    start = jnp.clip((high + jnp.log1p(gamma)) / (1 + gamma), low, high)

    def residual(log_odds):
        log_top, slope_top = _weight_and_slope(log_odds, gamma)
        others = _others(log_top + behind, gamma)
        slope = _weight_and_slope(others - jnp.log1p(-jnp.exp(others)), gamma)[1] / (1 - jnp.exp(others))
        total = jax.nn.logsumexp(others, axis=-1, keepdims=True)
        rate = slope_top * jnp.sum(jnp.exp(others - total) / slope, axis=-1, keepdims=True)
        return total + jax.nn.softplus(log_odds), rate + jax.nn.sigmoid(log_odds)

    log_odds = newton_in_bracket(residual, start, low, high)
    others = jnp.where(top, -jnp.inf, _others(_weight_and_slope(log_odds, gamma)[0] + behind, gamma))
    top_score = log_odds + jax.nn.logsumexp(others, axis=-1, keepdims=True)
    log_q = normalised(jnp.where(top, top_score, others), top)
    return jnp.where(log_probs == -jnp.inf, log_probs, log_q)


@_inverse.defjvp
def _inverse_jvp(primals, tangents):
    """From H(log q_j) = log p_j + c, sum q_j = 1: d log q_j = (t_j - sum_k w_k t_k) / H'_j, w proportional to q / H'.

    Here t = d log p - dH/dgamma dgamma, and H' is taken by log q. At the top H' is e^r times a number near gamma.
    """
    log_probs, gamma = primals
    log_q = _inverse(log_probs, gamma)
    # log-odds of every class and log(1 - q), finite, and exact at the top as elsewhere
    top = top_class(log_probs)
    at_top, finite = jnp.minimum(top_log_odds(log_q, top), -FAR), jnp.where(top, -1.0, jnp.maximum(log_q, FAR))
    log_complement = jnp.log1p(-jnp.exp(finite))
    log_odds = jnp.where(top, at_top, finite - log_complement)
    log_complement = jnp.where(top, log_sigmoid(-at_top), log_complement)
    ratio, excess = _ratio_and_excess(log_odds, gamma)
    damping = jnp.exp(-jnp.clip(log_odds, 0, _LARGEST_EXPONENT))  # 1 where e^r < 1, so that e^r stays in range
    growth = jnp.exp(jnp.minimum(log_odds, 0))
    slope = damping + (damping + growth) * excess  # H' e^-max(r, 0)
    weights = jax.nn.softmax(log_q - jnp.maximum(log_odds, 0) - jnp.log(slope), axis=-1)
    shift = -log_complement - ratio / (1 + gamma * ratio)
    change = jnp.where(log_q == -jnp.inf, 0, tangents[0]) - shift * tangents[1]
    mean = jnp.sum(weights * change, axis=-1, keepdims=True)
    return log_q, damping / slope * (change - mean)


def _others(log_weight, gamma):
    """Log q <= log 1/2 with log h(q) = log_weight; log 1/2 where that is too large."""
    half = -jnp.log(jnp.asarray(2.0, log_weight.dtype))
    low = jnp.minimum(log_weight + gamma * half, half)
    high = jnp.minimum(log_weight + jnp.log1p(-gamma * half), half)

    def residual(log_q):
        log_complement = jnp.log1p(-jnp.exp(log_q))
        value, slope = _weight_and_slope(log_q - log_complement, gamma)
        return value - log_weight, slope / jnp.exp(log_complement)

    return newton_in_bracket(residual, jnp.clip(log_weight, low, high), low, high)


def _weight_and_slope(log_odds, gamma):
    """The log of h, and its derivative by the log-odds."""
    log_p, log_complement = jax.nn.log_sigmoid(log_odds), jax.nn.log_sigmoid(-log_odds)
    excess = _ratio_and_excess(log_odds, gamma)[1]
    return _log_focal_weight(log_p, log_complement, gamma), jnp.exp(log_complement) + excess


def _ratio_and_excess(log_odds, gamma):
    """The ratio u of `surprise_ratio`, and what gamma adds to the derivative of log h by the log-odds."""
    ratio, p = surprise_ratio(log_odds), jax.nn.sigmoid(log_odds)
    return ratio, gamma * (p - (ratio - p) / (1 + gamma * ratio))


def _log_focal_weight(log_p, log_complement, gamma):
    """The log of h, log p - gamma log(1 - p) - log1p(gamma u), with u = log1p(x) / x in (0, 1) and x = (1 - p) / p.

    Equal to the definition of `focal_calibration` with (1 - p)^gamma taken out, and free of cancellation for
    every gamma above -1.
    """
    return log_p - gamma * log_complement - namespace(log_p).log1p(gamma * surprise_ratio(log_p - log_complement))


def surprise_ratio(log_odds):
    """The ratio u = log1p(x) / x for x = exp(-log_odds): -p log(p) / (1 - p), 0 to 1."""
    space, confident = namespace(log_odds), log_odds > _SERIES_FROM
    x = space.exp(-space.maximum(log_odds, _SERIES_FROM))
    ordinary = space.clip(log_odds, _LOG_ZERO, _SERIES_FROM)
    return space.where(confident, 1 - x / 2 + x * x / 3, -log_sigmoid(ordinary) * space.exp(ordinary))


def _focal(scores, gamma, top):
    """The focal map of softmax(scores), where `top` marks one largest entry of each row."""
    # on the host temperature scaling is spared the focal weights, which are all 1
    if isinstance(scores, np.ndarray) and np.ndim(gamma) == 0 and gamma == 0:
        return normalised(np.where(_has_top(scores), scores, np.nan), top)
    space = namespace(scores)
    gamma = space.where(_has_top(scores), gamma, np.nan)
    log_odds, rest = _odds_and_rest(scores, top)
    rest = space.where(top, -1.0, rest)
    of_top = _log_focal_weight(log_sigmoid(log_odds), log_sigmoid(-log_odds), gamma)
    return normalised(space.where(top, of_top, _log_focal_weight(rest, space.log1p(-space.exp(rest)), gamma)), top)


def normalised(scores, top):
    """log_softmax of scores whose top entry keeps its 1 - p; the others stay below it, whatever rounding does."""
    log_odds, rest = _odds_and_rest(scores, top)
    space, log_top = namespace(scores), log_sigmoid(log_odds)
    # a class that ties with the top one by rounding alone would change the predicted class
    bound = space.nextafter(_constant(log_top), space.full_like(log_top, -np.inf))
    return space.where(top, log_top, rest - space.maximum(_constant(rest) - bound, 0))


def _odds_and_rest(scores, top):
    """Log-odds of the top class, [..., 1], and log-probabilities of the others, meaningless at the top."""
    top_score = namespace(scores).sum(scores, axis=-1, keepdims=True, where=top)
    log_odds = top_score - log_sum(scores, ~top)
    return log_odds, scores - top_score + log_sigmoid(log_odds)


def top_log_odds(scores, top):
    """[..., 1]: the top score minus the logsumexp of the others."""
    return _odds_and_rest(scores, top)[0]


def top_class(scores):
    """Marks the first largest entry of each row. It is found before any arithmetic that could tie two entries."""
    numbers = np.arange(scores.shape[-1]).reshape((1,) * (scores.ndim - 1) + (-1,))
    return namespace(scores).argmax(scores, axis=-1)[..., None] == numbers


def _has_top(scores):
    """Whether each row's largest score is finite, [..., 1]: one of NaN, infinity or minus infinity alone has no top."""
    space = namespace(scores)
    return space.isfinite(space.max(scores, axis=-1, keepdims=True))


def scaled(logits, temperature):
    """(z - max z) / T: the difference is taken first, because a small T would blow up the rounding of z / T.

    It is the difference of halves, which is exact and stays in range for every finite z.
    """
    space = namespace(logits)
    top = _constant(space.max(logits, axis=-1, keepdims=True))
    return (logits / 2 - top / 2) / space.where(space.isfinite(top), temperature, np.nan) * 2


def _per_row(name, value, rows, *, above=None):
    """A scalar, or one value per row as [..., 1], in the type of `rows`."""
    if above is not None:
        checks.check_above(name, value, above)
    value = namespace(rows).asarray(checks.number_array(name, value, rows.shape[:-1]), rows.dtype)
    return value[..., None] if value.ndim else value


def _shaped(name, value, shape, like):
    """Finite numbers of this shape in the type of `like`."""
    checks.check_finite(name, value)
    return namespace(like).broadcast_to(
        namespace(like).asarray(checks.number_array(name, value, shape), like.dtype), shape
    )
