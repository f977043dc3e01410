"""Probabilities in place of logits and of log-probabilities: the floored logarithm, and the warning."""

import jax
import numpy as np
import pytest

from focalgeo import calibration
from focalgeo.calibration import ProbabilityWarning
from focalgeo.types import InputError

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(60, 3)).astype(np.float32)
PROBS = np.asarray(jax.nn.softmax(2 * LOGITS))
LABELS = np.argmax(LOGITS + RNG.gumbel(size=(60, 3)), axis=1).astype(np.int32)
GRID = {"gammas": [0.0, 1.0], "temperatures": [0.5, 1.0, 2.0]}
FITS = {
    "fit_focal_temperature": calibration.fit_focal_temperature,
    "grid_search": lambda logits, labels: calibration.grid_search(logits, labels, *GRID.values()),
    "line_search": lambda logits, labels: calibration.line_search(logits, labels, *GRID.values()),
    "estimator": lambda logits, labels: calibration.TemperatureScaling().fit(logits, labels),
    "compare": lambda logits, labels: calibration.compare((logits, labels), None, (), num_resamples=100),
}


@pytest.mark.filterwarnings("ignore::focalgeo.calibration.ConvergenceWarning")  # gamma 0, an end of this grid
@pytest.mark.parametrize("name", FITS)
def test_probabilities_in_place_of_logits_are_one_warning(name):
    with pytest.warns(ProbabilityWarning, match=r"give calibration\.log_probabilities\(logits\)") as found:
        FITS[name](PROBS, LABELS)
    assert sum(issubclass(each.category, ProbabilityWarning) for each in found) == 1
    FITS[name](calibration.log_probabilities(PROBS), LABELS)  # a warning is an error here


def test_the_logarithm_of_probabilities_has_a_floor():
    probs = np.array([[1.0, 0.0], [0.75, 0.25], [1 - 1e-40, 1e-40]])
    floor = np.log(calibration.PROBABILITY_FLOOR)
    expected = [[0, floor], np.log([0.75, 0.25]), [0, floor]]
    for given in (probs, probs.astype(np.float32)):
        got = calibration.log_probabilities(given)
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
