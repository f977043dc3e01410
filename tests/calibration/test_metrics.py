import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import calibration as oracle

from focalgeo import calibration

PROBS, LABELS = oracle.metrics_dataset()
LOG_PROBS = np.log(PROBS, where=PROBS > 0, out=np.full_like(PROBS, -np.inf)).astype(np.float32)


def predictions(num_examples, seed=0):
    generator = np.random.default_rng(seed)
    logits = (generator.normal(size=(num_examples, 4)) * 3).astype(np.float32)
    return np.asarray(jax.nn.log_softmax(logits)), generator.integers(0, 4, num_examples).astype(np.int32)


def test_a_confidence_at_the_threshold_is_high():
    log_probs = np.float32([[0, -np.inf], [np.log(0.75), np.log(0.25)]])
    for mask in (None, np.ones(2, bool)):
        assert calibration.high_confidence(log_probs, np.int32([0, 0]), 1.0, mask=mask) == (0.5, 1)


@pytest.mark.parametrize("num_bins", [1, 7, 15])
def test_binned_metrics_equal_plain_loops(num_bins):
    log_probs, labels = predictions(203)
    probs = np.asarray(jnp.exp(log_probs))
    confidences, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
    ece, mce = oracle.ece(confidences, correct, num_bins)
    expected = {"ece": ece, "mce": mce, "adaptive_ece": oracle.adaptive_ece(confidences, correct, num_bins)}
    expected["classwise_ece"] = oracle.classwise_ece(probs, labels, num_bins)
    for name, value in expected.items():
        got = getattr(calibration, name)(log_probs, labels, num_bins=num_bins)
        np.testing.assert_allclose(got, value, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("num_bins", [3, 10, 15])
def test_a_confidence_next_to_an_edge_falls_into_its_exact_bin(num_bins):
    """float32(i / M) may lie above or below i / M; a rounded edge or product would move it into its neighbour's bin."""
    edges = (np.arange(num_bins + 1) / num_bins).astype(np.float32)
    near = np.concatenate([edges, np.nextafter(edges[1:], np.float32(0)), np.nextafter(edges[:-1], np.float32(1))])
    count = calibration.binning.equal_width(near, near > 2, np.ones_like(near), num_bins).count
    expected = np.zeros(num_bins)
    for confidence in near:
        scaled = oracle.Fraction(float(confidence)) * num_bins
        expected[max(-(-scaled.numerator // scaled.denominator) - 1, 0)] += 1
    np.testing.assert_array_equal(count, expected)
    assert expected.sum() == near.size


def test_certain_predictions_are_counted():
    log_probs, labels = np.log(np.float32([[1, 1e-30], [1, 1e-30]])), np.int32([1, 1])
    for name in ("ece", "adaptive_ece", "mce"):
        np.testing.assert_allclose(getattr(calibration, name)(log_probs, labels), 1, rtol=1e-6)


@pytest.mark.parametrize("name", calibration.METRICS)
def test_every_metric_of_the_table_takes_masks_and_counts_as_examples_left_out_and_repeated(name):
    metric = jax.jit(calibration.METRICS[name].function)
    log_probs, labels = predictions(90)
    labels = np.where(np.arange(90) % 2, labels, log_probs.argmax(axis=1)).astype(np.int32)
    keep = np.arange(90) % 3 > 0
    padded = np.where(keep[:, None], log_probs, np.nan)
    np.testing.assert_allclose(metric(padded, labels, mask=keep), metric(log_probs[keep], labels[keep]), atol=1e-6)
    counts = np.random.default_rng(3).poisson(1.0, 90)
    repeated = np.repeat(np.arange(90), counts)
    got = metric(log_probs, labels, mask=counts.astype(np.float32))
    np.testing.assert_allclose(got, metric(log_probs[repeated], labels[repeated]), atol=1e-6)
    assert np.isnan(metric(log_probs, labels, mask=0 * counts))
    assert 0 <= got <= calibration.METRICS[name].largest


def test_labels_of_8_bits_serve_more_classes_than_8_bits_hold():
    log_probs = jax.nn.log_softmax(np.random.default_rng(0).normal(size=(2, 256)).astype(np.float32))
    labels = np.array([255, 3])
    expected = calibration.nll(log_probs, labels)
    for function in (calibration.nll, jax.jit(calibration.nll)):
        np.testing.assert_allclose(function(log_probs, labels.astype(np.uint8)), expected, rtol=1e-6)
    searched = jax.jit(lambda y: calibration.grid_search(log_probs, y, [0.0], [1.0]).nll)(labels.astype(np.uint8))
    np.testing.assert_allclose(searched, expected, rtol=1e-5)


def test_reliability_holds_every_example_and_gives_the_ece():
    log_probs, labels = predictions(500)
    for bins in (calibration.reliability(log_probs, labels), calibration.adaptive_reliability(log_probs, labels)):
        assert bins.count.shape == (15,)
        assert bins.count.sum() == 500
        full = bins.count > 0
        assert (full == np.isfinite(bins.confidence)).all()
        inside = (bins.confidence >= bins.lower - 1e-6) & (bins.confidence <= bins.upper + 1e-6)
        assert (inside | ~full).all()
    assert set(bins.count.tolist()) == {33.0, 34.0}


def test_wilson_interval_matches_published_cases():
    low, high = calibration.wilson_interval(np.array([0, 81, 10, 0]), np.array([10, 263, 10, 0]))
    np.testing.assert_allclose(low, [0, 0.2553, 0.7225, 0], atol=1e-4)  # 81 of 263: Newcombe 1998, Table I
    np.testing.assert_allclose(high, [0.2775, 0.3662, 1, 1], atol=1e-4)
