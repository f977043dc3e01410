"""Any arrays for metrics, maps and losses: an InputError of one line, the right number, or NaN; also under jit."""

import warnings

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hostile.tables.library_calls import METRICS, OF_ROWS, ON_BATCH, numbers
from hypothesis import given, settings
from reference import calibration as oracle

from focalgeo import calibration
from focalgeo.types import InputError

pytestmark = pytest.mark.long

LARGEST = float(np.finfo(np.float32).max)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 100.0, -100.0, np.inf, -np.inf, np.nan, 3e38, -3e38, LARGEST, -LARGEST, 1e-40, -1e-40)
VALUES = st.one_of(st.sampled_from(SPECIAL), st.floats(-30, 30, width=32))
DTYPES = st.sampled_from([np.float32, np.float64, np.float16, np.int32, bool])
SHAPES = st.sampled_from([(0, 3), (4, 3), (4, 2), (4, 1), (4,), (2, 4, 3), ()])  # few, as each is compiled
LABEL_SHAPES = st.sampled_from([(0,), (4,), (4, 1), (), (4, 3)])
GAMMAS = st.sampled_from((0.0, 2.0, -0.5, -1.0, np.inf, np.nan))
TEMPERATURES = st.sampled_from((1.0, 0.1, 0.0, -2.0, np.inf, np.nan, 1e30))
ARGUMENTS = ("log_probs", "logits", "labels", "gamma", "temperature")
MAPS = {
    "temperature_scaling": (lambda z, g, t: calibration.temperature_scaling(z, t), lambda z, g, t: [z, 0.0, t]),
    "focal_calibration": (lambda z, g, t: calibration.focal_calibration(z, g), lambda z, g, t: [z, g, 1.0]),
    "focal_temperature_scaling": (calibration.focal_temperature_scaling, lambda z, g, t: [z, g, t]),
}


@st.composite
def tables(draw):
    """Scores and labels: log-probabilities and classes half of the time, else anything."""
    shape = draw(SHAPES)
    values = np.array(draw(st.lists(VALUES, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))).reshape(shape)
    if draw(st.booleans()) and len(shape) > 1:
        with np.errstate(all="ignore"):
            shifted = values - values.max(axis=-1, keepdims=True, initial=-np.inf)
            values = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    with np.errstate(all="ignore"):
        scores = values.astype(draw(DTYPES))
    rows = shape[:-1] if draw(st.integers(0, 3)) else draw(LABEL_SHAPES)
    size = int(np.prod(rows))
    classes = shape[-1] if shape else 1
    highest = classes - 1 if draw(st.booleans()) and classes > 1 else classes + 1
    labels = draw(st.lists(st.integers(0 if highest < classes else -2, highest), min_size=size, max_size=size))
    dtype = draw(st.sampled_from([np.int32, np.int32, np.int64, np.uint8]))
    return scores, np.array(labels).reshape(rows).astype(dtype)


def results(function, *args):
    """What the function returns here and under jit, each None where it refuses in one line."""
    for call in (function, jax.jit(lambda *args: numbers(function(*args)))):
        found, says = None, ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of NumPy, where 3e38 meets float16
            try:
                found = jax.tree.map(np.asarray, numbers(call(*args)))
            except InputError as error:
                says = str(error)
        assert "\n" not in says
        assert found is not None or any(name in says for name in ARGUMENTS), says
        yield found


def right_or_nan(found, expected, tolerance=2e-4):
    """Every number is that expected, or NaN; cut where float32 ends."""
    if found is None:
        return
    expected = np.clip(np.asarray(expected, np.float64), -LARGEST, LARGEST)
    found = np.clip(np.asarray(found, np.float64), -LARGEST, LARGEST)
    with np.errstate(all="ignore"):
        close = np.abs(found - expected) <= tolerance * (1 + np.abs(expected))
    assert (np.isnan(found) | close).all(), (found, expected)


def log_softmax(z):
    """Log-probabilities of finite rows in float64; NaN where a row has no finite largest number."""
    z = np.asarray(z, np.float64)
    with np.errstate(all="ignore"):
        top = z.max(axis=-1, keepdims=True)
        return np.where(np.isfinite(top), z - top - np.log(np.exp(z - top).sum(axis=-1, keepdims=True)), np.nan)


def expected_metric(name, log_probs, labels):
    """The metric in float64; NaN where rows are no log-probabilities, labels no classes, or there is no example."""
    with np.errstate(all="ignore"):
        p = np.exp(np.asarray(log_probs, np.float64))
        off = np.abs(p.sum(axis=-1) - 1)
    classes = p.shape[-1]
    valid = (off <= 0.02) & (labels >= 0) & (labels < classes)
    if not len(p) or not valid.all():
        return np.nan
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == labels
    true = p[np.arange(len(p)), labels]
    with np.errstate(divide="ignore"):
        return {
            "accuracy": lambda: correct.mean(),
            "nll": lambda: -np.log(true).mean(),
            "brier": lambda: ((p - np.eye(classes)[labels]) ** 2).sum(axis=1).mean(),
            "ece": lambda: oracle.ece(confidence, correct, 15)[0],
            "mce": lambda: oracle.ece(confidence, correct, 15)[1],
        }[name]()


@settings(max_examples=60, deadline=None)
@given(tables(), st.sampled_from(sorted(METRICS)))
def test_metrics_refuse_or_are_right_or_nan(table, name):
    log_probs, labels = table
    for found in results(METRICS[name], log_probs, labels):
        if found is None:
            continue
        assert (log_probs.ndim, labels.shape) == (2, log_probs.shape[:1])
        assert log_probs.shape[1] >= 2
        if name in ("accuracy", "nll", "brier"):
            tolerance = 2e-2 if log_probs.dtype == np.float16 else 2e-4
            right_or_nan(found, expected_metric(name, log_probs, labels), tolerance)
        elif np.isnan(expected_metric("accuracy", log_probs, labels)):
            assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(found))


@settings(max_examples=40, deadline=None)
@given(tables(), st.sampled_from(sorted(MAPS)), GAMMAS, TEMPERATURES)
def test_maps_refuse_or_are_right_or_nan(table, name, gamma, temperature):
    function, arguments = MAPS[name]
    for found in results(function, table[0], np.float32(gamma), np.float32(temperature)):
        if found is None or table[0].ndim != 2:
            continue
        for row, log_probs in zip(table[0], found, strict=True):
            z, g, t = arguments(np.asarray(row, np.float64), gamma, temperature)
            if not (np.isfinite(z.max()) and g > -1 and np.isfinite(g) and 0 < t < np.inf):
                assert np.isnan(log_probs).all(), (row, log_probs)
            elif g == 0:
                with np.errstate(all="ignore"):
                    right_or_nan(log_probs, log_softmax((z - z.max()) / t))
            else:
                assert np.isnan(log_probs).all() or abs(np.exp(np.float64(log_probs)).sum() - 1) < 1e-4


@settings(max_examples=60, deadline=None)
@given(tables(), st.sampled_from(sorted({**OF_ROWS, **ON_BATCH})))
def test_losses_refuse_or_are_finite_where_logits_are_and_labels_are_classes(table, name):
    logits, labels = table
    for found in results({**OF_ROWS, **ON_BATCH}[name], logits, labels):
        if found is None:
            continue
        assert logits.ndim
        assert labels.shape == logits.shape[:-1]
        assert logits.shape[-1] >= 2
        with np.errstate(all="ignore"):
            finite = np.isfinite(np.asarray(logits, np.float32)).all(axis=-1)
        valid = finite & (labels >= 0) & (labels < logits.shape[-1])
        if name in ON_BATCH:
            assert np.isfinite(found) or not valid.all()
            continue
        assert np.isfinite(found[valid]).all(), (logits, labels, found)
        if name == "cross_entropy" and valid.any():
            own = np.take_along_axis(log_softmax(logits), np.where(valid, labels, 0).astype(int)[..., None], axis=-1)
            right_or_nan(found[valid], -own[..., 0][valid])
