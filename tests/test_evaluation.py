"""Predictions and calibration rows against direct computation on small data."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from focalgeo import calibration, data, evaluation, parallel
from focalgeo.types import Predictions, RunError, Split

EXAMPLES = 13
NUM_BINS, NUM_RESAMPLES = 10, 40
GAMMAS, TEMPERATURES = np.float32([-0.5, 0, 1]), np.float32([0.5, 1, 1.5, 2])


def apply(variables, x):
    """A network of 23 parameters; `scale` stands for what a model keeps beside its parameters."""
    hidden = jnp.tanh(x @ variables["params"]["hidden"] * variables["state"]["scale"])
    return hidden @ variables["params"]["head"] + variables["params"]["bias"][None]


@pytest.fixture(scope="module")
def net():
    """Parameters, model state and examples."""
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "hidden": jax.random.normal(keys[0], (2, 4)),
        "head": jax.random.normal(keys[1], (4, 3)),
        "bias": jnp.zeros(3),
    }
    x = np.array(jax.random.normal(keys[2], (EXAMPLES, 2)))
    y = np.array(jax.random.randint(keys[3], (EXAMPLES,), 0, 3))
    return params, {"state": {"scale": jnp.float32(0.7)}}, Split(x, y)


@pytest.fixture(scope="module")
def predictions():
    logits = 3 * jax.random.normal(jax.random.key(1), (150, 3))
    labels = jax.random.categorical(jax.random.key(2), 0.6 * logits)
    return Predictions(np.asarray(logits), np.asarray(labels), np.ones(150, bool))


def test_predictions_are_all_examples_once_and_in_order(net):
    params, state, split = net
    forward = parallel.pmapped_forward(apply)
    padded = data.evaluation_batches(split, batch_size=5, multiple_of=parallel.device_count())
    got = evaluation.predict(forward, {"params": params, **state}, padded)
    np.testing.assert_allclose(got.logits, apply({"params": params, **state}, split.x), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got.labels, split.y)
    assert (got.logits.dtype, got.mask.all(), len(got.mask)) == (np.float32, True, EXAMPLES)
    assert jax.device_count() == 2


def test_calibration_rows_are_the_metrics_and_intervals_of_the_calibrated_predictions(predictions):
    calibrator = evaluation.Calibrator({"map": "focal_temperature_scaling", "criterion": "ece"}, 0.5, 1.5)
    key = jax.random.key(4)
    rows = evaluation.calibration_rows(
        calibrator, "test", predictions, key, num_bins=NUM_BINS, num_resamples=NUM_RESAMPLES
    )
    place = {"split": "test", "map": "focal_temperature_scaling", "criterion": "ece"}
    assert all(row == {**row, **place} for row in rows)
    log_probs = calibration.focal_temperature_scaling(predictions.logits, 0.5, 1.5)
    expected = {
        "accuracy": calibration.accuracy,
        "nll": calibration.nll,
        "brier": calibration.brier,
        "ece": functools.partial(calibration.ece, num_bins=NUM_BINS),
        "adaptive_ece": functools.partial(calibration.adaptive_ece, num_bins=NUM_BINS),
    }
    found = {row["name"]: row for row in rows if "bin" not in row}
    assert found.keys() == expected.keys()
    for name, metric in expected.items():
        direct = calibration.bootstrap(metric, log_probs, predictions.labels, key, NUM_RESAMPLES)
        np.testing.assert_allclose(found[name]["value"], metric(log_probs, predictions.labels), rtol=1e-5)
        got = (found[name]["low"], found[name]["high"])
        if name == "accuracy":
            right = round(found[name]["value"] * found[name]["n"])
            exact = scipy.stats.binomtest(right, found[name]["n"]).proportion_ci(method="wilson")
            np.testing.assert_allclose(got, exact, rtol=1e-4)
            continue
        np.testing.assert_allclose(got, (direct.low, direct.high), rtol=1e-4)
        assert found[name]["n"] == 150


def test_reliability_rows_are_the_bins_that_hold_examples(predictions):
    rows = evaluation.calibration_rows(
        evaluation.UNCALIBRATED, "val", predictions, jax.random.key(4), num_bins=NUM_BINS, num_resamples=NUM_RESAMPLES
    )
    rows = [row for row in rows if "bin" in row]
    log_probs = jax.nn.log_softmax(predictions.logits)
    bins = calibration.reliability(log_probs, predictions.labels, num_bins=NUM_BINS)
    holding = np.flatnonzero(bins.count)
    assert 0 < len(holding) < NUM_BINS  # a bin below 1/3 cannot be met with three classes
    assert [row["bin"] for row in rows] == holding.tolist()
    assert sum(row["n"] for row in rows) == 150
    low, high = calibration.wilson_interval(bins.accuracy * bins.count, bins.count)
    columns = {"lower": bins.lower, "upper": bins.upper, "confidence": bins.confidence, "value": bins.accuracy}
    for name, column in {**columns, "low": low, "high": high}.items():
        np.testing.assert_allclose([row[name] for row in rows], column[holding], rtol=1e-5)


def test_one_program_serves_all_calibrators_and_splits_of_one_size(predictions, monkeypatch):
    reliability, traced = calibration.reliability, []

    def counted(log_probs, labels, **options):
        traced.append(log_probs.shape)
        return reliability(log_probs, labels, **options)

    monkeypatch.setattr(calibration, "reliability", counted)
    short = Predictions(*(array[:70] for array in predictions))
    for split in (predictions, predictions._replace(logits=-predictions.logits), short):
        for gamma, temperature in ((0.0, 1.0), (0.0, 2.0), (1.0, 0.5)):
            calibrator = evaluation.Calibrator({}, gamma, temperature)
            evaluation.calibration_rows(calibrator, "val", split, jax.random.key(0), num_bins=4, num_resamples=2)
    assert traced == [(150, 3), (70, 3)]


@pytest.mark.parametrize("binning", ["ece", "adaptive_ece"])
def test_each_calibrator_is_the_best_of_its_part_of_the_grid(predictions, binning):
    calibrators, search = evaluation.fit_calibrators(
        predictions, gammas=GAMMAS, temperatures=TEMPERATURES, num_bins=NUM_BINS, binning=binning
    )
    assert [(c.place["criterion"], c.place["map"]) for c in calibrators] == [
        (criterion, name)
        for criterion in ("ece", "nll")
        for name in ("temperature_scaling", "focal_temperature_scaling")
    ]
    metrics = {"ece": functools.partial(getattr(calibration, binning), num_bins=NUM_BINS), "nll": calibration.nll}

    @jax.jit
    def measured(gamma, temperature):
        log_probs = calibration.focal_temperature_scaling(predictions.logits, gamma, temperature)
        return {name: metric(log_probs, predictions.labels) for name, metric in metrics.items()}

    for calibrator in calibrators:
        criterion, focal = calibrator.place["criterion"], calibrator.place["map"] == "focal_temperature_scaling"
        allowed = GAMMAS if focal else [0.0]
        assert calibrator.gamma in allowed
        best = min(float(measured(gamma, t)[criterion]) for gamma in allowed for t in TEMPERATURES)
        reached = float(measured(calibrator.gamma, calibrator.temperature)[criterion])
        np.testing.assert_allclose(reached, best, rtol=1e-5)
    assert search.ece.shape == search.nll.shape == (3, 4)
    temperature, gamma = evaluation.fit_rows(calibrators[3], 150)
    assert (temperature["value"], gamma["value"]) == (calibrators[3].temperature, calibrators[3].gamma)
    assert gamma == {**gamma, "name": "calibration_gamma", "split": "val", "criterion": "nll", "n": 150}


def test_a_number_that_is_not_finite_is_an_error_that_says_which(predictions):
    calibrator = evaluation.Calibrator({"map": "temperature_scaling", "criterion": "nll"}, 0.0, 1.0)
    huge = predictions._replace(logits=1e37 * predictions.logits)
    with pytest.raises(
        RunError, match=r"^nll \(split test, map temperature_scaling, criterion nll\) has value (inf|nan):"
    ):
        evaluation.calibration_rows(
            calibrator, "test", huge, jax.random.key(0), num_bins=NUM_BINS, num_resamples=NUM_RESAMPLES
        )


def numpy_ece(logits, labels, temperature):
    probs = np.exp(logits / temperature - np.max(logits / temperature, 1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    bins = np.ceil(confidence * NUM_BINS).astype(int)
    gaps = [abs(np.sum(correct[bins == i] - confidence[bins == i])) for i in range(NUM_BINS + 1)]
    return sum(gaps) / len(labels)


def test_difference_rows_compare_the_two_maps_on_the_same_resamples():
    rng = np.random.default_rng(0)
    logits = (3 * rng.standard_normal((400, 3))).astype(np.float32)
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), 1).astype(np.int32)
    place = {"criterion": "nll"}
    plain = evaluation.Calibrator({"map": "temperature_scaling", **place}, 0.0, 1.0)
    worse = evaluation.Calibrator({"map": "focal_temperature_scaling", **place}, 0.0, 3.0)
    predicted = Predictions(logits, labels, np.ones(400, bool))
    settings = {"num_bins": NUM_BINS, "num_resamples": 300}
    rows = evaluation.difference_rows([plain, worse], "test", predicted, jax.random.key(0), **settings)
    row, of_nll = rows
    log_probs = np.asarray(jax.nn.log_softmax(np.stack([logits / 3, logits])))[:, np.arange(400), labels]
    assert of_nll["name"] == "nll_difference"
    assert of_nll["value"] == pytest.approx(np.mean(log_probs[1] - log_probs[0]), abs=1e-5)
    expected = numpy_ece(logits, labels, 3.0) - numpy_ece(logits, labels, 1.0)
    assert row["value"] == pytest.approx(expected, abs=1e-6)
    draws = []
    for _ in range(300):
        chosen = rng.integers(0, 400, 400)
        draws.append(numpy_ece(logits[chosen], labels[chosen], 3.0) - numpy_ece(logits[chosen], labels[chosen], 1.0))
    assert row["high"] - row["value"] == pytest.approx(1.96 * np.std(draws), rel=0.2)
    assert row["low"] + row["high"] == pytest.approx(2 * row["value"])
    assert row["p_value"] < 1e-6
    names = {"name": "ece_difference", "split": "test", "map": "focal_temperature_scaling", "n": 400}
    assert row.items() >= {**names, **place, "against": "temperature_scaling"}.items()
    same, _ = evaluation.paired_rows(plain, plain, "test", predicted, jax.random.key(0), **settings)
    assert (same["value"], same["low"], same["high"], same["p_value"]) == (0, 0, 0, 1)
