import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo.calibration.maps import focal_matrix_scaling, focal_vector_scaling

rng = np.random.default_rng(0)
LOGITS = (rng.normal(size=(50, 4)) * 3).astype(np.float32)
SCALES = np.float32([1.3, 0.7, -0.2, 1.0])
BIASES = np.float32([0.3, -0.5, 0.0, 2.0])
WEIGHTS = (np.eye(4) + rng.normal(size=(4, 4)) * 0.2).astype(np.float32)


def slow(logits, gamma, temperature, weights, biases):
    """The definition in float64: the quotient of the focal map, then an affine map of its logarithms."""
    q = np.exp(logits.astype(float) / temperature)
    q /= q.sum(axis=1, keepdims=True)
    h = q / ((1 - q) ** gamma - gamma * q * (1 - q) ** (gamma - 1) * np.log(q))
    scores = np.log(h / h.sum(axis=1, keepdims=True)) @ weights.T.astype(float) + biases
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 2.0])
def test_maps_are_those_of_the_definition(gamma):
    vector = focal_vector_scaling(LOGITS, gamma, 1.5, SCALES, BIASES)
    np.testing.assert_allclose(vector, slow(LOGITS, gamma, 1.5, np.diag(SCALES), BIASES), atol=5e-5)
    matrix = focal_matrix_scaling(LOGITS, gamma, 1.5, WEIGHTS, BIASES)
    np.testing.assert_allclose(matrix, slow(LOGITS, gamma, 1.5, WEIGHTS, BIASES), atol=5e-5)


@pytest.mark.parametrize("temperature", [0.01, 1.0, 100.0])
def test_saturated_rows_stay_finite_with_finite_slopes(temperature):
    logits = np.float32([[60, 0, -40, 1], [1e4, 0, 0, 1], [0, 0, 0, 0], [-1e4, 1e4, 3, 3]])

    def total(numbers, apply):
        return jnp.sum(apply(logits, numbers["gamma"], temperature, numbers["matrix"], numbers["biases"]))

    for apply, matrix in ((focal_vector_scaling, np.abs(SCALES)), (focal_matrix_scaling, WEIGHTS)):
        out = apply(logits, 5.0, temperature, matrix, BIASES)
        assert np.isfinite(out).all()
        np.testing.assert_allclose(np.exp(np.float64(out)).sum(axis=1), 1, atol=1e-5)
        slopes = jax.grad(total)({"gamma": np.float32(5), "matrix": matrix, "biases": BIASES}, apply)
        assert all(np.isfinite(slope).all() for slope in slopes.values())
