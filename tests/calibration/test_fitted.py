"""A fitted method: what it predicts, which logits it refuses, and its parameters in plain numbers."""

import copy
import pickle

import jax
import numpy as np
import pytest

from focalgeo.calibration import METHODS, Fitted, calibrator_json, fit, focal_temperature_scaling
from focalgeo.types import InputError

LOGITS = 3 * np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
PARAMS = {"gamma": np.float32(0.51), "temperature": np.float32(1.37), "converged": np.True_}
FOCAL = Fitted(METHODS["focal_temperature_scaling"], "nll", PARAMS, 3)


def test_predictions_are_those_of_the_map():
    expected = focal_temperature_scaling(LOGITS, 0.51, 1.37)
    np.testing.assert_allclose(FOCAL.predict_log_proba(LOGITS), expected, atol=1e-6)
    np.testing.assert_allclose(FOCAL.predict_proba(LOGITS), np.exp(expected), atol=1e-6)
    np.testing.assert_allclose(jax.jit(FOCAL.predict_log_proba)(LOGITS), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("logits", "says"),
    [
        ([[0.0, np.nan, 1.0]], "logits of 1 examples are not finite, the first in row 0"),
        (np.ones((1, 4)), r"logits: has shape \(1, 4\) but expected \(None, 3\)"),
    ],
)
def test_logits_that_are_none_are_refused(logits, says):
    with pytest.raises(InputError, match=says) as raised:
        FOCAL.predict_log_proba(logits)
    assert "\n" not in str(raised.value)


def test_parameters_are_plain_numbers_and_lists_with_the_fewest_digits():
    assert FOCAL.parameters == {"gamma": 0.51, "temperature": 1.37}
    matrix = FOCAL._replace(params={"weights": np.float32([[1, 0.1], [2, 0.3]]), "converged": np.False_})
    assert matrix.parameters == {"weights": [[1, 0.1], [2, 0.3]]}
    assert not matrix.converged


def test_what_cannot_be_written_is_one_line():
    with pytest.raises(InputError, match="the number of classes is not known: give num_classes"):
        calibrator_json(FOCAL._replace(num_classes=None))
    with pytest.raises(InputError, match="temperature is nan"):
        FOCAL._replace(params={"temperature": np.float32(np.nan)}).to_json()


@pytest.mark.filterwarnings("ignore::focalgeo.calibration.ConvergenceWarning")  # labels have no more than chance
@pytest.mark.parametrize("name", METHODS)
def test_it_can_be_copied_and_pickled(name):
    """As joblib does, and as processes hand it on."""
    known = {"trained_gamma": 1.5} if "trained_gamma" in METHODS[name].options else {}
    fitted = fit(name, LOGITS, np.arange(40) % 3, **known)
    for again in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(again.predict_log_proba(LOGITS), fitted.predict_log_proba(LOGITS))
