"""Focal losses whose gamma is chosen: by the example's own probability, or by the epoch."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.losses.focal import focal_loss
from focalgeo.losses.log_odds import true_class_probability
from focalgeo.types import Array


class Policy(NamedTuple):
    """Gamma by true-class probability: gammas[i] holds up to and including thresholds[i]."""

    thresholds: tuple[float, ...]  # ascending
    gammas: tuple[float, ...]  # one more than thresholds


class Schedule(NamedTuple):
    """Gamma by epoch: gammas[i] holds before the 0-based epoch boundaries[i]."""

    boundaries: tuple[int, ...]  # ascending
    gammas: tuple[float, ...]  # one more than boundaries


def _just_below(threshold):
    """The float32 before it: p > that is p >= threshold, which turns a right-closed range into a left-closed one."""
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


def sample_gamma(p: Array, thresholds: Array, gammas: Array) -> Array:
    """Gamma of each example by its true-class probability: gammas[number of thresholds strictly below p].

    The ranges are closed on the right, (t_i-1, t_i], as in the paper. A threshold one float32 step lower gives the
    left-closed ranges of the authors' code (`POLICIES["flsd_53"]`).

    Args:
        p: Float [...], from 0 to 1.
        thresholds: Float [n], ascending; compared in float32.
        gammas: Float [n + 1].

    Returns:
        [...] float32, a constant for differentiation. NaN in p gives the last gamma. Held by
        tests/losses/test_policies.py.

    Source: Mukhoti et al., arXiv 2002.09437, section 5 (FLA in its first version, FLSD in the published one).
    """
    p, thresholds = jnp.asarray(p, jnp.float32), jnp.asarray(thresholds, jnp.float32)
    index = jnp.searchsorted(thresholds, jax.lax.stop_gradient(p), side="left")
    return jax.lax.stop_gradient(jnp.asarray(gammas, jnp.float32)[index])


def sample_dependent_focal_loss(logits: Array, labels: Array, thresholds: Array, gammas: Array) -> Array:
    """Focal loss in nats whose gamma is `sample_gamma` of the example's own p_y.

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; what lies outside gives a meaningless finite value.
        thresholds: Float [n], ascending; those of the papers are in POLICIES.
        gammas: Float [n + 1], 0 or more.

    Returns:
        [...] float32; its gradient is that of the focal loss with the chosen gamma held, and it jumps at thresholds.
        Accuracy as `focal_loss`. Held by tests/losses/test_policies.py.

    Source: Mukhoti et al., arXiv 2002.09437, section 5.
    """
    return focal_loss(logits, labels, sample_gamma(true_class_probability(logits, labels), thresholds, gammas))


def scheduled_focal_loss(logits: Array, labels: Array, epoch: Array, boundaries: Array, gammas: Array) -> Array:
    """Focal loss in nats whose gamma is gammas[number of boundaries at or below the epoch].

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; what lies outside gives a meaningless finite value.
        epoch: Scalar from 0 (the first epoch), may be traced. Below 0 it takes the first gamma.
        boundaries: [n], ascending; those of the paper are in SCHEDULES.
        gammas: Float [n + 1], 0 or more.

    Returns:
        [...] float32; accuracy as `focal_loss`. Held by tests/losses/test_policies.py.

    Source: Mukhoti et al., arXiv 2002.09437, section 5 (FLS-532, FLS-531; FLSc in the published version).
    """
    boundaries, epoch = jnp.asarray(boundaries, jnp.float32), jnp.asarray(epoch, jnp.float32)
    gamma = jnp.asarray(gammas, jnp.float32)[jnp.searchsorted(boundaries, epoch, side="right")]
    return focal_loss(logits, labels, gamma)
