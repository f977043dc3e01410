"""Bootstrap of metrics and of their differences, Wilson's interval of shares, and samples of many methods.

A resample is how often each example counts: nothing is gathered, and what does not depend on the counts is computed
once. All methods are measured on the same resamples of the examples.

Examples are taken for independent unless `clusters` says which belong together; then whole clusters are drawn.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Shaped
from scipy import special
from tqdm import tqdm

from focalgeo import checks
from focalgeo.calibration.examples import Clusters, as_logits
from focalgeo.calibration.metrics.binning import Labels, Scalar
from focalgeo.rows import Z95, wilson
from focalgeo.trees import at_highest
from focalgeo.types import BAR, MOST_RESAMPLES, Array, Estimate, InputError, PyTree

_AT_ONCE, _EXAMPLES_AT_ONCE = 8, 2**20  # resamples, and examples of all of them
MOST_COUNTS = 2**26  # of examples in resamples, held at once, in 64 MB, of clusters 256: one sort serves them
_LARGE = 2**24  # numbers of a table that are measured by itself
_SIGNIFICANT = 5  # standard errors of a bias of resampling that is none of chance

Draws = Float[Array, " resamples"]


@np.errstate(all="ignore")
def wilson_interval(
    successes: Shaped[Array, "*#batch"] | float, n: Shaped[Array, "*#batch"] | float
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
    """Wilson's 95% interval (low, high) for a share, from `successes` out of `n`; on the host.

    Unlike a bootstrap it does not collapse where all or none succeed. n = 0 gives (0, 1): nothing is known.

    Example:
        >>> low, high = calibration.wilson_interval(50, 50)
        >>> round(float(low), 4), round(float(high), 4)
        (0.9287, 1.0)
    """
    successes, n = map(np.asarray, checks.broadcast(successes=successes, n=n))
    checks.check_interval("successes", successes, 0)
    checks.check_interval("n minus the successes", n - successes, 0)
    return wilson(successes, n)


def bootstrap(
    metric: Callable[..., PyTree],
    log_probs: Array,
    labels: Labels,
    key: Array | int,
    num_resamples: int,
    *,
    clusters: Array | None = None,
    weights: Array | None = None,
) -> PyTree:
    """Bootstrap of metrics over the examples: value, standard error and bias-corrected 95% interval of each.

    Args:
        metric: metric(log_probs, labels, weights=counts) -> scalar, such as `ece` or functools.partial(ece,
            num_bins=10), or a tree of scalars, such as a dict of several metrics, which then share the resamples.
            Counts [examples] say how often each example counts; a metric that does not take weights= gets them as
            mask=. Bins are fitted anew to each resample. It is compiled once for each function object and shape: pass
            the same object again.
        log_probs: Float [examples, classes], or P(1) [examples] of two classes; the metric gets log-probabilities.
        labels: Int [examples].
        key: PRNG key, or a seed; the same key gives the same result.
        num_resamples: From 2 to 100,000; 1,000 is usual.
        clusters: [examples], a number or name of the cluster of each; None where examples are independent. At
            least two clusters, and some dozens for a useful interval.
        weights: Float [examples], above 0, how often each example counts: as if it were repeated, with its copies in
            one cluster. Student's quantile and standard error are then those of clusters.

    Returns:
        Estimate for each scalar that the metric returns. Its value is the plain metric of the data, `n`
        the number of examples. The interval is centred on the value minus the bias b of resampling, where b is
        the mean over resamples minus the value, and reaches 1.96 standard deviations s of the resamples to either side.

        Resampling lifts a calibration error, just as sampling did, and by less where gaps are near 0. So the
        interval covers all that the lift may be, where no resample is negative and b is more than 5 of its standard
        errors (or s / 2, if that is less); for a mean b is smaller. It then reaches from value - (1 + 2 b / s) b -
        1.96 s to value + 1.96 s. It begins at 0 where the first interval of the squares reaches 0, as for a calibrated
        model. With few examples for the bins, for example in class-wise ECE of 100 classes, it often begins at 0.
        experiments/intervals measures how often it contains the truth.

        Where all resamples of a mean are positive and skewed to the right, as for the NLL, it is the interval of the
        logarithms: with 300 overconfident examples it covers about 94%, where the plain one covers 91% and misses on
        one side. A resample on which the metric is NaN does not count. Where all resamples agree, for example the
        accuracy of 50 right out of 50, the interval has no width: for shares use `wilson_interval`. Tested in
        tests/calibration/test_resampling.py, which counts how often the interval covers.

    Example:
        >>> nll = calibration.bootstrap(calibration.nll, log_probs, labels, 0, 100)
        >>> [round(float(number), 2) for number in nll[:4]]  # value, standard error, low and high
        [0.81, 0.28, 0.2, 1.29]
    """
    rows, labels, _ = _examples(log_probs, labels)
    clusters = Clusters.of(clusters, labels, weights)
    (of_data,) = _bootstrapped(metric, [rows], labels, key, clusters, num_resamples)
    return jax.tree.map(partial(estimated, num_examples=len(labels), clusters=clusters), *of_data)


def _examples(log_probs, labels, weights=None):
    rows = as_logits(None, log_probs) if np.ndim(log_probs) == 1 else log_probs
    return checks.examples(rows, labels, weights=weights, soft=True)


def _bootstrapped(metric, tables, labels, key, clusters, num_resamples):
    """Of each table of log-probabilities the metric, and its draws; all are measured on the same resamples."""
    key = checks.prng_key(key)
    checks.check_function("metric", metric)
    checks.count("num_resamples", num_resamples, 2, MOST_RESAMPLES)
    if checks.is_traced(tables, labels, key):
        raise InputError("resamples are drawn on the host: call the bootstrap outside jit and vmap")
    try:
        found = drawn((metric, metric), tables, labels, key, clusters, num_resamples)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        mend = "write it with jax.numpy alone, which NumPy, scikit-learn and an if on its numbers are not"
        raise InputError(f"the metric cannot be compiled by JAX: {mend}") from error
    for leaf in jax.tree.leaves([value for value, _ in found]):
        checks.check_array("what the metric returns", leaf, shape=(), dtype=jnp.floating)
    return found


def estimated(
    value: Scalar, draws: Draws, *, num_examples: int, clusters: Clusters | None = None, floor: float = np.inf
) -> Estimate:
    """The Estimate of `bootstrap`, from a metric's value on the data and its values on the resamples.

    floor: of what chance may leave; above it the interval does not begin at 0 by the squares.

    A resample on which the metric is NaN does not count: the metric is undefined there, as an AUROC of all right.
    """
    spread, quantile = student(clusters)
    deviations = spread * quantile
    with np.errstate(all="ignore"):
        deviation, lift = np.nanstd(draws, ddof=1), most_lift(value, draws)
        if lift > 0:
            low = max(value - lift - deviations * deviation, 0.0)
            low *= value > floor or _normal_interval(draws**2, value**2, deviations)[0] > 0
            high = value + deviations * deviation
        # of logarithms where a positive mean is skewed to the right: asking for more of the skewness than its sign
        # would leave out just the samples whose interval is too narrow
        elif value > 0 and np.nanmin(draws) > 0 and np.nanmean((draws - np.nanmean(draws)) ** 3) > 0:
            low, high = np.exp(_normal_interval(np.log(draws), np.log(value), deviations))
        else:
            low, high = _normal_interval(draws, value, deviations)
        return Estimate(value, spread * deviation, low, high, np.int32(num_examples))


def most_lift(value: Scalar, draws: Draws) -> Array | float:
    """How far chance may have lifted a sum of gaps, such as an ECE, above the true one; 0 of a mean.

    With b the mean of the draws minus the value, s their standard deviation and r = b / s, it is (1 + 2 r) b, at most
    the value: resampling lifts gaps near 0 by less than sampling did, by b / 2.4 where all gaps are 0.
    """
    bias = np.nanmean(draws - value)
    ratio = bias / np.nanstd(draws, ddof=1)
    # more than chance makes of a mean, such as the Brier score, over so many resamples
    if np.nanmin(draws) < 0 or not ratio > min(_SIGNIFICANT / len(draws) ** 0.5, 0.5):
        return 0.0
    return min((1 + 2 * ratio) * bias, value)


def student(clusters: Clusters | None) -> tuple[Array | float, Array | float]:
    """By what a standard deviation over resamples is multiplied, and how many of these are half an interval."""
    return (1.0, Z95) if clusters is None else (clusters.spread, clusters.quantile)


def _normal_interval(draws, value, deviations):
    # the bias as a mean of differences: where all draws are the value, so are both ends, to the bit
    centre, half = value - np.nanmean(draws - value), deviations * np.nanstd(draws, ddof=1)
    return centre - half, centre + half


class PairedDifference(NamedTuple):
    """A metric of the first predictions minus the same metric of the second, with 95% interval and p-value."""

    difference: Scalar
    stderr: Scalar
    low: Scalar  # 95% interval of the difference
    high: Scalar
    p_value: Scalar  # two-sided, of no difference
    n: Int[Array, ""]  # examples


def paired_bootstrap(
    metric: Callable[..., PyTree],
    first_log_probs: Array,
    second_log_probs: Array,
    labels: Labels,
    key: Array | int,
    num_resamples: int,
    *,
    clusters: Array | None = None,
    weights: Array | None = None,
) -> PyTree:
    """Bootstrap of metric(first) - metric(second) over the examples, both measured on the same resamples.

    Args:
        metric: As for `bootstrap`: a scalar or a tree of scalars; pass the same function object again.
        first_log_probs: As for `bootstrap`.
        second_log_probs: Float of the same shape: another model or method on the same examples.
        labels: Int [examples].
        key: PRNG key, or a seed; the resamples are those of `bootstrap` with this key.
        num_resamples: From 2 to 100,000; 1,000 is usual.
        clusters: As for `bootstrap`; the p-value is then Student's too.
        weights: As for `bootstrap`.

    Returns:
        PairedDifference for each scalar. The p-value is 2 Phi(-|difference| / s), with s the standard deviation of the
        resamples. The interval of a mean, such as NLL or Brier score, is the difference +- 1.96 s. A difference that
        rounding may explain is 0, see `rounded_difference`; where no resample differs the p-value is 1 for a difference
        of 0, else 0.

        Chance lifts a calibration error, and a small one more, so a difference of two errors is drawn towards 0. Unlike
        in `bootstrap` this is not taken off: where there is no difference both have the same bias, and an estimate of
        it only adds noise (with it, the test of ECE rejects up to twice as often as its level). So the test of two
        nearly calibrated models is conservative: tests/calibration/test_resampling.py counts how often it rejects where
        there is none. The interval, though, reaches further on the side away from 0, or on both sides if it contains 0:
        down by what chance may have added to the first, up by what it may have added to the second, (1 + 2 b / s) b of
        each as in `bootstrap`. So it contains the true difference, and excludes 0 exactly where the p-value is below
        0.05.

    Example:
        >>> cooled = calibration.temperature_scaling(logits, 2.0)
        >>> less = calibration.paired_bootstrap(calibration.nll, cooled, log_probs, labels, 0, 100)
        >>> round(float(less.difference), 4), round(float(less.low), 2), round(float(less.high), 2)
        (0.0684, -0.16, 0.3)
    """
    first, second = (_examples(rows, labels, weights) for rows in (first_log_probs, second_log_probs))
    checks.check_array("second_log_probs", second.rows, shape=first.rows.shape)
    labels, clusters = first.labels, Clusters.of(clusters, first.labels, weights)
    pair = _bootstrapped(metric, [first.rows, second.rows], labels, key, clusters, num_resamples)
    of = partial(compared, num_examples=len(labels), clusters=clusters)
    return jax.tree.map(lambda *each: of(each[:2], each[2:]), *pair[0], *pair[1])


def rounded_difference(first: Array, second: Array, *, num_terms: int) -> Array:
    """First - second of metrics that are sums over `num_terms` examples; 0 where rounding alone may explain it.

    Two programs add the same n terms in two orders. An addition rounds what it has by eps / 2 at most, of either sign
    alike, so the errors of n additions grow with sqrt(n): the two sums differ by 0.24 sqrt(n) eps of themselves in
    standard deviation, added one by one. Four of these, sqrt(n) eps of the larger one, are taken. Confidences inside a
    binned metric are rounded as numbers up to 1, however small their gap is: 8 eps cover them. In float32 that is 1e-6
    and 1.2e-5 of the metric at 10,000 examples.

    Source: Higham and Mary, SIAM J. Sci. Comput. 41 (2019), rounding errors of sums grow with sqrt(n).
    """
    difference, eps = first - second, jnp.finfo(first.dtype).eps
    noise = num_terms**0.5 * eps * np.maximum(abs(first), abs(second)) + 8 * eps
    return np.where(abs(difference) <= noise, np.zeros_like(difference), difference)


def compared(
    first: tuple[Scalar, Draws], second: tuple[Scalar, Draws], *, num_examples: int, clusters: Clusters | None = None
) -> PairedDifference:
    """The PairedDifference of `paired_bootstrap`, from two metrics on the data and their values on the resamples."""
    value, draws = (rounded_difference(*each, num_terms=num_examples) for each in zip(first, second, strict=True))
    spread, quantile = student(clusters)
    with np.errstate(all="ignore"):
        stderr, lifts = spread * np.nanstd(draws, ddof=1), (most_lift(*first), most_lift(*second))
        z = abs(value) / stderr
        # one-sided, so that digits of a small p-value are kept
        tail = special.ndtr(-z) if clusters is None else special.stdtr(clusters.worth - 1, -z)
    p_value, low, high = np.where(value == 0, 1.0, 2 * tail), value - quantile * stderr, value + quantile * stderr
    low, high = low - lifts[0] * (low < 0), high + lifts[1] * (high > 0)
    return PairedDifference(value, stderr, low, high, p_value, np.int32(num_examples))


def drawn(programs, tables, labels, key, clusters, num_resamples, others=(), name="resamples"):
    """Apply the first program of each table to the examples, and the second on each resample, stacked."""
    labels, parts = jnp.asarray(labels), [[] for _ in tables]
    once = np.ones(len(labels), np.float32) if clusters is None else clusters.counts
    size = len(labels) if clusters is None else clusters.number
    bits = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    generator = np.random.default_rng(np.asarray(bits).ravel())
    # in parts of one size, which one program serves: the last may hold some more resamples than were asked for
    at_once = -(-num_resamples // -(-num_resamples * len(labels) // MOST_COUNTS))
    with jax.debug_nans(False):  # a metric may have no meaning on these examples, or on a resample
        for _ in tqdm(range(0, num_resamples, at_once), name, **BAR):
            times = (np.bincount(generator.integers(size, size=size), minlength=size) for _ in range(at_once))
            counts = np.stack([each.astype(np.uint8) for each in times])  # above 255 by chance: never
            if clusters is not None:
                counts = counts[:, clusters.index] * clusters.counts
            # once is handed in: of constants XLA makes sums that it rounds otherwise
            counts, running = jnp.asarray(counts), []
            for table in tables:
                found = on_resamples(*programs, table, labels, once, counts, *others)
                # of several small tables at once; of a large one the device's copy goes before the next is made
                running.append(jax.device_get(found) if np.size(table) > _LARGE else found)
            for part, measured in zip(parts, jax.device_get(running), strict=True):
                part.append(measured)
    return [
        (part[0][0], jax.tree.map(lambda *draws: np.concatenate(draws)[:num_resamples], *(draws for _, draws in part)))
        for part in parts
    ]


@partial(jax.jit, static_argnums=(0, 1))
@at_highest
def on_resamples(of_all, of_resample, log_probs, labels, once, counts, *others):
    """A metric of the examples, and one of each resample by its counts; in one program, as each would compile anew."""
    at_once = max(1, min(_AT_ONCE, _EXAMPLES_AT_ONCE // len(labels)))

    def measured(metric, weights):
        # a user's metric may know mask= alone
        word = "weights" if "weights" in inspect.signature(metric).parameters else "mask"
        return metric(log_probs, labels, *others, **{word: weights})

    resampled = jax.lax.map(lambda row: measured(of_resample, row.astype(once.dtype)), counts, batch_size=at_once)
    return measured(of_all, once), resampled
