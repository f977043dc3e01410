import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo.calibration import focal_calibration, inverse_focal_calibration, temperature_scaling

inverse = jax.jit(inverse_focal_calibration)
mapped = jax.jit(focal_calibration)
scaled = jax.jit(temperature_scaling)


def test_every_record_of_the_inverse(papers):
    for record in papers["inverse_map_multiclass"]:
        got = inverse(np.log(np.float32(record["p"])), np.float32(record["gamma"]))
        np.testing.assert_allclose(got, np.log(record["q"]), rtol=2e-6, atol=2e-5)
    for record in papers["proper_part_binary"]:
        p, q = record["p"], record["inverse_q"]
        got = inverse(np.log(np.float32([p, 1 - p])), np.float32(record["gamma"]))
        np.testing.assert_allclose(got, np.log([q, 1 - q]), rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("gamma", [0.0, 0.05, 1.0, 5.0, 10.0])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_inverse_of_the_map_is_the_identity(gamma, num_classes):
    rows = np.random.default_rng(num_classes).uniform(-0.5, 0.5, size=(300, num_classes)).astype(np.float32)
    rows *= np.repeat(np.float32([1, 30, 100]), 100)[:, None]
    log_q = scaled(rows, 1.0)
    got = inverse(mapped(log_q, gamma), gamma)
    np.testing.assert_allclose(got, log_q, rtol=2e-6, atol=1e-5)
    np.testing.assert_array_equal(np.argmax(got, axis=1), np.argmax(rows, axis=1))


def test_round_trip_in_float64():
    with jax.enable_x64(True):
        rows = np.random.default_rng(4).uniform(-50, 50, size=(300, 10))
        log_q = scaled(rows, 1.0)
        for gamma in (0.05, 5.0, 100.0):
            log_p = mapped(log_q, gamma)
            error = np.abs(inverse(log_p, gamma) - log_q)
            assert (error <= 1e-300 + 1e-12 * np.maximum(-log_p, -log_q)).all()


def test_derivatives_are_those_of_the_inverse_function():
    with jax.enable_x64(True):
        for logits, gamma in (([1.0, 0.5, -2.0], 2.0), ([0.0, 0.0, 0.0], 0.0), ([9.0, -9.0, 3.0], 5.0)):
            log_p = jax.nn.log_softmax(jnp.array(logits))
            log_q = inverse_focal_calibration(log_p, gamma)
            forward = jax.jacfwd(focal_calibration)(log_q, gamma)
            backward = jax.jacrev(inverse_focal_calibration)(log_p, gamma)
            centre = np.eye(3) - 1 / 3  # both jacobians act on classes of equal shift
            left = centre @ backward @ forward @ centre
            np.testing.assert_allclose(left, centre, atol=1e-9)
            np.testing.assert_allclose(jax.jacfwd(inverse_focal_calibration)(log_p, gamma), backward, atol=1e-12)


def test_gradients_stay_finite_at_saturation():
    gradient = jax.jit(jax.grad(lambda x, gamma: jnp.sum(inverse_focal_calibration(x, gamma)[1:]), argnums=(0, 1)))
    for logits in ([100.0, 0.0, -1.0], [0.0, 0.0, 0.0], [1000.0, 3.0, -1000.0]):
        for gamma in (0.0, 0.05, 5.0):
            in_row, in_gamma = gradient(np.float32(logits), np.float32(gamma))
            assert np.isfinite(in_row).all()
            assert np.isfinite(in_gamma)


def test_range_types_and_batches():
    row = np.float32([1, 0, -1])
    assert inverse(jnp.ones((2, 3), jnp.bfloat16), 1.0).dtype == jnp.float32
    np.testing.assert_array_equal(inverse(np.float32([0, -np.inf, -np.inf]), 2.0), [0, -np.inf, -np.inf])
    rows, gammas = np.stack([row, 2 * row]), np.float32([0.5, 3])
    together = inverse(rows, gammas)
    np.testing.assert_allclose(jax.vmap(inverse_focal_calibration)(rows, gammas), together, rtol=1e-6)
    np.testing.assert_allclose(inverse(rows + 7, gammas), together, atol=2e-6)
