"""Figures of arrays: the band holds calibrated models' curves, the numbers are those of scikit-learn and of counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy import special, stats
from sklearn.calibration import calibration_curve
from sklearn.isotonic import IsotonicRegression

from focalgeo import calibration, report
from focalgeo.types import InputError

FIGURES = (report.reliability, report.confidence_histogram, report.risk_coverage)


@pytest.fixture(scope="module")
def outputs():
    """Log-probabilities of three classes, and labels drawn from them."""
    random = np.random.default_rng(0)
    log_probs = special.log_softmax(2 * random.normal(size=(400, 3)), axis=1)
    return log_probs, (random.random((400, 1)) > np.exp(log_probs).cumsum(1)).sum(1).clip(max=2)


@pytest.mark.long
def test_five_in_a_hundred_calibrated_models_leave_their_band():
    random = np.random.default_rng(1)
    confidence = random.beta(5, 1.5, size=(1000, 200))
    right = random.random(confidence.shape) < confidence
    pairs = enumerate(zip(confidence, right, strict=True))
    found = [report.calibration_curve(*pair, num_resamples=400, seed=seed) for seed, pair in pairs]
    assert 0.036 <= np.mean([curve.leaves for curve in found]) <= 0.064


def test_the_band_of_probabilities_down_to_0_says_something():
    """Near 0 nearly all draws agree on 0, and the few that do not must not set the width everywhere."""
    random = np.random.default_rng(3)
    confidence = random.random(500)
    found = report.calibration_curve(confidence, random.random(500) < confidence)
    assert np.mean(found.high - found.low) < 0.45


def test_the_curve_is_the_isotonic_regression_and_one_too_sure_leaves_its_band():
    random = np.random.default_rng(2)
    confidence = random.random(3000) / 2 + 0.5
    right = random.random(3000) < confidence - 0.1
    found = report.calibration_curve(confidence[:1500], right[:1500], num_resamples=200)
    expected = IsotonicRegression().fit(np.sort(confidence[:1500]), right[:1500][np.argsort(confidence[:1500])])
    np.testing.assert_allclose(found.accuracy, expected.predict(found.confidence), atol=1e-12)
    assert found.leaves
    cells = report.calibration_curve(confidence, right, num_resamples=100)
    assert len(cells.confidence) == 2000
    assert np.all(np.diff(cells.accuracy) >= 0)


def test_two_models_are_drawn_into_axes_of_ones_own(outputs):
    log_probs, labels = outputs
    for ax, draw in zip(Figure().subplots(1, 3), FIGURES, strict=True):
        for scale, label in ((1, "as it is"), (3, "too sure")):
            assert draw(scale * log_probs, labels, ax=ax, label=label) is ax
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["as it is", "too sure"]
        assert draw(log_probs, labels).get_xlim() == (0, 1)


def test_a_second_model_with_more_errors_stays_in_sight(outputs):
    log_probs, labels = outputs
    ax = report.risk_coverage(-log_probs, labels, ax=report.risk_coverage(log_probs, labels))
    ax.figure.canvas.draw()
    assert ax.get_ylim()[0] == 0
    assert ax.get_ylim()[1] >= ax.lines[-1].get_ydata().max() > ax.lines[0].get_ydata().max()


def test_what_is_drawn_are_counts(outputs):
    log_probs, labels = outputs
    confidence, right = np.exp(log_probs.max(1)), log_probs.argmax(1) == labels
    order = np.argsort(-confidence)
    for share, error in report.risk_coverage(log_probs, labels).lines[0].get_xydata():
        assert error == pytest.approx(1 - right[order[: round(share * len(labels))]].mean())
    ends = [line.get_xdata()[0] for line in report.confidence_histogram(log_probs, labels).lines]
    np.testing.assert_allclose(ends, (confidence.mean(), right.mean()))
    bins = report.reliability(log_probs, labels, num_bins=10, num_resamples=100)
    points, inside = bins.lines[-1].get_xydata(), (confidence >= 0.7) & (confidence < 0.8)
    at = np.argmin(abs(points[:, 0] - confidence[inside].mean()))
    np.testing.assert_allclose(points[at], (confidence[inside].mean(), right[inside].mean()))
    interval = stats.binomtest(int(right[inside].sum()), int(inside.sum())).proportion_ci(method="wilson")
    np.testing.assert_allclose(bins.collections[-1].get_segments()[at][:, 1], interval, atol=1e-12)


def test_numbers_against_gamma_have_students_interval():
    numbers = np.array([3.0, 4.0, 5.5, 1.0])
    drawn = report.against_gamma([0, 0, 0, 2], numbers, label="trace").containers[0]
    np.testing.assert_allclose(drawn[0].get_xydata(), [[0, numbers[:3].mean()], [2, 1]])
    half = stats.t.ppf(0.975, 2) * stats.sem(numbers[:3])
    ends = drawn[2][0].get_segments()[0][:, 1]
    np.testing.assert_allclose(ends, numbers[:3].mean() + np.array([-half, half]))


@pytest.mark.parametrize(
    ("rows", "labels", "says"),
    [
        (np.zeros((2, 3, 4)), [0, 0], "give \\[examples, classes\\]"),
        (np.full((2, 2), 0.5), [0, 0], "are probabilities"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(rows, labels, says):
    for draw in FIGURES:
        with pytest.raises(InputError, match=says):
            draw(rows, labels)


@pytest.mark.parametrize(
    ("name", "value"),
    [("colour", "blau"), ("colour", [1, 2]), ("ax", Figure().subplots(1, 2)), ("ax", "left"), ("num_bins", -1)],
)
def test_options_that_no_figure_has_are_one_line(outputs, name, value):
    drawn = [(draw, outputs) for draw in FIGURES] + [(report.against_gamma, ([0, 1], [1.0, 2.0]))]
    for draw, arrays in drawn[:2] if name == "num_bins" else drawn:
        with pytest.raises(InputError, match=f"^{name} is"):
            draw(*arrays, **{name: value})


def test_curves_refuse_what_is_no_confidence():
    for confidence, right in (([1.2], [1]), ([0.5], [2]), ([], []), ([[0.5]], [[1]])):
        with pytest.raises(InputError, match="give"):
            report.calibration_curve(confidence, right)
    for name, value in (("num_resamples", "a"), ("seed", -1)):
        with pytest.raises(InputError, match=f"{name} is"):
            report.calibration_curve([0.5], [1], **{name: value})
    for gammas, numbers in (([0, 1], [1.0]), ([np.nan, 1], [1.0, 2.0])):
        with pytest.raises(InputError, match="one for each run"):
            report.against_gamma(gammas, numbers)


def test_the_dots_of_a_class_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 2, 500)
    y, log_probs = (rng.random(500) < p).astype(int), np.log(np.stack([1 - p, p], axis=1))
    ax = report.reliability(log_probs, y, of_class=1, num_bins=5)
    dots = next(line for line in ax.lines if line.get_marker() == "o")
    np.testing.assert_allclose(dots.get_data()[::-1], calibration_curve(y, p, n_bins=5), rtol=1e-9)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("probability of class 1", "share of class 1")
    with pytest.raises(InputError, match="of_class is 2"):
        report.reliability(log_probs, y, of_class=2)


def test_the_order_of_equal_confidences_changes_no_figure():
    """Half of the rows share a confidence, and the first of them are wrong: any order gives the same curves."""
    p = np.repeat([0.7, 0.9], [60, 60])
    right = np.r_[np.arange(60) >= 20, np.arange(60) >= 6]
    back = np.r_[np.arange(60)[::-1], 60 + np.arange(60)[::-1]]
    one, other = (report.calibration_curve(p[order], right[order]) for order in (np.arange(120), back))
    np.testing.assert_allclose(one.accuracy, other.accuracy, atol=1e-12)
    np.testing.assert_allclose(np.unique(one.accuracy.round(9)), [2 / 3, 0.9])
    log_probs, labels = np.log(np.stack([1 - p, p], axis=1)), right.astype(int)
    drawn = [
        report.risk_coverage(log_probs[order], labels[order]).lines[0].get_ydata() for order in (slice(None), back)
    ]
    np.testing.assert_allclose(*drawn, atol=1e-12)


@given(st.integers(2, 25), st.integers(0, 99))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_the_dots_of_the_reliability_figure_are_the_bins_of_the_metric(num_bins, seed):
    """Shares of votes lie on edges of bins: both take them for the bin below."""
    random = np.random.default_rng(seed)
    votes = random.multinomial(10, [0.5, 0.3, 0.2], size=200) / 10
    log_probs, labels = np.asarray(calibration.log_probabilities(votes)), random.integers(0, 3, 200)
    bins = calibration.reliability(log_probs, labels, num_bins=num_bins)
    dots = report.reliability(log_probs, labels, num_bins=num_bins, num_resamples=100).lines[-1]
    held = np.asarray(bins.count) > 0
    np.testing.assert_allclose(dots.get_xdata(), np.asarray(bins.confidence)[held], atol=1e-5)
    np.testing.assert_allclose(dots.get_ydata(), np.asarray(bins.accuracy)[held], atol=1e-6)
