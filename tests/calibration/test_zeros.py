"""What probabilities of 0 stand for: cut, voted, rounded and tiny ones, by every door."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from focalgeo import calibration
from focalgeo.calibration.methods.zeros import Zeros, are_zeros, candidates, chosen
from focalgeo.types import floored_log

N, SHARP = 1500, 1.5
FLOORS = np.geomspace(1e-9, 0.1, 17)


def overconfident(seed, classes=20, times=SHARP, size=2 * N):
    """Probabilities that are too sharp, and labels from what they should be."""
    generator = np.random.default_rng(seed)
    logits = 2 * generator.standard_normal((size, classes))
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(1)
    return softmax(times * logits, axis=1), labels, generator


def best_temperature(logits, labels):
    def loss(log_temperature, rows=logits):
        return -log_softmax(rows / np.exp(log_temperature), axis=1)[np.arange(len(labels)), labels].mean()

    found = minimize_scalar(loss, bounds=(-3, 4), method="bounded", options={"xatol": 1e-5})
    return np.exp(found.x)


def nll_on_test(logits, labels):
    """Of temperature scaling fitted on the first half, on the second."""
    temperature = best_temperature(logits[:N], labels[:N])
    scores = log_softmax(logits[N:] / temperature, axis=1)
    return -scores[np.arange(N), labels[N:]].mean()


def cut(probs, generator, at):
    kept = np.where(probs < at, 0, probs)
    return kept / kept.sum(axis=1, keepdims=True)


def votes(probs, generator, trees, impure=0.0):
    shares = np.array([generator.multinomial(trees, row) for row in probs]) / trees
    rows = generator.random(len(probs)) < impure
    leaf = np.where(probs > 1 / probs.shape[1], probs, 0) + np.eye(probs.shape[1])[probs.argmax(axis=1)] / 2
    leaf /= leaf.sum(axis=1, keepdims=True)
    shares[rows] = shares[rows] * (1 - 1 / trees) + leaf[rows] / trees
    return shares


KINDS = {
    "cut at 1e-3": lambda p, g: cut(p, g, 1e-3),
    "cut at 1e-4": lambda p, g: cut(p, g, 1e-4),
    "cut at 1e-5": lambda p, g: cut(p, g, 1e-5),
    "cut at 1e-3 alone": lambda p, g: np.where(p < 1e-3, 0, p),
    "5 trees": lambda p, g: votes(p, g, 5),
    "20 trees": lambda p, g: votes(p, g, 20),
    "100 trees": lambda p, g: votes(p, g, 100),
    "500 trees": lambda p, g: votes(p, g, 500),
    "20 trees, some leaves impure": lambda p, g: votes(p, g, 20, 0.1),
    "100 trees, some leaves impure": lambda p, g: votes(p, g, 100, 0.05),
    "2 decimals": lambda p, g: np.round(p, 2),
    "3 decimals": lambda p, g: np.round(p, 3),
    "4 decimals": lambda p, g: np.round(p, 4),
    "6 decimals": lambda p, g: np.round(p, 6),
    "naive Bayes": lambda p, g: softmax(40 * np.log(p), axis=1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_chosen_is_as_good_as_the_best_floor_of_a_grid(kind):
    probs, labels, generator = overconfident(len(kind))
    logits = floored_log(KINDS[kind](probs, generator))
    found = chosen(logits[:N], labels[:N], np.ones(N))
    after = nll_on_test(logits if found is None else found.filled(logits), labels)
    best = min(nll_on_test(np.where(are_zeros(logits), np.log(floor), logits), labels) for floor in (*FLOORS, 1e-38))
    assert after < best + 0.01


def test_a_class_that_cannot_be_leaves_zeros_what_they_count_as():
    rows = np.array([[-np.inf, 1e-30, 0.8], [0.2, 1e-30, 0.5], [-np.inf, 1e-30, 1.0]], np.float32)
    logits = np.where(np.isinf(rows), rows, floored_log(np.where(rows < 1e-20, 0, rows)))
    found = Zeros("half_least", 0.05).filled(np.vstack([logits, floored_log(np.array([[0.9, 0.1, 0]], np.float32))]))
    assert_allclose(found[:, 1:].min(axis=1), np.log([0.05, 0.05, 0.05, 0.05]), rtol=1e-6)
    assert (Zeros("none", 1.1754944e-38).filled(logits)[:, 1] > -87.34).all()


def test_outputs_that_are_cut_end_near_those_that_are_not():
    """20 classes, T = 1.5, cut at 1e-3: without a floor T is 4.4 and temperature scaling doubles the ECE."""
    for seed in range(3):
        probs, labels, generator = overconfident(seed, size=8000)
        val, test = slice(0, 4000), slice(4000, None)
        exact, logits = np.log(probs).astype(np.float32), calibration.log_probabilities(cut(probs, generator, 1e-3))
        whole, part = (calibration.fit("temperature_scaling", z[val], labels[val]) for z in (exact, logits))
        assert abs(part.searched["temperature"] / whole.searched["temperature"] - 1) < 0.1
        ece = [
            float(calibration.ece(fit.predict_log_proba(z[test]), labels[test]))
            for fit, z in ((whole, exact), (part, logits))
        ]
        assert ece[1] < ece[0] + 0.01
        assert best_temperature(logits[val], labels[val]) > 2.5  # with zeros as 1.2e-38


def test_zeros_serve_the_nll_alone():
    """Five neighbours' votes: accuracy, ECE and Brier score are those of the outputs as they are."""
    probs, labels, generator = overconfident(0, classes=10, size=600)
    shares = votes(probs, generator, 5)
    logits = np.asarray(calibration.log_probabilities(shares))
    compared = calibration.compare((logits[:300], labels[:300]), (logits[300:], labels[300:]), num_resamples=100)
    rows = {row.name: row.value for row in compared.rows if row.split == "test" and row.method == "uncalibrated"}
    truth = np.eye(10)[labels[300:]]
    assert_allclose(rows["brier"], np.square(shares[300:] - truth).sum(axis=1).mean(), rtol=1e-4)
    assert_allclose(rows["ece"], float(calibration.ece(logits[300:], labels[300:])), rtol=1e-4)
    zeros = compared.fits[0].zeros
    filled = log_softmax(zeros.filled(logits[300:]), axis=1)
    assert_allclose(rows["nll"], -filled[np.arange(300), labels[300:]].mean(), rtol=1e-4)
    assert rows["nll"] < 0.5 * float(calibration.nll(logits[300:], labels[300:]))
    alone = calibration.fit("temperature_scaling", logits[:300], labels[:300])
    scaled = next(fit for fit in compared.fits if fit.method.name == "temperature_scaling")
    assert alone.zeros == zeros
    assert alone.searched == scaled.searched
    by_ece = calibration.fit("temperature_scaling", logits[:300], labels[:300], criterion="ece")
    assert not by_ece.fills_zeros
    assert np.exp(by_ece.predict_log_proba(logits[:9]))[shares[:9] == 0].max() < 1e-6


@pytest.mark.parametrize("name", ["temperature_scaling", "focal_vector_scaling", "ensemble_temperature_scaling"])
def test_a_calibrator_says_what_zeros_stand_for_wherever_it_is_used(name, tmp_path):
    import jax

    probs, labels, generator = overconfident(1, size=800)
    for kind in ("cut at 1e-3", "3 decimals"):
        logits = floored_log(KINDS[kind](probs, generator))
        fitted = calibration.fit(name, logits[:400], labels[:400])
        rows = logits[400:]
        expected = fitted.predict_proba(rows)
        (tmp_path / "calibrator.json").write_text(fitted.to_json())
        again = calibration.read_calibrator(tmp_path / "calibrator.json")
        assert again.zeros == fitted.zeros
        assert (again.predict_proba(rows) == expected).all()
        assert_allclose(jax.jit(fitted.predict_proba)(rows), expected, atol=2e-5)
        names = {}
        exec(fitted.to_numpy(), names)
        assert_allclose(names["predict_proba"](rows), expected, atol=2e-5)


def test_a_classifier_of_votes_is_calibrated_as_its_outputs():
    sklearn = pytest.importorskip("sklearn.ensemble")
    generator = np.random.default_rng(0)
    x = generator.standard_normal((900, 5))
    y = (x[:, :3] + 0.7 * generator.gumbel(size=(900, 3))).argmax(axis=1)
    forest = sklearn.RandomForestClassifier(30, random_state=0).fit(x[:300], y[:300])
    val = x[300:600], y[300:600]
    calibrated = calibration.CalibratedClassifier(forest, "temperature_scaling", cv="prefit").fit(*val)
    fitted = calibration.fit("temperature_scaling", floored_log(forest.predict_proba(val[0])), val[1])
    probs = fitted.predict_proba(floored_log(forest.predict_proba(x[600:])))
    assert_allclose(calibrated.predict_proba(x[600:]), probs, atol=1e-6)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(2, 30), st.integers(0, 99), st.floats(-100, 100))
def test_no_logits_are_taken_for_zeros(classes, seed, shift):
    generator = np.random.default_rng(seed)
    logits = np.float32(generator.normal(scale=40, size=(50, classes)) + shift)
    assert not are_zeros(logits).any()
    probs = softmax(logits.astype(np.float64), axis=1)
    assert (are_zeros(floored_log(probs)) == (probs <= 1.1754944e-38)).all()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(2, 12), st.integers(1, 50), st.integers(0, 99))
def test_filled_rows_keep_their_order_and_what_is_above_zero(classes, trees, seed):
    generator = np.random.default_rng(seed)
    rows = generator.dirichlet(np.ones(classes), size=21)
    shares = np.vstack([generator.multinomial(trees, rows[:20]) / trees, rows[20:]])
    logits = floored_log(shares)
    for candidate in candidates(shares) if (shares == 0).any() else ():
        filled = candidate.filled(logits)
        assert (filled[shares > 0] == logits[shares > 0]).all()
        least = np.where(shares > 0, filled, 0).min(axis=1)
        assert (np.where(shares == 0, filled, -np.inf).max(axis=1) < least).all()
        assert (filled[shares == 0] > logits[shares == 0] - 1e-3).all()


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_few_examples_and_one_zero_among_many_numbers_have_a_choice(n, monkeypatch):
    from focalgeo.calibration.methods import zeros

    probs, labels, generator = overconfident(n, size=max(n, 40))
    few = floored_log(cut(probs[:n], generator, 1e-2))
    assert chosen(few, labels[:n], np.ones(n)).name in zeros._MEANINGS
    monkeypatch.setattr(zeros, "_MOST_NUMBERS", 200)
    one = np.where(np.arange(20) == 3, 0, probs[37])
    rows = floored_log(np.vstack([probs[:37], one / one.sum()]))
    assert chosen(rows, labels[:38], np.ones(38)).name in zeros._MEANINGS
