"""calibration.compare: what it fits, chooses and measures, and what it refuses."""

import jax
import numpy as np
import pytest

from focalgeo import calibration
from focalgeo.calibration import METHODS, compare
from focalgeo.rows import Difference, Fit, Metric, select
from focalgeo.types import InputError

NAMES = ("temperature_scaling", "focal_temperature_scaling")
FEW = {"num_resamples": 100, "temperatures": (0.5, 1.0, 1.5, 2.0), "gammas": (0.0, 1.0)}


def draw(n, classes=4, *, sharpness=1.7, seed=0):
    """Logits `sharpness` times those that the labels are drawn from."""
    rng = np.random.default_rng(seed)
    truth = 2 * rng.standard_normal((n, classes))
    labels = np.argmax(truth + rng.gumbel(size=truth.shape), axis=1)
    return (sharpness * truth).astype(np.float32), np.int32(labels)


@pytest.fixture(scope="module")
def found():
    return compare(draw(600), draw(600, seed=1), NAMES, **FEW)


def test_methods_are_chosen_on_val_and_measured_on_test(found):
    assert found.choice.fitted.method.name == "temperature_scaling"
    assert found.choice.fitted.criterion == "nll"
    assert found.choice.level == 0.05 / 2
    assert {row.split for row in select(found.rows, Metric)} == {"test", "cross_fit"}
    assert {row.split for row in select(found.rows, Fit)} == {"val"}
    columns = {(row.method, row.criterion) for row in select(found.rows, Metric, split="test", group=None)}
    assert columns == {("uncalibrated", None), *((name, by) for name in NAMES for by in ("nll", "ece"))}
    held_out = {(row.method, row.criterion) for row in select(found.rows, Metric, split="cross_fit")}
    assert held_out == {("uncalibrated", None), *((name, "nll") for name in NAMES)}


def test_rows_are_those_of_the_functions(found):
    (logits, labels), fitted = draw(600, seed=1), found.choice.fitted
    (row,) = select(found.rows, Metric, name="nll", split="test", method="temperature_scaling", criterion="nll")
    log_probs = fitted.predict_log_proba(logits)
    np.testing.assert_allclose(row.value, calibration.nll(log_probs, labels), rtol=1e-5)
    ((_, key),) = [(0, jax.random.split(jax.random.PRNGKey(0), 4)[3])]
    direct = calibration.bootstrap(calibration.nll, log_probs, labels, key, 100)
    np.testing.assert_allclose((row.low, row.high), (direct.low, direct.high), rtol=1e-4)
    (gap, *_) = select(found.rows, Metric, name="class_gap", method="uncalibrated", group="2")
    probs = np.asarray(jax.nn.softmax(logits))
    assert gap.value == pytest.approx(np.mean(probs[:, 2] - (labels == 2)), abs=1e-6)
    half = 1.96 * np.std(probs[:, 2] - (labels == 2), ddof=1) / np.sqrt(600)
    assert (gap.low, gap.high) == pytest.approx((gap.value - half, gap.value + half), abs=1e-5)


def test_without_test_val_is_measured_by_fits_of_the_other_folds():
    alone = compare(draw(300), None, NAMES, criteria=("nll",), **FEW)
    assert {row.split for row in select(alone.rows, Metric)} == {"cross_fit"}
    assert len(alone.held_out) == 3
    assert alone.search == {}
    assert {row.name for row in select(alone.rows, Metric, group=None)} == {
        "accuracy",
        "ece",
        "adaptive_ece",
        "nll",
        "brier",
    }


def test_predictions_from_elsewhere_are_measured_and_never_chosen():
    (logits, labels), (other, truth) = draw(300), draw(300, seed=1)
    best = [np.asarray(jax.nn.log_softmax(each / 1.7)) for each in (logits, other)]
    both = compare((logits, labels), (other, truth), NAMES, also={"mine": tuple(best)}, **FEW)
    (row,) = select(both.rows, Metric, name="nll", split="test", method="mine")
    assert row.value == pytest.approx(float(calibration.nll(best[1], truth)), rel=1e-5)
    assert select(both.rows, Difference, name="nll_difference", split="test", method="mine", against=NAMES[0])
    assert both.choice.fitted.method.name in METHODS


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": ("temperature_scalling",)}, "did you mean 'temperature_scaling'"),
        ({"methods": ("loss_implied_map",)}, "give trained_gamma"),
        ({"criterion": "brier"}, "criterion is 'brier'"),
        ({"num_resamples": 99}, "num_resamples is 99: give a whole number, 100 to 100000"),
        ({"also": {"temperature_scaling": (np.full((50, 4), np.log(0.25)), None)}}, "give it another name"),
    ],
)
def test_what_makes_no_comparison_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        compare(draw(50), None, **options)


VAL, TEST = draw(60), draw(60, seed=1)
LOG_PROBS = [np.array(jax.nn.log_softmax(logits)) for logits, _ in (VAL, TEST)]


def changed(array, value):
    return np.concatenate([array[:-1], [np.full_like(array[-1], value)]])


@pytest.mark.parametrize(
    ("val", "test", "also", "words"),
    [
        (VAL, (TEST[0], changed(TEST[1], 7)), None, r"test: labels\[59\] is 7"),
        (VAL, draw(60, 3), None, "test has another number of classes than the 4 of val"),
        ((*VAL, ["a"] * 59), None, None, r"val: group: has shape \(59,\)"),
        (VAL, TEST, (LOG_PROBS[0], np.exp(LOG_PROBS[1])), r"also mine, test: log_probs are .*: of logits give"),
        (VAL, TEST, (LOG_PROBS[0], None), "also mine, test: log_probs are object: give numbers"),
        (VAL, None, (LOG_PROBS[0][:-1], None), r"also mine, val: log_probs: has shape \(59, 4\)"),
        (VAL, None, (np.where(np.eye(4)[VAL[1]], -np.inf, 0), None), "also mine, val: log_probs"),
    ],
)
def test_what_is_wrong_with_test_groups_or_others_predictions_is_said_at_once(val, test, also, words):
    with pytest.raises(InputError, match=words):
        compare(val, test, NAMES, also=also and {"mine": also}, **FEW)


@pytest.mark.parametrize(("criterion", "criteria"), [("line_search", ()), ("adaptive_ece", ("nll", "ece"))])
def test_a_method_competes_by_the_same_criterion_on_held_out_parts_and_in_its_fit(criterion, criteria):
    found = compare(draw(150), draw(150, seed=1), NAMES, criterion=criterion, criteria=criteria, **FEW)
    competing = [found.fits[index] for index in calibration.candidates(found.fits, criterion)]
    held_out = [(each.method.name, each.criterion) for each in found.held_out]
    assert held_out == [("uncalibrated", None), *((each.method.name, each.criterion) for each in competing)]
