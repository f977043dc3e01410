from functools import partial

import jax
import numpy as np
import pytest
import scipy.stats

from focalgeo.calibration import all_metrics, ece, nll, paired_bootstrap
from focalgeo.calibration.resampling import rounded_difference
from focalgeo.types import InputError


def both(log_probs, labels, *, mask=None):
    return {"ece": ece(log_probs, labels, mask=mask), "nll": nll(log_probs, labels, mask=mask)}


def models(key, num_examples=400, noise=0.7):
    """Two models that differ from the truth by noise of one law: in expectation no metric tells them apart."""
    truth, first, second = (jax.random.normal(k, (num_examples, 4)) for k in jax.random.split(key, 3))
    labels = jax.random.categorical(jax.random.fold_in(key, 9), 2 * truth)
    return jax.nn.log_softmax(2 * truth + noise * first), jax.nn.log_softmax(2 * truth + noise * second), labels


def test_the_difference_of_means_has_the_textbook_error_and_p_value():
    first, second, labels = models(jax.random.key(0))
    rows = np.arange(400)
    change = np.asarray(second)[rows, labels] - np.asarray(first)[rows, labels]
    got = paired_bootstrap(nll, first, second, labels, jax.random.key(1), 2000)
    assert got.n == 400
    np.testing.assert_allclose(got.difference, change.mean(), rtol=1e-4)
    np.testing.assert_allclose(got.stderr, change.std() / 20, rtol=0.06)
    np.testing.assert_allclose(got.p_value, scipy.stats.ttest_1samp(change, 0).pvalue, atol=0.05)
    reach = 1.96 * float(got.stderr)
    np.testing.assert_allclose((got.low, got.high), [got.difference - reach, got.difference + reach], rtol=1e-3)


def test_where_there_is_no_difference_it_rejects_as_often_as_it_says():
    """400 pairs of equally good models: 0.05 has a standard error of 0.011. With ECE it is conservative, 0.03."""

    def tested(key):
        found = paired_bootstrap(both, *models(key), jax.random.fold_in(key, 1), 100)
        return {name: (each.p_value, (each.low > 0) | (each.high < 0)) for name, each in found.items()}

    found = jax.jit(partial(jax.lax.map, tested))(jax.random.split(jax.random.key(5), 400))
    for name, (p_values, excluded) in found.items():
        np.testing.assert_array_equal(p_values < 0.05, excluded, err_msg=name)
        assert 0.006 < np.mean(p_values < 0.05) < 0.05 + 3 * 0.011, name
    assert abs(np.mean(found["nll"][0] < 0.5) - 0.5) < 4 * 0.025


@pytest.mark.parametrize(("size", "sharpness"), [(500, 1), (5000, 1), (5000, 3)])
def test_a_difference_of_rounding_is_none(size, sharpness):
    """Each log-probability, or every other one, an ulp larger: Brier's difference of 1e-7 had a p-value of 0.003."""
    rng = np.random.default_rng(0)
    logits = (sharpness * rng.normal(size=(size, 10))).astype(np.float32)
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1).astype(np.int32)
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    larger = np.nextafter(log_probs, np.float32(0))
    for other in (log_probs, larger, np.where(rng.uniform(size=larger.shape) < 0.5, larger, log_probs)):
        for name, got in paired_bootstrap(all_metrics, log_probs, other, labels, jax.random.key(0), 50).items():
            assert tuple(got)[:5] == (0, 0, 0, 0, 1), name


def test_rounding_is_a_few_eps_and_a_true_difference_is_none_of_it():
    eps, difference = np.finfo(np.float32).eps, partial(rounded_difference, num_terms=10_000)
    one = np.float32(1.0)
    assert difference(one, one + 90 * eps) == 0
    assert difference(one, one + 120 * eps) < 0
    assert difference(np.float32(0.01), np.float32(0.01) + 2e-6) < 0  # relative to the metric
    assert difference(np.float32(0), np.float32(1e-7)) == 0
    rng = np.random.default_rng(1)
    log_probs = np.asarray(jax.nn.log_softmax(rng.normal(size=(5000, 10)).astype(np.float32)))
    labels = rng.integers(0, 10, 5000).astype(np.int32)
    # all probabilities a thousandth more like uniform ones: NLL falls by 1e-3 or so, in all resamples
    other = np.log(0.999 * np.exp(log_probs) + 0.0001)
    got = paired_bootstrap(nll, log_probs, other, labels, jax.random.key(0), 200)
    assert 5e-4 < got.difference < 3e-3
    assert got.p_value < 1e-3


def test_equal_predictions_have_p_value_one_and_bad_input_is_refused():
    first, second, labels = models(jax.random.key(0))
    same = paired_bootstrap(nll, first, first, labels, jax.random.key(1), 2000)
    assert (same.difference, same.stderr, same.low, same.high, same.p_value) == (0, 0, 0, 0, 1)
    worse = paired_bootstrap(nll, first[:, ::-1], first, labels, jax.random.key(1), 2000)
    assert worse.p_value < 1e-6
    with pytest.raises(InputError, match="num_resamples is 1"):
        paired_bootstrap(nll, first, second, labels, jax.random.key(0), 1)
    with pytest.raises(InputError, match="shape"):
        paired_bootstrap(nll, first, second[:10], labels, jax.random.key(0), 10)
