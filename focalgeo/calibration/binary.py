"""Two classes: calibration of P(1), the probability of class 1, and metrics that ask whether it comes true.

Methods are maps of the log-odds s = log(p / (1 - p)) with p = P(1); each takes log p and log(1 - p) from the
log-probabilities, which keep what p rounds to 1. They and their metrics are for two classes alone.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg
from scipy import optimize

from focalgeo import checks
from focalgeo.calibration import maps, newton, variants
from focalgeo.calibration.binning import (
    Events,
    Labels,
    LogProbs,
    Mask,
    Scalar,
    Summed,
    bin_mean,
    gap,
    mean_of,
    of_bins,
    of_sums,
    weighted,
    weighted_mean,
    weighted_sums,
)
from focalgeo.calibration.maps import Ascending, Rows
from focalgeo.calibration.variants import Params
from focalgeo.trees import matmul

# Of each method rows are the numbers fitted, columns what they multiply: s^2, log p, -log(1 - p) and 1.
PLATT = ((0, 1, 1, 0), (0, 0, 0, 1))
BETA = ((0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))
QUADRATIC = ((1, 0, 0, 0), (0, 1, 1, 0), (0, 0, 0, 1))

_LEAST = -1e15  # of a log-probability: its square is finite in float32
_SPAN = 0.75  # of the examples, in each fit of the loess
_HALVINGS = 24  # in the search for its widths
_PRECISE = {"ftol": 1e-13, "gtol": 1e-9}
_GAIN, _SMALLEST, _MOST_STEPS = (
    1e-8,
    1e-4,
    100,
)  # of Newton's steps: nats promised, the least share of one, their number
_SETTLED, _STILL = 0.01, 1e-4  # of slope and intercept: a Newton step of more says that there is no least NLL


@maps.quiet
def logistic_calibration(logits: Rows, square: Scalar, a: Scalar, b: Scalar, c: Scalar) -> Rows:
    """Log-probabilities of P(1) = sigmoid(square s^2 + a log p - b log(1 - p) + c), with s = log p - log(1 - p).

    Platt scaling is square 0 and a = b, as a s + c; beta calibration square 0, with a and b of 0 or more so that it
    never falls; quadratic scaling a = b. That is not kept monotone, as in its source: beyond s = -a / (2 square) it
    turns round.

    Args:
        logits: Float [..., 2].
        square: Float scalar.
        a: Float scalar.
        b: Float scalar.
        c: Float scalar.

    Returns:
        [..., 2] float32, normalised. The predicted class may differ from that of the logits.

    Source: Platt, Advances in Large Margin Classifiers (1999), of the log-odds as his classifier's output; Kull, Silva
    Filho & Flach, AISTATS 2017, Eq. 3; Berta, Holzmueller, Jordan & Bach, arXiv 2511.03685, and probmetrics 1.3.0.

    Example:
        >>> square, a, b, c = np.float32([0, 0.5, 0.5, -0.2])  # Platt's sigmoid(s / 2 - 0.2)
        >>> platt = calibration.logistic_calibration(two_classes, square, a, b, c)
        >>> print(np.exp(platt[:, 1]).round(4))
        [0.2144 0.2905 0.349  0.5007 0.6208 0.7107]
    """
    columns = _columns(maps.rows_beside("logits", logits, square, a, b, c))
    space, dtype = maps.namespace(columns[0]), columns[0].dtype
    terms = zip((square, a, b, c), columns, strict=True)
    return _certain(logits, _log_probs(sum(space.asarray(number, dtype) * column for number, column in terms)))


@maps.quiet
def binary_isotonic_calibration(logits: Rows, thresholds: Ascending, probabilities: Ascending) -> Rows:
    """Log-probabilities of P(1) = f(s), with f linear in the log-odds s between the thresholds.

    Args:
        logits: Float [..., 2].
        thresholds: Float [numbers], ascending log-odds; beyond the ends, f is constant.
        probabilities: Float [numbers], ascending, above 0 and below 1: f there.

    Returns:
        [..., 2] float32, normalised. The predicted class may differ from that of the logits.

    Source: Zadrozny & Elkan, KDD 2002.

    Example:
        >>> steps = np.float32([-2, 0, 2]), np.float32([0.2, 0.4, 0.7])
        >>> print(np.exp(calibration.binary_isotonic_calibration(two_classes, *steps)[:, 1]).round(4))
        [0.2    0.2614 0.3153 0.4608 0.6079 0.7   ]
    """
    log_q, log_p = _two_classes(logits)
    space = maps.namespace(log_p)
    numbers = (space.asarray(numbers, log_p.dtype) for numbers in (thresholds, probabilities))
    p = space.interp(log_p - log_q, *numbers).astype(log_p.dtype)
    return _certain(logits, _log_probs(space.log(p) - space.log1p(-p)))


def _certain(logits, log_probs):
    """The log-probabilities, of which those of a row with a class that cannot be are -inf and 0."""
    space = maps.namespace(log_probs)
    logits = space.asarray(logits)
    any_never = space.max(-logits, axis=-1, keepdims=True) == np.inf
    return space.where(any_never, space.where(logits == -np.inf, -np.inf, 0), log_probs).astype(log_probs.dtype)


@maps.quiet
def _two_classes(logits):
    """Log(1 - p) and log p; NaN of a row that is not finite."""
    rows = maps.rows_beside("logits", checks.score_rows("logits", logits, shape=(..., 2)))
    space = maps.namespace(rows)
    s = space.sum(_signed(rows), axis=-1)
    s = space.where(space.isfinite(space.max(space.abs(rows), axis=-1)), s, np.nan)
    return [space.maximum(maps.log_sigmoid(log_odds), _LEAST) for log_odds in (-s, s)]


def _columns(logits):
    """S^2, log p, -log(1 - p) and 1."""
    log_q, log_p = _two_classes(logits)
    s = log_p - log_q
    return s * s, log_p, -log_q, maps.namespace(s).ones_like(s)


def _log_probs(log_odds):
    return maps.log_sigmoid(_signed(log_odds[..., None]))


def _signed(rows):
    """The rows, the negative first, [..., 2]."""
    signs = np.array([-1, 1], rows.dtype)
    return rows * maps.namespace(rows).broadcast_to(signs, (*rows.shape[:-1], 2))


def fit_logistic(logits, labels, *, criterion, mask, form, least=-np.inf) -> Params:
    """The numbers of a `logistic_calibration` with the least NLL of Platt's targets.

    Each of the n_y examples of a label counts as one of the other label with probability 1 / (n_y + 2); so any examples
    have a least NLL, those that a threshold parts too.

    Args:
        logits: Float [examples, 2].
        labels: Int [examples].
        criterion: "nll".
        mask: How often each example counts.
        form: PLATT, BETA or QUADRATIC.
        least: Of all numbers but the last.

    Returns:
        The numbers "a", "b" and perhaps "c", and "converged".

    Source: as `logistic_calibration`; the targets are Platt's, section 2.2, for all three.
    """
    logits, labels, weight = map(np.asarray, (logits, labels, mask))
    possible = np.isfinite(logits).all(axis=-1)  # all other rows say nothing
    columns = np.stack(_columns(logits[possible]), axis=-1).astype(np.float64) @ np.transpose(form)
    truth, weight = labels[possible] == 1, weight[possible].astype(np.float64)
    total = np.array([weight @ ~truth, weight @ truth])
    target = np.where(truth, (total[1] + 1) / (total[1] + 2), 1 / (total[0] + 2))
    share = weight / total.sum()
    centre = share @ columns * [*[1] * (len(form) - 1), 0]  # of all but the constant
    size = np.maximum(np.abs(columns - centre).max(axis=0, initial=0), 1e-300)
    columns = (columns - centre) / size

    def objective(numbers):
        scores = columns @ numbers
        small = np.exp(-np.abs(scores))  # of one exponential both the softplus and the sigmoid
        residual = share * (np.where(scores > 0, 1, small) / (1 + small) - target)
        return share @ (np.maximum(scores, 0) + np.log1p(small) - target * scores), columns.T @ residual

    bounds = [(least, None)] * (len(size) - 1) + [(None, None)]
    best = optimize.minimize(objective, np.zeros(len(size)), (), "L-BFGS-B", True, bounds=bounds, options=_PRECISE)
    numbers = best.x / size
    numbers[-1] -= centre @ numbers
    return dict(zip("abc", numbers.astype(logits.dtype), strict=False)) | {"converged": best.success}


def fit_binary_isotonic(logits, labels, *, criterion, mask) -> Params:
    """Isotonic regression of the label on the log-odds.

    Returns:
        "thresholds" and "probabilities" for `binary_isotonic_calibration`; these are between 1 / (n + 2) and
        1 - 1 / (n + 2) of n examples, the rule of succession, so that the NLL stays finite.

    Source: as `binary_isotonic_calibration`.
    """
    possible = np.isfinite(logits).all(axis=1)
    log_q, log_p = _two_classes(np.asarray(logits)[possible])
    weight = np.asarray(mask)[possible]
    least = 1 / (weight.sum() + 2)
    return variants.isotonic_regression(log_p - log_q, np.asarray(labels)[possible], weight, least, 1 - least)


def class_one(examples: checks.Examples) -> Events:
    """The event that the label is 1, of two classes alone."""
    rows, labels, weight = _of_two(examples)
    return Events(jnp.exp(rows[:, 1]), labels == 1, weight)


def _of_two(examples):
    checks.check_array("log_probs", examples.rows, shape=(None, 2))
    return examples


def _squared_error(examples):
    p, outcome, _ = class_one(examples)
    return (p - outcome.astype(p.dtype)) ** 2


def _score_sums(examples, _):
    p, outcome, weight = class_one(examples)
    score, _ = weighted_sums((outcome.astype(p.dtype) - p) * (1 - 2 * p), weight)
    return score, *weighted_sums((1 - 2 * p) ** 2 * p * (1 - p), weight)


def _standardised(score, variance, total):
    return jnp.where(variance > 0, score / total * jnp.sqrt(total / (variance / total)), jnp.nan)


@of_sums(mean_of(_squared_error))
def binary_brier(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> Scalar:
    """Mean of (P(1) - y)^2, 0 to 1: half of `brier`.

    Source: Brier, Monthly Weather Review 78 (1950); halved, as scikit-learn's brier_score_loss.

    Example:
        >>> round(float(calibration.binary_brier(two_classes, outcomes)), 4)
        0.225
    """


@of_sums(of_bins(lambda bins: jnp.sqrt(bin_mean(bins, gap(bins) ** 2)), class_one))
def rms_calibration_error(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15, mask: Mask = None) -> Scalar:
    """Root of sum_i (n_i / N) (share of label 1 - mean P(1))^2 over the bins of `binary_ece`, as a fraction.

    Source: Nguyen & O'Connor, EMNLP 2015, with bins of equal width.

    Example:
        >>> round(float(calibration.rms_calibration_error(two_classes, outcomes, num_bins=2)), 4)
        0.1179
    """


@of_sums(Summed(_score_sums, _standardised))
def spiegelhalter_z(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> Scalar:
    """Sum of (y - p)(1 - 2p) over the root of the sum of (1 - 2p)^2 p (1 - p), with p = P(1).

    Where labels are drawn from p it is standard normal for many examples: beyond 1.96 on either side p is not
    calibrated at the 5% level. It is the Brier score less what it would be on average, so above 0 where p is too sure.
    NaN where every p is 0, 1/2 or 1. Examples are taken for independent.

    Source: Spiegelhalter, Statistics in Medicine 5 (1986).

    Example:
        >>> round(float(calibration.spiegelhalter_z(two_classes, outcomes)), 4)
        0.7647
    """


@weighted
def calibration_slope(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> Scalar:
    """The a of the logistic regression of the label on the log-odds of P(1), sigmoid(a s + b); 1 where calibrated.

    Below 1 predictions are too extreme. NaN where there is no least NLL, as where a threshold parts the labels, and
    where some P(1) is 0 or 1. Absolute error 1e-4, tested in tests/calibration/test_binary.py.

    Source: Cox, Biometrika 45 (1958).

    Example:
        >>> round(float(calibration.calibration_slope(two_classes, outcomes)), 4)
        0.6144
    """
    return _recalibrated(log_probs, labels, mask, slope=True)


@weighted
def calibration_intercept(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> Scalar:
    """Calibration in the large: the b of sigmoid(s + b) by least NLL; 0 where calibrated, above it where P(1) is low.

    NaN where all labels are equal, and where some P(1) is 0 or 1. Absolute error 1e-4, tested in
    tests/calibration/test_binary.py.

    Source: Cox, Biometrika 45 (1958), with the slope at 1.

    Example:
        >>> round(float(calibration.calibration_intercept(two_classes, outcomes)), 4)
        0.1051
    """
    return _recalibrated(log_probs, labels, mask, slope=False)


def _recalibrated(log_probs, labels, mask, *, slope):
    """The coefficient of the log-odds, or of the constant with the log-odds as they are."""
    rows, labels, weight = _of_two(checks.examples(log_probs, labels, mask))
    log_odds, share = jnp.where(weight > 0, rows[:, 1] - rows[:, 0], 0), weight / jnp.sum(weight)
    one, offset = jnp.ones_like(log_odds), jnp.where(slope, 0, log_odds)
    columns = jnp.stack([log_odds, one] if slope else [one])

    def objective(point):
        scores = matmul(point, columns) + offset
        return jnp.sum(share * (jax.nn.softplus(scores) - jnp.where(labels == 1, scores, 0)))

    def newton_step(point):
        slopes = -jax.grad(objective)(point)
        step = cg(partial(matmul, jax.hessian(objective)(point)), slopes, tol=1e-6)[0]
        return step, jnp.sum(slopes * step) / 2

    def advance(state):
        point, value, size, _, count = state
        step, gain = newton_step(point)
        trial = point + size * step
        tried = objective(trial)
        lower = tried < value
        kept = jnp.where(lower, trial, point), jnp.where(lower, tried, value)
        return *kept, jnp.where(lower, jnp.minimum(4 * size, 1), size / 4), gain, count + 1

    def going(state):
        _, _, size, gain, count = state
        return (gain > _GAIN) & (size > _SMALLEST) & (count < _MOST_STEPS)

    start = 0 * columns[:, 0]
    one = jnp.ones_like(start[0])
    point, value, *_ = jax.lax.while_loop(going, advance, (start, objective(start), one, one, 0))
    step, _ = newton_step(point)
    settled = jnp.all(jnp.abs(step) <= _SETTLED * jnp.abs(point) + _STILL) & jnp.isfinite(value)
    return jnp.where(settled, point + step, jnp.nan)[0]


@weighted
def ici(log_probs: LogProbs, labels: Labels, *, mask: Mask = None) -> Scalar:
    """Integrated calibration index: mean of |P(1) - f(P(1))|, as a fraction, f the share of label 1 by loess.

    f is fitted as R's loess by default: by weighted least squares of degree 2 with tricube weights over the nearest 75%
    of the examples, at 101 points between the smallest and the largest P(1), linear between them. Within 1e-3 of loess,
    tested in tests/calibration/test_binary.py.

    Source: Austin & Steyerberg, Statistics in Medicine 38 (2019); Cleveland & Devlin, JASA 83 (1988).

    Example:
        >>> round(float(calibration.ici(two_classes, outcomes)), 4)
        0.2584
    """
    p, outcome, weight = class_one(checks.examples(log_probs, labels, mask))
    counted, p = weight > 0, jnp.where(weight > 0, p, 0)
    points = jnp.linspace(jnp.min(jnp.where(counted, p, 1)), jnp.max(p), 101, dtype=p.dtype)

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
