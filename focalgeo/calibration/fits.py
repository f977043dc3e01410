"""Continuous fits of the temperature, and of gamma and temperature, by least NLL, and the score test of T = 1.

Brackets keep the fits from diverging.
"""

import math
from functools import partial
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool
from scipy.special import stdtr

from focalgeo import checks
from focalgeo.calibration import maps, newton
from focalgeo.calibration.binning import Labels, Logits, Mask, Scalar, SoftLabels, nll_of, of_label
from focalgeo.calibration.clusters import Clusters
from focalgeo.types import Array

GAMMA_BRACKET = (-0.9, 20.0)
TEMPERATURE_BRACKET = (0.01, 100.0)
AT_EDGE = 1e-4  # of gamma or log T: no further inside a bracket is its end

_GAIN = {"float32": 1e-9, "float64": 1e-14}  # nats: no further Newton step where the last promised less
_CONVERGED = 1000  # times that: a float32 mean is not known better, and a step that promises 1e-7 may not lower it
# of the descent: gamma and log T less those of the temperature fitted alone
_STARTS = np.array([*product((-0.5, 0.5, 2.0, 8.0), np.log([0.5, 0.7, 1.0, 1.4, 2.0]))])
_START_EXAMPLES = 1000  # at least, on which the starts are compared


class CalibrationFit(NamedTuple):
    """A fit by least NLL: its parameters, its NLL, and whether it is a minimum inside the bracket."""

    gamma: Scalar  # 0 for a fit of the temperature alone
    temperature: Scalar
    nll: Scalar  # nats per example
    converged: Bool[Array, ""]  # a least value inside the bracket
    at_bound: Bool[Array, ""]  # the NLL still falls, or does not change, where the bracket ends


def fit_temperature(logits: Logits, labels: SoftLabels, mask: Mask = None, *, weights: Mask = None) -> CalibrationFit:
    """The T from 0.01 to 100 with the least mean of -log softmax(logits / T)[label], in nats.

    The NLL is convex in 1 / T, so its slope in log T changes sign once: Newton steps in log T, a bisection where one
    leaves the bracket. It cannot diverge.

    Args:
        logits: Float [examples, classes].
        labels: Int [examples].
        mask: Bool [examples], or how often each example counts; None counts each once.
        weights: Float [examples], 0 or more: how often each example counts, times the mask.

    Returns:
        CalibrationFit with gamma 0. Predictions that are all right end at T = 0.01 and labels that have nothing to do
        with the logits often at 100, with converged False and at_bound True; logits that are all equal leave T = 1.
        For use inside jit and vmap. T is within 1e-3 relative of scipy's minimum in float64 and its NLL within 1e-6
        (tests/calibration/test_fits.py).

    Source: Guo et al., arXiv 1706.04599, section 4.2; their L-BFGS on T itself can diverge.
    """
    return temperature_fit(*checks.predicted_logits(logits, labels, mask, weights, soft=True))


@jax.jit
def temperature_fit(logits, labels, weight) -> CalibrationFit:
    """`fit_temperature` of what has been checked."""
    slopes = partial(temperature_slopes, logits, labels, weight)
    low, high = jnp.log(jnp.asarray(TEMPERATURE_BRACKET, logits.dtype))
    slope_low, slope_high = slopes(low)[0], slopes(high)[0]
    at_bound = (slope_low >= 0) | (slope_high <= 0)
    least_gain = _GAIN[logits.dtype.name]
    root = newton.newton_in_bracket(
        slopes, jnp.zeros_like(low), low, high, settled=lambda slope, curve: slope * slope <= 2 * least_gain * curve
    )
    end = jnp.where(slope_low == slope_high, 0, jnp.where(slope_low >= 0, low, high))
    temperature = jnp.exp(jnp.where(at_bound, end, root.point))
    nll = nll_of(checks.Examples(maps.temperature_scaling(logits, temperature), labels, weight))
    return CalibrationFit(jnp.zeros_like(nll), temperature, nll, root.converged & ~at_bound, at_bound)


def temperature_slopes(logits, labels, weight, log_temperature):
    """First and second derivative of the mean NLL in log T: of a = z / T, a_y - E a and Var a - (a_y - E a), E by p.

    In closed form, of which jax compiles less than of the derivatives of `temperature_scaling`.
    """
    scores = maps.scaled(logits, jnp.exp(log_temperature))
    probs = jax.nn.softmax(scores, axis=-1)

    def expected(values):
        return jnp.sum(jnp.where(probs > 0, probs * values, 0), axis=-1)

    mean = expected(scores)
    slope = of_label(scores, labels) - mean
    variance = expected((scores - mean[:, None]) ** 2)
    return jnp.sum(weight * slope) / jnp.sum(weight), jnp.sum(weight * (variance - slope)) / jnp.sum(weight)


class ScoreTest(NamedTuple):
    """The score test of T = 1: whether outputs are too hot or too cold as they are given."""

    statistic: float  # below 0: overconfident, a T above 1 fits better; above 0: underconfident
    p_value: float  # two-sided
    n: float  # examples, each as often as the mask counts it


def temperature_score_test(
    logits: Logits, labels: Labels, mask: Mask = None, *, clusters: Array | None = None, weights: Mask = None
) -> ScoreTest:
    """The score test of T = 1 in temperature scaling: U / sqrt(I), and p = 2 Phi(-|U| / sqrt(I)).

    With a = log softmax(logits) and p = exp(a), U = sum_i (a_i[label_i] - sum_k p_ik a_ik) is the slope of the
    log-likelihood in 1 / T at T = 1, and I = sum_i Var_{p_i}(a_i). Where the labels are drawn from p, U has mean 0 and
    variance I exactly; its distribution is normal only for many examples. Nothing is fitted, so one set of examples is
    enough. In float64 on the host: not for use inside jit.

    Args:
        logits: Float [examples, classes].
        labels: Int [examples].
        mask: Bool [examples], or how often each example counts; None counts each once.
        weights: Float [examples], above 0: how often each example counts, times the mask.
        clusters: [examples], a number or name of the cluster of each: I is then the sum over clusters of their squared
            parts of U times K / (K - 1), and p is Student's of K - 1 degrees of freedom, see `Clusters`.

    Returns:
        ScoreTest. Where I is 0, as of logits that are all equal or have probabilities of 0 and 1 alone in float64, the
        p-value is 1 and the statistic 0 where U is 0, else 0 and infinite. Held to a loop, and its size under the null
        to a simulation, in tests/calibration/test_fits.py.

    Source: Rao, Proc. Camb. Phil. Soc. 44 (1948), the score test; 1 / T is the slope of Cox, Biometrika 45 (1958).
    """
    examples = checks.predicted_logits(logits, labels, mask, weights)
    return score_test(*examples, Clusters.of(clusters, examples.labels, weights))


@np.errstate(under="ignore")
def score_test(logits, labels, weight, clusters=None) -> ScoreTest:
    """`temperature_score_test` of what has been checked."""
    scores, weight = np.asarray(logits, np.float64), np.asarray(weight, np.float64)
    scores = scores - scores.max(axis=1, keepdims=True)
    probs = np.exp(scores)
    probs /= probs.sum(axis=1, keepdims=True)
    scores = np.where(scores == -np.inf, 0, scores)  # of p = 0
    mean = (probs * scores).sum(axis=1)  # of a less its largest: equal logits give 0 exactly
    variance = (probs * (scores - mean[:, None]) ** 2).sum(axis=1)
    true = np.take_along_axis(scores, np.asarray(labels)[:, None], axis=1)[:, 0]
    score, information = float(weight @ (true - mean)), float(weight @ variance)
    if clusters is not None:
        parts = np.bincount(clusters.index, weight * (true - mean))
        information = float(parts @ parts) * float(clusters.spread) ** 2
    statistic = math.copysign(math.inf, score) if score else 0.0
    if information > 0:
        statistic = score / math.sqrt(information)
    p_value = math.erfc(abs(statistic) / math.sqrt(2))
    if clusters is not None:
        p_value = 2 * float(stdtr(clusters.worth - 1, -abs(statistic)))
    return ScoreTest(statistic, p_value, float(weight.sum()))


def fit_focal_temperature(
    logits: Logits, labels: SoftLabels, mask: Mask = None, *, weights: Mask = None
) -> CalibrationFit:
    """The (gamma, T) in [-0.9, 20] x [0.01, 100] with the least NLL of `focal_temperature_scaling`, in nats.

    The NLL is not convex in the pair: the best of a coarse grid and of the fitted temperature alone starts a damped
    Newton method that never accepts a larger NLL. It is so never worse than `fit_temperature` on the same examples.

    Args:
        logits: Float [examples, classes].
        labels: Int [examples].
        mask: Bool [examples], or how often each example counts; None counts each once.
        weights: Float [examples], 0 or more: how often each example counts, times the mask.

    Returns:
        CalibrationFit. `converged` is True where gamma and log T both lie more than 1e-4 inside the bracket and a
        further Newton step promises at most 1e-7 nats (1e-12 in float64) by the local quadratic: a stationary point
        that descent reached. It does not say that the minimum is the global one, nor how near the pair is: gamma and T
        trade against each other along a flat valley, so the pair is known less well than its NLL, which is within 1e-6
        of scipy's from many starts (tests/calibration/test_fits.py). For use inside jit and vmap.

    Source: the map is Komisarenko & Kull, arXiv 2408.11598, section 4.2, who search a grid; the fit is our own.
    """
    examples = checks.predicted_logits(logits, labels, mask, weights, soft=True)
    return focal_fit(*examples, temperature_fit(*examples))  # apart: once compiled it serves both


@jax.jit
def focal_fit(logits, labels, weight, alone) -> CalibrationFit:
    """`fit_focal_temperature` of what has been checked, from the fit of the temperature alone."""

    def objective(point, every=1):
        rows = maps.focal_temperature_scaling(logits[::every], point[0], jnp.exp(point[1]))
        return nll_of(checks.Examples(rows, labels[::every], weight[::every]))

    low, high = np.array([GAMMA_BRACKET, np.log(TEMPERATURE_BRACKET)]).T.astype(logits.dtype)
    tolerance = _GAIN[logits.dtype.name]
    every = max(1, len(labels) // _START_EXAMPLES)  # what the grid finds only has to lie in the valley of the best
    alone_point = jnp.stack([alone.gamma, jnp.log(alone.temperature)])
    points = jnp.clip(alone_point[None] + _STARTS.astype(logits.dtype), low[None], high[None])
    points = jnp.stack([alone_point, points[jnp.argmin(jax.lax.map(partial(objective, every=every), points))]])
    values = jax.lax.map(objective, points)
    best = jnp.argmin(values.at[0].add(-tolerance))  # the temperature alone, where the other is no better by more
    minimum = newton.box_descent(objective, points[best], values[best], low, high, tolerance=tolerance)
    at_bound = jnp.any((minimum.point <= low + AT_EDGE) | (minimum.point >= high - AT_EDGE))
    at_bound |= alone.at_bound & (minimum.point[0] == 0)
    converged = (minimum.gain <= _CONVERGED * tolerance) & ~at_bound
    return CalibrationFit(minimum.point[0], jnp.exp(minimum.point[1]), minimum.value, converged, at_bound)
