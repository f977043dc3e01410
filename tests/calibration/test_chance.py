"""What chance leaves of an ECE, and the test of perfect calibration."""

import numpy as np
import pytest
from scipy.special import log_softmax

from focalgeo import calibration
from focalgeo.calibration.metrics import chance
from focalgeo.types import InputError


def drawn(generator, n, times=1.0, classes=4):
    """Logits, and labels of them divided by `times`."""
    logits = 1.5 * generator.standard_normal((n, classes))
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(axis=1).astype(np.int32)
    return log_softmax(times * logits, axis=1).astype(np.float32), labels


def test_the_statistics_are_those_of_their_definitions():
    log_probs, labels = drawn(np.random.default_rng(0), 200)
    by_bins = calibration.calibration_test(log_probs, labels, statistic="ece", num_bins=7, num_draws=10)
    np.testing.assert_allclose(by_bins.statistic, calibration.ece(log_probs, labels, num_bins=7), rtol=1e-4)
    confidence = np.exp(log_probs.max(axis=1).astype(float))
    order, total, reached = np.argsort(confidence), 0.0, [0.0]
    for row in order:
        total += float(log_probs[row].argmax() == labels[row]) - confidence[row]
        reached.append(total)
    kuiper = calibration.calibration_test(log_probs, labels, num_draws=10).statistic
    np.testing.assert_allclose(kuiper, (max(reached) - min(reached)) / 200, rtol=1e-6)


@pytest.mark.parametrize("n", [500, 4000])  # few in every bin, and many in some
def test_the_floor_is_the_mean_ece_of_calibrated_models_and_most_lie_below_its_high(n):
    generator = np.random.default_rng(1)
    log_probs, _ = drawn(generator, n, 3.0)
    p = np.exp(log_probs.astype(float))
    labels = [(generator.uniform(size=(n, 1)) > p.cumsum(axis=1)).sum(axis=1).clip(max=3) for _ in range(400)]
    eces = np.array([calibration.ece(log_probs, each) for each in labels])
    floor = calibration.noise_floor(log_probs)
    np.testing.assert_allclose(floor.mean, eces.mean(), rtol=0.04)
    assert 0.02 < np.mean(eces > floor.high) < 0.08


@pytest.mark.parametrize("statistic", chance.STATISTICS)
@pytest.mark.parametrize("n", [50, 2000])
def test_calibrated_models_are_refused_in_five_of_a_hundred(n, statistic):
    """1,000 models: a standard error of 0.7%. All numbers of examples have this size by construction."""
    generator = np.random.default_rng(n)
    p_values = np.array(
        [
            calibration.calibration_test(*drawn(generator, n), statistic=statistic, num_draws=199, seed=seed).p_value
            for seed in range(1000 if n == 50 else 300)
        ]
    )
    assert abs(np.mean(p_values < 0.05) - 0.045) < (0.02 if n == 50 else 0.035)
    assert abs(np.mean(p_values) - 0.5) < 0.06


def test_a_sharper_model_is_found_out():
    generator = np.random.default_rng(3)
    found = [calibration.calibration_test(*drawn(generator, 2000, 1.5)).p_value for _ in range(20)]
    assert np.mean(np.array(found) < 0.05) > 0.8


def test_what_is_no_number_of_draws_and_no_statistic_is_refused():
    log_probs, labels = drawn(np.random.default_rng(4), 50)
    with pytest.raises(InputError, match="num_draws"):
        calibration.noise_floor(log_probs, num_draws=0)
    with pytest.raises(InputError, match="statistic"):
        calibration.calibration_test(log_probs, labels, statistic="z")
    with pytest.raises(InputError, match="log_softmax"):
        calibration.noise_floor(2 * log_probs)
