"""Intervals for calibration metrics and for shares."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from focalgeo.types import Array, Estimate, InputError, PyTree

Z95 = 1.959963984540054  # the standard normal's 97.5% quantile


def wilson_interval(successes: Array, n: Array) -> tuple[Array, Array]:
    """Wilson's 95% interval (low, high) for a share, from `successes` out of `n`; both of one shape.

    Unlike a bootstrap it does not collapse where all or none succeed. n = 0 gives (0, 1): nothing is known.
    """
    successes, n = jnp.asarray(successes, jnp.float32), jnp.asarray(n, jnp.float32)
    denominator = n + Z95**2
    centre = (successes + Z95**2 / 2) / denominator
    spread = successes * (n - successes) / jnp.maximum(n, 1) + Z95**2 / 4
    half = Z95 * jnp.sqrt(spread) / denominator
    return jnp.clip(centre - half, 0, 1), jnp.clip(centre + half, 0, 1)


def bootstrap(metric: Callable[..., PyTree], log_probs: Array, labels: Array, key: Array, num_resamples: int) -> PyTree:
    """Bootstrap of metrics over the examples: value, standard error and bias-corrected 95% interval of each.

    Args:
        metric: metric(log_probs, labels, mask=counts) -> scalar, such as `ece` or functools.partial(ece, num_bins=10),
            or a tree of scalars, such as a dict of several metrics, which then share the resamples. Counts [examples]
            say how often each example counts. A resample is such counts: nothing is gathered, bins are fitted anew to
            each resample, and what does not depend on the counts is computed once. It is compiled once for each
            function object and shape: hand in the same object again.
        log_probs: Float [examples, classes].
        labels: Int [examples].
        key: PRNG key; the same key gives the same result.
        num_resamples: 2 or more; 1,000 is usual.

    Returns:
        Estimate in the place of each scalar that the metric returns. Its value is the plain metric of the data, `n`
        the number of examples. Resampling biases ECE upwards, just as sampling did, so the interval is centred on the
        value less that bias: (2 value - mean of draws) +- 1.96 standard deviations. Where that bias is more than half
        a standard deviation, no draw is negative and the same interval of the squares reaches 0, as with the ECE of a
        calibrated model, its root is taken instead: the square's bias is the noise's variance, and 0 is covered.
        (Percentile intervals, corrected or not, leave it out nearly always.) Where all resamples agree, as the accuracy
        of 50 right out of 50, the interval has no width: for shares use `wilson_interval`. Held by
        tests/calibration/test_bootstrap.py, which counts how often the interval covers.

    Raises:
        InputError: fewer than 2 resamples, or no examples.
    """
    if num_resamples < 2 or labels.shape[0] == 0:
        raise InputError(
            f"bootstrap of {labels.shape[0]} examples with {num_resamples} resamples: give at least 1 and 2"
        )
    return _bootstrapped(metric, log_probs, labels, key, num_resamples)


@partial(jax.jit, static_argnames=("metric", "num_resamples"))
def _bootstrapped(
    metric: Callable[..., PyTree], log_probs: Array, labels: Array, key: Array, num_resamples: int
) -> PyTree:
    def estimate(value: Array, draws: Array) -> Estimate:
        low, high = _bias_corrected(draws, value)
        return Estimate(value, jnp.std(draws, ddof=1), low, high, jnp.asarray(labels.shape[0], jnp.int32))

    draws = resampled(lambda counts: metric(log_probs, labels, mask=counts), labels.shape[0], key, num_resamples)
    return jax.tree.map(estimate, metric(log_probs, labels), draws)


def resampled(statistic: Callable[[Array], PyTree], num_examples: int, key: Array, num_resamples: int) -> PyTree:
    """statistic(counts) of each resample, stacked; counts float32 [examples] say how often each example counts."""

    def draw(resample_key: Array) -> PyTree:
        chosen = jax.random.randint(resample_key, (num_examples,), 0, num_examples)
        return statistic(jnp.zeros(num_examples, jnp.float32).at[chosen].add(1))

    # A few at a time, so that memory does not grow with their number.
    return jax.lax.map(draw, jax.random.split(key, num_resamples), batch_size=8)


def _bias_corrected(draws: Array, value: Array) -> tuple[Array, Array]:
    """Normal interval around the value less its bootstrap bias; on the scale of squares where 0 is within reach."""
    low, high = _normal_interval(draws, value)
    low_square, high_square = _normal_interval(draws**2, value**2)
    biased = jnp.mean(draws) - value > jnp.std(draws) / 2  # a mean, such as the Brier score, is not
    near_zero = biased & (jnp.min(draws) >= 0) & (low_square <= 0)
    return jnp.where(near_zero, 0.0, low), jnp.where(near_zero, jnp.sqrt(jnp.maximum(high_square, 0.0)), high)


def _normal_interval(draws: Array, value: Array) -> tuple[Array, Array]:
    # the bias as a mean of differences: where all draws are the value, so are both ends, to the bit
    centre, half = value - jnp.mean(draws - value), Z95 * jnp.std(draws, ddof=1)
    return centre - half, centre + half
