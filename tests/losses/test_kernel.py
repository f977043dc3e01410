import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.losses import mmce as oracle

from focalgeo.losses import PENALTIES, mmce, weighted_mmce

PENALTY = {name: jax.jit(function) for name, function in PENALTIES.items()}


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    return (3 * rng.normal(size=(24, 4))).astype(np.float32), rng.integers(0, 4, 24).astype(np.int32)


def test_the_papers_values(dataset):
    record, logits, labels = dataset
    np.testing.assert_allclose(mmce(logits, labels), record["mmce_m_sqrt_width0.4"], rtol=1e-5)
    np.testing.assert_allclose(mmce(logits, labels) ** 2, record["mmce_m_squared_code_width0.4"], rtol=1e-5)
    square, root = record["mmce_w_standard_width0.4"]
    got = weighted_mmce(logits, labels)
    np.testing.assert_allclose([got**2, got], [square, root], rtol=1e-5)
    counts = np.sum(np.argmax(logits, axis=1) == labels), np.sum(np.argmax(logits, axis=1) != labels)
    assert list(counts) == record["mmce_counts"]


@pytest.mark.parametrize("name", PENALTIES)
def test_values_and_gradients_equal_the_double_sum(batch, name):
    logits, labels = batch

    def reference(z):
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return oracle(e / e.sum(axis=1, keepdims=True), labels, weighted=name == "weighted_mmce")

    wide = logits.astype(np.float64)
    np.testing.assert_allclose(PENALTY[name](logits, labels), reference(wide), rtol=1e-5)
    step = np.zeros_like(wide)
    step[:3] = np.random.default_rng(1).normal(size=(3, 4))
    expected = (reference(wide + 1e-6 * step) - reference(wide - 1e-6 * step)) / 2e-6
    np.testing.assert_allclose(np.vdot(jax.grad(PENALTY[name])(logits, labels), step), expected, rtol=1e-4)


@pytest.mark.parametrize("name", PENALTIES)
def test_padding_and_order_count_for_nothing(batch, name):
    logits, labels = batch
    padded = np.concatenate([logits, np.full((3, 4), np.nan, np.float32)])[::-1]
    mask, padded_labels = (np.arange(27) < 24)[::-1], np.append(labels, [0, 1, 2]).astype(np.int32)[::-1]
    got, slope = jax.value_and_grad(PENALTY[name])(padded, padded_labels, mask)
    np.testing.assert_allclose(got, PENALTY[name](logits, labels), rtol=1e-5)
    np.testing.assert_allclose(slope[3:][::-1], jax.grad(PENALTY[name])(logits, labels), rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(slope[:3], 0)
    assert PENALTY[name](padded, padded_labels, np.zeros(27, bool)) == 0


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("wrong", [False, True])
def test_derivatives_are_finite_where_float32_saturates(name, wrong):
    labels = jnp.int32([1 if wrong else 0, 0, 0])
    second = jax.jit(jax.hessian(PENALTIES[name]))
    for gap in (0.0, 5.0, 17.0, 35.0, 60.0, 100.0):
        logits = jnp.float32([[gap, 0, -1]] * 3)
        slope = jax.grad(PENALTY[name])(logits, labels)
        assert np.isfinite(slope).all(), gap
        assert np.isfinite(second(logits, labels)).all(), gap


@pytest.mark.parametrize("gap", [17.0, 60.0])
def test_confident_right_examples_give_their_mean_residual_not_zero(gap):
    logits, labels, miss = jnp.float32([[gap, 0, -1]] * 3), jnp.zeros(3, jnp.int32), np.exp(-gap) + np.exp(-gap - 1)
    np.testing.assert_allclose(PENALTY["mmce"](logits, labels), miss, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(PENALTY["mmce"])(logits, labels)[:, 0], [-miss / 3] * 3, rtol=1e-5)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("label", [0, 1])
def test_of_one_example_it_is_the_size_of_the_residual(name, label):
    confidence = 1 / (1 + np.exp(-2.0))
    expected = 1 - confidence if label == 0 else confidence
    np.testing.assert_allclose(PENALTY[name](np.float32([[2, 0]]), np.int32([label])), expected, rtol=1e-6)
