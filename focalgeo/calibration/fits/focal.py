"""Continuous fits of the temperature, and of gamma and temperature, by least NLL, and the score test of T = 1.

Brackets keep the fits from diverging.
"""

import math
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool
from scipy import optimize, special

from focalgeo import checks
from focalgeo.calibration import blocks, maps
from focalgeo.calibration.examples import Clusters
from focalgeo.calibration.metrics.binning import Labels, Logits, Mask, Scalar, SoftLabels, Weights, of_label
from focalgeo.types import Array

GAMMA_BRACKET = (-0.9, 20.0)  # at -1 the map's slope is 0; at 20 it is a step
TEMPERATURE_BRACKET = (0.01, 100.0)  # beyond these float32 probabilities are 0 and 1, or equal
AT_EDGE = 1e-4  # of gamma or log T: no further inside a bracket is its end

_GAIN = 1e-12  # nats: no further Newton step where the last promised less
_NEAR_ENOUGH = 1e-7  # nats: the same for a fold's fit
_STEP, _MOST_STEPS, _FLATTEST = 1e-5, 20, 1e-6  # of Newton's method in log T: the last, and the least slope divided by
_FLAT = 1e-5  # a slope in nats at which a fit counts as converged: rounding of float32 sums is a tenth of it
_PRECISE = {"ftol": 1e-11, "gtol": 1e-6, "maxiter": 200}  # of L-BFGS-B: its last steps gain less than is measured
_BOX = np.array([GAMMA_BRACKET, np.log(TEMPERATURE_BRACKET)])
# of the descent: gamma and log T less those of the temperature fitted alone
_STARTS = np.array([(0.0, 0.0), *product((-0.85, -0.5, 0.5, 2.0, 8.0), np.log([0.5, 0.7, 1.0, 1.4, 2.0]))])
_LOWER = 1e-6  # nats by which another minimum is lower: a lesser gain does not send gamma to the end of its range
_FEW = 600  # examples, below which the NLL has been seen to have a second minimum
_START_EXAMPLES, _START_NUMBERS = 1000, 2**21  # at least, and at most, on which the starts are compared: they are far
_MOST_SCORES, _LONGEST = 12, 1.0  # steps of Fisher's scoring, five are usual; of gamma or log T in one


class CalibrationFit(NamedTuple):
    """A fit by least NLL: its parameters, its NLL, and whether it is a minimum inside the bracket."""

    gamma: Scalar  # 0 for a fit of the temperature alone
    temperature: Scalar
    nll: Scalar  # nats per example
    converged: Bool[Array, ""]  # a least value inside the bracket


def fit_temperature(
    logits: Logits, labels: SoftLabels, mask: Mask = None, *, weights: Weights = None
) -> CalibrationFit:
    """The T from 0.01 to 100 with the least mean of -log softmax(logits / T)[label], in nats.

    The NLL is convex in 1 / T, so its slope in log T changes sign once: Newton's method in log T, and Brent's in the
    bracket where that does not end inside. It cannot diverge. On the host, in float64: not for use inside jit.

    Args:
        logits: Float [examples, classes].
        labels: Int [examples].
        mask: Bool [examples], which examples count; None takes all.
        weights: Float [examples], 0 or more: how often each example counts; None counts each once.

    Returns:
        CalibrationFit with gamma 0. Predictions that are all right end at T = 0.01 and labels that have nothing to do
        with the logits often at 100, with converged False; logits that are all equal leave T = 1.
        T is within 1e-3 relative of scipy's minimum in float64 and its NLL within 1e-6
        (tests/calibration/test_fits.py).

    Source: Guo et al., arXiv 1706.04599, section 4.2; their L-BFGS on T itself can diverge.

    Example:
        >>> found = calibration.fit_temperature(logits, labels)
        >>> round(float(found.temperature), 2), round(float(found.nll), 4), bool(found.converged)
        (0.96, 0.8052, True)
    """
    return temperature_fit(*blocks.on_host(checks.predicted_logits(logits, labels, mask, weights, soft=True)))


def temperature_fit(logits, labels, weight, start=None) -> CalibrationFit:
    """`fit_temperature` of what has been checked; `start` holds a temperature near the best."""
    (low, high), total = np.log(TEMPERATURE_BRACKET), np.sum(weight, dtype=np.float64)

    def sums(point):
        # a step of Newton's may leap far out, where exp(log T) would overflow
        return temperature_sums(min(max(point, 2 * low), 2 * high), logits, labels, weight) / total

    def slopes(point):
        value, slope, _ = sums(point)
        return value, max(slope, _FLATTEST)

    near = math.log(start["temperature"]) if start else 0.0
    found = optimize.root_scalar(slopes, x0=near, fprime=True, xtol=_STEP, maxiter=_MOST_STEPS)
    point, converged, (_, slope, nll) = found.root, True, sums(found.root)
    if not (found.converged and slope > _FLATTEST and low + AT_EDGE < point < high - AT_EDGE):
        # Newton's method ended outside or nowhere: the signs of the slope at the ends say what there is inside
        ends = sums(low)[0], sums(high)[0]
        converged = ends[0] < 0 < ends[1]
        if converged:
            point = optimize.brentq(lambda point: sums(point)[0], low, high, xtol=_STEP)
        else:
            # equal slopes are of logits that are all equal, where T = 1 is as good as any
            point = 0.0 if ends[0] == ends[1] else low if ends[0] >= 0 else high
        nll = sums(point)[2]
    numbers = np.array([0, math.exp(point), nll], logits.dtype)
    return CalibrationFit(*numbers, np.bool_(converged))


def temperature_sums(log_temperature, logits, labels, weight) -> np.ndarray:
    """Sums over rows of the first and second derivative of the NLL in log T, and of the NLL."""

    def of_block(rows, labels, weight):
        slope, variance, nll = temperature_terms(rows, labels, log_temperature)
        return [(weight * term).sum(dtype=np.float64) for term in (slope, variance - slope, nll)]

    return blocks.summed(of_block, logits, labels, weight)


def temperature_terms(logits, labels, log_temperature):
    """For each row a_y - E a, Var a and the NLL; a = z / T minus its largest, so that equal logits give 0 exactly."""
    scores = maps.scaled(logits, math.exp(log_temperature))
    probs = np.exp(scores)
    total = probs.sum(axis=-1)
    probs /= total[:, None]
    finite = np.where(probs > 0, scores, 0)
    mean, of_true = np.einsum("ij,ij->i", probs, finite), of_label(scores, labels)
    away = finite - mean[:, None]
    return of_true - mean, np.einsum("ij,ij->i", probs, np.square(away, out=away)), np.log(total) - of_true


class ScoreTest(NamedTuple):
    """The score test of T = 1: whether outputs are too hot or too cold as they are given."""

    statistic: float  # below 0: overconfident, a T above 1 fits better; above 0: underconfident
    p_value: float  # two-sided
    n: float  # examples, each as often as its weight says


def temperature_score_test(
    logits: Logits, labels: Labels, mask: Mask = None, *, clusters: Array | None = None, weights: Weights = None
) -> ScoreTest:
    """The score test of T = 1 in temperature scaling: U / sqrt(I), and p = 2 Phi(-|U| / sqrt(I)).

    With a = log softmax(logits) and p = exp(a), U = sum_i (a_i[label_i] - sum_k p_ik a_ik) is the slope of the
    log-likelihood in 1 / T at T = 1, and I = sum_i Var_{p_i}(a_i). Where the labels are drawn from p, U has mean 0 and
    variance I exactly; its distribution is normal only for many examples. Nothing is fitted, so one set of examples is
    enough. In float64 on the host: not for use inside jit.

    Args:
        logits: Float [examples, classes].
        labels: Int [examples].
        mask: Bool [examples], which examples count; None takes all.
        weights: Float [examples], above 0: how often each example counts; None counts each once.
        clusters: [examples], a number or name of the cluster of each: I is then the sum over clusters of their squared
            parts of U times K / (K - 1), and p is Student's of K - 1 degrees of freedom, see `Clusters`.

    Returns:
        ScoreTest. Where I is 0, as of logits that are all equal or have probabilities of 0 and 1 alone in float64, the
        p-value is 1 and the statistic 0 where U is 0, else 0 and infinite. Held to a loop, and its size under the null
        to a simulation, in tests/calibration/test_fits.py.

    Source: Rao, Proc. Camb. Phil. Soc. 44 (1948), the score test; 1 / T is the slope of Cox, Biometrika 45 (1958).

    Example:
        >>> test = calibration.temperature_score_test(logits, labels)
        >>> round(test.statistic, 3), round(test.p_value, 3)
        (0.048, 0.962)
    """
    examples = checks.predicted_logits(logits, labels, mask, weights)
    every = Clusters.of(clusters, examples.labels, weights)
    if every is not None and mask is not None:  # clusters that the mask leaves out are none: they would count in K
        kept = np.flatnonzero(mask)
        examples = checks.Examples(*(np.asarray(leaf)[kept] for leaf in examples))
        every = Clusters.of(every.index[kept], examples.labels, None if weights is None else examples.weight)
    return score_test(*examples, every)


def score_test(logits, labels, weight, clusters) -> ScoreTest:
    """`temperature_score_test` of what has been checked."""
    weight = np.asarray(weight, np.float64)
    terms = lambda rows, labels: np.stack(temperature_terms(rows.astype(np.float64), labels, 0.0)[:2])  # noqa: E731
    slope, variance = np.concatenate(blocks.in_blocks(terms, logits, labels), axis=1)
    score, information = float(weight @ slope), weight @ variance
    if clusters is not None:
        parts = np.bincount(clusters.index, weight * slope)
        information = parts @ parts * float(clusters.spread) ** 2
    statistic = math.copysign(math.inf, score) if score else 0.0
    if information > 0:
        statistic = score / math.sqrt(information)
    p_value = math.erfc(abs(statistic) / math.sqrt(2))
    if clusters is not None:
        p_value = 2 * float(special.stdtr(clusters.worth - 1, -abs(statistic)))
    return ScoreTest(statistic, p_value, float(weight.sum()))


def fit_focal_temperature(
    logits: Logits, labels: SoftLabels, mask: Mask = None, *, weights: Weights = None
) -> CalibrationFit:
    """The (gamma, T) in [-0.9, 20] x [0.01, 100] with the least NLL of `focal_temperature_scaling`, in nats.

    The NLL is not convex in the pair: the best of a coarse grid and of the fitted temperature alone starts L-BFGS-B,
    of scipy, with the gradient in closed form. It is never worse than `fit_temperature` on the same examples. On the
    host, in float64: not for use inside jit.

    Args:
        logits: Float [examples, classes].
        labels: Int [examples].
        mask: Bool [examples], which examples count; None takes all.
        weights: Float [examples], 0 or more: how often each example counts; None counts each once.

    Returns:
        CalibrationFit. `converged` is True where gamma and log T both lie more than 1e-4 inside the bracket and the
        gradient is below 1e-5 nats: a stationary point. It does not say that the minimum is the global one, nor how
        near the pair is: gamma and T trade against each other along a flat valley, so the pair is known less well than
        its NLL, which is within 1e-6 of scipy's from many starts (tests/calibration/test_fits.py).

    Source: the map is Komisarenko & Kull, arXiv 2408.11598, section 4.2, who search a grid; the fit is our own.

    Example:
        >>> found = calibration.fit_focal_temperature(logits, labels)
        >>> round(float(found.nll), 4), bool(found.converged)
        (0.8045, True)
    """
    examples = blocks.on_host(checks.predicted_logits(logits, labels, mask, weights, soft=True))
    return focal_fit(*examples, temperature_fit(*examples))


def focal_fit(logits, labels, weight, alone, start=None) -> CalibrationFit:
    """`fit_focal_temperature` of what has been checked, from the fit of the temperature alone.

    `start` holds a gamma and a temperature near the best; the fit then ends where less than 1e-7 nats are left.
    """
    first, examples = np.array([alone.gamma, math.log(alone.temperature)]), (logits, labels, weight)
    if start is None:
        every = max(1, len(labels) // _START_EXAMPLES, logits.size // _START_NUMBERS)
        few, starts = [array[::every] for array in examples], np.clip(first + _STARTS, *_BOX.T)
        values = np.array([_focal_terms(point, *few)[0] for point in starts])
        begins = [starts[values.argmin()]]
        if every == 1 and len(labels) < _FEW:  # few examples have several minima: one descent from each gamma
            rows = (np.flatnonzero(_STARTS[:, 0] == gamma) for gamma in np.unique(_STARTS[:, 0]))
            begins += [starts[of_gamma[values[of_gamma].argmin()]] for of_gamma in rows]
    else:
        begins = [np.array([start["gamma"], math.log(start["temperature"])])]
    gain = _GAIN if start is None else _NEAR_ENOUGH
    best, value, gradient = _scored(begins[0], examples, gain)
    for begin in begins[1:]:
        other = _scored(begin, examples, gain)
        # at gamma 20 the map is a step: .001 nats that 200 examples of 10 classes gain there cost .03 on others
        if other[1] < value - _LOWER and (logits.shape[1] == 2 or _inside(other[0])):
            best, value, gradient = other
    # never worse than the temperature alone, whose gamma is 0
    if not value < alone.nll:
        best, (value, gradient, _) = first, _focal_terms(first, *examples)
    # at gamma 0 the fit is the temperature's, and as little converged
    inside = _inside(best) & (alone.converged or best[0] != 0)
    numbers = np.array([best[0], math.exp(best[1]), value], logits.dtype)
    return CalibrationFit(*numbers, np.bool_(np.abs(gradient).max() < _FLAT and inside))


def _inside(point):
    return ((point > _BOX[:, 0] + AT_EDGE) & (point < _BOX[:, 1] - AT_EDGE)).all()


def _focal_terms(point, logits, labels, weight):
    """Mean NLL of the focal map at (gamma, log T), its gradient, and Fisher's information: near the curvature."""

    def of_block(logits, labels, weight):
        logits = np.maximum(logits, logits.max(axis=1, keepdims=True) + maps.FAR)  # of classes that cannot be
        log_weights, *changes = _focal_weights(maps.scaled(logits, math.exp(point[1])), point[0])
        probs, nll = probs_and_nll(log_weights, labels)
        weighted = [probs * change for change in changes]  # 0 where p is 0: changes are finite
        means = [part.sum(axis=1) for part in weighted]
        slopes = [mean - of_label(change, labels) for mean, change in zip(means, changes, strict=True)]
        pairs = (0, 0), (0, 1), (1, 1)
        information = [np.einsum("nk,nk->n", weighted[i], changes[j]) - means[i] * means[j] for i, j in pairs]
        return np.array([nll, *slopes, *information], np.float64) @ weight

    sums = blocks.summed(of_block, logits, labels, weight)
    nll, *slopes, of_gamma, mixed, of_log_temperature = sums / np.sum(weight, dtype=np.float64)
    return nll, np.array(slopes), np.array([[of_gamma, mixed], [mixed, of_log_temperature]])


def _scored(point, examples, gain):
    """The best point in the box, its NLL and gradient, by Fisher's scoring until a step promises less than `gain`.

    Where the model is wrong the information is not the curvature: what the last step showed of that corrects it. Where
    the steps do not settle, L-BFGS-B goes on.
    """
    value, last, step = np.inf, None, None
    for _ in range(_MOST_SCORES):
        before, (value, slope, curvature) = value, _focal_terms(point, *examples)
        if step is not None:
            missed = slope - last - curvature @ step
            if abs(along := missed @ step) > _GAIN:
                curvature = curvature + np.outer(missed, missed) / along
        # at an end of the box a number moves only inwards: else it would hold up the step of the other
        free = ~(((point <= _BOX[:, 0]) & (slope > 0)) | ((point >= _BOX[:, 1]) & (slope < 0)))
        step = np.linalg.lstsq(np.where(free & free[:, None], curvature, 0), -slope * free, rcond=1e-9)[0]
        promised = -(slope @ step) / 2
        if np.abs(slope * free).max() < _FLAT / 10 or 0 <= promised < gain:
            return point, value, slope
        if not (promised > 0 and value <= before):
            break
        step = np.clip(point + step * min(1, _LONGEST / np.abs(step).max()), *_BOX.T) - point
        point, last = point + step, slope
    found = optimize.minimize(
        lambda point: _focal_terms(point, *examples)[:2], point, (), "L-BFGS-B", True, bounds=_BOX, options=_PRECISE
    )
    return found.x, found.fun, found.jac


def probs_and_nll(scores, labels):
    """The softmax of the scores, and of each row -log p of its label."""
    largest = scores.max(axis=1, keepdims=True)
    probs = np.exp(scores - largest)
    total = probs.sum(axis=1, keepdims=True)
    probs /= total
    return probs, (largest + np.log(total))[:, 0] - of_label(scores, labels)


def _focal_weights(scores, gamma):
    """Log h of `focal_calibration`, for q = softmax(scores) with 0 as the largest, and its slopes by gamma and log T.

    It is the map's own log q - gamma log(1 - q) - log(1 + gamma u), u = -q log q / (1 - q), in half of the map's time:
    with one exponential a class in place of three. The top class, whose 1 - q would round, has its log-odds.
    """
    # the others' logsumexp is taken from the top's score, and anew only in the few rows where it vanishes: to do it
    # from the second largest in every row takes up to a third more time
    rows, top = np.arange(len(scores)), scores.argmax(axis=1)
    others = scores.copy()
    others[rows, top] = -np.inf
    q = np.exp(others)
    of_others = q.sum(axis=1)
    log_odds, average = -np.log(of_others), np.einsum("nk,nk->n", q, np.maximum(others, maps.FAR)) / of_others
    far = np.flatnonzero(of_others < np.finfo(q.dtype).tiny)  # where the others' probabilities round to 0
    largest = others[far].max(axis=1, keepdims=True)
    shares = np.exp(others[far] - largest)
    log_odds[far] = -largest[:, 0] - np.log(shares.sum(axis=1))
    average[far] = np.where(log_odds[far] < -maps.FAR / 2, largest[:, 0], 0)  # 0: no other class can be
    log_q = scores - np.log1p(of_others)[:, None]
    q /= (1 + of_others)[:, None]
    others[rows, top] = 0
    mean = average * of_others / (1 + of_others)
    complement = 1 - q  # q is 1/2 at most, but for the top class, which has its own below
    log_complement = np.log(complement)
    ratio = -q * log_q / complement
    q[rows, top], complement[rows, top] = special.expit(log_odds), special.expit(-log_odds)
    log_complement[rows, top] = maps.log_sigmoid(-log_odds)
    ratio[rows, top] = maps.surprise_ratio(log_odds)
    denominator = 1 + gamma * ratio
    slope = complement + gamma * (q - (ratio - q) / denominator)  # of log h, by the log-odds
    change = (mean[:, None] - scores) / complement  # of the log-odds, by log T
    change[rows, top] = average
    by_gamma = -log_complement - ratio / denominator
    return log_q - gamma * log_complement - np.log(denominator), by_gamma, slope * change
