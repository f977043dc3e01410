"""Focal losses whose gamma adapts: to the example's own probability, to the epoch, or to the calibration on val."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import checks
from focalgeo.losses.focal import focal_loss, signed_focal_loss
from focalgeo.losses.log_odds import Labels, Logits, PerExample, masked_mean, true_class_probability
from focalgeo.types import Array, InputError


class Policy(NamedTuple):
    """Gamma by true-class probability: gammas[i] holds up to and including thresholds[i]."""

    thresholds: tuple[float, ...]  # ascending
    gammas: tuple[float, ...]  # one more than thresholds


class Schedule(NamedTuple):
    """Gamma by epoch: gammas[i] holds before the 0-based epoch boundaries[i]."""

    boundaries: tuple[int, ...]  # ascending
    gammas: tuple[float, ...]  # one more than boundaries


def _just_below(threshold):
    """The largest float32 below the threshold, with which `sample_gamma` counts the threshold to the upper range."""
    return float(np.nextafter(np.float32(threshold), np.float32(0)))


# fla: the paper, .19 and right-closed; flsd: the authors' code, .2 and left-closed, where fla_532 is called flsd_52.
POLICIES = {
    "fla_53": Policy((0.19,), (5.0, 3.0)),
    "fla_532": Policy((0.19, 0.5), (5.0, 3.0, 2.0)),
    "flsd_53": Policy((_just_below(0.2),), (5.0, 3.0)),
    "flsd_52": Policy((_just_below(0.2), _just_below(0.5)), (5.0, 3.0, 2.0)),
}

SCHEDULES = {
    "fls_532": Schedule((100, 250), (5.0, 3.0, 2.0)),
    "fls_531": Schedule((100, 250), (5.0, 3.0, 1.0)),
}


def sample_gamma(p: PerExample, thresholds: Array, gammas: Array) -> PerExample:
    """Gamma of each example by its true-class probability: gammas[number of thresholds strictly below p].

    The ranges are closed on the right, (t_i-1, t_i], as in the paper. A threshold one float32 step lower gives the
    left-closed ranges of the authors' code (`POLICIES["flsd_53"]`).

    Args:
        p: Float [...], from 0 to 1.
        thresholds: Float [n], ascending; compared in float32.
        gammas: Float [n + 1].

    Returns:
        [...] float32, a constant for differentiation. Tested in tests/losses/test_adaptive.py.

    Raises:
        InputError: p outside 0 to 1, thresholds that do not ascend, or not one gamma more than thresholds.

    Source: Mukhoti et al., ICLR 2020 submission, section 5 (FLA in its first version, FLSD in the published one).

    Example:
        >>> policy = losses.POLICIES["fla_53"]  # 5 up to p = 0.19, then 3
        >>> print(losses.sample_gamma(np.float32([0.1, 0.19, 0.7]), *policy))
        [5. 5. 3.]
    """
    checks.check_interval("p", p, 0, 1)
    thresholds, gammas = _steps("thresholds", thresholds, gammas)
    p = jax.lax.stop_gradient(jnp.asarray(p, jnp.float32))
    return jax.lax.stop_gradient(gammas[jnp.searchsorted(thresholds, p, side="left")])


def _steps(name, steps, gammas):
    """Steps [n] that ascend and gammas [n + 1], as float32."""
    checks.check_finite(name, steps)
    checks.check_finite("gammas", gammas)
    steps, gammas = (jnp.asarray(values).astype(jnp.float32) for values in (steps, gammas))
    checks.check_array(name, steps, shape=(None,))
    checks.check_array(f"gammas for {name} {steps.shape}", gammas, shape=(steps.size + 1,))
    if not (checks.is_traced(steps) or np.all(np.diff(np.asarray(steps)) > 0)):
        raise InputError(f"{name} are {np.asarray(steps).tolist()}: give them in ascending order")
    return steps, gammas


@masked_mean
def sample_dependent_focal_loss(logits: Logits, labels: Labels, thresholds: Array, gammas: Array) -> PerExample:
    """Focal loss in nats whose gamma is `sample_gamma` of the example's own p_y.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1.
        thresholds: Float [n], ascending; those of the papers are in POLICIES.
        gammas: Float [n + 1], 0 or more.

    Returns:
        [...] float32; its gradient is that of the focal loss with the chosen gamma held, and it jumps at thresholds.
        Accuracy as `focal_loss`. Tested in tests/losses/test_adaptive.py.

    Source: Mukhoti et al., ICLR 2020 submission, section 5.

    Example:
        >>> policy = losses.POLICIES["flsd_52"]  # gamma 5 below p_y = 0.2, 3 below 0.5, then 2
        >>> print(np.asarray(losses.sample_dependent_focal_loss(logits, labels, *policy)).round(4))
        [0.0457 0.0041 0.3925 0.6653]
    """
    return focal_loss(logits, labels, sample_gamma(true_class_probability(logits, labels), thresholds, gammas))


@masked_mean
def scheduled_focal_loss(
    logits: Logits,
    labels: Labels,
    epoch: Array,
    boundaries: Array,
    gammas: Array,
) -> PerExample:
    """Focal loss in nats whose gamma is gammas[number of boundaries at or below the epoch].

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1.
        epoch: Scalar from 0 (the first epoch), may be traced. Below 0 it takes the first gamma.
        boundaries: [n], ascending; those of the paper are in SCHEDULES.
        gammas: Float [n + 1], 0 or more.

    Returns:
        [...] float32; accuracy as `focal_loss`. Tested in tests/losses/test_adaptive.py.

    Source: Mukhoti et al., ICLR 2020 submission, section 5 (FLS-532, FLS-531; FLSc in the published version).

    Example:
        >>> schedule = losses.SCHEDULES["fls_531"]  # gamma 5, from epoch 100 on 3, from 250 on 1
        >>> print(np.asarray(losses.scheduled_focal_loss(logits, labels, 120, *schedule)).round(3))
        [0.015 0.001 0.392 0.665]
    """
    boundaries, gammas = _steps("boundaries", boundaries, gammas)
    epoch = jnp.asarray(checks.number_array("epoch", epoch, ())).astype(jnp.float32)
    return focal_loss(logits, labels, gammas[jnp.searchsorted(boundaries, epoch, side="right")])


FLIP, LOWEST, HIGHEST = 0.2, -2.0, 20.0  # of AdaFocal's gamma


class AdaFocalState(NamedTuple):
    """AdaFocal's bins of confidence and the gamma of each, kept from epoch to epoch; a pytree of float32."""

    edges: Array  # [bins-1], ascending: bin i holds edges[i - 1] <= p < edges[i]
    gammas: Array  # [bins]


def adafocal_state(num_bins: int = 15) -> AdaFocalState:
    """The state before the first update: gamma 1 in every one of `num_bins` bins of equal width, 10,000 at most.

    Example:
        >>> print(losses.adafocal_state(4).edges)
        [0.25 0.5  0.75]
    """
    checks.check_bins(num_bins)
    edges = np.arange(1, num_bins, dtype=np.float32) / np.float32(num_bins)
    return AdaFocalState(*jax.device_put((edges, np.ones(num_bins, np.float32))))


def next_gamma(gamma: PerExample | float, gap: PerExample | float) -> Array:
    """AdaFocal's rule gamma exp(sign(gamma) gap), then a flip of sign to 0.2 where it shrinks below, then a clip.

    Args:
        gamma: Float [...], 0.2 to 20 or -2 to -0.2; zero counts as negative.
        gap: Float [...], mean confidence minus accuracy, from -1 to 1.

    Returns:
        [...] float32. A magnitude of exactly 0.2 does not flip. Tested in tests/losses/test_adaptive.py.

    Source: Ghosh et al., arXiv 2211.11838, with lambda = 1; thresholds of the published code.
    """
    gamma, gap = jnp.asarray(gamma, jnp.float32), jnp.asarray(gap, jnp.float32)
    moved = gamma * jnp.exp(jnp.where(gamma > 0, gap, -gap))
    flipped = jnp.where(jnp.abs(moved) < FLIP, jnp.where(gamma > 0, -FLIP, FLIP), moved)
    return jnp.clip(flipped, LOWEST, HIGHEST)


def adafocal_update(
    state: AdaFocalState,
    confidence: Array,
    correct: Array,
    *,
    mask: Array | None = None,
) -> AdaFocalState:
    """The state after an epoch: bins of equal mass from validation confidence, and each gamma moved by its gap.

    Bins are made by rank, so that no sample is lost; the first ones take one sample more where the count does not
    divide. Ties may be split between neighbours. The published code interpolates edges instead. A bin's upper edge is
    its largest confidence. A bin without samples keeps its gamma and takes no probability in the look-up.

    Args:
        state: With its number of bins; its edges are replaced.
        confidence: Float [examples], the largest probability of each validation example.
        correct: Bool or number [examples], 1 where the prediction is right.
        mask: Bool [examples]; False counts for nothing. Without one True anywhere the state stays as it is.

    Returns:
        The new AdaFocalState. Works under jit and vmap. Tested in tests/losses/test_adaptive.py.

    Raises:
        InputError: arrays of different shapes; a concrete confidence outside 0 to 1 that counts.

    Source: Ghosh et al., arXiv 2211.11838.

    Example:
        >>> state = losses.adafocal_state(2)
        >>> state = losses.adafocal_update(state, np.float32([0.3, 0.4, 0.8, 0.9]), np.array([1, 0, 0, 1]))
        >>> print(np.asarray(state.gammas).round(3))  # 1 exp(gap), of gaps -0.15 and 0.35
        [0.861 1.419]
    """
    state, confidence = _of_one_shape(state), checks.number_array("confidence", confidence)
    checks.check_array("confidence", confidence, shape=(None,))
    mask = checks.mask_array(mask, confidence.shape)
    mask = jnp.ones(confidence.shape, bool) if mask is None else jnp.asarray(mask).astype(bool)
    checks.check_array("correct", correct := checks.array_of("correct", correct), shape=confidence.shape)
    confidence, correct = (
        jnp.where(mask, jnp.asarray(values).astype(jnp.float32), 0) for values in (confidence, correct)
    )
    checks.check_interval("confidence", confidence, 0, 1)
    checks.check_interval("correct", correct, 0, 1)
    order = jnp.argsort(jnp.where(mask, confidence, jnp.inf))
    confidence, correct, mask = confidence[order], correct[order], mask[order]
    num_bins = state.gammas.size
    step = jnp.arange(1, num_bins + 1)
    small, larger = jnp.divmod(jnp.sum(mask), num_bins)  # so many first bins hold one sample more
    ends = step * small + jnp.minimum(step, larger)
    bins = jnp.where(mask, jnp.searchsorted(ends, jnp.arange(confidence.size), side="right"), num_bins)

    def total(values):
        return jax.ops.segment_sum(values, bins, num_segments=num_bins + 1)[:-1]

    counts = total(mask.astype(jnp.float32))
    gap = total(confidence - correct) / jnp.maximum(counts, 1)
    gammas = jnp.where(counts > 0, next_gamma(state.gammas, gap), state.gammas)
    largest = jax.ops.segment_max(confidence, bins, num_segments=num_bins + 1)[:-1]
    edges = jnp.where(counts[1:] > 0, largest[:-1], jnp.inf)
    return AdaFocalState(jnp.where(jnp.any(mask), edges, state.edges), gammas)


def _of_one_shape(state):
    edges, gammas = (jnp.asarray(checks.number_array("the state", leaf)).astype(jnp.float32) for leaf in state)
    checks.check_array(f"edges for gammas {gammas.shape}", edges, shape=(gammas.size - 1,))
    return AdaFocalState(edges, gammas)


def adafocal_gamma(state: AdaFocalState, p: PerExample) -> PerExample:
    """Gamma of the bin with edges[i - 1] <= p < edges[i], a constant for differentiation.

    The first and the last bin reach to 0 and 1. The look-up is by true-class probability, though the bins are those of
    validation confidence: so do paper and code.

    Example:
        >>> state = losses.AdaFocalState(np.float32([0.4]), np.float32([0.9, 1.4]))
        >>> print(losses.adafocal_gamma(state, np.float32([0.3, 0.4, 0.8])))
        [0.9 1.4 1.4]
    """
    checks.check_interval("p", p, 0, 1)
    p, (edges, gammas) = jax.lax.stop_gradient((jnp.asarray(p, jnp.float32), _of_one_shape(state)))
    return gammas[jnp.searchsorted(edges, p, side="right")]


@masked_mean
def adafocal_loss(logits: Logits, labels: Labels, adafocal: AdaFocalState) -> PerExample:
    """AdaFocal's loss in nats: `signed_focal_loss` with `adafocal_gamma` of the example's own p_y.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1.
        adafocal: The current AdaFocalState; no gradient flows into it.

    Returns:
        [...] float32; it jumps at the edges of bins. Accuracy as `signed_focal_loss`. Tested in
        tests/losses/test_adaptive.py.

    Source: Ghosh et al., arXiv 2211.11838.

    Example:
        >>> state = losses.AdaFocalState(np.float32([0.4]), np.float32([0.9, 1.4]))
        >>> print(np.asarray(losses.adafocal_loss(logits, labels, state)).round(4))
        [0.0881 0.0126 0.8483 1.1558]
    """
    gamma = adafocal_gamma(adafocal, true_class_probability(logits, labels))
    return signed_focal_loss(logits, labels, gamma)
