"""Calibration of the probability of class 1 in two-class problems.

This is not the calibration of the predicted class: there P(class 1) = 0.1 is a confidence of 0.9 in class 0 and shares
a bin with 0.9, so that errors of opposite sign cancel. Each function takes log_probs [examples, 2] as the others do,
and raises InputError for another number of classes.
"""

import jax.numpy as jnp

from focalgeo.calibration.binning import Reliability, TopLabel, equal_mass, equal_width, expected_gap, weights, widened
from focalgeo.calibration.smooth import smoothed_error
from focalgeo.types import Array, InputError


def binary_reliability(
    log_probs: Array, labels: Array, *, num_bins: int = 15, mask: Array | None = None
) -> Reliability:
    """As `reliability`, of P(class 1) and whether the label is 1."""
    return equal_width(*_class_one(log_probs, labels, mask), num_bins)


def binary_ece(log_probs: Array, labels: Array, *, num_bins: int = 15, mask: Array | None = None) -> Array:
    """ECE sum_i (n_i / N) |share of label 1 - mean P(class 1)| over equal-width bins of P(class 1), as a fraction.

    log_probs float [examples, 2], labels int [examples]; bins as `reliability`. Absolute error 1e-6, held by
    tests/calibration/test_binned_variants.py.
    """
    return expected_gap(binary_reliability(log_probs, labels, num_bins=num_bins, mask=mask))


def binary_adaptive_ece(log_probs: Array, labels: Array, *, num_bins: int = 15, mask: Array | None = None) -> Array:
    """As `binary_ece`, over bins that hold equally many examples, see `adaptive_reliability`."""
    return expected_gap(equal_mass(*_class_one(log_probs, labels, mask), num_bins))


def binary_smooth_ece(log_probs: Array, labels: Array, *, mask: Array | None = None) -> Array:
    """As `smooth_ece`, of P(class 1) and whether the label is 1: the quantity that the paper defines."""
    return smoothed_error(*_class_one(log_probs, labels, mask))


def _class_one(log_probs: Array, labels: Array, mask: Array | None) -> TopLabel:
    if log_probs.shape[-1] != 2:
        raise InputError(f"log_probs have {log_probs.shape[-1]} classes: binary metrics take 2, `ece` takes more")
    probability = jnp.exp(widened(log_probs)[:, 1])
    return TopLabel(probability, jnp.asarray(labels, jnp.int32) == 1, weights(mask, probability))
