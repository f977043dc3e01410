"""Fits beyond temperature scaling: against scipy in float64, by their definition, and on labels that lead to an end."""

import jax
import numpy as np
import pytest
from scipy import optimize, special

from focalgeo import calibration
from focalgeo.calibration import fit_temperature, focal_calibration, focal_temperature_scaling, maps

pytestmark = pytest.mark.filterwarnings("ignore::focalgeo.calibration.ConvergenceWarning")
BY_CLASS = ("vector_scaling", "focal_vector_scaling", "structured_matrix_scaling")
BY_NLL = (*BY_CLASS, "ensemble_temperature_scaling", "loss_implied_temperature_scaling")


def fit(name, logits, labels, **options):
    options |= {"trained_gamma": 2.0} if name.startswith("loss_implied") else {}
    return calibration.fit(name, logits, labels, **options).params


def drawn(num_examples=600, classes=4, noise=0.0):
    """Labels drawn from a map with scales and biases of its own for each class, a share of them by chance."""
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(num_examples, classes)) * 3).astype(np.float32)
    scores = logits * rng.uniform(0.4, 0.9, classes) + rng.normal(size=classes)
    labels = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
    by_chance = rng.random(num_examples) < noise
    return logits, np.where(by_chance, rng.integers(0, classes, num_examples), labels).astype(np.int32)


def features(params, logits):
    """The float64 log-probabilities of the first stage that `params` holds."""
    with jax.enable_x64(True):
        gamma, temperature = (np.float64(params.get(name, 0)) for name in ("gamma", "temperature"))
        return np.asarray(focal_temperature_scaling(logits.astype(np.float64), gamma, temperature))


def penalised(log_probs, labels, matrix, biases):
    """Mean NLL plus the ridge, in float64 by definition."""
    n, classes = log_probs.shape
    nll = -special.log_softmax(log_probs @ matrix.T + biases, axis=1)[np.arange(n), labels].mean()
    diagonal, rest = np.diag(matrix), matrix - np.diag(np.diag(matrix))
    ridge = ((diagonal - 1) ** 2).sum() + (biases**2).sum() + (classes - 1) * (rest**2).sum()
    return nll + classes / n * ridge


def matrix_of(params):
    return np.float64(params["weights"]) if "weights" in params else np.diag(np.float64(params["scales"]))


@pytest.mark.parametrize("name", BY_CLASS)
def test_fit_by_class_is_that_of_scipy_in_float64(name):
    logits, labels = drawn()
    params = fit(name, logits, labels)
    assert params["converged"]
    log_probs = features(params, logits)

    def unpacked(x):
        return np.eye(4) + (x[:-4].reshape(4, 4) if "weights" in params else np.diag(x[:-4])), x[-4:]

    start = np.zeros(20 if "weights" in params else 8)
    best = optimize.minimize(lambda x: penalised(log_probs, labels, *unpacked(x)), start, tol=1e-9)
    np.testing.assert_allclose(matrix_of(params), unpacked(best.x)[0], atol=1e-3)
    np.testing.assert_allclose(params["biases"], best.x[-4:], atol=1e-3)
    objective = penalised(log_probs, labels, matrix_of(params), np.float64(params["biases"]))
    np.testing.assert_allclose(objective, best.fun, atol=1e-6)


@pytest.mark.parametrize("name", BY_NLL)
def test_predictions_that_are_all_right_end_at_the_bracket(name):
    logits = np.eye(4, dtype=np.float32)[np.arange(200) % 4] * 5
    params = fit(name, logits, np.argmax(logits, axis=1).astype(np.int32))
    assert not params["converged"]
    assert all(np.isfinite(value).all() for value in params.values())
    np.testing.assert_allclose(params["temperature"], 0.01, rtol=1e-4)
    if name in BY_CLASS:
        np.testing.assert_allclose(matrix_of(params), np.eye(4), atol=1e-6)
        np.testing.assert_allclose(params["biases"], 0, atol=1e-6)


@pytest.mark.parametrize("name", BY_CLASS)
def test_a_class_without_labels_and_fewer_examples_than_classes_leave_finite_numbers(name):
    assert all(np.isfinite(value).all() for value in fit(name, *drawn(12, classes=20)).values())
    logits, labels = drawn()
    absent = fit(name, logits[labels != 1], labels[labels != 1])
    assert all(np.isfinite(value).all() for value in absent.values())
    assert absent["biases"].argmin() == 1


@pytest.mark.parametrize("calibrated_at", [0.6, 1.02])  # 1: the first two parts are nearly the same
@pytest.mark.parametrize("num_examples", [300, 5000])
def test_ensemble_fit_is_that_of_scipy_whatever_the_temperature(num_examples, calibrated_at):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        logits = (rng.normal(size=(num_examples, 5)) * 3).astype(np.float32)
        labels = np.argmax(logits / calibrated_at + rng.gumbel(size=logits.shape), axis=1).astype(np.int32)
        params = fit("ensemble_temperature_scaling", logits, labels)
        assert params["converged"]
        shares, (plain, cooled) = (
            np.float64(params["shares"]),
            (
                special.softmax(logits / temperature, axis=1)[np.arange(num_examples), labels]
                for temperature in (1.0, float(params["temperature"]))
            ),
        )
        assert (shares >= 0).all()
        parts = np.stack([cooled, plain, np.full(num_examples, 1 / 5)])
        least = min(
            optimize.minimize(
                lambda shares, parts=parts: -np.log(shares @ parts).mean(),
                start,
                jac=lambda shares, parts=parts: -(parts / (shares @ parts)).mean(axis=1),
                method="SLSQP",
                bounds=[(0, 1)] * 3,
                constraints={"type": "eq", "fun": lambda shares: shares.sum() - 1, "jac": np.ones_like},
                options={"ftol": 1e-14, "maxiter": 500},
            ).fun
            for start in ([1 / 3, 1 / 3, 1 / 3], [0.9, 0.05, 0.05], [0.1, 0.8, 0.1])
        )
        assert -np.log(shares / shares.sum() @ parts).mean() <= least + 1e-6


def test_loss_implied_temperature_is_fitted_after_the_map():
    logits, labels = drawn(noise=0.15)
    params = fit("loss_implied_temperature_scaling", logits, labels)
    assert (params["gamma"], params["converged"]) == (2, True)
    alone = fit_temperature(focal_calibration(logits, 2.0), labels)
    np.testing.assert_allclose(params["temperature"], alone.temperature, rtol=1e-5)


def test_histogram_bins_have_equal_mass_and_the_accuracy_of_their_examples():
    logits, labels = drawn()
    params = fit("histogram_binning", logits, labels, num_bins=6)
    order = np.argsort(special.softmax(logits.astype(float), axis=1).max(axis=1))
    right = np.split((logits.argmax(axis=1) == labels)[order], 6)
    np.testing.assert_allclose(params["accuracies"], [(part.sum() + 1) / 102 for part in right], rtol=1e-6)
    out = np.asarray(maps.histogram_binning(logits, **params))
    top = np.exp(out[order, logits[order].argmax(axis=1)])
    np.testing.assert_allclose(top, np.repeat(params["accuracies"], 100), rtol=1e-6)


def test_histogram_tells_saturated_confidences_apart_and_keeps_equal_ones_together():
    gaps = np.float32([30, 40, 50, 60] * 25)
    logits = np.stack([gaps, np.zeros_like(gaps)], axis=1)
    params = fit("histogram_binning", logits, (gaps < 35).astype(np.int32), num_bins=4)
    np.testing.assert_allclose(params["edges"], [35, 45, 55])
    np.testing.assert_allclose(params["accuracies"], [1 / 27, 26 / 27, 26 / 27, 26 / 27], rtol=1e-6)
    same = fit("histogram_binning", np.repeat(logits[:1], 20, axis=0), np.zeros(20, np.int32), num_bins=4)
    for scale in (0.1, 1, 10):  # of examples less and more confident than those of the fit
        out = maps.histogram_binning(scale * logits[:1], **same)
        np.testing.assert_allclose(np.exp(out)[0, 0], 21 / 22, rtol=1e-6)
    assert np.isfinite(maps.histogram_binning(logits * 300, **params)).all()


@pytest.mark.parametrize(("step", "shift"), [(1.0, 0), (0.1, 100)])
def test_histogram_applies_to_ties_the_bin_that_they_were_counted_in(step, shift):
    """The accuracy of a bin is that of the examples that are given it, whatever rounding does to tied log-odds."""
    rng = np.random.default_rng(0)
    logits = (np.round(rng.normal(size=(2000, 3)) * 3 / step) * step).astype(np.float32)
    labels = np.argmax(logits / 1.5 + rng.gumbel(size=logits.shape), axis=1).astype(np.int32)
    params = fit("histogram_binning", logits + np.float32(shift), labels)
    top, right = logits.argmax(axis=1), logits.argmax(axis=1) == labels
    confidence = np.exp(maps.histogram_binning(logits + np.float32(shift), **params))[np.arange(len(top)), top]
    bins = np.argmin(np.abs(confidence[:, None] - np.asarray(params["accuracies"])), axis=1)
    counted = [(right[bins == k].sum() + 1) / ((bins == k).sum() + 2) for k in np.unique(bins)]
    np.testing.assert_allclose(counted, params["accuracies"][np.unique(bins)], rtol=1e-6)
    p = np.sort(special.softmax(logits.astype(float), axis=1))
    np.testing.assert_array_equal(bins, np.searchsorted(params["edges"], np.log(p[:, 2] / p[:, :2].sum(axis=1))))


def test_isotonic_is_the_least_squares_of_the_pooled_pairs():
    """Against the definition: ascending values with the least squared error, here by scipy's isotonic solver."""
    logits, labels = drawn(80)
    params = fit("isotonic", logits, labels)
    log_probs = special.log_softmax(logits.astype(float), axis=1).ravel()
    order = np.argsort(log_probs)
    hits = (np.arange(4) == labels[:, None]).ravel()[order].astype(float)
    values = np.maximum(optimize.isotonic_regression(hits).x, 1 / (320 + 2))
    fitted = np.interp(log_probs[order], params["thresholds"], params["probabilities"])
    np.testing.assert_allclose(fitted, values, atol=1e-4)
    rows = values[np.argsort(order)].reshape(80, 4)
    expected = np.log(rows / rows.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(maps.isotonic_calibration(logits, **params), expected, atol=1e-3)
    out = np.asarray(jax.jit(maps.isotonic_calibration)(logits * 100, **params))
    assert np.isfinite(out).all()
    np.testing.assert_array_equal(out.argmax(axis=1), logits.argmax(axis=1))
    np.testing.assert_allclose(np.exp(out).sum(axis=1), 1, atol=1e-5)
