import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo.calibration.classwise import focal_matrix_scaling, focal_vector_scaling
from focalgeo.calibration.maps import binary_focal_calibration, focal_temperature_scaling, temperature_scaling
from focalgeo.types import InputError

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


def test_neutral_parameters_leave_focal_temperature_scaling():
    expected = focal_temperature_scaling(LOGITS, 2.0, 1.5)
    ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)
    np.testing.assert_allclose(focal_vector_scaling(LOGITS, 2.0, 1.5, ones, zeros), expected, atol=2e-6)
    eye = np.eye(4, dtype=np.float32)
    np.testing.assert_allclose(focal_matrix_scaling(LOGITS, 2.0, 1.5, eye, zeros), expected, atol=2e-6)


def test_without_gamma_it_is_vector_scaling():
    log_probs = temperature_scaling(LOGITS, 1.5)
    expected = jax.nn.log_softmax(log_probs * SCALES[None] + BIASES[None])
    np.testing.assert_allclose(focal_vector_scaling(LOGITS, 0.0, 1.5, SCALES, BIASES), expected, atol=5e-6)


def test_matrix_of_a_diagonal_is_vector_scaling():
    vector = focal_vector_scaling(LOGITS, 1.0, 0.7, SCALES, BIASES)
    np.testing.assert_allclose(focal_matrix_scaling(LOGITS, 1.0, 0.7, np.diag(SCALES), BIASES), vector, atol=5e-6)


def test_a_constant_added_to_a_row_changes_nothing():
    moved = LOGITS + 16 * np.arange(50, dtype=np.float32)[:, None] % 64
    for apply, numbers in ((focal_vector_scaling, SCALES), (focal_matrix_scaling, WEIGHTS)):
        got = apply(moved, 1.0, 1.5, numbers, BIASES)
        np.testing.assert_allclose(got, apply(LOGITS, 1.0, 1.5, numbers, BIASES), atol=5e-5)


def test_permuted_classes_permute_parameters():
    order = np.array([2, 0, 3, 1])
    vector = focal_vector_scaling(LOGITS[:, order], 1.0, 1.5, SCALES[order], BIASES[order])
    np.testing.assert_allclose(vector, focal_vector_scaling(LOGITS, 1.0, 1.5, SCALES, BIASES)[:, order], atol=1e-5)
    matrix = focal_matrix_scaling(LOGITS[:, order], 1.0, 1.5, WEIGHTS[order][:, order], BIASES[order])
    np.testing.assert_allclose(matrix, focal_matrix_scaling(LOGITS, 1.0, 1.5, WEIGHTS, BIASES)[:, order], atol=1e-5)


def test_two_classes_neither_part_alone_reaches_the_other():
    """The docstring's argument: odd and bent, against shifted and asymmetric."""
    s = np.linspace(0.1, 12, 40, dtype=np.float32)
    logits = np.stack([s, np.zeros_like(s)], axis=1)

    def log_odds(gamma, scales, biases):
        out = focal_vector_scaling(np.concatenate([logits, logits[:, ::-1]]), gamma, 1.0, scales, biases)
        return (out[:, 0] - out[:, 1]).reshape(2, -1)

    ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)
    right, left = log_odds(2.0, ones, zeros)
    np.testing.assert_allclose(right, binary_focal_calibration(s, 2.0), rtol=1e-5)
    np.testing.assert_allclose(right, -left, rtol=1e-5)
    assert np.ptp(right / s) > 0.2
    for scales, biases in ((np.float32([1.5, 0.5]), zeros), (ones, np.float32([0.5, 0]))):
        right, left = log_odds(0.0, scales, biases)
        assert np.abs(right + left).max() > 0.4


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


def test_one_row_batches_and_vmap_over_parameters():
    whole = focal_vector_scaling(LOGITS, 1.0, 1.5, SCALES, BIASES)
    np.testing.assert_allclose(focal_vector_scaling(LOGITS[0], 1.0, 1.5, SCALES, BIASES), whole[0], atol=1e-6)
    batch = focal_vector_scaling(LOGITS.reshape(5, 10, 4), 1.0, 1.5, SCALES, BIASES)
    np.testing.assert_allclose(batch.reshape(50, 4), whole, atol=1e-6)
    over = jax.jit(jax.vmap(focal_vector_scaling, in_axes=(None, 0, None, 0, 0)))
    both = over(LOGITS, np.float32([1, 2]), 1.5, np.stack([SCALES] * 2), np.stack([BIASES] * 2))
    np.testing.assert_allclose(both[0], whole, atol=1e-6)


def test_bad_parameters_are_one_line_and_traced_ones_nan():
    with pytest.raises(InputError, match=r"scales has shape \(3,\)"):
        focal_vector_scaling(LOGITS, 0.0, 1.0, SCALES[:3], BIASES)
    with pytest.raises(InputError, match="weights has shape"):
        focal_matrix_scaling(LOGITS, 0.0, 1.0, WEIGHTS[:, :3], BIASES)
    with pytest.raises(InputError, match="biases holds NaN"):
        focal_matrix_scaling(LOGITS, 0.0, 1.0, WEIGHTS, BIASES * np.float32(np.nan))
    out = jax.jit(focal_vector_scaling)(LOGITS, np.float32(-2), np.float32(1), SCALES, BIASES)
    assert np.isnan(out).all()
