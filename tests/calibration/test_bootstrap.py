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
    reference = scipy.stats.bootstrap((losses,), np.mean, n_resamples=5000, method="percentile", rng=0)
    np.testing.assert_allclose((got.low, got.high), reference.confidence_interval, atol=0.2 * float(got.stderr))


def test_resamples_equal_gathered_resamples():
    log_probs, labels = predictions(150, jax.random.key(2))
    key, gathered = jax.random.key(3), []
    got = bootstrap(adaptive_ece, log_probs, labels, key, 50)
    measured = jax.jit(adaptive_ece)
    for resample_key in jax.random.split(key, 50):
        rows = jnp.sort(jax.random.randint(resample_key, (150,), 0, 150))
        gathered.append(measured(log_probs[rows], labels[rows]))
    np.testing.assert_allclose(got.stderr, np.std(gathered, ddof=1), rtol=1e-4)
    assert got.low < got.high


def test_interval_is_moved_against_the_bias_of_resampling():
    """Draws around value + bias give an interval around value - bias; resampling biases ECE in just this way."""
    log_probs, labels = predictions(400, jax.random.key(0))
    error = float(bootstrap(accuracy, log_probs, labels, jax.random.key(1), 2000).stderr)

    def biased(log_probs, labels, *, mask=None):
        return accuracy(log_probs, labels, mask=mask) + (0.0 if mask is None else 0.3 * error)

    got = bootstrap(biased, log_probs, labels, jax.random.key(1), 2000)
    expected = float(got.value) - 0.3 * error + np.array([-1.96, 1.96]) * error
    np.testing.assert_allclose((got.low, got.high), expected, atol=0.2 * error)


@pytest.mark.parametrize(("sharpening", "true"), [(1.0, 0.0), (1.1, 0.0251), (1.5, 0.1001)])
def test_the_interval_of_ece_covers_the_true_ece_of_calibrated_and_miscalibrated_models(sharpening, true):
    """Truth: 0 for labels drawn from the model's own probabilities; else the ECE of 4 million draws."""

    def covers(key):
        logits = 2 * jax.random.normal(key, (400, 5))
        labels = jax.random.categorical(jax.random.fold_in(key, 1), logits)
        got = bootstrap(ece, jax.nn.log_softmax(sharpening * logits), labels, jax.random.fold_in(key, 2), 100)
        return (got.low <= true) & (true <= got.high) & (got.low <= got.high)

    share = jnp.mean(jax.jit(lambda keys: jax.lax.map(covers, keys))(jax.random.split(jax.random.key(11), 200)))
    assert share >= 0.888  # 0.95 less 4 standard errors of 200 trials


def test_same_key_same_result_and_degenerate_data():
    log_probs, labels = predictions(150, jax.random.key(4))
    first, second = (bootstrap(ece, log_probs, labels, jax.random.key(5), 200) for _ in range(2))
    assert first == second
    certain = bootstrap(accuracy, jnp.log(jnp.full((20, 2), 0.5)), jnp.zeros(20, jnp.int32), jax.random.key(0), 50)
    assert (certain.value, certain.stderr, certain.low, certain.high) == (1, 0, 1, 1)
    with pytest.raises(InputError, match="are empty"):
        bootstrap(ece, jnp.zeros((0, 2)), jnp.zeros(0, jnp.int32), jax.random.key(0), 10)
