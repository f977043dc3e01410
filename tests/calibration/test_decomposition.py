import jax
import numpy as np
import pytest

from focalgeo import calibration


def predictions(num_examples, num_classes=4):
    generator = np.random.default_rng(0)
    logits = (generator.normal(size=(num_examples, num_classes)) * 3).astype(np.float32)
    return np.asarray(jax.nn.log_softmax(logits)), generator.integers(0, num_classes, num_examples).astype(np.int32)


@pytest.mark.parametrize("num_bins", [1, 15])
def test_the_parts_of_the_brier_score_equal_plain_loops_and_add_up(num_bins):
    log_probs, labels = predictions(203)
    got = calibration.brier_split(log_probs, labels, num_bins=num_bins)
    calibration_part = refinement = 0.0
    for k, p in enumerate(np.exp(log_probs.astype(float)).T):
        bins = np.maximum(np.ceil(p * num_bins), 1)
        for b in set(bins):
            share, outcomes = np.mean(bins == b), (labels == k)[bins == b]
            calibration_part += share * (p[bins == b].mean() - outcomes.mean()) ** 2
            refinement += share * outcomes.var()
    np.testing.assert_allclose(got.calibration, calibration_part, atol=1e-6)
    np.testing.assert_allclose(got.refinement, refinement, atol=1e-6)
    np.testing.assert_allclose(sum(got), calibration.brier(log_probs, labels), atol=1e-6)


def test_over_and_underconfidence_add_up_to_ece_and_their_difference_is_the_mean_gap():
    log_probs, labels = predictions(203)
    over, under = calibration.overconfidence(log_probs, labels), calibration.underconfidence(log_probs, labels)
    np.testing.assert_allclose(over + under, calibration.ece(log_probs, labels), atol=1e-6)
    gap = np.exp(log_probs.max(axis=1)).mean() - np.mean(log_probs.argmax(axis=1) == labels)
    np.testing.assert_allclose(over - under, gap, atol=1e-6)
    assert under >= 0


def test_scores_by_outcome_are_means_of_their_examples_and_average_to_the_whole():
    log_probs, labels = predictions(203)
    right, accuracy = log_probs.argmax(axis=1) == labels, calibration.accuracy(log_probs, labels)
    entropies = -np.sum(np.exp(log_probs) * log_probs, axis=1)
    losses = -log_probs[np.arange(203), labels]
    for name, values in (("nll", losses), ("entropy", entropies)):
        got = getattr(calibration, f"{name}_by_outcome")(log_probs, labels)
        np.testing.assert_allclose(got, (values[right].mean(), values[~right].mean()), rtol=1e-5)
        whole = accuracy * got.correct + (1 - accuracy) * got.wrong
        np.testing.assert_allclose(whole, getattr(calibration, name)(log_probs, labels), rtol=1e-5)
    certain = np.float32([[0, -np.inf], [-np.inf, 0]])
    assert calibration.entropy(certain, np.int32([0, 1])) == 0
    assert np.isnan(calibration.nll_by_outcome(certain, np.int32([0, 1])).wrong)
