import jax
import numpy as np
from scipy.special import log_softmax

from focalgeo.theory import softmax_divergence, softmax_fisher


def test_records(papers):
    record = papers["kl_fisher"]
    fisher = softmax_fisher(record["logits"])
    np.testing.assert_allclose(np.diag(fisher), record["F_diag"], rtol=2e-6)
    displacement = np.array(record["d"])
    for row in record["rows"]:
        step = row["eps"] * displacement
        half = step @ np.asarray(fisher, float) @ step / 2
        divergence = softmax_divergence(record["logits"], step)
        np.testing.assert_allclose(divergence, row["KL_p_q"], rtol=1e-5)
        np.testing.assert_allclose(half, row["half_dFd"], rtol=1e-5)
        np.testing.assert_allclose(divergence / half, row["ratio"], rtol=1e-5)
        back = softmax_divergence(np.array(record["logits"]) + step, -step)
        np.testing.assert_allclose(back, row["KL_q_p"], rtol=1e-4)


def test_divergence_has_the_fisher_information_as_hessian():
    logits, zero = np.float32([[2, 0.5, -1.25], [9, 0, 0]]), np.zeros(3, np.float32)
    for row in logits:
        value, gradient = jax.value_and_grad(softmax_divergence, argnums=1)(row, zero)
        np.testing.assert_allclose([value, *gradient], 0, atol=1e-12)
        hessian = jax.hessian(softmax_divergence, argnums=1)(row, zero)
        np.testing.assert_allclose(hessian, softmax_fisher(row), atol=1e-6)
        np.testing.assert_allclose(softmax_fisher(row).sum(axis=1), 0, atol=1e-6)


def test_divergence_of_steps_beyond_float32_s_exponential():
    rng = np.random.default_rng(0)
    for scale in (20.0, 40.0, 100.0, 1000.0):
        logits, steps = scale / 4 * rng.normal(size=(200, 6)), scale * rng.normal(size=(200, 6))
        logits, steps = logits.astype(np.float32).astype(float), steps.astype(np.float32).astype(float)
        before, after = (log_softmax(z, axis=1) for z in (logits, logits + steps))
        expected = (np.exp(before) * (before - after)).sum(axis=1)
        np.testing.assert_allclose(softmax_divergence(logits, steps), expected, rtol=2e-5, atol=2e-5)
        slopes = jax.vmap(jax.grad(softmax_divergence, argnums=1))(logits.astype(np.float32), steps.astype(np.float32))
        np.testing.assert_allclose(slopes, np.exp(after) - np.exp(before), atol=2e-5)
