"""Any arrays for metrics and maps: an InputError of one line, or the right number."""

import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from reference import calibration as oracle

from focalgeo import calibration
from focalgeo.types import InputError

pytestmark = pytest.mark.long

SPECIAL = (0.0, -0.0, 1.0, -1.0, 100.0, -100.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40)
VALUES = st.one_of(st.sampled_from(SPECIAL), st.floats(-30, 30, width=32))
SHAPES = st.sampled_from([(0, 3), (4, 3), (4, 2), (4, 1), (4,), (2, 4, 3), ()])  # few, as each is compiled
METRICS = ("accuracy", "nll", "brier", "ece", "mce")


@st.composite
def tables(draw):
    """Scores and labels: log-probabilities and classes half of the time, else anything."""
    shape = draw(SHAPES)
    values = np.array(draw(st.lists(VALUES, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))).reshape(shape)
    if draw(st.booleans()) and len(shape) > 1:
        values = log_softmax(values)
    with np.errstate(all="ignore"):
        scores = values.astype(draw(st.sampled_from([np.float32, np.float32, np.float64, np.float16, np.int32, bool])))
    rows = shape[:-1] if draw(st.integers(0, 3)) else draw(st.sampled_from([(4,), (4, 1), ()]))
    classes = st.integers(0, max(shape[-1:] or (1,)) - 1) if draw(st.booleans()) else st.integers(-2, 4)
    labels = draw(st.lists(classes, min_size=int(np.prod(rows)), max_size=int(np.prod(rows))))
    return scores, np.array(labels, np.int32).reshape(rows)


def log_softmax(z):
    z = np.asarray(z, np.float64)
    with np.errstate(all="ignore"):
        shifted = z - z.max(axis=-1, keepdims=True, initial=-np.inf)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def result(function, *args):
    """What the function returns; None where it refuses in one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, where 3e38 meets float16
        try:
            return np.float64(function(*args))
        except InputError as refusal:
            return None if "\n" not in str(refusal) else pytest.fail(str(refusal))


def right(value, expected, tolerance=2e-4):
    with np.errstate(all="ignore"):
        assert (np.isclose(value, expected, rtol=tolerance, atol=tolerance, equal_nan=True)).all(), (value, expected)


@settings(max_examples=60, deadline=None)
@given(tables(), st.sampled_from(METRICS))
def test_metrics_refuse_or_are_right(table, name):
    log_probs, labels = table
    value = result(getattr(calibration, name), log_probs, labels)
    if value is None:
        return
    p, one_hot = np.exp(np.float64(log_probs)), np.eye(log_probs.shape[1])[labels]
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == labels
    with np.errstate(divide="ignore"):
        expected = {
            "accuracy": correct.mean(),
            "nll": -np.log((p * one_hot).sum(axis=1)).mean(),
            "brier": ((p - one_hot) ** 2).sum(axis=1).mean(),
            **dict(zip(("ece", "mce"), oracle.ece(np.float32(confidence), correct, 15), strict=True)),
        }
    right(value, expected[name], 2e-2 if log_probs.dtype == np.float16 else 2e-4)


@settings(max_examples=40, deadline=None)
@given(tables(), st.sampled_from((0.0, 2.0, -0.5, -1.0, np.nan)), st.sampled_from((1.0, 0.1, 0.0, np.inf)))
def test_maps_refuse_or_are_right_or_nan(table, gamma, temperature):
    log_probs = result(calibration.focal_temperature_scaling, table[0], np.float32(gamma), np.float32(temperature))
    if log_probs is None:
        return
    z = np.float64(table[0])
    top = np.isfinite(z.max(axis=-1))
    assert np.isnan(log_probs[~top]).all()
    np.testing.assert_allclose(np.exp(log_probs[top]).sum(axis=-1), 1, atol=1e-4)
    if gamma == 0:
        with np.errstate(all="ignore"):
            expected = log_softmax((z - z.max(axis=-1, keepdims=True)) / temperature)[top]
        right(np.clip(log_probs[top], -3e38, 0), np.clip(expected, -3e38, 0))
