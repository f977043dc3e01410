import jax
import numpy as np
import pytest
from reference import calibration as oracle

from focalgeo import calibration


def predictions(num_examples, seed=0, *, digits=None):
    """Two classes; confidences of a few digits where there should be ties, right as often as they say."""
    generator = np.random.default_rng(seed)
    confidence = 0.5 + 0.5 * generator.beta(2, 1, num_examples)
    confidence = np.float32(confidence if digits is None else np.round(confidence, digits))
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.stack([1 - confidence, confidence], axis=1))
    return log_probs, (generator.uniform(size=num_examples) < confidence).astype(np.int32)


def outcome(log_probs, labels):
    return np.exp(log_probs).max(axis=1), log_probs.argmax(axis=1) == labels


@pytest.mark.parametrize("name", ["auroc", "aurc"])
@pytest.mark.parametrize("digits", [None, 1, 2])
def test_they_are_the_definitions_summed_over_pairs_of_examples(name, digits):
    log_probs, labels = predictions(3000, digits=digits)
    confidence, correct = outcome(log_probs, labels)
    metric = jax.jit(getattr(calibration, name))
    np.testing.assert_allclose(metric(log_probs, labels), getattr(oracle, name)(confidence, correct), atol=1e-6)
    counts = np.random.default_rng(1).poisson(1.0, 3000)
    expected = getattr(oracle, name)(np.repeat(confidence, counts), np.repeat(correct, counts))
    np.testing.assert_allclose(metric(log_probs, labels, mask=counts), expected, atol=1e-6)


def test_numbers_by_hand_with_ties():
    """Confidences 0.9 right, 0.8 right and wrong, 0.6 wrong: 3.5 of 4 pairs, and risks 0, 1/3, 1/3 and 1/2."""
    log_probs, labels = np.log(np.float32([[0.9, 0.1], [0.8, 0.2], [0.8, 0.2], [0.6, 0.4]])), np.int32([0, 0, 1, 1])
    np.testing.assert_allclose(calibration.auroc(log_probs, labels), 3.5 / 4, rtol=1e-6)
    np.testing.assert_allclose(calibration.aurc(log_probs, labels), (1 / 3 + 1 / 3 + 1 / 2) / 4, rtol=1e-6)
    for order in ([1, 0, 2, 3], [3, 2, 1, 0]):
        assert calibration.aurc(log_probs[order], labels[order]) == calibration.aurc(log_probs, labels)


def test_where_all_are_right_or_all_wrong_only_the_risk_is_known():
    log_probs, _ = predictions(40)
    right = log_probs.argmax(axis=1).astype(np.int32)
    assert np.isnan(calibration.auroc(log_probs, right))
    assert np.isnan(calibration.auroc(log_probs, 1 - right))
    assert calibration.aurc(log_probs, right) == 0
    assert calibration.aurc(log_probs, 1 - right) == 1
    alike = np.log(np.full((40, 2), 0.5, np.float32))
    labels = np.arange(40, dtype=np.int32) % 4 // 3
    np.testing.assert_allclose(calibration.auroc(alike, labels), 0.5)
    np.testing.assert_allclose(calibration.aurc(alike, labels), 0.25)
