"""Maps from logits to log-probabilities: against slow float64 oracles and the papers' numbers, and their slopes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.calibration import focal_temperature_scaling as oracle
from scipy import special

from focalgeo.calibration import (
    binary_focal_calibration,
    focal_calibration,
    focal_temperature_scaling,
    inverse_focal_calibration,
    maps,
    nll,
    temperature_scaling,
)
from focalgeo.losses import focal_loss

FLOAT32 = {"rtol": 2e-6, "atol": 2e-5}
scaled = jax.jit(focal_temperature_scaling)
mapped = jax.jit(focal_calibration)
inverse = jax.jit(inverse_focal_calibration)
binary = jax.jit(binary_focal_calibration)
assert_close = np.testing.assert_allclose


@pytest.mark.parametrize("gamma", [-0.9, -0.25, 0.0, 0.5, 1.0, 5.0, 10.0])
@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 5.0])
def test_map_equals_high_precision(gamma, temperature):
    temperature, gamma = np.float32(temperature), np.float32(gamma)
    for logits in ([60, 0, -40], [23.75, 0, -1.5], [2, 1.9999999, 2], [0, 0.25, -0.25], [1000.5, 1000.25, 1000]):
        logits = np.array(logits, np.float32)
        log_probs = scaled(logits, gamma, temperature)
        assert log_probs.dtype == jnp.float32
        assert_close(log_probs, oracle(logits, gamma, temperature), **FLOAT32)


def test_one_minus_p_of_a_certain_prediction_survives():
    assert_close(scaled(np.float32([60, 0, 0]), 0.0, 1.0)[0], -2 * np.exp(-60), rtol=1e-5)
    # 1 - p -> (gamma + 1) (1 - q)^(gamma + 1)
    assert_close(scaled(np.float32([25, 0]), 1.0, 1.0)[0], -2 * np.exp(-25) ** 2, rtol=1e-5)


def test_nll_is_not_convex_in_the_temperature_but_in_its_inverse():
    logits, labels = np.array([[0.0, 1.0]], np.float32), np.array([1])
    nlls = [float(nll(temperature_scaling(logits, at), labels)) for at in (0.5, 1.0, 1.5)]
    np.testing.assert_allclose(nlls, [0.13, 0.31, 0.41], atol=0.005)  # those of docs/calibration.md
    assert nlls[1] > (nlls[0] + nlls[2]) / 2
    rng = np.random.default_rng(0)
    logits, labels = 3 * rng.standard_normal((200, 5)), rng.integers(0, 5, 200)
    inverse = [nll(temperature_scaling(logits, 1 / at), labels) for at in np.linspace(0.1, 4, 40)]
    assert np.diff(np.array(inverse, float), 2).min() > -1e-5


@pytest.mark.parametrize("wide", [False, True])
def test_every_record(papers, wide):
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if wide else FLOAT32
    smallest = {"atol": 1e-300} if wide else {}
    dtype = np.float64 if wide else np.float32
    with jax.enable_x64(wide):
        for record in papers["multiclass_map"]:
            given = papers["multiclass_inputs"][record["name"]]
            logits = np.array(given["z"]) if "z" in given else np.log(np.array(given["q"], float))
            log_p = np.array(record.get("log_phat") or record["log_phat_first5"])
            # log(0.999...) stands in the file as 0: what it lost is in one_minus_phat_max
            log_p = np.where(np.arange(len(log_p)) == record["argmax"], np.log1p(-record["one_minus_phat_max"]), log_p)
            got = mapped(logits.astype(dtype), dtype(record["gamma"]))
            assert_close(got[: len(log_p)], log_p, **tolerance | smallest)
        for record in papers["focal_temperature_scaling"]:
            log_probs = scaled(dtype(record["logits"]), dtype(record["gamma"]), dtype(record["T"]))
            assert_close(log_probs, np.log(record["phat_T_then_focal"]), **tolerance)
        for given, value, name in (("logit_q", "logit_phat", "binary_map"), ("s", "fc_logit", "binary_map_logit")):
            rows = papers[name]
            s, gamma, expected = (np.array([row[key] for row in rows], float) for key in (given, "gamma", value))
            assert_close(binary(s.astype(dtype), gamma.astype(dtype)), expected, **tolerance)


def test_gamma_zero_is_the_identity_and_temperature_scaling():
    logits = np.random.default_rng(0).normal(size=(500, 7)).astype(np.float32) * 10
    log_probs = jax.nn.log_softmax(logits)
    assert_close(mapped(log_probs, 0.0), log_probs, rtol=2e-6, atol=2e-6)
    assert_close(scaled(logits, 0.0, 2.5), temperature_scaling(logits, 2.5), rtol=2e-6, atol=2e-6)
    assert_close(temperature_scaling(logits, 2.5), jax.nn.log_softmax(logits / 2.5), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("gamma", "temperature"), [(-0.9, 1.0), (0.5, 0.01), (5.0, 4.37)])
def test_prediction_is_kept_and_rows_sum_to_one(gamma, temperature):
    rows = np.random.default_rng(1).normal(size=(100_000, 10)).astype(np.float32)
    rows[:50_000] = 1 + rows[:50_000] * np.float32(1e-6)  # near ties, and some exact ones
    log_probs = np.asarray(scaled(rows, gamma, temperature))
    np.testing.assert_array_equal(log_probs.argmax(axis=1), rows.argmax(axis=1))
    assert_close(np.exp(log_probs.astype(float)).sum(axis=1), 1, atol=2e-6)


def test_gradients_are_right_and_finite():
    def third_class(logits, gamma, temperature):
        return focal_temperature_scaling(logits, gamma, temperature)[2]

    gradient = jax.jit(jax.grad(third_class, argnums=(0, 1, 2)))
    for logits in ([1.0, 0.5, -2.0, 0.0], [0.0, 0.0, 0.0, 0.0], [90.0, 0.0, -90.0, 1.0]):
        for gamma in (-0.5, 0.0, 3.0):
            slopes = np.hstack(gradient(np.float32(logits), np.float32(gamma), np.float32(0.7)))
            point, steps = np.array([*logits, gamma, np.float32(0.7)], float), 1e-5 * np.eye(6)
            with jax.enable_x64(True):
                ends = [[third_class(x[:4], x[4], x[5]) for x in (point + step, point - step)] for step in steps]
            assert_close(slopes, np.subtract(*np.transpose(ends)) / 2e-5, rtol=1e-4, atol=1e-4)


def test_zero_probability_stays_zero_and_narrow_types_widen():
    for function in (mapped, inverse):
        np.testing.assert_array_equal(function(np.float32([0, -np.inf, -np.inf]), 2.0), [0, -np.inf, -np.inf])
        assert function(jnp.ones((2, 3), jnp.bfloat16), 1.0).dtype == jnp.float32


def test_slopes_of_two_classes(papers):
    slope_of = jax.grad(binary_focal_calibration)
    with jax.enable_x64(True):
        for row in papers["binary_map_slopes"]:
            assert_close(slope_of(0.0, row["gamma"]), row["slope_at_0"], rtol=1e-12)
            assert_close(1 / slope_of(0.0, row["gamma"]), row["T_at_0"], rtol=1e-12)
            far = binary(300.0, row["gamma"])
            assert_close(far - row["slope_at_inf"] * 300, row["intercept_at_inf"], atol=1e-11)
        for row in papers["negative_gamma"]["slopes"]:
            if row["gamma"] > -1:
                assert_close(slope_of(0.0, row["gamma"]), row["slope0"], rtol=1e-12)


def test_the_map_of_two_classes_is_odd_and_that_of_many():
    s = np.linspace(-40, 40, 81, dtype=np.float32)
    for gamma in (-0.5, 0.7, 5.0):
        np.testing.assert_array_equal(binary(s, gamma), -binary(-s, gamma))
        log_p = focal_calibration(np.stack([s, 0 * s], axis=1), gamma)
        assert_close(binary(s, gamma), log_p[:, 0] - log_p[:, 1], **FLOAT32)


@pytest.mark.parametrize("gamma", [0.0, 0.05, 1.0, 5.0, 10.0])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_inverse_of_the_map_is_the_identity(gamma, num_classes):
    rows = np.random.default_rng(num_classes).uniform(-0.5, 0.5, size=(300, num_classes)).astype(np.float32)
    rows *= np.repeat(np.float32([1, 30, 100]), 100)[:, None]
    log_q = temperature_scaling(rows, 1.0)
    back = inverse(mapped(log_q, gamma), gamma)
    assert_close(back, log_q, rtol=2e-6, atol=1e-5)
    np.testing.assert_array_equal(np.argmax(back, axis=1), np.argmax(rows, axis=1))


def test_round_trip_in_float64():
    with jax.enable_x64(True):
        log_q = temperature_scaling(np.random.default_rng(4).uniform(-50, 50, size=(300, 10)), 1.0)
        for gamma in (0.05, 5.0, 100.0):
            log_p = mapped(log_q, gamma)
            error = np.abs(inverse(log_p, gamma) - log_q)
            assert (error <= 1e-300 + 1e-12 * np.maximum(-log_p, -log_q)).all()


def test_derivatives_are_those_of_the_inverse_function():
    with jax.enable_x64(True):
        for logits, gamma in (([1.0, 0.5, -2.0], 2.0), ([0.0, 0.0, 0.0], 0.0), ([9.0, -9.0, 3.0], 5.0)):
            log_p = jax.nn.log_softmax(jnp.array(logits))
            forward = jax.jacfwd(focal_calibration)(inverse_focal_calibration(log_p, gamma), gamma)
            backward = jax.jacrev(inverse_focal_calibration)(log_p, gamma)
            centre = np.eye(3) - 1 / 3  # both jacobians act on classes of equal shift
            assert_close(centre @ backward @ forward @ centre, centre, atol=1e-9)
            assert_close(jax.jacfwd(inverse_focal_calibration)(log_p, gamma), backward, atol=1e-12)


def test_gradients_of_the_inverse_stay_finite_at_saturation():
    gradient = jax.jit(jax.grad(lambda x, gamma: jnp.sum(inverse_focal_calibration(x, gamma)[1:]), argnums=(0, 1)))
    for logits in ([100.0, 0.0, -1.0], [0.0, 0.0, 0.0], [1000.0, 3.0, -1000.0]):
        for gamma in (0.0, 0.05, 5.0):
            assert np.isfinite(np.hstack(gradient(np.float32(logits), np.float32(gamma)))).all()


def test_a_gamma_for_each_row_and_a_shift_of_all_classes():
    rows, gammas = np.float32([[1, 0, -1], [2, 0, -2]]), np.float32([0.5, 3])
    together = inverse(rows, gammas)
    assert_close(jax.vmap(inverse_focal_calibration)(rows, gammas), together, rtol=1e-6)
    assert_close(inverse(rows + 7, gammas), together, atol=2e-6)


rng = np.random.default_rng(0)
LOGITS = (rng.normal(size=(50, 4)) * 3).astype(np.float32)
SCALES, BIASES = np.float32([1.3, 0.7, -0.2, 1.0]), np.float32([0.3, -0.5, 0.0, 2.0])
WEIGHTS = (np.eye(4) + rng.normal(size=(4, 4)) * 0.2).astype(np.float32)
by_class = ((maps.focal_vector_scaling, SCALES), (maps.focal_matrix_scaling, WEIGHTS))


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 2.0])
def test_maps_by_class_are_those_of_the_definition(gamma):
    q = special.softmax(LOGITS.astype(float) / 1.5, axis=1)
    h = q / ((1 - q) ** gamma - gamma * q * (1 - q) ** (gamma - 1) * np.log(q))
    for function, weights in by_class:
        matrix = weights if weights.ndim == 2 else np.diag(weights)
        scores = np.log(h / h.sum(axis=1, keepdims=True)) @ matrix.T.astype(float) + BIASES
        log_probs = function(LOGITS, gamma, 1.5, weights, BIASES)
        assert_close(log_probs, special.log_softmax(scores, axis=1), atol=5e-5)


@pytest.mark.parametrize("temperature", [0.01, 1.0, 100.0])
def test_saturated_rows_stay_finite_with_finite_slopes(temperature):
    logits = np.float32([[60, 0, -40, 1], [1e4, 0, 0, 1], [0, 0, 0, 0], [-1e4, 1e4, 3, 3]])
    for function, weights in by_class:

        def total(gamma, weights, biases, function=function):
            log_probs = function(logits, gamma, temperature, weights, biases)
            return jnp.sum(log_probs), log_probs

        slope_of = jax.grad(total, argnums=(0, 1, 2), has_aux=True)
        slopes, log_probs = slope_of(np.float32(5), np.abs(weights) if weights.ndim == 1 else weights, BIASES)
        assert_close(special.logsumexp(np.float64(log_probs), axis=1), 0, atol=1e-5)
        assert all(np.isfinite(slope).all() for slope in slopes)


def test_ensemble_is_the_mixture_and_keeps_the_class():
    shares = np.float32([0.6, 0.3, 0.1])
    cooled, plain = (special.softmax(LOGITS.astype(float) / temperature, axis=1) for temperature in (2.5, 1))
    log_probs = maps.ensemble_temperature_scaling(LOGITS, 2.5, shares)
    assert_close(log_probs, np.log(shares[0] * cooled + shares[1] * plain + shares[2] / 4), atol=2e-5)
    np.testing.assert_array_equal(np.argmax(log_probs, axis=1), np.argmax(LOGITS, axis=1))


def test_loss_implied_temperature_scaling_is_the_map_then_a_temperature():
    expected = temperature_scaling(focal_calibration(jax.nn.log_softmax(LOGITS), 2.0), 1.7)
    assert_close(maps.loss_implied_temperature_scaling(LOGITS, 2.0, 1.7), expected, atol=2e-5)


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_class_weights_of_the_loss_are_undone_behind_the_map(gamma):
    truth, alpha = np.float32([0.5, 0.3, 0.2]), np.float32([0.25, 1.0, 0.75])
    best = inverse(np.log(truth * alpha / (truth @ alpha)), gamma)
    slope = jax.grad(lambda z: truth * alpha @ focal_loss(jnp.stack([z] * 3), np.arange(3), gamma))(best)
    assert_close(slope, 0, atol=1e-6)
    assert_close(special.softmax(mapped(best, gamma) - np.log(alpha)), truth, atol=1e-5)


def test_histogram_shares_the_rest_in_proportion():
    out = np.exp(np.float64(maps.histogram_binning(LOGITS, np.float32([1.0]), np.float32([0.3, 0.8]))))
    probs = special.softmax(LOGITS.astype(float), axis=1)
    rest, top = ~np.eye(4, dtype=bool)[LOGITS.argmax(axis=1)], probs.max(axis=1)
    accuracy = np.where(np.log(top / (1 - top)) <= 1.0, 0.3, 0.8)
    assert_close(out[~rest], accuracy, rtol=2e-5)
    expected = probs[rest].reshape(50, 3) * ((1 - accuracy) / (1 - top))[:, None]
    assert_close(out[rest].reshape(50, 3), expected, rtol=2e-5)
