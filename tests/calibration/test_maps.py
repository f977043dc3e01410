import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.calibration import focal_temperature_scaling as oracle

from focalgeo.calibration import focal_calibration, focal_temperature_scaling, temperature_scaling

GAMMAS = (-0.9, -0.25, 0.0, 0.5, 1.0, 5.0, 10.0)
scaled = jax.jit(focal_temperature_scaling)
mapped = jax.jit(focal_calibration)


def assert_close(got, expected):
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(got, float), expected, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 5.0])
def test_map_equals_high_precision(gamma, temperature):
    temperature, gamma = np.float32(temperature), np.float32(gamma)
    for logits in (
        [60.0, 0.0, -40.0],
        [23.75, 0.0, -1.5],
        [2.0, 1.9999999, 2.0],
        [0.0, 0.25, -0.25],
        [1000.5, 1000.25, 1000],
    ):
        logits = np.array(logits, np.float32)
        assert_close(scaled(logits, gamma, temperature), oracle(logits, gamma, temperature))


def test_one_minus_p_of_a_certain_prediction_survives():
    top = scaled(np.float32([60, 0, 0]), 0.0, 1.0)[0]
    np.testing.assert_allclose(top, -2 * np.exp(-60), rtol=1e-5)
    top = scaled(np.float32([25, 0]), 1.0, 1.0)[0]
    np.testing.assert_allclose(top, -2 * np.exp(-25) ** 2, rtol=1e-5)  # 1 - p -> (gamma + 1) (1 - q)^(gamma + 1)


def test_published_values():
    q = np.log(np.float32([0.55, 0.3, 0.15]))
    np.testing.assert_allclose(mapped(q, -0.5), [-0.6246491148, -1.1661438333, -1.8774177239], atol=1e-6)
    got = np.exp(scaled(np.float32([2, 1, 0, -1]), 1.0, 1.5))
    np.testing.assert_allclose(got, [0.5971126985, 0.2306835053, 0.1131433046, 0.0590604915], atol=1e-6)
    q = np.log(np.float32([0.32, 0.32, 0.32, 0.04]))  # lowers the top probability: the papers' Proposition 5 is false
    np.testing.assert_allclose(np.exp(mapped(q, 0.25))[0], 0.3199151850, atol=1e-7)


def test_every_record_of_the_reference_file(papers):
    for record in papers["multiclass_map"]:
        given = papers["multiclass_inputs"][record["name"]]
        logits = np.array(given["z"]) if "z" in given else np.log(np.array(given["q"], float))
        expected = record.get("log_phat") or record["log_phat_first5"]
        got = mapped(logits.astype(np.float32), np.float32(record["gamma"]))
        assert_close(got[: len(expected)], expected)
    for record in papers["focal_temperature_scaling"]:
        got = scaled(np.float32(record["logits"]), np.float32(record["gamma"]), np.float32(record["T"]))
        assert_close(got, np.log(record["phat_T_then_focal"]))


def test_gamma_zero_is_the_identity_and_temperature_scaling():
    logits = np.random.default_rng(0).normal(size=(500, 7)).astype(np.float32) * 10
    np.testing.assert_allclose(
        mapped(jax.nn.log_softmax(logits), 0.0), jax.nn.log_softmax(logits), rtol=2e-6, atol=2e-6
    )
    np.testing.assert_allclose(scaled(logits, 0.0, 2.5), temperature_scaling(logits, 2.5), rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(temperature_scaling(logits, 2.5), jax.nn.log_softmax(logits / 2.5), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("gamma", "temperature"), [(-0.9, 1.0), (0.5, 0.01), (5.0, 4.37)])
def test_prediction_is_kept_and_rows_sum_to_one(gamma, temperature):
    rows = np.random.default_rng(1).normal(size=(100_000, 10)).astype(np.float32)
    rows[:50_000] = 1 + rows[:50_000] * np.float32(1e-6)  # near ties, and some exact ones
    got = np.asarray(scaled(rows, gamma, temperature))
    np.testing.assert_array_equal(got.argmax(axis=1), rows.argmax(axis=1))
    np.testing.assert_allclose(np.exp(got.astype(float)).sum(axis=1), 1, atol=2e-6)


def test_gradients_are_right_and_finite():
    def third_class(logits, gamma, temperature):
        return focal_temperature_scaling(logits, gamma, temperature)[2]

    gradient = jax.jit(jax.grad(third_class, argnums=(0, 1, 2)))
    for logits in ([1.0, 0.5, -2.0, 0.0], [0.0, 0.0, 0.0, 0.0], [90.0, 0.0, -90.0, 1.0]):
        for gamma in (-0.5, 0.0, 3.0):
            arguments = np.float32(logits), np.float32(gamma), np.float32(0.7)
            with jax.enable_x64(True):
                wide = [np.asarray(a, np.float64) for a in arguments]
                expected = _differences(third_class, *wide)
            for got, want in zip(gradient(*arguments), expected, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def _differences(function, logits, gamma, temperature, step=1e-5):
    shifts = step * np.eye(len(logits))
    rows = [(function(logits + s, gamma, temperature) - function(logits - s, gamma, temperature)) for s in shifts]
    in_gamma = function(logits, gamma + step, temperature) - function(logits, gamma - step, temperature)
    in_temperature = function(logits, gamma, temperature + step) - function(logits, gamma, temperature - step)
    return [np.array(value, float) / (2 * step) for value in (rows, in_gamma, in_temperature)]


def test_zero_probability_stays_zero():
    got = mapped(np.float32([0, -np.inf, -np.inf]), 2.0)
    np.testing.assert_array_equal(got, [0, -np.inf, -np.inf])
    assert scaled(jnp.ones((2, 3), jnp.bfloat16), 1.0, 1.0).dtype == jnp.float32
