"""Methods and metrics of two classes against scikit-learn, scipy and NumPy in float64."""

import jax
import numpy as np
import pytest
from scipy.optimize import brentq, minimize
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score

from focalgeo import calibration, types
from focalgeo.calibration import METHODS, METRICS, fit
from focalgeo.types import InputError

LOGISTIC = ("platt_scaling", "beta_calibration", "quadratic_scaling")
OF_CLASS_ONE = ("rms_calibration_error", "adaptive_rms_calibration_error", "ici", *types.OF_CLASS_ONE)


def log_probs_of(p):
    return np.log(np.stack([1 - p, p], axis=1)).astype(np.float32)


@pytest.mark.parametrize("name", [*OF_CLASS_ONE, "binary_ece", "binary_reliability"])
def test_metrics_of_two_classes_take_p_of_class_one(name):
    metric, (logits, labels) = getattr(calibration, name), drawn(300)
    p = expit(log_odds_of(logits))
    expected = metric(calibration.log_probabilities(np.stack([1 - p, p], axis=1)), labels)
    np.testing.assert_array_equal(metric(p, labels), expected)
    np.testing.assert_allclose(jax.jit(metric)(np.float32(p), labels), expected, atol=1e-4)
    counts, other = np.arange(300) < 200, np.where(np.arange(300) < 200, p, np.nan)
    for how in ({"mask": counts}, {"weights": np.float32(counts)}):
        np.testing.assert_allclose(metric(other, labels, **how), metric(p[:200], labels[:200]), atol=1e-5)
    with pytest.raises(InputError, match=r"of log-odds s give .*: give a value from 0 to 1"):
        metric(logits[:, 1], labels)


def drawn(examples, seed=0, scale=1.0):
    """Logits of two classes that are off by a curve, a scale and a shift, and labels."""
    generator = np.random.default_rng(seed)
    true = 1.5 * generator.normal(size=examples) + 0.3
    labels = (generator.uniform(size=examples) < expit(true)).astype(np.int32)
    log_odds = (scale * (true * (1 + 0.2 * np.abs(true)) + 0.5)).astype(np.float32)
    return np.stack([-log_odds / 4, 3 * log_odds / 4], axis=1), labels


def log_odds_of(logits):
    return np.float64(logits[:, 1]) - np.float64(logits[:, 0])


def columns(name, s):
    one, log_p, log_q = np.ones_like(s), -np.logaddexp(0, -s), -np.logaddexp(0, s)
    return np.stack({LOGISTIC[0]: [s, one], LOGISTIC[1]: [log_p, -log_q, one], LOGISTIC[2]: [s * s, s, one]}[name], 1)


def nll_of_targets(name, s, labels, numbers):
    """Mean NLL of Platt's targets in float64, and its slopes."""
    table, ones = columns(name, s), labels.sum()
    target = np.where(labels == 1, (ones + 1) / (ones + 2), 1 / (len(labels) - ones + 2))
    scores = table @ numbers
    nll = np.mean(target * np.logaddexp(0, -scores) + (1 - target) * np.logaddexp(0, scores))
    return nll, table.T @ (expit(scores) - target) / len(labels)


def numbers_of(fitted):
    return np.float64([fitted.params[key] for key in "abc" if key in fitted.params])


@pytest.mark.parametrize("name", LOGISTIC)
@pytest.mark.parametrize(
    ("examples", "scale", "turned"), [(150, 1.0, 0), (300, 3.0, 1), (2000, 0.2, 0), (2000, 30.0, 0)]
)
def test_fits_have_the_least_nll_of_platts_targets(name, examples, scale, turned):
    logits, labels = drawn(examples, scale=scale)
    labels = np.abs(labels - turned)  # turned: beta calibration's numbers are at their bound, 0
    s, bound = log_odds_of(logits), 0 if name == "beta_calibration" else None
    bounds = [(bound, None)] * (columns(name, s).shape[1] - 1) + [(None, None)]
    sizes = np.abs(columns(name, s)).max(axis=0)  # of the columns: scipy's steps suit numbers near 1

    def scaled(numbers):
        nll, slopes = nll_of_targets(name, s, labels, numbers / sizes)
        return nll, slopes / sizes

    least = minimize(scaled, np.zeros(len(sizes)), jac=True, bounds=bounds, tol=1e-14, options={"maxiter": 5000})
    fitted = fit(name, logits, labels)
    assert fitted.converged
    assert name != "beta_calibration" or numbers_of(fitted)[:2].min() >= 0  # so that it never falls
    assert nll_of_targets(name, s, labels, numbers_of(fitted))[0] - least.fun < 2e-7
    expected = expit(columns(name, s) @ numbers_of(fitted))
    np.testing.assert_allclose(fitted.predict_proba(logits)[:, 1], expected, atol=2e-6)


def test_beta_calibration_never_falls_and_is_betacals():
    betacal = pytest.importorskip("betacal")
    logits, labels = drawn(2000)
    p = expit(log_odds_of(logits))
    expected = betacal.BetaCalibration().fit(p, labels).predict(p)
    np.testing.assert_allclose(fit("beta_calibration", logits, labels).predict_proba(logits)[:, 1], expected, atol=3e-3)


@pytest.mark.parametrize("name", LOGISTIC)
def test_labels_that_a_threshold_parts_are_fitted_and_what_saturates_keeps_its_order(name):
    s = np.float32([-60, -30, -9, -8, 7, 9, 40, 90])
    logits, labels = np.stack([0 * s, s], axis=1), (s > 0).astype(np.int32)
    fitted = fit(name, logits, labels)
    assert fitted.converged
    log_probs = np.asarray(fitted.predict_log_proba(logits))
    assert np.isfinite(log_probs).all()
    np.testing.assert_array_equal(log_probs[2:-2].argmax(axis=1), labels[2:-2])  # a square turns round far out
    numbers = {key: np.float32(key != "a" or name != "quadratic_scaling") for key in "abc"}
    again = METHODS[name].apply(numbers, np.float32([[60, 0], [90, 0]]))
    assert again[0, 1] != again[1, 1] != 0  # P(1) rounds to 0, its logarithm does not


def test_binary_isotonic_is_scikit_learns():
    logits, labels = drawn(400)
    counts = np.random.default_rng(1).poisson(1.0, 400)
    model = IsotonicRegression(y_min=1 / (counts.sum() + 2), y_max=1 - 1 / (counts.sum() + 2), out_of_bounds="clip")
    model.fit(log_odds_of(logits), labels, counts)
    fresh, _ = drawn(400, seed=1, scale=1.5)
    found = fit("binary_isotonic", logits, labels, weights=counts).predict_proba(fresh)
    np.testing.assert_allclose(found[:, 1], model.predict(log_odds_of(fresh)), atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)


def test_methods_and_metrics_refuse_more_classes_and_are_the_default_of_two():
    logits, labels = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 3
    log_probs = jax.nn.log_softmax(np.float32(logits))
    for name in (*LOGISTIC, "binary_isotonic"):
        assert METHODS.keys() & calibration.usable(METHODS, {}, 2).keys() >= {name}
        assert name in calibration.DEFAULT_METHODS
        with pytest.raises(InputError, match=r"logits have 3 classes, .* takes 2 at most: choose another method"):
            fit(name, logits, labels)
    for name in OF_CLASS_ONE:
        with pytest.raises(InputError, match=r"log_probs: has shape \(30, 3\) but expected \(None, 2\)"):
            METRICS[name].function(log_probs, labels)


@pytest.mark.filterwarnings("ignore::focalgeo.types.DataWarning")  # they say no more than chance
def test_a_class_without_an_example_leaves_the_methods_of_two_out():
    logits, _ = drawn(300)
    compared = calibration.compare((logits, np.zeros(300, np.int32)), num_resamples=100, criteria=("nll",))
    assert {*LOGISTIC, "binary_isotonic"} <= compared.choice.refused.keys()


@pytest.mark.parametrize("scale", [0.2, 1.0, 8.0])
@pytest.mark.parametrize("digits", [7, 2])
def test_metrics_are_scikit_learns_and_the_formulas_in_float64(scale, digits):
    logits, labels = drawn(1500, scale=scale)
    p = np.clip(np.round(expit(log_odds_of(logits)), digits), 0.01, 0.99)
    s, log_probs = np.log(p / (1 - p)), log_probs_of(p)
    measured = {name: float(jax.jit(METRICS[name].function)(log_probs, labels)) for name in OF_CLASS_ONE}
    bins = np.ceil(15 * p - 1e-6).astype(int)
    gaps = [(bins == b).mean() * (p[bins == b].mean() - labels[bins == b].mean()) ** 2 for b in np.unique(bins)]
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(s[:, None], labels)
    intercept = minimize(lambda b: np.mean(np.logaddexp(0, s + b) - labels * (s + b)), [0.0], tol=1e-12).x[0]
    expected = {
        "auroc": roc_auc_score(labels, p),
        "binary_brier": brier_score_loss(labels, p),
        "rms_calibration_error": np.sqrt(sum(gaps)),
        "ici": np.mean(np.abs(p - loess(p, labels))),
        "calibration_slope": model.coef_[0, 0],
        "calibration_intercept": intercept,
        "spiegelhalter_z": np.sum((labels - p) * (1 - 2 * p)) / np.sqrt(np.sum((1 - 2 * p) ** 2 * p * (1 - p))),
    }
    tolerance = dict.fromkeys(OF_CLASS_ONE, 3e-6) | {"ici": 1e-3, "spiegelhalter_z": 1e-3}
    tolerance |= dict.fromkeys(("calibration_slope", "calibration_intercept"), 1e-4)
    tolerance["rms_calibration_error"] = 1e-5  # sums of a bin: in which order is the processor's
    for name, value in expected.items():
        np.testing.assert_allclose(measured[name], value, atol=tolerance[name], err_msg=name)


def loess(p, labels):
    """Local quadratics at each distinct p: tricube weights over the nearest 75%, by NumPy's polyfit."""
    smoothed = {}
    for point in np.unique(p):
        far = np.abs(p - point)
        width = np.sort(far)[int(np.ceil(0.75 * len(p))) - 1]
        weight = np.sqrt(np.maximum(1 - (far / width) ** 3, 0) ** 3)
        smoothed[point] = np.polyfit(p - point, labels, 2, w=weight)[-1]
    return np.array([smoothed[point] for point in p])


def test_ici_is_loess_with_a_far_value_too():
    generator = np.random.default_rng(0)
    p = np.append(generator.uniform(0.2, 0.21, 399), 0.9)
    labels = (generator.uniform(size=400) < p).astype(np.int32)
    log_probs = log_probs_of(p)
    p = np.exp(log_probs[:, 1].astype(np.float64))
    np.testing.assert_allclose(
        float(calibration.ici(log_probs, labels)), np.mean(np.abs(p - loess(p, labels))), atol=1e-3
    )


@pytest.mark.parametrize("name", [*LOGISTIC])
def test_a_column_without_spread_is_no_regressor(name):
    """Equal P(1), but for rounding: what is left is the smoothed share of class 1."""
    labels = np.repeat(np.int32([1, 0]), [30, 10])
    jitter = np.float32([1, 1 + 1e-7])[np.arange(40) % 2]
    for logits in (np.log([0.8, 0.2]), np.float32([0, -87.3]), np.float32([0, 3])):
        rows = np.float32(logits)[None] * jitter[:, None]
        probs = calibration.fit(name, rows, labels).predict_proba(rows)[:, 1]
        np.testing.assert_allclose(probs, (30 * 31 / 32 + 10 / 12) / 40, atol=1e-4)


def test_ranks_are_those_of_log_odds_where_probabilities_round_to_one():
    generator = np.random.default_rng(1)
    s = generator.normal(size=2000) * 30
    labels = (generator.uniform(size=2000) < expit(s / 20)).astype(np.int32)
    log_probs = np.asarray(calibration.temperature_scaling(np.stack([0 * s, s], axis=1).astype(np.float32), 1.0))
    right = (s > 0) == labels
    found = calibration.auroc(log_probs, labels), calibration.confidence_auroc(log_probs, labels)
    np.testing.assert_allclose(found, [roc_auc_score(labels, s), roc_auc_score(right, np.abs(s))], atol=1e-5)
    warmer = calibration.temperature_scaling(log_probs, 4.0)
    np.testing.assert_allclose(found[0], calibration.auroc(warmer, labels), atol=1e-5)


def test_a_slope_or_intercept_near_zero_is_found():
    of = jax.jit(
        lambda p, labels: (calibration.calibration_slope(p, labels), calibration.calibration_intercept(p, labels))
    )
    for seed in range(30):
        rng = np.random.default_rng(seed)
        s = rng.normal(-2, 1.3, 3000)
        labels, p = np.int32(rng.uniform(size=3000) < expit(s)), expit(1.6 * s + 0.8)
        slope = LogisticRegression(C=np.inf, tol=1e-10).fit(logit(p)[:, None], labels).coef_[0, 0]
        intercept = brentq(lambda b, s, share: expit(s + b).mean() - share, -9, 9, (logit(p), labels.mean()))
        np.testing.assert_allclose(of(p, labels), (slope, intercept), atol=1e-4)


def test_both_names_of_the_classes_have_the_same_slope_and_interval():
    generator = np.random.default_rng(2)
    s = 1.5 * generator.normal(size=100)
    labels = np.zeros(100, np.int32)
    labels[np.argsort(-s + 2 * generator.normal(size=100))[:5]] = 1
    log_probs = np.log(np.stack([expit(-s), expit(s)], axis=1)).astype(np.float32)
    pairs = (log_probs, labels), (log_probs[:, ::-1], 1 - labels)
    one, other = (calibration.bootstrap(calibration.calibration_slope, *pair, 0, 300) for pair in pairs)
    np.testing.assert_allclose(one[:4], other[:4], rtol=1e-3)
    for of in (calibration.calibration_slope, calibration.calibration_intercept):
        assert np.isnan(of(log_probs, np.ones(100, np.int32)))
        assert np.isnan(of(log_probs, np.zeros(100, np.int32)))
        sure = np.where(np.arange(100)[:, None] == 7, np.float32([np.log(1.1754944e-38), 0]), log_probs)
        assert np.isnan(of(sure, labels))
    assert np.isnan(calibration.calibration_slope(log_probs, (s > 0.3).astype(np.int32)))


def test_calibrated_probabilities_have_slope_one_and_a_standard_normal_z():
    generator, values = np.random.default_rng(0), []
    metric = jax.jit(lambda *of: [METRICS[name].function(*of) for name in OF_CLASS_ONE[-3:]])
    for _ in range(300):
        p = generator.beta(1, 2, 500)
        log_probs = log_probs_of(p)
        values.append(metric(log_probs, (generator.uniform(size=500) < p).astype(np.int32)))
    slope, intercept, z = np.float64(values).T
    assert abs(slope.mean() - 1) < 0.03
    assert abs(intercept.mean()) < 0.02
    assert abs(z.mean()) < 0.2
    assert 0.9 < z.std() < 1.1


def test_where_a_threshold_parts_the_labels_there_is_no_slope_and_of_one_label_no_intercept():
    s = np.float32([-3, -2, -1, 1, 2, 3])
    log_probs, labels = np.asarray(jax.nn.log_softmax(np.stack([0 * s, s], axis=1))), (s > 0).astype(np.int32)
    assert np.isnan(calibration.calibration_slope(log_probs, labels))
    assert np.isnan(calibration.calibration_intercept(log_probs, 0 * labels))
    np.testing.assert_allclose(calibration.calibration_intercept(log_probs, labels), 0, atol=1e-6)
    assert np.isnan(calibration.auroc(log_probs, 0 * labels))
    saturated = np.asarray(jax.nn.log_softmax(np.stack([0 * s, 1000 * s], axis=1)))
    assert np.isnan(calibration.spiegelhalter_z(saturated, 1 - labels))
    sure = np.log(
        np.float32([[1, 0], [0.2, 0.8]]), where=[[True, False], [True, True]], out=np.full((2, 2), -np.inf, np.float32)
    )
    assert np.isnan(calibration.calibration_slope(sure, np.int32([0, 1])))
