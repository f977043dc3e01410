"""The noise floor of an ECE, which a perfectly calibrated model shows too, and a test of perfect calibration.

Labels are drawn from the probabilities themselves, so that the null hypothesis holds exactly. On the host.
"""

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from focalgeo import checks
from focalgeo.calibration.metrics.binning import Labels, LogProbs
from focalgeo.types import Array, inner_ends

STATISTICS = ("kuiper", "ece")
# of the sum of right - confidence in a bin, from which on its draws are normal: within 0.5% of its mean size
_NORMAL = 30.0
_AT_ONCE = 2**22  # draws times examples: 32 MB in float64
_MOST_DRAWS = 100_000


class NoiseFloor(NamedTuple):
    """The ECE that a perfectly calibrated model with these confidences shows on so many examples."""

    mean: float
    high: float  # its 95th percentile: an ECE above it is no chance, at the 5% level


class CalibrationTest(NamedTuple):
    """A test of perfect calibration."""

    statistic: float
    p_value: float
    n: int  # examples


def noise_floor(log_probs: LogProbs, *, num_bins: int = 15, num_draws: int = 1000, seed: int = 0) -> NoiseFloor:
    """The ECE that a perfectly calibrated model with these confidences would show: an ECE below it shows nothing.

    With n examples spread over M bins and confidences near c it is about sqrt(2 M c (1 - c) / (pi n)): 3% for 1,000
    examples in 15 bins and c = 0.9. It needs no labels.

    Args:
        log_probs: Float [examples, classes].
        num_bins: Bins of equal width, as in `ece`.
        num_draws: How often labels are drawn, 1 to 100,000.
        seed: Seed of the draws.

    Returns:
        NoiseFloor, fractions as `ece` is. The mean is within 1% or so at 1,000 draws, tested in
        tests/calibration/test_chance.py. Examples are taken as independent: with clusters the floor is higher.

    Source: Broecker & Smith, Weather and Forecasting 22 (2007), labels drawn from the probabilities.

    Example:
        >>> floor = calibration.noise_floor(jax.nn.log_softmax(scores))
        >>> round(floor.mean, 3), round(floor.high, 3)  # 300 examples
        (0.061, 0.088)
    """
    rows = np.asarray(checks.examples(log_probs, np.argmax(log_probs, axis=-1), num_bins=num_bins).rows)
    return floor_of(confidence_of(rows), num_bins=num_bins, num_draws=num_draws, seed=seed)


def floor_of(confidence: Array, *, num_bins: int, num_draws: int, seed: int = 0) -> NoiseFloor:
    """`noise_floor` of confidences [examples] that have been checked."""
    index = _bin_of(confidence, num_bins)
    variance = np.bincount(index, confidence * (1 - confidence), minlength=num_bins)
    large = variance > _NORMAL
    few = confidence[~large[index]]
    draws = np.concatenate([*_drawn(_ece(num_bins), few, num_draws, seed)]) * len(few) if len(few) else 0
    normal = np.random.default_rng([seed, num_bins]).normal(size=(num_draws, large.sum()))
    draws = (draws + np.abs(normal) @ np.sqrt(variance[large])) / len(confidence)
    return NoiseFloor(float(draws.mean()), float(np.quantile(draws, 0.95)))


def calibration_test(
    log_probs: LogProbs,
    labels: Labels,
    *,
    statistic: str = "kuiper",
    num_bins: int = 15,
    num_draws: int = 1000,
    seed: int = 0,
) -> CalibrationTest:
    """Test that the confidence of the predicted class is the probability that it is right.

    Labels are drawn from the confidences, and p = (1 + draws whose statistic is at least the observed one) / (1 +
    draws). So p is below 0.05 for 5% of perfectly calibrated models, whatever the number of examples. Examples are
    taken as independent: with clusters p would be too small.

    Args:
        log_probs: Float [examples, classes].
        labels: Int [examples].
        statistic: "kuiper" or "ece". Kuiper's is the range of the cumulated differences between right and confidence,
            ordered by confidence, over n; it needs no bins.
        num_bins: Bins of the ECE.
        num_draws: How often labels are drawn, 1 to 100,000.
        seed: Seed of the draws.

    Returns:
        CalibrationTest; its size is compared with a simulation in tests/calibration/test_chance.py.

    Source: Arrieta-Ibarra, Gujral, Tannen, Tygert & Xu, arXiv 2205.09680, the Kuiper statistic; Vaicenavicius et al.,
    AISTATS 2019, tests by draws from the probabilities.

    Example:
        >>> right, sharp = (jax.nn.log_softmax(times * scores) for times in (1, 3))
        >>> [bool(calibration.calibration_test(rows, drawn).p_value < 0.05) for rows in (right, sharp)]
        [False, True]
    """
    checks.check_choice("statistic", statistic, STATISTICS)
    rows, labels, _ = map(np.asarray, checks.examples(log_probs, labels, num_bins=num_bins))
    confidence, right = confidence_of(rows), rows.argmax(axis=1) == labels
    of = _kuiper if statistic == "kuiper" else _ece(num_bins)
    value = float(of(confidence, (right - confidence)[None])[0])
    # draws that are equal to it but for rounding count as at least as large
    reached = sum((draws >= value * (1 - 1e-12)).sum() for draws in _drawn(of, confidence, num_draws, seed))
    return CalibrationTest(value, float((1 + reached) / (1 + num_draws)), len(rows))


def confidence_of(rows: Array) -> Array:
    """The largest probability of each row of log-probabilities, in float64."""
    return np.exp(rows.max(axis=1).astype(np.float64)).clip(max=1)


def _kuiper(confidence, residuals):
    """Of each row of residuals [draws, examples] the range of its cumulated sum, by ascending confidence."""
    sums = np.cumsum(residuals[:, np.argsort(confidence, kind="stable")], axis=1)
    return (sums.max(axis=1, initial=0) - sums.min(axis=1, initial=0)) / len(confidence)


def _bin_of(confidence, num_bins):
    return np.searchsorted(inner_ends(num_bins, np.float64), confidence)


def _ece(num_bins):
    def of(confidence, residuals):
        index = _bin_of(confidence, num_bins)
        inside = csr_array((np.ones(len(index)), (np.arange(len(index)), index)), shape=(len(index), num_bins))
        return np.abs(residuals @ inside).sum(axis=1) / len(confidence)

    return of


def _drawn(of, confidence, num_draws, seed):
    """The statistic of labels drawn from the confidences, in parts that fit into memory."""
    checks.count("num_draws", num_draws, 1, _MOST_DRAWS)
    generator = np.random.default_rng(checks.count("seed", seed, 0))
    at_once = max(1, _AT_ONCE // len(confidence))
    for first in range(0, num_draws, at_once):
        size = min(at_once, num_draws - first), len(confidence)
        yield of(confidence, (generator.uniform(size=size) < confidence) - confidence)
