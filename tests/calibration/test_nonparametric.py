import jax
import numpy as np
import pytest
from scipy import optimize, special

from focalgeo.calibration import fit
from focalgeo.calibration.maps import histogram_binning, isotonic_calibration


def fit_histogram_binning(logits, labels, mask=None, num_bins=15):
    return fit("histogram_binning", logits, labels, mask=mask, num_bins=num_bins).params


def fit_isotonic(logits, labels, mask=None):
    return fit("isotonic", logits, labels, mask=mask).params


def drawn(num_examples=600, classes=4):
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(num_examples, classes)) * 4).astype(np.float32)
    return logits, np.argmax(logits * 0.4 + rng.gumbel(size=logits.shape), axis=1).astype(np.int32)


def rounded(step, num_examples=2000, classes=3):
    """Logits that are multiples of a step, so that many examples are tied."""
    rng = np.random.default_rng(0)
    logits = (np.round(rng.normal(size=(num_examples, classes)) * 3 / step) * step).astype(np.float32)
    return logits, np.argmax(logits / 1.5 + rng.gumbel(size=logits.shape), axis=1).astype(np.int32)


def test_histogram_bins_have_equal_mass_and_the_accuracy_of_their_examples():
    logits, labels = drawn()
    params = fit_histogram_binning(logits, labels, num_bins=6)
    order = np.argsort(special.softmax(logits.astype(float), axis=1).max(axis=1))
    right = np.split((logits.argmax(axis=1) == labels)[order], 6)
    np.testing.assert_allclose(params["accuracies"], [(part.sum() + 1) / 102 for part in right], rtol=1e-6)
    out = np.asarray(histogram_binning(logits, params["edges"], params["accuracies"]))
    for part, accuracy in zip(np.split(order, 6), params["accuracies"], strict=True):
        top = out[part, logits[part].argmax(axis=1)]
        np.testing.assert_allclose(np.exp(top), accuracy, rtol=1e-6)


def test_histogram_shares_the_rest_in_proportion():
    logits, _ = drawn(50)
    out = np.exp(np.float64(histogram_binning(logits, np.float32([1.0]), np.float32([0.3, 0.8]))))
    probs = special.softmax(logits.astype(float), axis=1)
    rest = ~np.eye(4, dtype=bool)[logits.argmax(axis=1)]
    top = probs.max(axis=1)
    accuracy = np.where(np.log(top / (1 - top)) <= 1.0, 0.3, 0.8)
    np.testing.assert_allclose(out.sum(axis=1), 1, atol=1e-5)
    expected = probs[rest].reshape(50, 3) * ((1 - accuracy) / (1 - top))[:, None]
    np.testing.assert_allclose(out[rest].reshape(50, 3), expected, rtol=2e-5)


def test_histogram_tells_saturated_confidences_apart_and_keeps_equal_ones_together():
    gaps = np.float32([30, 40, 50, 60] * 25)
    logits = np.stack([gaps, np.zeros_like(gaps)], axis=1)
    labels = (gaps < 35).astype(np.int32)
    params = fit_histogram_binning(logits, labels, num_bins=4)
    np.testing.assert_allclose(params["edges"], [35, 45, 55])
    np.testing.assert_allclose(params["accuracies"], [1 / 27, 26 / 27, 26 / 27, 26 / 27], rtol=1e-6)
    same = fit_histogram_binning(np.repeat(logits[:1], 20, axis=0), np.zeros(20, np.int32), num_bins=4)
    for scale in (0.1, 1, 10):  # of examples less and more confident than those of the fit
        np.testing.assert_allclose(np.exp(histogram_binning(scale * logits[:1], **same))[0, 0], 21 / 22, rtol=1e-6)
    assert np.isfinite(histogram_binning(logits * 300, params["edges"], params["accuracies"])).all()


@pytest.mark.parametrize(("step", "shift"), [(1.0, 0), (0.1, 100)])
def test_histogram_applies_to_ties_the_bin_that_they_were_counted_in(step, shift):
    """The accuracy of a bin is that of the examples that are given it, whatever rounding does to tied log-odds."""
    logits, labels = rounded(step)
    params = fit_histogram_binning(logits + np.float32(shift), labels)
    top, right = logits.argmax(axis=1), logits.argmax(axis=1) == labels
    given = np.exp(histogram_binning(logits + np.float32(shift), **params))[np.arange(len(top)), top]
    bins = np.argmin(np.abs(given[:, None] - np.asarray(params["accuracies"])), axis=1)
    counted = [(right[bins == k].sum() + 1) / ((bins == k).sum() + 2) for k in np.unique(bins)]
    np.testing.assert_allclose(counted, params["accuracies"][np.unique(bins)], rtol=1e-6)
    exact = special.log_softmax(logits.astype(float), axis=1)
    rest = np.where(np.eye(3, dtype=bool)[top], -np.inf, exact)
    log_odds = exact.max(axis=1) - special.logsumexp(rest, axis=1)
    np.testing.assert_array_equal(bins, np.searchsorted(params["edges"], log_odds))


def test_isotonic_is_the_least_squares_of_the_pooled_pairs():
    """Against the definition: ascending values with the least squared error, here by scipy's isotonic solver."""
    logits, labels = drawn(80)
    params = fit_isotonic(logits, labels)
    log_probs = special.log_softmax(logits.astype(float), axis=1).ravel()
    order = np.argsort(log_probs)
    hits = (np.arange(4) == labels[:, None]).ravel()[order].astype(float)
    oracle = np.maximum(optimize.isotonic_regression(hits).x, 1 / (320 + 2))
    values = np.interp(log_probs[order], params["thresholds"], params["probabilities"])
    np.testing.assert_allclose(values, oracle, atol=1e-4)
    rows = oracle[np.argsort(order)].reshape(80, 4)
    expected = np.log(rows / rows.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(isotonic_calibration(logits, **params), expected, atol=1e-3)


def test_isotonic_keeps_the_class_and_a_finite_nll():
    logits, labels = drawn()
    params = fit_isotonic(logits[:100], labels[:100])
    out = np.asarray(jax.jit(isotonic_calibration)(logits * 100, **params))
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(out.argmax(axis=1), logits.argmax(axis=1))
    np.testing.assert_allclose(np.exp(out).sum(axis=1), 1, atol=1e-5)
