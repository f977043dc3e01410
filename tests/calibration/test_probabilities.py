"""Probabilities in place of logits and of log-probabilities: the floored logarithm, and the warning."""

import re
from functools import partial

import jax
import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from focalgeo import calibration
from focalgeo.calibration import ProbabilityWarning
from focalgeo.types import InputError

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(60, 3)).astype(np.float32)
PROBS = np.asarray(jax.nn.softmax(2 * LOGITS))
LABELS = np.argmax(LOGITS + RNG.gumbel(size=(60, 3)), axis=1).astype(np.int32)
P = special.expit(LOGITS[:, 0])
NAMES = {"np": np, "jax": jax, "scipy": scipy, "calibration": calibration}
GRID = {"gammas": [0.0, 1.0], "temperatures": [0.5, 1.0, 2.0]}
FITS = {
    "fit_focal_temperature": calibration.fit_focal_temperature,
    "grid_search": lambda logits, labels: calibration.grid_search(logits, labels, *GRID.values()),
    "line_search": lambda logits, labels: calibration.line_search(logits, labels, *GRID.values()),
    "estimator": lambda logits, labels: calibration.TemperatureScaling().fit(logits, labels),
    "compare": lambda logits, labels: calibration.compare((logits, labels), None, (), num_resamples=100),
}


def fixes(line):
    """What a line says to give."""
    return re.findall(r"(?:jax|scipy|calibration)\..*?(?=, of |; of |$)", line)


@pytest.mark.filterwarnings("ignore::focalgeo.calibration.ConvergenceWarning")  # gamma 0, an end of this grid
@pytest.mark.parametrize("name", FITS)
def test_probabilities_in_place_of_logits_are_refused(name):
    with pytest.raises(InputError, match="logits are probabilities") as found:
        FITS[name](PROBS, LABELS)
    FITS[name](eval(*fixes(str(found.value)), NAMES | {"logits": PROBS}), LABELS)  # a warning is an error here


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.integers(2, 6), st.sampled_from([0.1, 1.0, 9.0]), st.sampled_from("efd"))
def test_probabilities_of_any_sharpness_are_refused(seed, classes, scale, dtype):
    logits = scale * np.random.default_rng(seed).normal(size=(30, classes))
    labels, probs = logits.argmax(axis=1), np.asarray(special.softmax(logits, axis=1), dtype)
    with pytest.raises(InputError, match="logits are probabilities"):
        calibration.fit_temperature(probs, labels)
    calibration.fit_temperature(logits, labels)


@pytest.mark.parametrize(
    ("call", "array", "right"),
    [
        (calibration.fit_temperature, PROBS[:20], np.log(PROBS[:20])),
        (calibration.fit_temperature, np.stack([0 * P, P], axis=1), np.log(np.stack([1 - P, P], axis=1))),
        (calibration.fit_temperature, special.expit(LOGITS), LOGITS),
        (lambda scores, _: calibration.binary_outputs(scores, np.eye(3)[LABELS]), special.expit(LOGITS), LOGITS),
        (lambda log_probs, _: calibration.inverse_focal_calibration(log_probs, 2.0), PROBS, np.log(PROBS)),
        (lambda logits, _: calibration.temperature_scaling(logits, 2.0), PROBS, np.log(PROBS)),
    ],
)
def test_what_may_be_probabilities_is_warned_of_once(call, array, right):
    labels = LABELS[: len(array)] % array.shape[1]
    with pytest.warns(ProbabilityWarning, match="look like probabilities") as found:
        call(array, labels)
    (warning,) = found
    (fix,) = fixes(str(warning.message))
    mended = eval(fix, NAMES | dict.fromkeys(("logits", "scores", "log_probs"), array))
    np.testing.assert_allclose(mended, right, atol=1e-5)
    call(mended, labels)


@pytest.mark.parametrize("probs", [P, P[:, None], np.stack([1 - P, P], axis=1)])
def test_probabilities_by_their_name_take_the_place_of_logits(probs):
    logits, labels = calibration.log_probabilities(np.stack([1 - P, P], axis=1)), LABELS % 2
    expected = calibration.fit("platt_scaling", logits, labels).predict_proba(logits)
    estimator = calibration.PlattScaling().fit(probs=probs, labels=labels)
    for each in (calibration.fit("sigmoid", probs=probs, labels=labels), estimator):
        np.testing.assert_allclose(each.predict_proba(probs=probs), expected, atol=1e-6)
    np.testing.assert_array_equal(estimator.predict(probs=probs), expected.argmax(axis=1))
    np.testing.assert_array_equal(calibration.Outputs(probs=probs, labels=labels).logits, logits)
    of_p, expected = (calibration.bootstrap(calibration.binary_brier, each, labels, 0, 9) for each in (P, logits))
    assert of_p == expected


DOORS = [
    partial(calibration.fit, "temperature_scaling"),
    calibration.TemperatureScaling(classes=[0, 1]).fit,
    lambda *pair: calibration.compare(pair),
    calibration.ece,
    calibration.nll,
]
SCORES = np.stack([LOGITS[:, :2], LOGITS[::-1, 1:]])
SOFT = special.softmax(SCORES, axis=2)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("rows", "index", "expected"),
    [
        (LOGITS[:, 0], 0, P),
        (LOGITS[:, :1], 0, P),
        (P, 1, P),
        (SCORES, 0, SOFT.mean(axis=0)[:, 1]),
        (SCORES, 1, SOFT[..., 1].T.ravel()),
    ],
)
def test_fixes_of_other_shapes_work_as_printed(door, rows, index, expected):
    with pytest.raises(InputError) as found:
        door(rows, LABELS % 2)
    arrays = {"logits": rows, "log_probs": rows, "labels": np.eye(2)[LABELS % 2]}
    mended = eval(fixes(str(found.value))[index], NAMES | arrays)
    got = special.softmax(getattr(mended, "logits", mended), axis=1)
    np.testing.assert_allclose(got[:, 1], expected, atol=1e-6)


def test_the_logarithm_of_probabilities_has_a_floor():
    probs = np.array([[1.0, 0.0], [0.75, 0.25], [1 - 1e-40, 1e-40]])
    floor = np.log(calibration.PROBABILITY_FLOOR)
    expected = [[0, floor], np.log([0.75, 0.25]), [0, floor]]
    for array in (probs, probs.astype(np.float32)):
        got = calibration.log_probabilities(array)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(calibration.log_probabilities)(probs.astype(np.float32)), expected, rtol=1e-6)
    assert np.isfinite(calibration.nll(calibration.log_probabilities(probs), np.int32([1, 0, 0])))


@pytest.mark.parametrize(
    ("probs", "says"),
    [
        ([[1.5, -0.5]], "probs is 1.5: give a value from 0 to 1.01"),
        ([[0.5, 0.4]], "probs sums to 0.9"),
        ([[0.5, np.nan]], "probs is nan"),
        (np.int32([[1, 0]]), "probs: has type int32"),
    ],
)
def test_what_is_no_probability_is_refused(probs, says):
    with pytest.raises(InputError, match=says):
        calibration.log_probabilities(probs)
