"""Metrics against plain loops, the papers' record and the laws that every one of them keeps."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from outputs import predictions
from reference import calibration as oracle
from sklearn.metrics import roc_auc_score

from focalgeo import calibration
from focalgeo.calibration import METRICS

close = partial(np.testing.assert_allclose, atol=1e-6)
OTHERS = {name: getattr(calibration, name) for name in ("debiased_squared_ece", "brier_split", "binary_ece")}
FUNCTIONS = {name: entry.function for name, entry in METRICS.items()} | OTHERS
OF_CLASS_ONE = {"binary_ece", *(name for name, entry in METRICS.items() if entry.shown.note.startswith("of P(1)"))}
smooth_ece = jax.jit(calibration.smooth_ece)


def top(log_probs, labels):
    probs = np.asarray(jnp.exp(log_probs))
    return probs.max(axis=1), probs.argmax(axis=1) == labels


@pytest.mark.parametrize("name", FUNCTIONS)
def test_masks_and_counts_are_examples_left_out_and_repeated(name):
    metric = jax.jit(FUNCTIONS[name])
    log_probs, labels = predictions(90, 2 if name in OF_CLASS_ONE else 4)
    labels = np.where(np.arange(90) % 2, labels, log_probs.argmax(axis=1)).astype(np.int32)
    keep = np.arange(90) % 3 > 0
    padded = np.where(keep[:, None], log_probs, np.nan)
    close(metric(padded, labels, mask=keep), metric(log_probs[keep], labels[keep]))
    counts = np.random.default_rng(3).poisson(1.0, 90)
    repeated = np.repeat(np.arange(90), counts)
    weights = counts.astype(np.float32)
    value = metric(log_probs, labels, weights=weights)
    close(value, metric(log_probs[repeated], labels[repeated]))
    close(metric(padded, labels, mask=keep, weights=weights), metric(log_probs, labels, weights=keep * weights))
    assert np.isnan(metric(log_probs, labels, weights=0 * counts)).all()
    if name in METRICS:
        assert METRICS[name].smallest <= value <= METRICS[name].largest


def test_bfloat16_is_the_float32_number_it_is():
    log_probs, labels = predictions(600, 2)
    measured = jax.jit(lambda log_probs: [metric(log_probs, labels) for metric in FUNCTIONS.values()])
    low = jnp.asarray(log_probs, jnp.bfloat16)
    values = jax.tree.leaves(measured(low))
    close(values, jax.tree.leaves(measured(low.astype(jnp.float32))), rtol=1e-6)
    assert {value.dtype for value in values} == {np.dtype(np.float32)}


@pytest.mark.parametrize("num_bins", [1, 7, 15, pytest.param(120, marks=pytest.mark.long)])
def test_binned_metrics_equal_plain_loops(num_bins):
    log_probs, labels = predictions(203)
    confidences, correct = top(log_probs, labels)
    ece, mce = oracle.ece(confidences, correct, num_bins)
    squared = oracle.debiased_squared_ece(confidences, correct, num_bins)
    expected = {
        "ece": ece,
        "mce": mce,
        "adaptive_ece": oracle.adaptive_ece(confidences, correct, num_bins),
        "classwise_ece": oracle.classwise_ece(np.asarray(jnp.exp(log_probs)), labels, num_bins),
        "debiased_squared_ece": squared,
    }
    for name, value in expected.items():
        close(FUNCTIONS[name](log_probs, labels, num_bins=num_bins), value, err_msg=name)
    close(calibration.debiased_ece(log_probs, labels, num_bins=num_bins), np.sqrt(max(squared, 0)), atol=1e-5)
    log_probs, labels = predictions(203, 2)
    p = np.asarray(jnp.exp(log_probs[:, 1]))
    expected, _ = oracle.ece(p, labels == 1, num_bins)
    close(calibration.binary_ece(log_probs, labels, num_bins=num_bins), expected)
    of_bins = [p[part] - labels[part] for part in oracle.equal_mass(p, num_bins) if len(part)]
    expected = np.sqrt(sum(len(gaps) * gaps.mean() ** 2 for gaps in of_bins) / 203)
    close(calibration.adaptive_rms_calibration_error(log_probs, labels, num_bins=num_bins), expected, atol=1e-6)
    assert calibration.binary_reliability(log_probs, labels, num_bins=num_bins).count.sum() == 203


@pytest.mark.parametrize("given_as", ["probs", "tied rows"])
def test_confidences_in_tenths_are_binned_as_written(given_as):
    """Of class 1 and of the top label, in each metric that bins or ranks; equal confidences of rows that differ."""
    generator = np.random.default_rng(5)
    tenths = generator.integers(0, 11, 2000)
    labels = (generator.random(2000) < 0.1 + 0.7 * tenths / 10).astype(np.int32)
    log_probs = calibration.log_probabilities(np.stack([10 - tenths, tenths], 1) / 10)
    if given_as == "tied rows":  # the same probabilities as softmax of other logits
        log_probs = jax.nn.log_softmax(log_probs + generator.normal(0, 0.3, (2000, 1)).astype(np.float32))
    bins = np.maximum(tenths - 1, 0)
    gap = np.abs(np.bincount(bins, labels - tenths / 10, 10)).sum() / 2000
    np.testing.assert_allclose(calibration.binary_ece(log_probs, labels, num_bins=10), gap, atol=2e-6)
    top, right = np.maximum(tenths, 10 - tenths), (tenths > 5) == labels
    gap = np.abs(np.bincount(top, right - top / 10, 11)).sum() / 2000
    np.testing.assert_allclose(calibration.ece(log_probs, labels, num_bins=10), gap, atol=2e-6)
    expected = oracle.adaptive_ece(top / 10, right, 15)
    np.testing.assert_allclose(calibration.adaptive_ece(log_probs, labels), expected, atol=2e-6)
    np.testing.assert_allclose(calibration.confidence_auroc(log_probs, labels), roc_auc_score(right, top), atol=2e-6)
    sure = calibration.high_confidence(log_probs, labels, 0.9)
    np.testing.assert_allclose(sure, (np.mean(top >= 9), right[top >= 9].mean()), atol=2e-6)


def test_certain_predictions_are_counted_and_a_confidence_at_the_threshold_is_high():
    log_probs, labels = np.log(np.float32([[1, 1e-30], [1, 1e-30]])), np.int32([1, 1])
    for name in ("ece", "adaptive_ece", "mce", "smooth_ece"):
        close(FUNCTIONS[name](log_probs, labels), 1, rtol=1e-5)
        close(FUNCTIONS[name](log_probs, 0 * labels), 0)
    log_probs = np.float32([[0, -np.inf], [np.log(0.75), np.log(0.25)]])
    for mask in (None, np.ones(2, bool)):
        assert calibration.high_confidence(log_probs, np.int32([0, 0]), 1.0, mask=mask) == (0.5, 1)


def test_reliability_holds_every_example_inside_the_edges_of_its_bin():
    log_probs, labels = predictions(500)
    for bins in (calibration.reliability(log_probs, labels), calibration.adaptive_reliability(log_probs, labels)):
        assert bins.count.shape == (15,)
        assert bins.count.sum() == 500
        full = bins.count > 0
        assert (full == np.isfinite(bins.confidence)).all()
        inside = (bins.confidence >= bins.lower - 1e-6) & (bins.confidence <= bins.upper + 1e-6)
        assert (inside | ~full).all()
    assert set(bins.count.tolist()) == {33.0, 34.0}


def test_the_debiased_square_is_zero_on_average_for_calibrated_draws():
    """The plain squared error of 300 draws in 15 bins is 0.0095; less its bias it is 0 within 4 standard errors."""
    logits = 2 * jax.random.normal(jax.random.key(0), (300, 3))
    log_probs = jax.nn.log_softmax(logits)

    @jax.vmap
    def drawn(key):
        labels = jax.random.categorical(key, logits)
        bins = calibration.adaptive_reliability(log_probs, labels)
        plain = jnp.sum(bins.count * (bins.accuracy - bins.confidence) ** 2) / jnp.sum(bins.count)
        return calibration.debiased_squared_ece(log_probs, labels), plain

    debiased, plain = jax.jit(drawn)(jax.random.split(jax.random.key(1), 400))
    error = np.std(debiased, ddof=1) / 20
    assert np.mean(plain) > 20 * error
    assert abs(np.mean(debiased)) < 4 * error


@pytest.mark.parametrize("num_bins", [1, 15])
def test_the_parts_of_the_brier_score_equal_plain_loops_and_add_up(num_bins):
    log_probs, labels = predictions(203)
    parts = calibration.brier_split(log_probs, labels, num_bins=num_bins)
    calibration_part = refinement = within = 0.0
    for k, p in enumerate(np.exp(log_probs.astype(float)).T):
        bins = np.maximum(np.ceil(p * num_bins), 1)
        for b in set(bins):
            share, outcomes = np.mean(bins == b), (labels == k)[bins == b]
            calibration_part += share * (p[bins == b].mean() - outcomes.mean()) ** 2
            refinement += share * outcomes.var()
            inside = p[bins == b] - p[bins == b].mean()
            within += share * np.mean(inside**2 - 2 * inside * (outcomes - outcomes.mean()))
    close(parts, (calibration_part, refinement, within))
    close(sum(parts), calibration.brier(log_probs, labels))


def test_over_and_underconfidence_add_up_to_ece_and_their_difference_is_the_mean_gap():
    log_probs, labels = predictions(203)
    over, under = calibration.overconfidence(log_probs, labels), calibration.underconfidence(log_probs, labels)
    close(over + under, calibration.ece(log_probs, labels))
    confidences, correct = top(log_probs, labels)
    close(over - under, confidences.mean() - correct.mean())
    assert under >= 0


@pytest.mark.parametrize(("spread", "seed"), [(0.5, 0), (3.0, 1), (20.0, 2)])
def test_smooth_ece_is_the_fixed_point_of_the_kernel_summed_directly(spread, seed):
    log_probs, labels = predictions(150, 3, sharpness=spread, seed=seed)
    np.testing.assert_allclose(smooth_ece(log_probs, labels), oracle.smooth_ece(*top(log_probs, labels)), atol=2e-4)


@pytest.mark.parametrize("edge", [0.5, 0.8])
def test_residuals_of_both_signs_near_an_edge_are_reflected_there(edge):
    """Confidences in 0.8 to 1, or in 0.5 to 0.7: a kernel that wraps around or leaks out gives another value."""
    generator = np.random.default_rng(3)
    p = (edge + 0.2 * generator.uniform(size=150)).astype(np.float32)
    outcome = (generator.uniform(size=150) < p).astype(np.int32)
    log_probs = np.log(np.stack([1 - p, p], axis=1))
    np.testing.assert_allclose(smooth_ece(log_probs, outcome), oracle.smooth_ece(p, outcome), atol=2e-4)


@pytest.mark.parametrize("name", ["confidence_auroc", "aurc"])
@pytest.mark.parametrize("digits", [7, 1, 2])
def test_areas_are_the_definitions_summed_over_pairs_of_examples(name, digits):
    """Two classes; confidences of a few digits have ties."""
    generator = np.random.default_rng(0)
    confidence = np.float32(np.round(0.5 + 0.5 * generator.beta(2, 1, 3000), digits))
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.stack([1 - confidence, confidence], axis=1))
    labels = (generator.uniform(size=3000) < confidence).astype(np.int32)
    confidence, correct = np.exp(log_probs).max(axis=1), log_probs.argmax(axis=1) == labels
    metric, definition = jax.jit(FUNCTIONS[name]), getattr(oracle, name)
    close(metric(log_probs, labels), definition(confidence, correct))
    counts = generator.poisson(1.0, 3000)
    expected = definition(np.repeat(confidence, counts), np.repeat(correct, counts))
    close(metric(log_probs, labels, weights=counts), expected)


def test_where_all_are_right_or_all_wrong_only_the_risk_is_known():
    log_probs, _ = predictions(40, 2)
    right = log_probs.argmax(axis=1).astype(np.int32)
    for labels, risk in ((right, 0), (1 - right, 1)):
        assert np.isnan(calibration.confidence_auroc(log_probs, labels))
        assert calibration.aurc(log_probs, labels) == risk
    alike, labels = np.log(np.full((40, 2), 0.5, np.float32)), np.arange(40, dtype=np.int32) % 4 // 3
    close(calibration.confidence_auroc(alike, labels), 0.5)
    close(calibration.aurc(alike, labels), 0.25)


def test_every_metrics_record_of_the_reference_file(papers):
    record = papers["metrics_dataset"]
    probs, labels = np.array(record["probs_times_64"]) / 64, np.int32(record["labels"])
    log_probs = np.log(probs, where=probs > 0, out=np.full_like(probs, -np.inf)).astype(np.float32)
    close = partial(np.testing.assert_allclose, atol=3e-7)
    for row in record["adaece_rank"]:
        sizes = calibration.adaptive_reliability(log_probs, labels, num_bins=row["M"]).count
        np.testing.assert_array_equal(sizes, [len(part) for part in oracle.equal_mass(probs.max(axis=1), row["M"])])
        if sizes.tolist() == row["sizes"]:  # no cut of the record parts equal confidences
            close(calibration.adaptive_ece(log_probs, labels, num_bins=row["M"]), row["AdaECE"])
    for row in record["ece"]:
        bins = calibration.reliability(log_probs, labels, num_bins=row["M"])
        full = np.flatnonzero(bins.count)
        columns = [full, bins.count[full], bins.accuracy[full], bins.confidence[full]]
        close(np.stack([np.asarray(column, float) for column in columns], axis=1), row["bins"])
        gaps = np.abs(np.asarray(bins.accuracy - bins.confidence))[full]
        close(gaps.mean(), row["ACE"])  # mean over the bins that are not empty
        close(np.sqrt(np.sum(gaps**2 * bins.count[full]) / 20), row["L2"])
    for name, key in (("ece", "ece_right_closed"), ("mce", "mce_right_closed")):
        for num_bins, value in record[key].items():
            close(FUNCTIONS[name](log_probs, labels, num_bins=int(num_bins)), value)
    for row in record["classwise_ece"]:
        close(calibration.classwise_ece(log_probs, labels, num_bins=row["M"]), row["mean"])
    close(calibration.nll(log_probs, labels), record["nll"])
    close(calibration.brier(log_probs, labels), record["brier_sum_over_classes"])
    close(calibration.accuracy(log_probs, labels), record["accuracy"])
    fraction, accuracy = calibration.high_confidence(log_probs, labels, 0.9)
    close((fraction, accuracy), (record["S90"]["fraction"], record["S90"]["accuracy"]))
    for row in record["binning_disagreements"]:  # of rules in float32, at the last bit: all are on the edge
        edge = round(float(row["conf"]) * row["M"])
        assert calibration.metrics.binning.bin_index(np.float32([row["conf"]]), row["M"]) == edge - 1
