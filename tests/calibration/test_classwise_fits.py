import jax
import numpy as np
import pytest
from scipy import optimize, special

from focalgeo.calibration import fit, focal_temperature_scaling
from focalgeo.calibration.variants import fit_focal_vector_scaling_jointly

pytestmark = pytest.mark.filterwarnings("ignore::focalgeo.calibration.ConvergenceWarning")


def by_name(name):
    return lambda logits, labels, mask=None: fit(name, logits, labels, mask=mask).params


fit_focal_vector_scaling = by_name("focal_vector_scaling")
FITS = (by_name("vector_scaling"), fit_focal_vector_scaling, by_name("structured_matrix_scaling"))


def drawn(num_examples=600, classes=4, seed=0):
    """Labels drawn from a map with scales and biases of its own for each class."""
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(num_examples, classes)) * 3).astype(np.float32)
    scores = logits * rng.uniform(0.4, 0.9, classes) + rng.normal(size=classes)
    return logits, np.argmax(scores + rng.gumbel(size=scores.shape), axis=1).astype(np.int32)


def features(params, logits):
    """The float64 log-probabilities of the first stage that `params` holds."""
    with jax.enable_x64(True):
        gamma, temperature = (np.float64(params.get(name, 0)) for name in ("gamma", "temperature"))
        return np.asarray(focal_temperature_scaling(logits.astype(np.float64), gamma, temperature))


def penalised(log_probs, labels, matrix, biases, count=None):
    """Mean NLL plus the ridge, in float64 by definition; `count` says how often each example counts."""
    count = np.ones(len(labels)) if count is None else count
    classes, n = len(biases), count.sum()
    log_probs = special.log_softmax(log_probs @ matrix.T + biases, axis=1)
    nll = -(count * log_probs[np.arange(len(labels)), labels]).sum() / n
    diagonal, rest = np.diag(matrix), matrix - np.diag(np.diag(matrix))
    ridge = classes / n * (((diagonal - 1) ** 2).sum() + (biases**2).sum())
    return nll + ridge + classes * (classes - 1) / n * (rest**2).sum()


def matrix_of(params):
    return np.float64(params["weights"]) if "weights" in params else np.diag(np.float64(params["scales"]))


def oracle(log_probs, labels, full, count=None):
    """The least penalised NLL by scipy's BFGS, and its matrix and biases."""
    classes = log_probs.shape[1]

    def unpacked(x):
        matrix = x[:-classes].reshape(classes, classes) if full else np.diag(x[:-classes])
        return np.eye(classes) + matrix, x[-classes:]

    start = np.zeros(classes * classes + classes if full else 2 * classes)
    found = optimize.minimize(lambda x: penalised(log_probs, labels, *unpacked(x), count), start, tol=1e-9)
    return found.fun, *unpacked(found.x)


@pytest.mark.parametrize("classes", [4])
@pytest.mark.parametrize("fit", FITS)
def test_fit_is_that_of_scipy_in_float64(fit, classes):
    logits, labels = drawn(classes=classes)
    params = fit(logits, labels)
    assert params["converged"]
    log_probs = features(params, logits)
    least, matrix, biases = oracle(log_probs, labels, full="weights" in params)
    np.testing.assert_allclose(matrix_of(params), matrix, atol=1e-3)
    np.testing.assert_allclose(params["biases"], biases, atol=1e-3)
    got = penalised(log_probs, labels, matrix_of(params), np.float64(params["biases"]))
    np.testing.assert_allclose(got, least, atol=1e-6)


def test_joint_fit_is_never_worse_and_at_a_minimum():
    logits, labels = drawn()
    apart, together = fit_focal_vector_scaling(logits, labels), fit_focal_vector_scaling_jointly(logits, labels)

    def objective(params):
        return penalised(features(params, logits), labels, matrix_of(params), np.float64(params["biases"]))

    assert objective(together) < objective(apart) - 1e-5
    assert together["converged"]
    for name in ("gamma", "temperature"):
        for step in (-1e-2, 1e-2):
            assert objective(together | {name: together[name] + np.float32(step)}) > objective(together)


@pytest.mark.parametrize("fit", FITS)
def test_a_mask_is_a_subset_and_counts_are_repeats(fit):
    logits, labels = drawn(400)
    count = np.arange(400) % 3
    expected = fit(np.repeat(logits, count, axis=0), np.repeat(labels, count))
    logits[count == 0] = np.nan
    labels[count == 0] = -1
    for name, value in fit(logits, labels, count).items():
        np.testing.assert_allclose(value, expected[name], atol=2e-3)


def separable():
    logits = np.eye(4, dtype=np.float32)[np.arange(200) % 4] * 5
    return logits, np.argmax(logits, axis=1).astype(np.int32)


@pytest.mark.parametrize("fit", FITS)
def test_predictions_that_are_all_right_end_at_the_bracket_and_are_left_alone(fit):
    params = fit(*separable())
    assert not params["converged"]
    np.testing.assert_allclose(params["temperature"], 0.01, rtol=1e-4)
    np.testing.assert_allclose(matrix_of(params), np.eye(4), atol=1e-6)
    np.testing.assert_allclose(params["biases"], 0, atol=1e-6)


@pytest.mark.parametrize("fit", FITS)
def test_a_class_without_labels_and_fewer_examples_than_classes_leave_finite_numbers(fit):
    logits, labels = drawn(12, classes=20)
    params = fit(logits, labels)
    assert all(np.isfinite(value).all() for value in params.values())
    logits, labels = drawn()
    absent = fit(logits[labels != 1], labels[labels != 1])
    assert all(np.isfinite(value).all() for value in absent.values())
    assert absent["biases"][1] < absent["biases"].min(where=np.arange(4) != 1, initial=np.inf)


def test_fits_call_no_lapack():
    """Several at once would wait for each other in the thread pool of jaxlib 0.10.2's CPU."""
    logits, labels = drawn(30)
    for fitted in (*FITS, fit_focal_vector_scaling_jointly):
        assert "lapack" not in jax.jit(fitted).trace(logits, labels).lower(lowering_platforms=("cpu",)).as_text()
