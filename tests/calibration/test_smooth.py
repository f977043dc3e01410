import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import calibration as oracle

from focalgeo import calibration

smooth_ece = jax.jit(calibration.smooth_ece)


@pytest.mark.parametrize(("spread", "seed"), [(0.5, 0), (3.0, 1), (20.0, 2)])
def test_it_is_the_fixed_point_of_the_kernel_summed_directly(spread, seed):
    generator = np.random.default_rng(seed)
    logits = (generator.normal(size=(150, 3)) * spread).astype(np.float32)
    log_probs, labels = np.asarray(jax.nn.log_softmax(logits)), generator.integers(0, 3, 150).astype(np.int32)
    probs = np.exp(log_probs.astype(float))
    expected = oracle.smooth_ece(probs.max(axis=1), probs.argmax(axis=1) == labels)
    np.testing.assert_allclose(smooth_ece(log_probs, labels), expected, atol=2e-4)


@pytest.mark.parametrize("edge", [0.0, 0.8])
def test_residuals_of_both_signs_near_an_edge_are_reflected_there(edge):
    """Confidences in 0 to 0.2, then in 0.8 to 1: a kernel that wraps around or leaks out gives another value."""
    generator = np.random.default_rng(3)
    p = (edge + 0.2 * generator.uniform(size=150)).astype(np.float32)
    outcome = (generator.uniform(size=150) < p).astype(np.int32)
    log_probs = np.log(np.stack([1 - p, p], axis=1))
    got = calibration.binary_smooth_ece(log_probs, outcome)
    np.testing.assert_allclose(got, oracle.smooth_ece(p, outcome), atol=2e-4)


def test_one_residual_of_one_sign_is_itself_and_no_residual_is_none():
    labels = jnp.zeros(150, jnp.int32)
    certain = jnp.log(jnp.tile(jnp.array([1.0, 0.0]), (150, 1)))
    np.testing.assert_allclose(smooth_ece(certain, labels), 0, atol=1e-6)
    np.testing.assert_allclose(smooth_ece(certain, labels + 1), 1, rtol=1e-5)
    level = jnp.log(jnp.tile(jnp.array([0.7, 0.3]), (150, 1)))
    np.testing.assert_allclose(smooth_ece(level, labels), 0.3, rtol=1e-5)
