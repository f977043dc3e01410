"""Focal losses whose gamma adapts: to the example's own probability, to the epoch, or to the calibration on val."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer

from focalgeo.checks import (
    array_of,
    check_bins,
    check_finite,
    check_interval,
    in_interval,
    is_traced,
    marked,
    mask_array,
    number_array,
)
from focalgeo.losses.focal import focal_of, signed_focal_of
from focalgeo.losses.log_odds import labelled_rows, true_class_probability
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
POLICIES: dict[str, Policy] = {
    "fla_53": Policy((0.19,), (5.0, 3.0)),
    "fla_532": Policy((0.19, 0.5), (5.0, 3.0, 2.0)),
    "flsd_53": Policy((_just_below(0.2),), (5.0, 3.0)),
    "flsd_52": Policy((_just_below(0.2), _just_below(0.5)), (5.0, 3.0, 2.0)),
}

SCHEDULES: dict[str, Schedule] = {
    "fls_532": Schedule((100, 250), (5.0, 3.0, 2.0)),
    "fls_531": Schedule((100, 250), (5.0, 3.0, 1.0)),
}


def sample_gamma(p: Float[Array, "*batch"], thresholds: Array, gammas: Array) -> Float[Array, "*batch"]:
    """Gamma of each example by its true-class probability: gammas[number of thresholds strictly below p].

    The ranges are closed on the right, (t_i-1, t_i], as in the paper. A threshold one float32 step lower gives the
    left-closed ranges of the authors' code (`POLICIES["flsd_53"]`).

    Args:
        p: Float [...], from 0 to 1.
        thresholds: Float [n], ascending; compared in float32.
        gammas: Float [n + 1].

    Returns:
        [...] float32, a constant for differentiation; NaN where a traced p lies outside. Tested in
        tests/losses/test_adaptive.py.

    Raises:
        InputError: p outside 0 to 1, thresholds that do not ascend, or not one gamma more than thresholds.

    Source: Mukhoti et al., arXiv 2002.09437, section 5 (FLA in its first version, FLSD in the published one).
    """
    check_interval("p", p, 0, 1)
    return _by_probability(jnp.asarray(p, jnp.float32), *_checked_steps("thresholds", thresholds, gammas))


def _by_probability(p: Array, thresholds: Array, gammas: Array) -> Array:
    """`sample_gamma` of what has been checked."""
    index = jnp.searchsorted(thresholds, jax.lax.stop_gradient(p), side="left")
    return jax.lax.stop_gradient(marked(in_interval(p, 0, 1), gammas[index]))


def _checked_steps(name: str, steps: Array, gammas: Array) -> tuple[Array, Array]:
    """Steps [n] that ascend and gammas [n + 1] as float32; where traced steps do not ascend, gammas are NaN."""
    check_finite(name, steps)
    check_finite("gammas", gammas)
    steps, gammas = (jnp.asarray(array_of(*each)).astype(jnp.float32) for each in ((name, steps), ("gammas", gammas)))
    if steps.ndim != 1 or gammas.shape != (steps.size + 1,):
        shapes = f"{name} have shape {steps.shape}, gammas {gammas.shape}"
        raise InputError(f"{shapes}: give two lists, and one gamma more than {name}")
    ascending = jnp.all(steps[1:] > steps[:-1])
    if not is_traced(ascending) and not ascending:
        raise InputError(f"{name} are {np.asarray(steps).tolist()}: give them in ascending order")
    return steps, marked(ascending, gammas)


def sample_dependent_focal_loss(
    logits: Float[Array, "*batch classes"], labels: Integer[Array, "*batch"] | int, thresholds: Array, gammas: Array
) -> Float[Array, "*batch"]:
    """Focal loss in nats whose gamma is `sample_gamma` of the example's own p_y.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; a traced one outside gives NaN, with derivatives of 0.
        thresholds: Float [n], ascending; those of the papers are in POLICIES.
        gammas: Float [n + 1], 0 or more.

    Returns:
        [...] float32; its gradient is that of the focal loss with the chosen gamma held, and it jumps at thresholds.
        Accuracy as `focal_loss`. Tested in tests/losses/test_adaptive.py.

    Source: Mukhoti et al., arXiv 2002.09437, section 5.
    """
    rows, (thresholds, gammas) = labelled_rows(logits, labels), _checked_steps("thresholds", thresholds, gammas)
    p = true_class_probability(rows.logits, rows.labels)
    return focal_of(rows, _by_probability(p, thresholds, gammas))


def scheduled_focal_loss(
    logits: Float[Array, "*batch classes"],
    labels: Integer[Array, "*batch"] | int,
    epoch: Array,
    boundaries: Array,
    gammas: Array,
) -> Float[Array, "*batch"]:
    """Focal loss in nats whose gamma is gammas[number of boundaries at or below the epoch].

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; a traced one outside gives NaN, with derivatives of 0.
        epoch: Scalar from 0 (the first epoch), may be traced. Below 0 it takes the first gamma.
        boundaries: [n], ascending; those of the paper are in SCHEDULES.
        gammas: Float [n + 1], 0 or more.

    Returns:
        [...] float32; accuracy as `focal_loss`. Tested in tests/losses/test_adaptive.py.

    Source: Mukhoti et al., arXiv 2002.09437, section 5 (FLS-532, FLS-531; FLSc in the published version).
    """
    rows, (boundaries, gammas) = labelled_rows(logits, labels), _checked_steps("boundaries", boundaries, gammas)
    check_finite("epoch", epoch)
    epoch = jnp.asarray(number_array("epoch", epoch, ())).astype(jnp.float32)
    gamma = gammas[jnp.searchsorted(boundaries, epoch, side="right")]
    return focal_of(rows, marked(jnp.isfinite(epoch), gamma))


FLIP, LOWEST, HIGHEST = 0.2, -2.0, 20.0  # of AdaFocal's gamma


class AdaFocalState(NamedTuple):
    """AdaFocal's bins of confidence and the gamma of each, kept from epoch to epoch; a pytree of float32."""

    edges: Float[Array, " bins-1"]  # ascending: bin i holds edges[i - 1] <= p < edges[i]
    gammas: Float[Array, " bins"]


def adafocal_state(num_bins: int = 15) -> AdaFocalState:
    """The state before the first update: gamma 1 in every one of `num_bins` bins of equal width, 10,000 at most."""
    check_bins(num_bins)
    edges = np.arange(1, num_bins, dtype=np.float32) / np.float32(num_bins)
    return AdaFocalState(*jax.device_put((edges, np.ones(num_bins, np.float32))))


def next_gamma(gamma: Float[Array, "*batch"] | float, gap: Float[Array, "*batch"] | float) -> Float[Array, "..."]:
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
    confidence: Float[Array, " examples"],
    correct: Array,
    *,
    mask: Bool[Array, " examples"] | None = None,
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
        The new AdaFocalState. Works under jit and vmap, where a confidence that counts and is none gives NaN in all
        gammas. Tested in tests/losses/test_adaptive.py.

    Raises:
        InputError: arrays of different shapes; a concrete confidence outside 0 to 1 that counts.

    Source: Ghosh et al., arXiv 2211.11838.
    """
    state, (confidence, correct, mask) = _checked_state(state), _checked_validation(confidence, correct, mask)
    valid = jnp.all(in_interval(confidence, 0, 1) & in_interval(correct, 0, 1) | ~mask)
    state = state._replace(gammas=marked(valid, state.gammas))
    order = jnp.argsort(jnp.where(mask, confidence, jnp.inf))
    confidence, mask = jnp.where(mask, confidence, 0)[order], mask[order]
    correct = jnp.where(mask, correct[order], 0)
    num_bins = state.gammas.size
    bins = jnp.where(mask, _bin_of_rank(jnp.sum(mask), confidence.size, num_bins), num_bins)

    def total(values):
        return jax.ops.segment_sum(values, bins, num_segments=num_bins + 1)[:-1]

    counts = total(mask.astype(jnp.float32))
    gap = total(confidence - correct) / jnp.maximum(counts, 1)
    gammas = jnp.where(counts > 0, next_gamma(state.gammas, gap), state.gammas)
    largest = jax.ops.segment_max(confidence, bins, num_segments=num_bins + 1)[:-1]
    edges = jnp.where(counts[1:] > 0, largest[:-1], jnp.inf)
    return AdaFocalState(jnp.where(jnp.any(mask), edges, state.edges), gammas)


def _checked_state(state: AdaFocalState) -> AdaFocalState:
    if not isinstance(state, AdaFocalState):
        raise InputError(f"the state of AdaFocal is a {type(state).__name__}: give an AdaFocalState, adafocal_state()")
    edges, gammas = (jnp.asarray(number_array("the state of AdaFocal", leaf)).astype(jnp.float32) for leaf in state)
    if gammas.ndim != 1 or not gammas.size or edges.shape != (gammas.size - 1,):
        shapes = f"edges {edges.shape}, gammas {gammas.shape}"
        raise InputError(f"the state of AdaFocal has {shapes}: give one gamma more than edges, adafocal_state()")
    return AdaFocalState(edges, gammas)


def _checked_validation(confidence: Array, correct: Array, mask: Array | None) -> tuple[Array, Array, Array]:
    """Confidence, correctness and mask [examples] of the validation examples as float32 and bool."""
    confidence = number_array("confidence", confidence)
    correct, mask = array_of("correct", correct), mask_array(mask, confidence, "confidence")
    if confidence.ndim != 1 or correct.shape != confidence.shape or confidence.size == 0:
        shapes = f"confidence has shape {confidence.shape}, correct {correct.shape}"
        raise InputError(f"{shapes}: give one of each for every example, and one example or more")
    for name, values in (("confidence", confidence), ("correct", correct)):
        if not is_traced(values, mask):
            check_interval(name, np.float32(values)[slice(None) if mask is None else np.asarray(mask, bool)], 0, 1)
    mask = jnp.ones(confidence.shape, bool) if mask is None else jnp.asarray(mask).astype(bool)
    return jnp.asarray(confidence).astype(jnp.float32), jnp.asarray(correct).astype(jnp.float32), mask


def adafocal_gamma(state: AdaFocalState, p: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Gamma of the bin with edges[i - 1] <= p < edges[i], a constant for differentiation.

    The first and the last bin reach to 0 and 1. The look-up is by true-class probability, though the bins are those of
    validation confidence: so do paper and code.
    """
    check_interval("p", p, 0, 1)
    return _by_bin(_checked_state(state), jnp.asarray(p, jnp.float32))


def _by_bin(state: AdaFocalState, p: Array) -> Array:
    """`adafocal_gamma` of what has been checked; NaN where a traced p lies outside 0 to 1."""
    p, (edges, gammas) = jax.lax.stop_gradient((p, state))
    return marked(in_interval(p, 0, 1), gammas[jnp.searchsorted(edges, p, side="right")])


def adafocal_loss(
    logits: Float[Array, "*batch classes"], labels: Integer[Array, "*batch"] | int, adafocal: AdaFocalState
) -> Float[Array, "*batch"]:
    """AdaFocal's loss in nats: `signed_focal_loss` with `adafocal_gamma` of the example's own p_y.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; a traced one outside gives NaN, with derivatives of 0.
        adafocal: The current AdaFocalState; no gradient flows into it.

    Returns:
        [...] float32; it jumps at the edges of bins. Accuracy as `signed_focal_loss`. Tested in
        tests/losses/test_adaptive.py.

    Source: Ghosh et al., arXiv 2211.11838.
    """
    rows, state = labelled_rows(logits, labels), _checked_state(adafocal)
    return signed_focal_of(rows, _by_bin(state, true_class_probability(rows.logits, rows.labels)))


def _bin_of_rank(count, size, num_bins):
    """Bin of ranks 0 to size - 1 for `count` samples: the first count % num_bins bins hold one sample more."""
    small, larger = count // num_bins, count % num_bins
    rank = jnp.arange(size)
    ahead = larger * (small + 1)
    return jnp.where(rank < ahead, rank // (small + 1), larger + (rank - ahead) // jnp.maximum(small, 1))
