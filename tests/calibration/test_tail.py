import numpy as np
import pytest

from focalgeo.calibration import GAMMAS
from focalgeo.calibration.fast_search import (
    TERMS,
    cap,
    fit_tail,
    interpolation_nodes,
    moments_at,
    tail_sums,
    tail_weights,
)


def focal_ratio(p, gamma):
    surprise = -p * np.log(p) / (1 - p)
    return (1 - p) ** -gamma / (1 + gamma * surprise)


@pytest.mark.parametrize("gammas", [GAMMAS, (-0.99, -0.9), (7.0,), (20.0, 0.0)])
def test_the_polynomial_is_the_focal_weight_below_its_cap(gammas):
    tail = fit_tail(np.array(gammas), 1000)
    share = np.exp(-np.random.default_rng(0).exponential(3, size=5000))
    p = share * cap(tail.num_exact)
    basis = np.stack([share**a * np.log(share) ** b for a, b in TERMS])
    expected = np.stack([focal_ratio(p, gamma) for gamma in gammas])
    np.testing.assert_allclose(tail.coefficients.astype(np.float64) @ basis, expected, rtol=3e-6)


@pytest.mark.parametrize("temperature", [0.01, 0.4, 3.0])
def test_sums_give_the_weight_of_all_classes_at_once(temperature):
    generator = np.random.default_rng(1)
    below = -np.abs(generator.normal(size=(300, 20))).astype(np.float32) * 3 - 1
    tail = fit_tail(np.array(GAMMAS), 300)
    log_second = np.log(np.float32(cap(tail.num_exact))) - 80 * generator.random(20, dtype=np.float32) ** 4
    x, (left,), (weights,) = interpolation_nodes(np.float32([temperature]))
    got = tail_weights(tail_sums(moments_at(x, below), left, weights), log_second, tail)
    relative = np.exp(below.astype(np.float64) / np.float32(temperature))
    p = np.maximum(relative * np.exp(log_second.astype(np.float64)), 1e-300)
    expected = np.stack([(relative * focal_ratio(p, gamma)).sum(axis=0) for gamma in GAMMAS])
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-7)  # the second class alone counts about 1


def test_few_classes_or_a_huge_gamma_leave_nothing_to_the_polynomial():
    assert fit_tail(np.array(GAMMAS), 3) == (2, None)
    assert fit_tail(np.array([100.0]), 20) == (19, None)
    assert fit_tail(np.array(GAMMAS), 100).num_exact == 1
    assert fit_tail(np.array([100.0]), 1000).num_exact > 8


def test_interpolation_is_right_between_nodes_and_where_the_sums_change_fastest():
    temperatures = np.geomspace(0.01, 5, 97).astype(np.float32)
    below = -np.linspace(0, 40, 1201, dtype=np.float32)[None]  # one class: nothing averages out
    nodes = interpolation_nodes(temperatures)
    moments = moments_at(nodes.x, below)
    for temperature, left, weights in zip(temperatures, nodes.left, nodes.weights, strict=True):
        z = below[0].astype(np.float64) / temperature
        expected = np.stack([np.exp((1 + a) * z) * z**b for a, b in TERMS])
        np.testing.assert_allclose(tail_sums(moments, left, weights), expected, atol=4e-7)
