"""Two sets of predictions for the same examples, compared on the same resamples."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from focalgeo.calibration.intervals import Z95, resampled
from focalgeo.types import Array, InputError, PyTree


class PairedDifference(NamedTuple):
    """A metric of the first predictions less that of the second."""

    difference: Array
    stderr: Array
    low: Array  # 95% interval of the difference
    high: Array
    p_value: Array  # two-sided, of no difference
    n: Array  # examples


def paired_bootstrap(
    metric: Callable[..., PyTree],
    first_log_probs: Array,
    second_log_probs: Array,
    labels: Array,
    key: Array,
    num_resamples: int,
) -> PyTree:
    """Bootstrap of metric(first) - metric(second) over the examples, both measured on the same resamples.

    Args:
        metric: As for `bootstrap`: a scalar or a tree of scalars; hand in the same function object again.
        first_log_probs: Float [examples, classes].
        second_log_probs: Float of the same shape: another model or map on the same examples.
        labels: Int [examples].
        key: PRNG key; the resamples are those of `bootstrap` with this key.
        num_resamples: 2 or more; 1,000 is usual.

    Returns:
        PairedDifference in the place of each scalar. The interval is the difference +- 1.96 standard deviations of the
        draws, and the p-value is 2 Phi(-|difference| / standard deviation), so that it is below 0.05 exactly where the
        interval leaves out 0. Where no draw differs it is 1 for a difference of 0, else 0. Unlike `bootstrap`, the bias
        of resampling is not taken off: where there is no difference both sides have the same bias, and an estimate of
        it only adds noise (with it, ECE rejects up to twice as often as it says). So the test of two nearly calibrated
        models is wary, not rash: tests/calibration/test_paired.py counts how often it rejects where there is none.
        An ECE's difference leans towards 0, as chance adds more to the smaller ECE: the interval then bounds the
        difference of two such samples, and the true one lies beyond its outer end in half of all samples or so (1,000
        examples, true difference 0.034). NLL and Brier score, which are means, have no such bias.

    Raises:
        InputError: fewer than 2 resamples, no examples, or predictions of two shapes.
    """
    if num_resamples < 2 or labels.shape[0] == 0:
        raise InputError(
            f"paired_bootstrap of {labels.shape[0]} examples with {num_resamples} resamples: give at least 1 and 2"
        )
    if first_log_probs.shape != second_log_probs.shape:
        raise InputError(
            f"log_probs have shapes {first_log_probs.shape} and {second_log_probs.shape}: give both of one shape"
        )
    return _paired(metric, first_log_probs, second_log_probs, labels, key, num_resamples)


@partial(jax.jit, static_argnames=("metric", "num_resamples"))
def _paired(
    metric: Callable[..., PyTree], first: Array, second: Array, labels: Array, key: Array, num_resamples: int
) -> PyTree:
    def difference(mask: Array | None) -> PyTree:
        pair = metric(first, labels, mask=mask), metric(second, labels, mask=mask)
        return jax.tree.map(jnp.subtract, *pair)

    draws = resampled(difference, labels.shape[0], key, num_resamples)
    return jax.tree.map(partial(_compared, n=labels.shape[0]), difference(None), draws)


def _compared(value: Array, draws: Array, *, n: int) -> PairedDifference:
    stderr = jnp.std(draws, ddof=1)
    z = jnp.abs(value) / jnp.where(stderr > 0, stderr, 1)
    certain = jnp.where(value == 0, 1.0, 0.0).astype(z.dtype)
    p_value = jnp.where(stderr == 0, certain, jax.scipy.special.erfc(z / jnp.sqrt(2.0).astype(z.dtype)))
    half = Z95 * stderr
    return PairedDifference(value, stderr, value - half, value + half, p_value, jnp.asarray(n, jnp.int32))
