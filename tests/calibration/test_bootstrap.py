import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from focalgeo.calibration import accuracy, adaptive_ece, bootstrap, ece, nll
from focalgeo.types import InputError


def predictions(num_examples, key):
    logits = 2 * jax.random.normal(key, (num_examples, 3))
    labels = jax.random.categorical(jax.random.fold_in(key, 1), logits)
    return jax.nn.log_softmax(logits * 1.3), labels


def test_mean_metrics_have_the_textbook_error_and_interval():
    log_probs, labels = predictions(400, jax.random.key(0))
    losses = -np.asarray(log_probs)[np.arange(400), labels]
    got = bootstrap(nll, log_probs, labels, jax.random.key(1), 2000)
    assert got.n == 400
    np.testing.assert_allclose(got.value, losses.mean(), rtol=1e-5)
    np.testing.assert_allclose(got.stderr, losses.std() / 20, rtol=0.06)
    reference = scipy.stats.bootstrap((losses,), np.mean, n_resamples=5000, random_state=0).confidence_interval
    np.testing.assert_allclose((got.low, got.high), reference, atol=0.15 * float(got.stderr))


@pytest.mark.parametrize("metric", [ece, adaptive_ece])
def test_resamples_equal_gathered_resamples(metric):
    log_probs, labels = predictions(150, jax.random.key(2))
    key, gathered = jax.random.key(3), []
    got = bootstrap(metric, log_probs, labels, key, 50)
    measured = jax.jit(metric)
    for resample_key in jax.random.split(key, 50):
        rows = jnp.sort(jax.random.randint(resample_key, (150,), 0, 150))
        gathered.append(measured(log_probs[rows], labels[rows]))
    np.testing.assert_allclose(got.stderr, np.std(gathered, ddof=1), rtol=1e-4)
    assert got.low < got.high


def test_interval_corrects_for_the_bias_of_resampling():
    """Resampling raises ECE; the plain percentile interval would lie above the value far too often."""
    inside = 0
    for seed in range(10):
        log_probs, labels = predictions(150, jax.random.key(seed))
        got = bootstrap(ece, log_probs, labels, jax.random.key(100 + seed), 200)
        inside += bool(got.low <= got.value <= got.high)
    assert inside >= 8


def test_same_key_same_result_and_degenerate_data():
    log_probs, labels = predictions(150, jax.random.key(4))
    first, second = (bootstrap(ece, log_probs, labels, jax.random.key(5), 200) for _ in range(2))
    assert first == second
    certain = bootstrap(accuracy, jnp.log(jnp.full((20, 2), 0.5)), jnp.zeros(20, jnp.int32), jax.random.key(0), 50)
    assert (certain.value, certain.stderr, certain.low, certain.high) == (1, 0, 1, 1)
    with pytest.raises(InputError, match="bootstrap of 0 examples"):
        bootstrap(ece, jnp.zeros((0, 2)), jnp.zeros(0, jnp.int32), jax.random.key(0), 10)
