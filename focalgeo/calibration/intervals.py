"""Intervals for calibration metrics and for shares."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from focalgeo.types import Array, Estimate, InputError

_Z95 = 1.959963984540054  # the standard normal's 97.5% quantile


def wilson_interval(successes: Array, n: Array) -> tuple[Array, Array]:
    """Wilson's 95% interval (low, high) for a share, from `successes` out of `n`; both of one shape.

    Unlike a bootstrap it does not collapse where all or none succeed. n = 0 gives (0, 1): nothing is known.
    """
    successes, n = jnp.asarray(successes, jnp.float32), jnp.asarray(n, jnp.float32)
    denominator = n + _Z95**2
    centre = (successes + _Z95**2 / 2) / denominator
    spread = successes * (n - successes) / jnp.maximum(n, 1) + _Z95**2 / 4
    half = _Z95 * jnp.sqrt(spread) / denominator
    return jnp.clip(centre - half, 0, 1), jnp.clip(centre + half, 0, 1)


def bootstrap(
    metric: Callable[..., Array], log_probs: Array, labels: Array, key: Array, num_resamples: int
) -> Estimate:
    """Bootstrap of a metric over the examples: its value, standard error and bias-corrected 95% percentile interval.

    Args:
        metric: metric(log_probs, labels, mask=counts) -> scalar, such as `ece` or functools.partial(ece, num_bins=10),
            where counts [examples] says how often each example counts. A resample is such counts: nothing is gathered,
            bins are fitted anew to each resample, and what does not depend on the counts is computed once.
        log_probs: Float [examples, classes].
        labels: Int [examples].
        key: PRNG key; the same key gives the same result.
        num_resamples: 2 or more; 1,000 is usual.

    Returns:
        Estimate whose value is the plain metric of the data, `n` the number of examples. Resampling biases ECE
        upwards; the interval is corrected for the median's shift (Efron's BC), the value is not, so the value may lie
        outside the interval.

    Raises:
        InputError: fewer than 2 resamples, or no examples.
    """
    if num_resamples < 2 or labels.shape[0] == 0:
        raise InputError(
            f"bootstrap of {labels.shape[0]} examples with {num_resamples} resamples: give at least 1 and 2"
        )
    value = metric(log_probs, labels)
    draws = _resampled(metric, log_probs, labels, key, num_resamples)
    low, high = _bias_corrected(draws, value)
    return Estimate(value, jnp.std(draws, ddof=1), low, high, jnp.asarray(labels.shape[0], jnp.int32))


@partial(jax.jit, static_argnames=("metric", "num_resamples"))
def _resampled(metric: Callable[..., Array], log_probs: Array, labels: Array, key: Array, num_resamples: int) -> Array:
    """[num_resamples] values of the metric; a few at a time, so that memory does not grow with their number."""

    def draw(resample_key: Array) -> Array:
        chosen = jax.random.randint(resample_key, labels.shape, 0, labels.shape[0])
        return metric(log_probs, labels, mask=jnp.zeros(labels.shape, log_probs.dtype).at[chosen].add(1))

    return jax.lax.map(draw, jax.random.split(key, num_resamples), batch_size=8)


def _bias_corrected(draws: Array, value: Array) -> tuple[Array, Array]:
    """Efron's bias-corrected percentile interval, from the share of draws below the value (ties count half)."""
    below = jnp.mean((draws < value).astype(draws.dtype)) + jnp.mean((draws == value).astype(draws.dtype)) / 2
    margin = 0.5 / draws.shape[0]
    shift = 2 * jax.scipy.special.ndtri(jnp.clip(below, margin, 1 - margin))
    tails = jax.scipy.special.ndtr(shift + jnp.asarray([-_Z95, _Z95], draws.dtype))
    low, high = jnp.quantile(draws, tails)
    return low, high
