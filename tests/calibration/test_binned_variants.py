"""Debiased, interpolated and binary ECE against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import calibration as oracle

from focalgeo import calibration


def predictions(num_examples, num_classes, seed=0):
    generator = np.random.default_rng(seed)
    logits = (generator.normal(size=(num_examples, num_classes)) * 3).astype(np.float32)
    return np.asarray(jax.nn.log_softmax(logits)), generator.integers(0, num_classes, num_examples).astype(np.int32)


@pytest.mark.parametrize("num_bins", [1, 7, 120])
def test_variants_equal_plain_loops(num_bins):
    log_probs, labels = predictions(203, 4)
    probs = np.asarray(jnp.exp(log_probs))
    confidences, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
    got = calibration.interpolated_adaptive_ece(log_probs, labels, num_bins=num_bins)
    np.testing.assert_allclose(got, oracle.interpolated_adaptive_ece(confidences, correct, num_bins)[0], atol=1e-6)
    squared = oracle.debiased_squared_ece(confidences, correct, num_bins)
    np.testing.assert_allclose(
        calibration.debiased_squared_ece(log_probs, labels, num_bins=num_bins), squared, atol=1e-6
    )
    expected = np.sqrt(max(squared, 0))
    np.testing.assert_allclose(calibration.debiased_ece(log_probs, labels, num_bins=num_bins), expected, atol=1e-5)


def test_the_debiased_square_is_zero_on_average_for_calibrated_draws():
    """The plain squared error of 300 draws in 15 bins is 0.0095; less its bias it is 0 within 4 standard errors."""
    logits = 2 * jax.random.normal(jax.random.key(0), (300, 3))
    log_probs = jax.nn.log_softmax(logits)

    @jax.vmap
    def drawn(key):
        labels = jax.random.categorical(key, logits)
        bins = calibration.adaptive_reliability(log_probs, labels)
        plain = jnp.sum(bins.count * (bins.accuracy - bins.confidence) ** 2) / jnp.sum(bins.count)
        return calibration.debiased_squared_ece(log_probs, labels), plain

    debiased, plain = jax.jit(drawn)(jax.random.split(jax.random.key(1), 400))
    error = np.std(debiased, ddof=1) / 20
    assert np.mean(plain) > 20 * error
    assert abs(np.mean(debiased)) < 4 * error


@pytest.mark.parametrize("num_bins", [1, 10])
def test_binary_calibration_is_of_class_one(num_bins):
    log_probs, labels = predictions(203, 2)
    p = np.asarray(jnp.exp(log_probs[:, 1]))
    settings = {"num_bins": num_bins}
    np.testing.assert_allclose(
        calibration.binary_ece(log_probs, labels, **settings), oracle.ece(p, labels == 1, num_bins)[0], atol=1e-6
    )
    expected = oracle.adaptive_ece(p, labels == 1, num_bins)
    np.testing.assert_allclose(calibration.binary_adaptive_ece(log_probs, labels, **settings), expected, atol=1e-6)
    assert calibration.binary_reliability(log_probs, labels, **settings).count.sum() == 203
