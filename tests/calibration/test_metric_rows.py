"""Calibration rows against direct computation: metrics, intervals, bins, differences, two classes, groups."""

import functools

import jax
import msgspec
import numpy as np
import pytest
import scipy.special
import scipy.stats
from outputs import outputs
from reference import calibration as oracle

from focalgeo import calibration
from focalgeo.calibration import METHODS, Fitted, Sample
from focalgeo.calibration.methods import Calibrated
from focalgeo.calibration.metrics import METRICS
from focalgeo.calibration.study import metric_rows
from focalgeo.rows import Difference, Metric, ReliabilityBin, select
from focalgeo.types import DEFAULT_METRICS, InputError, RunError

NUM_BINS, NUM_RESAMPLES = 10, 40


def sampled(calibrated, labels, *, key=0, num_bins=NUM_BINS, num_resamples=NUM_RESAMPLES):
    return Sample("test", labels, calibrated, jax.random.key(key), num_bins, num_resamples)


def calibrated(logits, *, method="focal_temperature_scaling", criterion="ece", gamma=0.0, temperature=1.0):
    log_probs = calibration.focal_temperature_scaling(logits, np.float32(gamma), np.float32(temperature))
    return Calibrated(METHODS[method], criterion, log_probs)


@pytest.fixture(scope="module")
def sample():
    logits = 3 * jax.random.normal(jax.random.key(1), (150, 3))
    labels = jax.random.categorical(jax.random.key(2), 0.6 * logits)
    return np.asarray(logits), np.asarray(labels)


def test_metric_rows_are_the_metrics_and_intervals_of_the_log_probabilities(sample):
    logits, labels = sample
    given = [calibrated(logits, temperature=0.7), calibrated(logits, gamma=0.5, temperature=1.5)]
    rows = calibration.calibration_rows(sampled(given, labels, key=4))
    assert {(row.split, row.method, row.criterion) for row in rows} == {("test", "focal_temperature_scaling", "ece")}
    metrics = [row for row in rows if isinstance(row, Metric)]
    *metrics, floor, _ = metrics  # of an ECE, for each method
    assert [row.name for row in metrics] == 2 * list(DEFAULT_METRICS)
    expected = calibration.noise_floor(given[0].log_probs, num_bins=NUM_BINS)
    assert (floor.name, floor.value) == ("noise_floor", pytest.approx(expected.mean, rel=0.05))
    assert (floor.low, floor.high) == (0, pytest.approx(expected.high, rel=0.1))
    for row, each in zip(metrics, np.repeat(np.arange(2), len(DEFAULT_METRICS)), strict=True):
        entry = METRICS[row.name]
        metric = functools.partial(entry.function, num_bins=NUM_BINS) if entry.binned else entry.function
        log_probs = given[each].log_probs
        direct = calibration.bootstrap(metric, log_probs, labels, jax.random.key(4), NUM_RESAMPLES)
        np.testing.assert_allclose(row.value, metric(log_probs, labels), rtol=1e-5)
        assert row.n == 150
        if row.name == "accuracy":
            exact = scipy.stats.binomtest(round(row.value * row.n), row.n).proportion_ci(method="wilson")
            np.testing.assert_allclose((row.low, row.high), exact, rtol=1e-4)
        else:
            np.testing.assert_allclose((row.low, row.high), (max(direct.low, 0), direct.high), atol=0.6 * direct.stderr)


def test_reliability_rows_are_the_bins_that_hold_examples(sample):
    logits, labels = sample
    rows = calibration.calibration_rows(sampled([calibrated(logits)], labels))
    rows = select(rows, ReliabilityBin, name="reliability", split="test", method="focal_temperature_scaling")
    bins = calibration.reliability(jax.nn.log_softmax(logits), labels, num_bins=NUM_BINS)
    holding = np.flatnonzero(bins.count)
    assert 0 < len(holding) < NUM_BINS  # a bin below 1/3 cannot be met with three classes
    assert [row.bin for row in rows] == holding.tolist()
    assert sum(row.n for row in rows) == 150
    bins = jax.tree.map(lambda leaf: leaf[holding], bins)  # an empty one has no accuracy
    low, high = calibration.wilson_interval(bins.accuracy * bins.count, bins.count)
    columns = {"lower": bins.lower, "upper": bins.upper, "confidence": bins.confidence, "value": bins.accuracy}
    for name, column in {**columns, "low": low, "high": high}.items():
        np.testing.assert_allclose([getattr(row, name) for row in rows], column, rtol=1e-5)
    assert {row.share for row in rows} == {None}
    shares = [row.share for row in metric_rows.reliability_rows(bins, split="train", total=150)]
    np.testing.assert_allclose(shares, bins.count / 150)


def test_a_number_that_is_not_finite_is_an_error_that_says_which():
    logits, labels = outputs(20, 3)
    given = [calibrated(np.float32(1e37) * logits, method="temperature_scaling", criterion="nll")]
    with pytest.raises(RunError, match=r"not finite in .*'name': 'nll'.*'criterion': 'nll'"):
        calibration.calibration_rows(sampled(given, labels))


def test_every_metric_of_the_table_may_be_asked_for():
    logits, labels = outputs(150, 2)
    given = [calibrated(logits), calibrated(logits, temperature=1.1)]
    rows = calibration.calibration_rows(sampled(given, labels), pairs=[(1, 0)], names=list(METRICS))
    of_metrics = [row for row in select(rows, Metric) if row.name != "noise_floor"]
    assert [row.name for row in of_metrics] == 2 * list(METRICS)
    for row in of_metrics:
        assert METRICS[row.name].smallest <= row.low <= row.high <= METRICS[row.name].largest, row.name
        assert msgspec.json.decode(msgspec.json.encode(row), type=Metric) == row  # a row is read as it was written
    share, of_share = calibration.high_confidence(given[0].log_probs, labels)
    (confident,) = select(rows[: len(METRICS)], Metric, name="high_confidence_accuracy")
    size = round(150 * float(share))
    assert 10 < size < 140
    low, high = calibration.wilson_interval(np.round(size * of_share), size)
    np.testing.assert_allclose((confident.value, confident.low, confident.high), (of_share, low, high), rtol=1e-5)
    assert (confident.n, rows[0].n) == (size, 150)
    with pytest.raises(InputError, match="metrics is 'auc': did you mean 'aurc'"):
        calibration.calibration_rows(sampled(given, labels), names=["auc"])


def test_a_metric_without_meaning_has_no_row_and_such_a_resample_does_not_count():
    logits, _ = outputs(60, 3, sharpness=0.5)
    right = logits.argmax(axis=1).astype(np.int32)
    once = np.where(np.arange(60) == 7, (right + 1) % 3, right).astype(np.int32)
    names = ["nll", "confidence_auroc", "high_confidence", "high_confidence_accuracy"]
    given = [calibrated(logits), calibrated(logits, gamma=1.0)]
    rows = calibration.calibration_rows(sampled(given, right), pairs=[(1, 0)], names=names)
    assert [row.name for row in select(rows, Metric)] == 2 * ["nll", "high_confidence"]
    assert {row.name for row in select(rows, Difference)} == {"nll_difference", "high_confidence_difference"}
    rows = calibration.calibration_rows(sampled(given[:1], once), names=names)
    (area,) = select(rows, Metric, name="confidence_auroc")  # a third of the resamples have nothing wrong
    assert area.low < area.value < area.high


def reference_ece(logits, labels, temperature):
    probs = scipy.special.softmax(logits / temperature, axis=1)
    return oracle.ece(probs.max(axis=1), probs.argmax(axis=1) == labels, NUM_BINS)[0]


def test_difference_rows_compare_two_methods_on_the_same_resamples():
    rng = np.random.default_rng(0)
    logits = (3 * rng.standard_normal((400, 3))).astype(np.float32)
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), 1).astype(np.int32)
    plain = calibrated(logits, method="temperature_scaling", criterion="nll")
    worse = calibrated(logits, criterion="nll", temperature=3.0)
    sample = sampled([plain, worse], labels, num_resamples=300)
    row, of_nll = select(calibration.calibration_rows(sample, [(1, 0)], ("ece", "nll")), Difference)
    log_probs = np.asarray(jax.nn.log_softmax(np.stack([logits / 3, logits])))[:, np.arange(400), labels]
    assert of_nll.name == "nll_difference"
    assert of_nll.value == pytest.approx(np.mean(log_probs[1] - log_probs[0]), abs=1e-5)
    expected = reference_ece(logits, labels, 3.0) - reference_ece(logits, labels, 1.0)
    assert row.value == pytest.approx(expected, abs=1e-6)
    draws = []
    for _ in range(300):
        chosen = rng.integers(0, 400, 400)
        draws.append(
            reference_ece(logits[chosen], labels[chosen], 3.0) - reference_ece(logits[chosen], labels[chosen], 1.0)
        )
    assert row.value - row.low == pytest.approx(1.96 * np.std(draws), rel=0.2)
    assert row.high - row.value > 1.5 * (row.value - row.low)  # by what chance may have added to the calibrated one
    assert row.p_value < 1e-6
    assert (row.name, row.split, row.criterion, row.n) == ("ece_difference", "test", "nll", 400)
    assert (row.method, row.against) == ("focal_temperature_scaling", "temperature_scaling")
    same, *_ = select(calibration.calibration_rows(sampled([plain, plain], labels), [(1, 0)]), Difference)
    assert (same.value, same.low, same.high, same.p_value) == (0, 0, 0, 1)


def test_accuracy_is_compared_where_a_method_may_change_the_predicted_class(sample):
    logits, labels = sample
    turned = calibrated(-logits)
    turned = turned._replace(method=turned.method._replace(keeps_class=False))
    rows = select(calibration.calibration_rows(sampled([calibrated(logits), turned], labels), [(1, 0)]), Difference)
    assert [row.name for row in rows] == [f"{name}_difference" for name in DEFAULT_METRICS]
    right = [np.mean(np.argmax(z, 1) == labels) for z in (logits, -logits)]
    assert rows[0].value == pytest.approx(right[1] - right[0])


def test_methods_are_compared_with_plainer_ones_and_with_the_plainest_by_the_criterion():
    places = [("uncalibrated", None), ("a", "nll"), ("a", "ece"), ("b", "nll")]
    given = [Calibrated(METHODS["uncalibrated"]._replace(name=name), criterion, None) for name, criterion in places]
    plainer = {(1, 0), (2, 0), (3, 0), (2, 1), (3, 1), (3, 2)}
    assert set(calibration.comparisons(given, "nll")) == plainer
    assert set(calibration.comparisons(given, "ece")) == plainer | {(1, 2)}


def test_fit_rows_are_the_numbers_worth_showing():
    params = {"gamma": np.float32(0.5), "temperature": np.float32(1.5), "converged": True, "scales": np.ones(3)}
    fits = [
        Fitted(METHODS["uncalibrated"], None, {}),
        Fitted(METHODS["focal_temperature_scaling"], "nll", params),
        Fitted(METHODS["loss_implied_map"], None, {"gamma": np.float32(3)}),
    ]
    rows = calibration.fit_rows(fits, n=150)
    assert [(row.name, row.value) for row in rows] == [("calibration_gamma", 0.5), ("temperature", 1.5)]
    assert {(row.split, row.method, row.criterion, row.n) for row in rows} == {
        ("val", "focal_temperature_scaling", "nll", 150)
    }


def test_class_1_calibration_is_of_the_probability_of_class_1():
    logits, labels = outputs(500, 2)
    given = [calibrated(logits, method="temperature_scaling", temperature=1.3)]
    row, *others = metric_rows.class1_rows(sampled(given, labels))
    bins = select(others, ReliabilityBin)
    named = {each.name: each.value for each in select(others, Metric)}
    assert named.pop("events") == (labels == 1).sum()
    assert 0 < named.pop("class1_noise_floor") < 0.1
    expected = calibration.all_metrics(given[0].log_probs, labels, names=named)
    np.testing.assert_allclose(list(named.values()), list(expected.values()), rtol=1e-4)
    assert named.keys() >= {"auroc", "binary_brier", "calibration_slope", "calibration_intercept"}
    p = scipy.special.expit((logits[:, 1] - logits[:, 0]).astype(float) / 1.3)
    index = np.ceil(10 * p).astype(int) - 1
    assert row.name == "class1_ece"
    np.testing.assert_allclose(row.value, oracle.ece(p, labels == 1, NUM_BINS)[0], atol=1e-6)
    assert row.low <= row.value <= row.high
    assert {each.name for each in bins} == {"class1_reliability"}
    assert [each.n for each in bins] == [int((index == b).sum()) for b in range(10)]
    np.testing.assert_allclose([each.value for each in bins], [labels[index == b].mean() for b in range(10)])


def test_a_groups_rows_are_the_metrics_of_its_examples_alone():
    logits, labels = outputs(400, 3)
    group = np.random.default_rng(0).permutation(np.repeat(["few", "a", "b"], [99, 100, 201]))
    given = [calibrated(logits, method="uncalibrated", criterion=None)]
    rows = metric_rows.group_rows(sampled(given, labels), group)
    names = ("ece", "accuracy", "noise_floor")
    assert {(row.name, row.group) for row in rows[2:]} == {(f"group_{name}", group) for name in names for group in "ab"}
    floors, rows = rows[4::3], [row for row in rows if row.name != "group_noise_floor"]
    assert [row.group for row in floors] == ["a", "b"]
    for macro, *groups in zip(rows[:2], rows[2:4], rows[4:], strict=True):
        assert [row.name for row in (macro, *groups)] == [
            f"{kind}_{macro.name[6:]}" for kind in ("macro", "group", "group")
        ]
        np.testing.assert_allclose(macro.value, np.mean([row.value for row in groups]), atol=1e-7)
        assert macro.n == 400
    for row in rows[2:]:
        inside = group == row.group
        log_probs, own = jax.nn.log_softmax(logits[inside]), labels[inside]
        metric = calibration.accuracy if row.name == "group_accuracy" else calibration.ece
        options = {} if row.name == "group_accuracy" else {"num_bins": NUM_BINS}
        np.testing.assert_allclose(row.value, metric(log_probs, own, **options), atol=1e-6)
        assert row.low <= row.value <= row.high
        assert row.n == inside.sum()
    assert metric_rows.group_rows(sampled(given, labels), np.arange(400)) == []
    scores, generator = 2 * np.random.default_rng(1).standard_normal(4000) - 1, np.random.default_rng(2)
    labels, of_two = (
        (generator.random(4000) < 1 / (1 + np.exp(-scores))).astype(int),
        np.repeat(["sharp", "fair"], 2000),
    )
    logits = np.stack([0 * scores, np.where(of_two == "sharp", 1.6, 1) * scores], axis=1)
    rows = metric_rows.group_rows(sampled([calibrated(logits)], labels), of_two)
    lows = {row.group: row.low for row in select(rows, Metric, name="group_class1_ece")}
    high = {row.group: row.high for row in select(rows, Metric, name="group_class1_noise_floor")}
    assert lows["fair"] == 0 < lows["sharp"]
    assert 0.01 < high["fair"] < 0.05
    logits, labels = outputs(400, 2)
    rows = metric_rows.group_rows(sampled([calibrated(logits)], labels), group, ["calibration_slope"])
    for row in select(rows, Metric, name="group_calibration_slope"):
        inside = group == row.group
        expected = calibration.calibration_slope(jax.nn.log_softmax(logits[inside]), labels[inside])
        np.testing.assert_allclose(row.value, expected, rtol=1e-3)
        (events,) = select(rows, Metric, name="events", group=row.group)
        assert (events.value, events.n) == (labels[inside].sum(), inside.sum())
