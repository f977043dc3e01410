"""Metrics of two classes: whether P(1), the probability of class 1, comes true.

log_probs are float [examples, 2], or P(1) itself, float [examples].
"""

from functools import partial, wraps

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg
from jaxtyping import Float

from focalgeo import checks
from focalgeo.calibration import newton
from focalgeo.calibration.examples import as_logits
from focalgeo.calibration.metrics.binning import (
    SURE,
    Events,
    Labels,
    Reliability,
    Scalar,
    Summed,
    area,
    bin_mean,
    by_log_odds,
    ece_of,
    gap,
    mean_of,
    metric,
    named_empty,
    of_bins,
    of_equal_mass,
    weighted_mean,
    weighted_sums,
)
from focalgeo.trees import matmul
from focalgeo.types import LOG_FLOOR, NEAR_FLOOR, Array

LogProbs = Float[Array, "examples 2"] | Float[Array, " examples"]  # or P(1)
_SPAN = 0.75  # of the examples, in each fit of the loess
_HALVINGS = 24  # in the search for its widths
# Newton's method in slope and intercept goes on while a step promises more nats than float32 resolves (_GAIN) and is
# not cut to nothing (_SMALLEST), _MOST_STEPS at most.
_GAIN, _SMALLEST, _MOST_STEPS = 1e-8, 1e-4, 100
_SETTLED = 0.01  # of 1 and the larger of slope and intercept: a longer Newton step says that there is no least NLL


def _of_p(body):
    """The metric of the body, which takes P(1) [examples] too."""
    of_rows = metric(body)

    @wraps(of_rows)
    def taken(log_probs, *arguments, **options):
        if np.ndim(log_probs) == 1:
            for counts in (options.get("mask"), options.get("weights")):
                if np.shape(counts) == np.shape(log_probs):  # what does not count may be any number
                    log_probs = (jnp if checks.is_traced(log_probs, counts) else np).where(counts, log_probs, 0.5)
            log_probs = as_logits(None, log_probs)
        return of_rows(log_probs, *arguments, **options)

    return taken


def class_one(examples: checks.Examples) -> Events:
    """The event that the label is 1, of two classes alone."""
    rows, labels, weight = examples
    checks.check_array("log_probs", rows, shape=(None, 2))
    return Events(jnp.exp(rows[:, 1]), labels == 1, weight)


@_of_p
def binary_brier(log_probs: LogProbs, labels: Labels) -> Scalar:
    """Mean of (P(1) - y)^2, 0 to 1: half of `brier`.

    Source: Brier, Monthly Weather Review 78 (1950); halved, as scikit-learn's brier_score_loss.

    Example:
        >>> round(float(calibration.binary_brier(two_classes, outcomes)), 4)
        0.225
    """

    def squared_error(examples):
        p, outcome, _ = class_one(examples)
        return (p - outcome.astype(p.dtype)) ** 2

    return mean_of(squared_error)


@_of_p
def rms_calibration_error(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15) -> Scalar:
    """Root of sum_i (n_i / N) (share of label 1 - mean P(1))^2 over the bins of `binary_ece`, as a fraction.

    Source: Nguyen & O'Connor, EMNLP 2015, with bins of equal width.

    Example:
        >>> round(float(calibration.rms_calibration_error(two_classes, outcomes, num_bins=2)), 4)
        0.1179
    """
    return of_bins(class_one, num_bins, _rms)


def _rms(bins):
    return jnp.sqrt(bin_mean(bins, gap(bins) ** 2))


@_of_p
def adaptive_rms_calibration_error(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15) -> Scalar:
    """`rms_calibration_error` over bins of equal count of P(1), those of `adaptive_reliability`, as a fraction.

    Benchmarks of stated confidence take it: P(1) is the confidence that an answer is right, the label whether it was.

    Source: Hendrycks, Mazeika & Dietterich, arXiv 1812.04606, with a fixed number of bins.

    Example:
        >>> round(float(calibration.adaptive_rms_calibration_error(two_classes, outcomes, num_bins=2)), 4)
        0.1179
    """
    return of_equal_mass(class_one, num_bins, _rms)


@_of_p
def spiegelhalter_z(log_probs: LogProbs, labels: Labels) -> Scalar:
    """Sum of (y - p)(1 - 2p) over the root of the sum of (1 - 2p)^2 p (1 - p), with p = P(1).

    Where labels are drawn from p it is standard normal for many examples: beyond 1.96 on either side p is not
    calibrated at the 5% level. It is the Brier score less what it would be on average, so above 0 where p is too sure.
    NaN where every p is 0, 1/2 or 1. Examples are taken for independent.

    Source: Spiegelhalter, Statistics in Medicine 5 (1986).

    Example:
        >>> round(float(calibration.spiegelhalter_z(two_classes, outcomes)), 4)
        0.7647
    """

    def sums(examples):
        p, outcome, weight = class_one(examples)
        score, _ = weighted_sums((outcome.astype(p.dtype) - p) * (1 - 2 * p), weight)
        return score, *weighted_sums((1 - 2 * p) ** 2 * p * (1 - p), weight)

    def standardised(score, variance, total):
        return jnp.where(variance > 0, score / total * jnp.sqrt(total / (variance / total)), jnp.nan)

    return Summed(sums, standardised)


@_of_p
def calibration_slope(log_probs: LogProbs, labels: Labels) -> Scalar:
    """The a of the logistic regression of the label on the log-odds of P(1), sigmoid(a s + b); 1 where calibrated.

    Below 1 predictions are too extreme. NaN where there is no least NLL, as where a threshold parts the labels, and
    where some P(1) is 0 or 1. Absolute error 1e-4, tested in tests/calibration/test_binary.py.

    Source: Cox, Biometrika 45 (1958).

    Example:
        >>> round(float(calibration.calibration_slope(two_classes, outcomes)), 4)
        0.6144
    """
    return partial(_recalibrated, slope=True)


@_of_p
def calibration_intercept(log_probs: LogProbs, labels: Labels) -> Scalar:
    """Calibration in the large: the b of sigmoid(s + b) by least NLL; 0 where calibrated, above it where P(1) is low.

    NaN where all labels are equal, and where some P(1) is 0 or 1. Absolute error 1e-4, tested in
    tests/calibration/test_binary.py.

    Source: Cox, Biometrika 45 (1958), with the slope at 1.

    Example:
        >>> round(float(calibration.calibration_intercept(two_classes, outcomes)), 4)
        0.1051
    """
    return partial(_recalibrated, slope=False)


def _recalibrated(examples, *, slope):
    """The coefficient of the log-odds, or of the constant with the log-odds as they are."""
    _, truth, weight = class_one(examples)
    # of log p and log(1 - p), which keep what P(1) rounds to 1
    log_odds = jnp.where(weight > 0, examples.rows[:, 1] - examples.rows[:, 0], 0)
    share = weight / jnp.sum(weight)
    one, offset = jnp.ones_like(log_odds), jnp.where(slope, 0, log_odds)
    # less their mean, beside which a slope of nearly equal log-odds would not be seen
    columns = jnp.stack([log_odds - matmul(share, log_odds), one] if slope else [one])

    def objective(point):
        scores = matmul(point, columns) + offset
        return jnp.sum(share * (jax.nn.softplus(scores) - jnp.where(truth, scores, 0)))

    def newton_step(point):
        slopes = -jax.grad(objective)(point)
        step = cg(partial(matmul, jax.hessian(objective)(point)), slopes, tol=1e-6)[0]
        return step, jnp.sum(slopes * step) / 2

    def advance(state):
        point, size, _, count = state
        step, gain = newton_step(point)
        trial = point + size * step
        lower = objective(trial) < objective(point)
        size = jnp.where(lower, jnp.minimum(4 * size, 1), size / 4)
        return jnp.where(lower, trial, point), size, gain, count + 1

    def going(state):
        _, size, gain, count = state
        return (gain > _GAIN) & (size > _SMALLEST) & (count < _MOST_STEPS)

    start = 0 * columns[:, 0]
    one = jnp.ones_like(start[0])
    point, *_ = jax.lax.while_loop(going, advance, (start, one, one, 0))
    step, _ = newton_step(point)
    still = jnp.max(jnp.abs(step)) <= _SETTLED * (1 + jnp.max(jnp.abs(point)))
    settled = still & jnp.isfinite(objective(point))
    # There is no least NLL where a threshold parts the labels: the steps only grow until float32 sees no slope.
    (low, high), (other_low, other_high) = (
        (jnp.min(jnp.where(of, log_odds, jnp.inf)), jnp.max(jnp.where(of, log_odds, -jnp.inf)))
        for of in (truth & (weight > 0), ~truth & (weight > 0))
    )
    parted = (low >= other_high) | (high <= other_low)
    settled &= jnp.where(slope, ~parted, jnp.isfinite(low) & jnp.isfinite(other_low))
    settled &= ~jnp.any((weight > 0) & (jnp.abs(jnp.min(examples.rows, axis=-1) - LOG_FLOOR) < NEAR_FLOOR))
    return jnp.where(settled, point + step, jnp.nan)[0]


@_of_p
def ici(log_probs: LogProbs, labels: Labels) -> Scalar:
    """Integrated calibration index: mean of |P(1) - f(P(1))|, as a fraction, f the share of label 1 by loess.

    f is fitted as R's loess by default: by weighted least squares of degree 2 with tricube weights over the nearest 75%
    of the examples, at 101 quantiles of P(1), linear between them. Within 1e-3 of loess,
    tested in tests/calibration/test_binary.py.

    Source: Austin & Steyerberg, Statistics in Medicine 38 (2019); Cleveland & Devlin, JASA 83 (1988).

    Example:
        >>> round(float(calibration.ici(two_classes, outcomes)), 4)
        0.2583
    """

    def of(examples):
        p, outcome, weight = class_one(examples)
        p = jnp.where(weight > 0, p, 0)
        # Quantiles, not equidistant points: one far P(1) would leave a single point to all others.
        order = jnp.argsort(p)
        mass = jnp.cumsum(weight[order])
        at = jnp.linspace(0, 1, 101, dtype=p.dtype) * mass[-1]
        points = p[order][jnp.searchsorted(mass, jnp.maximum(at, jnp.finfo(p.dtype).tiny)).clip(max=len(p) - 1)]

        def smoothed(point):
            far = jnp.abs(p - point)
            too_small = lambda width: weighted_mean((far <= width).astype(p.dtype), weight) < _SPAN  # noqa: E731
            width = newton.bisection(too_small, 0 * point, 0 * point + 1, num_halvings=_HALVINGS)
            kernel = weight * jnp.maximum(1 - (far / width) ** 3, 0) ** 3
            line = (p - point) / width
            powers = jnp.stack([jnp.ones_like(p), line, line**2])
            gram, of_ones = matmul(powers * kernel[None], powers.T), matmul(powers, jnp.where(outcome, kernel, 0))
            return cg(partial(matmul, gram), of_ones, tol=1e-6)[0][0]

        return weighted_mean(jnp.abs(p - jnp.interp(p, points, jax.lax.map(smoothed, points))), weight)

    return of


@_of_p
def binary_reliability(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15) -> Reliability:
    """Reliability bins of P(class 1): as `reliability`, of the event that the label is 1.

    Example:
        >>> bins = calibration.binary_reliability(two_classes, outcomes, num_bins=2)
        >>> print(bins.count, np.asarray(bins.confidence).round(4), np.asarray(bins.accuracy).round(4))
        [3. 3.] [0.2    0.7667] [0.3333 0.6667]
    """
    return of_bins(class_one, num_bins, named_empty)


@_of_p
def binary_ece(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15) -> Scalar:
    """ECE sum_i (n_i / N) |share of label 1 - mean P(class 1)| over equal-width bins of P(class 1), as a fraction.

    log_probs float [examples, 2], labels int [examples]; bins as `reliability`. Absolute error 1e-6, tested in
    tests/calibration/test_metrics.py.

    Example:
        >>> round(float(calibration.binary_ece(two_classes, outcomes, num_bins=2)), 4)
        0.1167
    """
    return ece_of(class_one, num_bins)


@_of_p
def auroc(log_probs: LogProbs, labels: Labels) -> Scalar:
    """Area under the ROC curve of P(class 1) as a test of whether the label is 1: as `confidence_auroc` of that event.

    log_probs float [examples, 2]; NaN where all labels are equal. Ranks are those of the log-odds, which keep
    what P(class 1) rounds to 0 or 1; those that differ by rounding alone are tied.

    Example:
        >>> round(float(calibration.auroc(two_classes, outcomes)), 4)
        0.7778
    """

    def of(examples):
        _, truth, weight = class_one(examples)
        return area(by_log_odds(jnp.clip(examples.rows[:, 1] - examples.rows[:, 0], -SURE, SURE), truth, weight))

    return of
