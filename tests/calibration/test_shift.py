"""A method fitted on val, on other tests: whether its calibration holds there, and what a fit of each gains."""

import jax
import numpy as np
import pytest

from focalgeo import calibration
from focalgeo.calibration import Outputs
from focalgeo.rows import Difference, Metric, select
from focalgeo.types import InputError


def split(rng, n, scale=2.0, *, sharpness=1.0, times=1):
    """Outputs whose labels are drawn from softmax(logits / sharpness), each row standing there so often."""
    logits = scale * rng.standard_normal((n, 5))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    log_probs = np.asarray(jax.nn.log_softmax(np.float32(sharpness * logits)))
    clusters = np.repeat(np.arange(n), times) if times > 1 else None
    return Outputs(np.repeat(log_probs, times, axis=0), np.repeat(labels, times), clusters=clusters)


@pytest.mark.parametrize(
    ("n", "scales", "times"),
    [
        ((1000, 2000), (2.0, 1.4), 1),
        ((1000, 2000), (6.0, 4.0), 1),
        ((1000, 500), (4.0, 1.0), 1),
        ((300, 600), (2.0, 1.4), 10),
    ],
    ids=["usual", "nearly always sure", "far apart", "clusters"],
)
def test_the_same_curve_is_refused_in_one_of_twenty(n, scales, times):
    """Of 400 pairs of splits, which differ in how sure they are: 5% are to be refused, and 1% at the level of 1%."""
    rng = np.random.default_rng(0)
    pairs = ([split(rng, *each, times=times) for each in zip(n, scales, strict=True)] for _ in range(400))
    p_values = np.array([calibration.calibration_kept(*pair).p_value for pair in pairs])
    assert 0.02 < np.mean(p_values < 0.05) < 0.085
    assert np.mean(p_values < 0.01) < 0.025
    assert 0.4 < np.mean(p_values < 0.5) < 0.62


@pytest.mark.parametrize(("label", "p_value"), [(0, 1), (1, 0)])
def test_splits_without_variance_are_alike_or_not(label, p_value):
    sure = np.float32([[0, -200, -200]] * 100)
    kept = calibration.calibration_kept((sure, np.zeros(100, int)), (sure, np.full(100, label)))
    assert kept.p_value == p_value


def test_other_meanings_are_found():
    rng = np.random.default_rng(1)
    pairs = [(split(rng, 2000), split(rng, 2000, sharpness=1.3)) for _ in range(20)]
    assert np.mean([calibration.calibration_kept(*pair).p_value < 0.05 for pair in pairs]) > 0.9


def test_the_statistic_of_one_bin_is_that_of_two_means():
    rng = np.random.default_rng(2)
    pair = split(rng, 500), split(rng, 700, sharpness=1.2)
    excess = [np.exp(s.logits.max(axis=1)) - (s.logits.argmax(axis=1) == s.labels) for s in pair]
    less, variance = np.diff([e.mean() for e in excess])[0], sum(e.var(ddof=1) / len(e) for e in excess)
    kept = calibration.calibration_kept(*pair, num_bins=1)
    np.testing.assert_allclose(kept.statistic, less**2 / variance, rtol=1e-4)


def test_a_weight_of_two_counts_as_two_rows_of_one_cluster():
    rng = np.random.default_rng(3)
    val, test = split(rng, 400), split(rng, 400, sharpness=1.3)
    twice = Outputs(test.logits, test.labels, weights=np.full(400, 2.0))
    rows = Outputs(*(np.repeat(array, 2, axis=0) for array in test[:2]), clusters=np.repeat(np.arange(400), 2))
    weighted, repeated = (calibration.calibration_kept(val, each, num_bins=1) for each in (twice, rows))
    np.testing.assert_allclose(weighted.statistic, repeated.statistic, rtol=1e-4)


def test_logits_are_refused():
    scores = np.zeros((10, 3), np.float32)
    with pytest.raises(InputError, match="sum to 3"):
        calibration.calibration_kept((scores, np.zeros(10, int)), (scores, np.zeros(10, int)))


def test_rows_of_several_tests():
    """What the rows say is what fits and metrics give: the method of val, and one of the test by its other folds."""
    rng = np.random.default_rng(4)
    val, same, sharp = (split(rng, 1500, sharpness=by) for by in (1.0, 1.0, 2.0))
    settings = {"num_resamples": 100, "seed": 3}
    compared = calibration.compare(val, methods=["temperature_scaling"], prefer="plain", **settings)
    rows = calibration.on_tests(compared, val, {"same": same, "sharp": sharp}, **settings)
    log_probs = compared.choice.fitted.predict_log_proba(sharp.logits)

    def value(name, split, method="fitted_on_val"):
        (row,) = select(rows, Metric, name=name, split=f"cross_fit_{split}", method=method)
        return row.value

    assert value("calibration_kept", "sharp") < 1e-6 < 0.01 < value("calibration_kept", "same")
    np.testing.assert_allclose(value("ece", "sharp"), calibration.ece(log_probs, sharp.labels), atol=1e-6)
    np.testing.assert_allclose(value("nll", "sharp"), calibration.nll(log_probs, sharp.labels), atol=1e-5)
    fold = calibration.folds(sharp.labels, 5, 3)
    own = np.empty_like(sharp.logits)
    for part in range(5):
        others = fold != part
        fitted = calibration.fit("temperature_scaling", sharp.logits[others], sharp.labels[others])
        own[~others] = fitted.predict_log_proba(sharp.logits[~others])
    np.testing.assert_allclose(
        value("nll", "sharp", "temperature_scaling"), calibration.nll(own, sharp.labels), atol=1e-5
    )
    for name, gains in (("sharp", True), ("same", False)):
        against = {"method": "fitted_on_val", "against": "temperature_scaling"}
        (row,) = select(rows, Difference, name="nll_difference", split=f"cross_fit_{name}", **against)
        assert (row.low > 0) == gains
