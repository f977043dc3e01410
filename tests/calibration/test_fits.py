"""Fits of the temperature and of the pair: against scipy in float64, at the ends; the score test of T = 1."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from focalgeo import calibration, checks
from focalgeo.calibration import (
    blocks,
    compare,
    fit_focal_temperature,
    fit_temperature,
    focal_temperature_scaling,
    nll,
    temperature_scaling,
    temperature_score_test,
)
from focalgeo.calibration.fits import focal as fits
from focalgeo.types import InputError

scaled = jax.jit(focal_temperature_scaling)
mean_nll = jax.jit(lambda z, y, gamma, temperature: nll(focal_temperature_scaling(z, gamma, temperature), y))


def drawn(gamma, temperature, num_examples=1000, *, num_classes=5, spread=4, seed=0):
    """Labels drawn from the map of the logits, so that (gamma, T) is right in the limit."""
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(num_examples, num_classes)) * spread).astype(np.float32)
    log_probs = np.asarray(scaled(logits, np.float32(gamma), np.float32(temperature)))
    return logits, np.argmax(log_probs + rng.gumbel(size=log_probs.shape), axis=1).astype(np.int32)


def of_temperature(temperature, seed=0):
    return drawn(0.0, temperature, 300, num_classes=3, spread=2, seed=seed)


@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_temperature_equals_scipy_and_a_dense_grid(temperature):
    logits, labels = drawn(0.0, temperature)

    def oracle(log_temperature):
        scores = special.log_softmax(logits.astype(float) / np.exp(log_temperature), axis=1)
        return -scores[np.arange(len(labels)), labels].mean()

    best = optimize.minimize_scalar(oracle, bounds=(-4, 4), method="bounded", options={"xatol": 1e-8})
    found = fit_temperature(logits, labels)
    assert (found.converged, found.gamma) == (True, 0)
    np.testing.assert_allclose(found.temperature, np.exp(best.x), rtol=1e-3)
    np.testing.assert_allclose(found.nll, best.fun, atol=1e-6)
    assert found.nll <= min(oracle(t) for t in np.linspace(-4, 4, 400)) + 1e-6


@pytest.mark.parametrize("temperature", [0.05, 1.7])
def test_derivatives_are_those_that_jax_derives(temperature):
    logits, labels = drawn(0.5, 1.0, 100)
    weight = np.arange(100) % 3
    with jax.enable_x64(True):
        wide, point = logits.astype(float), np.log(temperature)
        alone = lambda t: nll(temperature_scaling(wide, jnp.exp(t)), labels, weights=weight)  # noqa: E731
        expected = jax.grad(alone)(point), jax.grad(jax.grad(alone))(point)
        found = fits.temperature_sums(point, wide, labels, weight.astype(float)) / weight.sum()
        np.testing.assert_allclose(found, [*expected, alone(point)], rtol=1e-8)


@pytest.mark.parametrize(("gamma", "temperature"), [(1.0, 1.5), (-0.5, 0.7)])
def test_pair_equals_scipy_from_many_starts(gamma, temperature):
    logits, labels = drawn(gamma, temperature)
    found = fit_focal_temperature(logits, labels)
    assert found.converged
    with jax.enable_x64(True):
        wide = logits.astype(np.float64)

        def oracle(point):
            return float(mean_nll(wide, labels, point[0], np.exp(point[1])))

        bounds = [(-0.9, 20), (np.log(0.01), np.log(100))]
        starts = [(-0.5, 0.0), (0.0, 0.5), (3.0, 1.0)]
        best = min(optimize.minimize(oracle, s, bounds=bounds, method="Nelder-Mead").fun for s in starts)
    np.testing.assert_allclose(found.nll, best, atol=1e-6)
    assert found.nll <= fit_temperature(logits, labels).nll


@pytest.mark.parametrize("fit", [fit_temperature, fit_focal_temperature])
def test_separable_labels_end_at_the_bracket_and_equal_logits_leave_temperature_one(fit):
    logits, labels = np.eye(5, dtype=np.float32)[np.arange(1000) % 5] * 5, np.arange(1000) % 5
    found, equal = fit(logits, labels), fit(0 * logits, labels)
    np.testing.assert_allclose(found.temperature, 0.01, rtol=1e-5)
    assert not found.converged
    assert (equal.gamma, equal.temperature, equal.converged) == (0, 1, False)


def test_a_mask_leaves_out_what_it_says_even_nan():
    logits, labels = drawn(0.0, 1.7)
    mask = np.arange(1000) < 900
    kept = logits[mask], labels[mask]
    logits[~mask], labels[~mask] = np.nan, -1
    np.testing.assert_allclose(
        fit_temperature(logits, labels, mask).temperature, fit_temperature(*kept).temperature, rtol=1e-5
    )
    alone = temperature_score_test(*kept)
    np.testing.assert_allclose(temperature_score_test(logits, labels, mask), alone, rtol=1e-12)


def test_a_fit_from_near_the_best_is_that_of_all_examples_from_the_usual_start():
    logits, labels = drawn(1.0, 1.5, 3000)
    weight = np.arange(3000) % 5 != 0
    examples = blocks.on_host(checks.predicted_logits(logits, labels, weight))
    plain, near = fits.temperature_fit(*examples), fits.temperature_fit(*examples, {"temperature": 1.7})
    np.testing.assert_allclose(near, plain, rtol=1e-5)
    starts = None, {"gamma": 1.3, "temperature": 1.2}
    pair, other = (fits.focal_fit(*examples, plain, start) for start in starts)
    np.testing.assert_allclose(other.nll, pair.nll, atol=1e-7)
    ends = np.eye(5, dtype=np.float32)[np.arange(100) % 5], np.arange(100) % 5, np.ones(100)
    assert fits.temperature_fit(*ends, {"temperature": 1.7}) == fits.temperature_fit(*ends)


def test_a_fit_inside_jit_is_refused():
    logits, labels = drawn(1.0, 1.5, 30)
    for fit in (fit_temperature, fit_focal_temperature, partial(calibration.fit, "vector_scaling")):
        with pytest.raises(InputError, match="a fit is made on the host: call it outside jit"):
            jax.jit(fit)(logits, labels)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_the_score_test_is_that_of_a_loop_in_float64(temperature):
    logits, labels = of_temperature(temperature)
    counted = np.arange(300) % 3 > 0
    score = information = 0.0
    for z, y in zip(logits[counted].tolist(), labels[counted].tolist(), strict=True):
        a = [x - math.log(sum(math.exp(x) for x in z)) for x in z]
        mean = sum(math.exp(x) * x for x in a)
        score += a[y] - mean
        information += sum(math.exp(x) * (x - mean) ** 2 for x in a)
    found, statistic = temperature_score_test(logits, labels, counted), score / math.sqrt(information)
    assert found.statistic == pytest.approx(statistic, rel=1e-6)
    assert found.p_value == pytest.approx(math.erfc(abs(statistic) / math.sqrt(2)), rel=1e-5)
    assert found.n == counted.sum()


def test_the_sign_of_the_score_test_says_which_way_and_its_size_is_the_level():
    assert temperature_score_test(*of_temperature(1.6)).statistic < -3  # overconfident
    assert temperature_score_test(*of_temperature(0.6)).statistic > 3
    p = np.array([temperature_score_test(*of_temperature(1.0, seed)).p_value for seed in range(400)])
    for level in (0.05, 0.2):
        assert abs(np.mean(p < level) - level) < 3.5 * math.sqrt(level * (1 - level) / 400)


def test_the_score_test_of_saturated_equal_and_shifted_logits():
    labels = np.arange(200, dtype=np.int32) % 4
    logits = np.eye(4, dtype=np.float32)[labels] * 60
    right, wrong = temperature_score_test(logits, labels), temperature_score_test(logits, np.roll(labels, 1))
    assert np.isfinite([right, wrong]).all()
    assert right.p_value > 0.99
    assert wrong.p_value == 0
    assert temperature_score_test(logits * 100, labels)[:2] == (0, 1)
    assert temperature_score_test(logits * 100, np.roll(labels, 1))[:2] == (-np.inf, 0)
    for classes in (2, 3, 7):
        assert temperature_score_test(np.full((200, classes), 0.3), labels % classes)[:2] == (0, 1)
    logits, labels = of_temperature(1.3)
    shift = np.random.default_rng(1).normal(size=(300, 1)) * 10
    plain = temperature_score_test(logits.astype(float), labels)
    assert temperature_score_test(logits + shift, labels).statistic == pytest.approx(plain.statistic, rel=1e-5)


def test_few_examples_of_another_temperature_are_told_from_calibrated_ones():
    """In the first the difference of NLLs is within noise, and alone it kept the outputs as given."""
    for temperature, method in ((1.3, "temperature_scaling"), (1.0, "uncalibrated")):
        examples = of_temperature(temperature)
        found = compare(examples, None, ("temperature_scaling",), criteria=("nll",), num_resamples=200)
        assert found.choice.fitted.method.name == method
        if temperature == 1.3:
            assert found.choice.test == temperature_score_test(*examples)
            (row,) = [row for row in found.rows if row.name == "nll_difference"]
            assert row.p_value / 2 > 0.2


def test_clusters_that_a_mask_leaves_out_do_not_count_in_the_score_test():
    generator = np.random.default_rng(0)
    logits, clusters = generator.normal(size=(200, 3)).astype(np.float32), np.arange(200) // 4
    labels = generator.integers(0, 3, 200).astype(np.int32)
    weights, mask = generator.uniform(0.5, 2, 200).astype(np.float32), np.arange(200) % 7 < 4
    found = calibration.temperature_score_test(logits, labels, mask, clusters=clusters, weights=weights)
    kept = (array[mask] for array in (logits, labels))
    alone = calibration.temperature_score_test(*kept, clusters=clusters[mask], weights=weights[mask])
    np.testing.assert_allclose(found, alone, rtol=1e-6)
