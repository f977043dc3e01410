"""Fits of the maps of two classes."""

import numpy as np
from scipy import optimize, special

from focalgeo.calibration.fits import variants
from focalgeo.calibration.maps import two_classes

# Of each method rows are the numbers fitted, columns what they multiply: s^2, log p, -log(1 - p) and 1.
PLATT = ((0, 1, 1, 0), (0, 0, 0, 1))
BETA = ((0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))
QUADRATIC = ((1, 0, 0, 0), (0, 1, 1, 0), (0, 0, 0, 1))
_ROUNDING = 64 * np.finfo(np.float32).eps  # of logits that several ways of computing them give
_PRECISE = {"ftol": 1e-13, "gtol": 1e-9}  # of L-BFGS-B in float64: few columns, scaled to 1, make it cheap


def fit_logistic(logits, labels, *, criterion, weights, form, least=-np.inf) -> variants.Params:
    """The numbers of a `logistic_calibration` with the least NLL of Platt's targets.

    Each of the n_y examples of a label counts as one of the other label with probability 1 / (n_y + 2); so any examples
    have a least NLL, those that a threshold parts too.

    Args:
        logits: Float [examples, 2].
        labels: Int [examples].
        criterion: "nll".
        weights: How often each example counts.
        form: PLATT, BETA or QUADRATIC.
        least: Of all numbers but the last.

    Returns:
        The numbers "a", "b" and perhaps "c", and "converged".

    Source: as `logistic_calibration`; the targets are Platt's, section 2.2, for all three.
    """
    possible = np.isfinite(logits).all(axis=-1)  # all other rows say nothing
    columns = np.stack(two_classes.columns(logits[possible]), axis=-1).astype(np.float64) @ np.transpose(form)
    truth, weight = labels[possible] == 1, weights[possible].astype(np.float64)
    # Platt's targets: the numbers stay finite where a threshold parts the labels
    total = np.array([weight @ ~truth, weight @ truth])
    target = np.where(truth, (total[1] + 1) / (total[1] + 2), 1 / (total[0] + 2))
    share = weight / total.sum()
    # columns of one size around 0, so that L-BFGS-B meets no long valley
    centre = share @ columns * [*[1] * (len(form) - 1), 0]  # of all but the constant
    columns, largest = columns - centre, np.abs(columns).max(axis=0, initial=0)
    size = np.abs(columns).max(axis=0, initial=0)
    # A column whose numbers differ by rounding alone says nothing: divided by that, it would fit anything.
    flat = size <= _ROUNDING * largest
    size = np.where(flat, 1, size)
    columns = np.where(flat, 0, columns / size)

    def objective(numbers):
        scores = columns @ numbers
        nll = share @ (np.logaddexp(0, scores) - target * scores)
        return nll, columns.T @ (share * (special.expit(scores) - target))

    bounds = [(least, None)] * (len(size) - 1) + [(None, None)]
    best = optimize.minimize(objective, np.zeros(len(size)), (), "L-BFGS-B", True, bounds=bounds, options=_PRECISE)
    numbers = best.x / size
    numbers[-1] -= centre @ numbers
    return dict(zip("abc", numbers.astype(logits.dtype), strict=False)) | {"converged": best.success}


def fit_binary_isotonic(logits, labels, *, criterion, weights) -> variants.Params:
    """Isotonic regression of the label on the log-odds.

    Returns:
        "thresholds" and "probabilities" for `binary_isotonic_calibration`; these are between 1 / (n + 2) and
        1 - 1 / (n + 2) of n examples, the rule of succession, so that the NLL stays finite.

    Source: as `binary_isotonic_calibration`.
    """
    possible = np.isfinite(logits).all(axis=1)
    log_q, log_p = two_classes.two_log_probs(logits[possible])
    weight = weights[possible]
    least = 1 / (weight.sum() + 2)
    return variants.isotonic_regression(log_p - log_q, labels[possible], weight, least, 1 - least)
