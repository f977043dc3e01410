"""Bins of confidence, of equal width and of equal mass, and weighted means over examples.

An example counts as often as its weight says: 1 and 0 for a mask, a whole number for a resample. A bin scheme is a
table [bins, examples] of how often each example counts in each bin; its columns add up to the weights, so no example
is dropped.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Integer, Shaped

from focalgeo import checks
from focalgeo.trees import matmul, namespace
from focalgeo.types import Array, PyTree, inner_ends

LogProbs = Logits = Float[Array, "examples classes"]
Labels = Integer[Array, " examples"] | Shaped[Array, "examples classes"]  # class numbers, or their one-hot rows
SoftLabels = Labels  # or the shares of the classes, which sum to 1
Mask = Shaped[Array, " examples"] | None  # bool: which examples count; None is all
Weights = Shaped[Array, " examples"] | None  # 0 or more: how often each example counts; None is once
Scalar = Float[Array, ""]
Numbers = Float[Array, " examples"]
Came = Bool[Array, " examples"]  # whether each event came true
Sums = Float[Array, "*classes bins"]
PerBin = Float[Array, " bins"]

_RUN = 64  # numbers that one product adds up
EQUAL = 2**-21  # within which two values count as equal: see ON_EDGE
_SAME_RANK = 2e-6  # of ranks by log-odds: these are differences of float32 logarithms
SURE = 1e4  # log-odds from which on all are equal: the other classes cannot be


class Reliability(NamedTuple):
    """The bins of a reliability diagram; means of an empty bin are NaN and its count is 0."""

    count: PerBin  # examples in the bin
    confidence: PerBin  # mean predicted probability
    accuracy: PerBin  # share of examples that came true
    lower: PerBin  # equal width: the bin is (lower, upper]; equal mass: least and largest confidence
    upper: PerBin


class Events(NamedTuple):
    """A probability of an event for each example, whether it came true, and the example's weight."""

    p: Numbers
    correct: Came
    weight: Numbers


EventsOf = Callable[[checks.Examples], Events]


class Summed(NamedTuple):
    """A metric that is a function of sums over examples, which parts of the examples give too, added up."""

    sums: Callable[[checks.Examples], tuple[Array, ...]]  # of examples that have been checked
    value: Callable[..., PyTree]  # of these sums
    soft: bool = False  # whether labels may be shares of the classes

    def __call__(self, examples: checks.Examples) -> PyTree:
        """The metric of examples that have been checked."""
        return self.value(*self.sums(examples))


def metric(body: Callable) -> Callable[..., Any]:
    """The metric, with `mask` and `weights`, whose body returns it as a function of examples that have been checked.

    That function is the metric's `of`, by its keyword arguments. Where it is a `Summed`, `streaming` takes it of parts.
    """

    def taken(log_probs, labels, *arguments, mask=None, weights=None, **options):
        of = body(log_probs, labels, *arguments, **options)
        return of(checks.examples(log_probs, labels, mask, weights, soft=getattr(of, "soft", False)))

    checks.take_counts(taken, body)
    taken.of = functools.partial(body, None, None)  # it does not depend on the examples
    return taken


def top_label(examples: checks.Examples) -> Events:
    """The event that the predicted class is right."""
    predicted = jnp.argmax(examples.rows, axis=-1)
    return Events(jnp.exp(jnp.max(examples.rows, axis=-1)), predicted == examples.labels, examples.weight)


@metric
def adaptive_reliability(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15) -> Reliability:
    """Mean confidence and accuracy of the predicted class in `num_bins` bins of equal count, by rank of confidence.

    With N examples the first N mod M bins hold one more than the rest. Confidences within 5e-7 of that at a cut count
    as equal and are never parted: the cut moves to their nearer end, so that bins of few distinct values differ in
    size or stay empty. Arguments as `reliability`; of weights that are not whole numbers N / M is not rounded.

    Source: Mukhoti et al., ICLR 2020 submission, Eq. 3. The published code interpolates edges and drops examples.

    Example:
        >>> bins = calibration.adaptive_reliability(log_probs, labels, num_bins=2)
        >>> print(bins.count, np.asarray(bins.confidence).round(4), np.asarray(bins.accuracy).round(4))
        [2. 2.] [0.5675 0.7545] [0. 1.]
    """
    return of_equal_mass(top_label, num_bins, named_empty)


def named_empty(bins: Reliability) -> Reliability:
    """The bins with NaN for the means of an empty one, where JAX looks for NaN too."""
    with jax.debug_nans(False):
        nothing = jnp.where(bins.count > 0, 0, jnp.nan)
        return bins._replace(confidence=bins.confidence + nothing, accuracy=bins.accuracy + nothing)


def equal_width(p: Numbers, correct: Came, weight: Numbers, num_bins: int) -> Reliability:
    """`reliability` of events, with 0 for the means of an empty bin."""
    return bins_of(*bin_sums(Events(p, correct, weight), num_bins))


def bin_sums(events: Events, num_bins: int) -> tuple[Sums, ...]:
    """Sums in the bins of `equal_width`: of weights, of probabilities and of events that came true."""
    p, correct, weight = events
    inside = jax.nn.one_hot(bin_index(p, num_bins), num_bins, axis=0, dtype=p.dtype)
    values = jnp.stack([weight, _counted(weight, weight * p), weight * correct.astype(p.dtype)])
    return tuple(jnp.einsum("ve,be->vb", values, inside, precision=jax.lax.Precision.HIGHEST))


def bins_of(count: Sums, sums: Sums, right: Sums) -> Reliability:
    """The bins of `bin_sums`."""
    edges = jnp.arange(count.shape[-1] + 1, dtype=count.dtype) / count.shape[-1]
    return Reliability(count, *_means(count, sums, right), edges[:-1], edges[1:])


def _means(count, *sums):
    return (total / jnp.where(count > 0, count, 1) for total in sums)


def residual_sums(p: Numbers, correct: Came, weight: Numbers, num_bins: int) -> PerBin:
    """Sums of event - p in the bins of `equal_width`: their sizes over the weights' sum make an expected gap.

    Many classes under many resamples ask for no more than these, in a third of the time of the bins' three means.
    """
    inside = jax.nn.one_hot(bin_index(p, num_bins), num_bins, axis=0, dtype=p.dtype)
    residual = _counted(weight, weight * (correct.astype(p.dtype) - p))
    return jnp.einsum("e,be->b", residual, inside, precision=jax.lax.Precision.HIGHEST)


def bin_index(p, num_bins):
    """Number from 0 of the equal-width bin that each probability falls into."""
    return jnp.searchsorted(inner_ends(num_bins, p.dtype), p, side="left", method="compare_all")


def equal_mass(p: Numbers, correct: Came, weight: Numbers, num_bins: int) -> Reliability:
    """`adaptive_reliability` of events, with 0 for the means of an empty bin."""
    order = jnp.argsort(p, stable=True)
    ordered, times = p[order], weight[order]
    p, correct = _counted(times, ordered), correct[order].astype(times.dtype)
    # Sums before each example, whose differences at the cuts are those of the bins: a table [bins, examples] takes five
    # times as long under resampling. Of confidence minus correct, as that sum stays small and so keeps its digits.
    excess = (p - correct) * times
    up_to, right, excess = map(running_sums, (times, times * correct, excess))

    def before(sums, place):
        return jnp.where(place > 0, sums[place - 1], 0)

    step, total = jnp.arange(num_bins + 1, dtype=times.dtype), up_to[-1]
    bounds = step * (total // num_bins) + jnp.minimum(step, total % num_bins)  # the first bins hold one more
    bounds = jnp.where(jnp.all(times == jnp.round(times)), bounds, step * (total / num_bins))
    at_bound = ordered[jnp.searchsorted(up_to, bounds, side="left")]
    first, end = ends_of_equal(ordered, at_bound)
    nearer = bounds - before(up_to, first) <= before(up_to, end) - bounds
    cuts = jax.lax.cummax(jnp.where(nearer, first, end))
    at_cuts = before(up_to, cuts)
    count, sums, right = map(jnp.diff, (at_cuts, before(excess, cuts), before(right, cuts)))
    mean, accuracy = _means(count, sums + right, right)
    lower = jnp.where(count > 0, p[jnp.searchsorted(up_to, at_cuts[:-1], side="right")], jnp.inf)
    upper = jnp.where(count > 0, p[jnp.searchsorted(up_to, at_cuts[1:], side="left")], -jnp.inf)
    return Reliability(count, mean, accuracy, lower, upper)


def running_sums(values: Numbers) -> Numbers:
    """The sums up to each number, by products within runs: jnp.cumsum of a million takes several times as long."""
    rows = jnp.pad(values, (0, -len(values) % _RUN)).reshape(-1, _RUN)
    within = matmul(rows, jnp.tri(_RUN, dtype=values.dtype).T)
    before = jnp.cumsum(within[:, -1]) - within[:, -1]
    return (within + before[:, None]).ravel()[: len(values)]


def ends_of_equal(ordered, values, *, method="scan", equal=EQUAL):
    """Where the numbers that count as equal to each value begin and end among the ordered ones."""
    first = jnp.searchsorted(ordered, values - equal, method=method)
    return first, jnp.searchsorted(ordered, values + equal, side="right", method=method)


def _counted(weight, values):
    """`values` where the weight is not 0. It comes after the sort, so that one sort serves every resample."""
    return jnp.where(weight > 0, values, 0)


def gap(bins: Reliability) -> Sums:
    """|accuracy - confidence| of bins whose means are 0 where they are empty."""
    return jnp.abs(bins.accuracy - bins.confidence)


def bin_mean(bins: Reliability, values: PerBin) -> Scalar:
    """Mean of a value of each bin, by the examples that it holds."""
    return jnp.sum(bins.count * values) / jnp.sum(bins.count)


def weighted_mean(values: Numbers, weight: Numbers) -> Scalar:
    """Mean of `values` [examples], each as often as its weight says; NaN where none counts, and where one is NaN."""
    return jnp.divide(*weighted_sums(values, weight))


def weighted_sums(values: Numbers, weight: Numbers) -> tuple[Scalar, Scalar]:
    """The sums whose ratio is `weighted_mean`."""
    return jnp.sum(_counted(weight, values * weight)), jnp.sum(weight)


def of_label(values: Array, labels: Array) -> Array:
    """The entry of each row of values [..., examples, classes] at its label, or their mean by shares of the labels."""
    space = namespace(values)
    if labels.ndim == 1:
        index = space.broadcast_to(labels, values.shape[:-1])[..., None]
        return space.take_along_axis(values, index, axis=-1)[..., 0]
    return space.sum(space.where(labels > 0, labels * values, 0), axis=-1)


def mean_of(values: Callable[[checks.Examples], Numbers], *, soft: bool = False) -> Any:
    """The `Summed` of the mean of a value of each example."""
    return Summed(lambda examples: weighted_sums(values(examples), examples.weight), jnp.divide, soft)


def of_bins(events: EventsOf, num_bins: int, value: Callable[[Reliability], PyTree]) -> Any:
    """The `Summed` of a function of the bins of `equal_width`, which has 0 for the means of an empty bin."""
    checks.check_bins(num_bins)
    return Summed(lambda examples: bin_sums(events(examples), num_bins), lambda *sums: value(bins_of(*sums)))


def of_equal_mass(events: EventsOf, num_bins: int, value: Callable[[Reliability], PyTree]) -> Any:
    """As `of_bins`, of the bins of `equal_mass`: a function of all examples at once."""
    checks.check_bins(num_bins)
    return lambda examples: value(equal_mass(*events(examples), num_bins))


def gap_of_residuals(residuals: Array, total: Scalar) -> Scalar:
    """The ECE of `residual_sums` and of the number of examples."""
    return jnp.sum(jnp.abs(residuals)) / total


def ece_of(events: EventsOf, num_bins: int) -> Any:
    """The `Summed` of the ECE of events."""
    checks.check_bins(num_bins)
    sums = lambda examples: (residual_sums(*events(examples), num_bins), jnp.sum(examples.weight))  # noqa: E731
    return Summed(sums, gap_of_residuals)


@metric
def reliability(log_probs: LogProbs, labels: Labels, *, num_bins: int = 15) -> Reliability:
    """Mean confidence and accuracy of the predicted class in `num_bins` bins of equal width, ((i-1)/M, i/M].

    Args:
        log_probs: Float [examples, classes].
        labels: Int [examples].
        num_bins: M, 1 or more. A confidence of 0 belongs to the first bin, of 1 to the last; one that is within 1e-6
            of an edge counts as on it and belongs to the bin below, whatever rounding made of it.
        mask: Bool [examples], which examples count; None is all.
        weights: Float [examples], 0 or more: how often each example counts; None counts each once.

    Source: Mukhoti et al., ICLR 2020 submission, section 2 (their figures use 25 bins, their tables 15).

    Example:
        >>> bins = calibration.reliability(log_probs, labels, num_bins=3)
        >>> print(bins.count, np.asarray(bins.confidence).round(4), np.asarray(bins.accuracy).round(4))
        [0. 3. 1.] [   nan 0.6001 0.8438] [   nan 0.3333 1.    ]
    """
    return of_bins(top_label, num_bins, named_empty)


def by_log_odds(log_odds: Numbers, correct: Bool[Array, " examples"], weight: Numbers) -> Events:
    """Events whose `p` is only for ranking: sign(s) log(1 + |s|) of the log-odds s, which keep what p rounds to 0 or 1.

    On this scale the rounding of s, which grows with it, is about the same everywhere.
    """
    return Events(jnp.sign(log_odds) * jnp.log1p(jnp.abs(log_odds)), correct, weight)


def top_by_log_odds(examples: checks.Examples) -> Events:
    """`top_label` for ranking."""
    rows, top = examples.rows, jnp.argmax(examples.rows, axis=-1)
    others = jax.nn.logsumexp(jnp.where(jax.nn.one_hot(top, rows.shape[-1], dtype=bool), -jnp.inf, rows), axis=-1)
    log_odds = jnp.clip(jnp.max(rows, axis=-1) - others, max=SURE)
    return by_log_odds(log_odds, top == examples.labels, examples.weight)


def area(events: Events) -> Scalar:
    """The area under the ROC curve of the events' rank as a test of them, a tie counted as half."""
    right, wrong, first, end = ranked(events)
    below = jnp.concatenate([jnp.zeros_like(wrong[:1]), jnp.cumsum(wrong)])
    beaten = (below[first] + below[end]) / 2 / below[-1]  # shares: their sum is no large number
    return jnp.sum(right * beaten) / jnp.sum(right)


def ranked(events: Events) -> tuple[Array, ...]:
    """By ascending rank: weights of right and of wrong predictions, and the ends of each group of equal ones.

    The order does not depend on the mask, so that one sort serves every resample of a bootstrap.
    """
    order = jnp.argsort(events.p, stable=True)
    ordered = events.p[order]
    ends = ends_of_equal(ordered, ordered, method="sort", equal=_SAME_RANK)
    weights = (jnp.where(outcome, events.weight, 0)[order] for outcome in (events.correct, ~events.correct))
    return *weights, *ends
