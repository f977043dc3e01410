"""Laws that every metric keeps, and the metrics record of the papers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from reference import calibration as oracle

from focalgeo import calibration

NAMES = [
    "debiased_ece",
    "debiased_squared_ece",
    "smooth_ece",
    "interpolated_adaptive_ece",
    "overconfidence",
    "underconfidence",
    "entropy",
    "nll_by_outcome",
    "entropy_by_outcome",
    "brier_split",
    "binary_ece",
    "binary_adaptive_ece",
    "binary_smooth_ece",
    "ece",
    "adaptive_ece",
    "classwise_ece",
    "nll",
    "brier",
    "accuracy",
]


@jax.jit
def measured(log_probs, labels, mask):
    return {name: getattr(calibration, name)(log_probs, labels, mask=mask) for name in NAMES}


def predictions(num_examples, seed=0):
    generator = np.random.default_rng(seed)
    logits = (generator.normal(size=(num_examples, 2)) * 2).astype(np.float32)
    return np.asarray(jax.nn.log_softmax(logits)), generator.integers(0, 2, num_examples).astype(np.int32)


def assert_equal(got, expected, **tolerance):
    for name in NAMES:
        np.testing.assert_allclose(got[name], expected[name], err_msg=name, **tolerance)


def test_padding_changes_nothing_and_counts_repeat_examples():
    log_probs, labels = predictions(120)
    keep = np.arange(120) % 4 > 0
    plain = measured(log_probs[keep], labels[keep], jnp.ones(90))
    padded = np.where(keep[:, None], log_probs, np.nan)
    assert_equal(measured(padded, labels, keep.astype(np.float32)), plain, rtol=2e-5, atol=2e-6)
    counts = np.random.default_rng(1).permutation(np.repeat([0, 1, 2], 40)).astype(np.float32)
    rows = np.repeat(np.arange(120), counts.astype(int))
    repeated = measured(log_probs[rows], labels[rows], jnp.ones(120))
    assert_equal(measured(log_probs, labels, counts), repeated, rtol=2e-5, atol=2e-6)


def test_bfloat16_is_the_float32_number_it_is():
    log_probs, labels = predictions(600)
    low = jnp.asarray(log_probs, jnp.bfloat16)
    got = measured(low, labels, jnp.ones(600))
    assert_equal(got, measured(low.astype(jnp.float32), labels, jnp.ones(600)), rtol=1e-6)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(got))


def test_every_metrics_record_of_the_reference_file(papers):
    record = papers["metrics_dataset"]
    probs, labels = np.array(record["probs_times_64"]) / 64, np.int32(record["labels"])
    log_probs = np.log(probs, where=probs > 0, out=np.full_like(probs, -np.inf)).astype(np.float32)
    close = partial(np.testing.assert_allclose, atol=3e-7)
    for row in record["adaece_torrvision"]:
        close(calibration.interpolated_adaptive_ece(log_probs, labels, num_bins=row["M"]), row["AdaECE"])
        oracle_value, inside = oracle.interpolated_adaptive_ece(record["conf"], record["correct"], row["M"])
        close(oracle_value, row["AdaECE"])
        assert inside == row["samples_in_bins"] == 19
    for row in record["adaece_rank"]:
        close(calibration.adaptive_ece(log_probs, labels, num_bins=row["M"]), row["AdaECE"])
        sizes = calibration.adaptive_reliability(log_probs, labels, num_bins=row["M"]).count
        np.testing.assert_array_equal(sizes, row["sizes"])
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
            close(getattr(calibration, name)(log_probs, labels, num_bins=int(num_bins)), value)
    for row in record["classwise_ece"]:
        close(calibration.classwise_ece(log_probs, labels, num_bins=row["M"]), row["mean"])
    close(calibration.nll(log_probs, labels), record["nll"])
    close(calibration.brier(log_probs, labels), record["brier_sum_over_classes"])
    close(calibration.accuracy(log_probs, labels), record["accuracy"])
    fraction, accuracy = calibration.high_confidence(log_probs, labels, 0.9)
    close((fraction, accuracy), (record["S90"]["fraction"], record["S90"]["accuracy"]))


def test_binning_records_of_the_reference_file(papers):
    for num_bins in (10, 15):
        rows = [row for row in papers["metrics_dataset"]["binning_disagreements"] if row["M"] == num_bins]
        got = calibration.binning.bin_index(np.float32([row["conf"] for row in rows]), num_bins)
        np.testing.assert_array_equal(got, [row["ceil_rule"] for row in rows])
