"""Metrics of examples that come in chunks: a state of fixed size, made, updated, merged and computed by pure functions.

The sums of examples that a metric of METRICS is a function of (its `summed`) are kept in place of the examples, so that
any chunks give what the metric gives of all examples at once, to 1e-6.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from focalgeo import checks
from focalgeo.calibration import metrics
from focalgeo.types import Array, InputError

State = Float[Array, "2 sums"]  # float32: of each sum 16 significant bits, and what they leave; together some 40 bits


class Streaming(NamedTuple):
    """Functions of a `State`; all are for jit, scan, vmap and shard_map."""

    init: Callable[[], State]  # of no example
    update: Callable[..., State]  # update(state, log_probs, labels, *, mask=None, weights=None), of any number of rows
    merge: Callable[[State, State], State]  # of the examples of both
    compute: Callable[[State], dict[str, Array]]  # the metrics by name; NaN of no example, as METRICS has them


def make(names: Iterable[str], num_classes: int, num_bins: int = 15) -> Streaming:
    """Make functions that compute the metrics with these names over examples that come in chunks.

    Each chunk has log_probs [examples, num_classes], labels int [examples], and mask and weights as metrics take them;
    it may be empty. The result is that of METRICS on all rows to 1e-6, tested in tests/calibration/test_streaming.py.
    Give 10^5 examples or fewer at a time: sums over chunks are float32 in two parts and do not drift over 10^7
    examples, but the sums within one chunk of 10^7 would be off by 6e-6. Inside jit only shapes and types are checked:
    all metrics are NaN after rows whose probabilities do not sum to 1, such as logits, or after labels that are no
    class.

    A state is one array of fixed size, exact for whole numbers up to 2^40. `merge` is addition, so jax.lax.psum merges
    the states of several devices. It is exact up to 256 states of about equal size; each further state may cost 6e-8 of
    a sum, so give many small chunks to `update`.

    Metrics that order all examples or fit a curve to them, such as adaptive_ece and aurc, are refused: they are no
        sums.

    Example:
        >>> from focalgeo.calibration import streaming
        >>> metrics = streaming.make(["accuracy", "ece"], num_classes=3)
        >>> state = metrics.init()
        >>> for first in range(0, 300, 100):
        ...     state = metrics.update(state, jax.nn.log_softmax(scores[first:first + 100]), drawn[first:first + 100])
        >>> {name: round(float(value), 4) for name, value in metrics.compute(state).items()}
        {'accuracy': 0.6, 'ece': 0.0619}
        >>> round(float(calibration.ece(jax.nn.log_softmax(scores), drawn)), 4)
        0.0619
    """
    num_classes = checks.count("num_classes", num_classes, 2)
    summed = {}
    for name, entry in metrics.metric_entries(names).items():
        if not entry.summed:
            mend = "give all to calibration.all_metrics, or stream ece or smooth_ece"
            raise InputError(f"metrics: {name} orders or fits all examples at once, which no sums hold: {mend}")
        summed[name] = entry.function.of(**entry.options(num_bins))

    def sums(examples):
        return ravel_pytree({name: metric.sums(examples) for name, metric in summed.items()})

    # an example of weight 0
    zeros, unravel = sums(checks.Examples(jnp.zeros((1, num_classes), "f"), jnp.zeros(1, "i"), jnp.zeros(1, "f")))

    def update(state, log_probs, labels, *, mask=None, weights=None):
        rows = checks.score_rows("log_probs", log_probs, shape=(None, num_classes))
        if not len(rows):
            return state
        before, rest = state
        examples = checks.examples(rows, labels, mask, weights)
        # Under jit no row is refused. All is NaN where probabilities do not sum to 1, as rounded ones do within 0.5, or
        # a label is no class.
        off = jnp.sum(jnp.exp(examples.rows) - jax.nn.one_hot(examples.labels, num_classes), axis=-1)
        right = jnp.all((abs(off) < 0.5) | (examples.weight <= 0))
        added = jnp.where(right, sums(examples)[0], jnp.nan)
        rest = rest + added.astype(rest.dtype)
        coarse = jax.lax.reduce_precision(before + rest, 8, 15)  # bits of exponent, and behind the leading one
        coarse = jnp.where(jnp.isfinite(coarse), coarse, before)  # an infinite NLL stays in the rest
        return jnp.stack([coarse, rest + (before - coarse)])

    def compute(state):
        totals = unravel(sum(state))
        return {name: metric.value(*totals[name]) for name, metric in summed.items()}

    return Streaming(lambda: jnp.stack([zeros, zeros]), update, jnp.add, compute)
