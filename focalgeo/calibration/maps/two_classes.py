"""Maps of two classes: of the log-odds s = log(p / (1 - p)) of P(1), the probability of class 1.

Each takes log p and log(1 - p) from the log-probabilities, which keep what p rounds to 1.
"""

import numpy as np

from focalgeo import checks
from focalgeo.calibration.maps import focal
from focalgeo.calibration.maps.focal import Ascending, Rows, Scalar
from focalgeo.trees import namespace

_LEAST = -1e15  # of a log-probability: its square is finite in float32


@focal.quiet
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
    terms = columns(focal.rows_beside("logits", logits, square, a, b, c))
    space, dtype = namespace(terms[0]), terms[0].dtype
    pairs = zip((square, a, b, c), terms, strict=True)
    return _certain(logits, _log_probs(sum(space.asarray(number, dtype) * term for number, term in pairs)))


@focal.quiet
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
    log_q, log_p = two_log_probs(focal.rows_beside("logits", logits))
    space = namespace(log_p)
    numbers = (space.asarray(numbers, log_p.dtype) for numbers in (thresholds, probabilities))
    p = space.interp(log_p - log_q, *numbers).astype(log_p.dtype)
    return _certain(logits, _log_probs(space.log(p) - space.log1p(-p)))


def _certain(logits, log_probs):
    """The log-probabilities, of which those of a row with a class that cannot be are -inf and 0."""
    space = namespace(log_probs)
    logits = space.asarray(logits)
    any_never = space.max(-logits, axis=-1, keepdims=True) == np.inf
    return space.where(any_never, space.where(logits == -np.inf, -np.inf, 0), log_probs).astype(log_probs.dtype)


@focal.quiet
def two_log_probs(logits):
    """Log(1 - p) and log p; NaN of a row that is not finite."""
    rows = checks.score_rows("logits", logits, shape=(..., 2))
    space = namespace(rows)
    s = space.sum(_signed(rows), axis=-1)
    s = space.where(space.isfinite(space.max(space.abs(rows), axis=-1)), s, np.nan)
    return [space.maximum(focal.log_sigmoid(log_odds), _LEAST) for log_odds in (-s, s)]


def columns(logits):
    """S^2, log p, -log(1 - p) and 1."""
    log_q, log_p = two_log_probs(logits)
    s = log_p - log_q
    return s * s, log_p, -log_q, namespace(s).ones_like(s)


def _log_probs(log_odds):
    return focal.log_sigmoid(_signed(log_odds[..., None]))


def _signed(rows):
    """The rows, the negative first, [..., 2]."""
    signs = np.array([-1, 1], rows.dtype)
    return rows * namespace(rows).broadcast_to(signs, (*rows.shape[:-1], 2))
