"""The parts of the fast search: the polynomial of the focal map's tail, its interpolation, and bins of equal mass."""

import numpy as np
import pytest
from reference import calibration as oracle

from focalgeo.calibration import GAMMAS
from focalgeo.calibration.fits.fast_search import (
    TERMS,
    cap,
    fit_tail,
    interpolation_nodes,
    moments_at,
    rank_bin_sums,
    tail_sums,
    tail_weights,
)


def focal_ratio(p, gamma):
    surprise = -p * np.log(p) / (1 - p)
    return (1 - p) ** -gamma / (1 + gamma * surprise)


@pytest.mark.parametrize("gammas", [GAMMAS, (-0.99, -0.9), (7.0,), (20.0, 0.0)])
def test_the_polynomial_is_the_focal_weight_below_its_cap(gammas):
    num_exact, coefficients = fit_tail(np.array(gammas), 1000)
    share = np.exp(-np.random.default_rng(0).exponential(3, size=5000))
    basis = np.stack([share**a * ((1 + a) * np.log(share)) ** b for a, b in TERMS])
    expected = np.stack([focal_ratio(share * cap(num_exact), gamma) for gamma in gammas])
    np.testing.assert_allclose(coefficients.astype(np.float64) @ basis, expected, rtol=3e-6)


@pytest.mark.parametrize("temperature", [0.01, 0.4, 3.0])
def test_sums_give_the_weight_of_all_classes_at_once(temperature):
    generator = np.random.default_rng(1)
    below = -np.abs(generator.normal(size=(300, 20))).astype(np.float32) * 3 - 1
    num_exact, coefficients = fit_tail(np.array(GAMMAS), 300)
    log_share = -80 * generator.random(20, dtype=np.float32) ** 4
    x, (left,), (weights,) = interpolation_nodes(np.float32([temperature]))
    weight = tail_weights(tail_sums(moments_at(x, below), left, weights), log_share, coefficients)
    relative = np.exp(below.astype(np.float64) / np.float32(temperature))
    p = np.maximum(relative * np.exp(log_share.astype(np.float64)) * cap(num_exact), 1e-300)
    expected = np.stack([(relative * focal_ratio(p, gamma)).sum(axis=0) for gamma in GAMMAS])
    np.testing.assert_allclose(weight, expected, rtol=2e-6, atol=1e-7)  # the second class alone counts about 1


def test_few_classes_or_a_huge_gamma_leave_nothing_to_the_polynomial():
    for gammas, num_classes, num_exact in ((GAMMAS, 2, 1), ([100.0], 20, 19), (GAMMAS, 100, 1)):
        assert fit_tail(np.array(gammas), num_classes)[0] == num_exact
    assert fit_tail(np.array([100.0]), 1000)[0] > 8


def test_interpolation_is_right_between_nodes_and_where_the_sums_change_fastest():
    temperatures = np.geomspace(0.01, 5, 97).astype(np.float32)
    below = -np.linspace(0, 40, 1201, dtype=np.float32)[None]  # one class: nothing averages out
    nodes = interpolation_nodes(temperatures)
    moments = moments_at(nodes.x, below)
    for temperature, left, weights in zip(temperatures, nodes.left, nodes.weights, strict=True):
        z = below[0].astype(np.float64) / temperature
        expected = np.stack([np.exp((1 + a) * z) * z**b for a, b in TERMS])
        scale = np.float32([(1 + a) ** b for a, b in TERMS])[:, None]
        np.testing.assert_allclose(tail_sums(moments, left, weights) / scale, expected, atol=4e-7)


@pytest.mark.parametrize("num_bins", [1, 4, 15])
@pytest.mark.parametrize("num_examples", [3, 200, 1001])
@pytest.mark.parametrize("levels", [1, 3, 40, 2**24])  # 2^24: neighbours differ in the last bit
def test_bins_of_equal_mass_keep_equal_confidences_together(levels, num_examples, num_bins):
    generator = np.random.default_rng(levels + num_examples)
    confidence = (np.ceil(generator.random((6, num_examples)) * levels) / levels).astype(np.float32)
    correct = generator.random(num_examples) < 0.7
    for row, sums in zip(confidence, rank_bin_sums(confidence, correct, num_bins), strict=True):
        excess = correct - row.astype(np.float64)
        expected = [excess[part].sum() for part in oracle.equal_mass(row, num_bins) if part.size]
        np.testing.assert_allclose(sums[sums != 0], np.compress(np.not_equal(expected, 0), expected), atol=1e-10)
