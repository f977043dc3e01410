"""Calls of calibration, losses and theory with arguments that they do not mean: one for each class of fault and door.

What the doors themselves refuse stands in tests/test_checks.py.
"""

import warnings
from functools import partial

import jax
import numpy as np
import pytest

from focalgeo import calibration, curvature, losses, theory
from focalgeo.calibration.metrics import streaming
from focalgeo.types import InputError

pytestmark = pytest.mark.long

LOGITS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
LOG_PROBS = np.asarray(LOGITS - np.log(np.exp(LOGITS).sum(axis=1, keepdims=True)), np.float32)
LABELS = np.int32([0, 1, 2, 1, 0])
BOTH = LOG_PROBS, LABELS
FROM_1 = LOG_PROBS, LABELS + 1


def refused(says, function, *args, **kwargs):
    name = getattr(function, "__name__", "a function")
    return pytest.param(partial(function, *args, **kwargs), says, id=f"{name}: {says}")


CASES = [
    *(
        refused(r"labels\[2\] is 3|expected .None, 2.", entry.function, *FROM_1)
        for entry in calibration.METRICS.values()
    ),
    *(
        refused("num_bins is 0|expected .None, 2.", entry.function, *BOTH, num_bins=0)
        for entry in calibration.METRICS.values()
        if entry.binned
    ),
    refused("threshold is 99: give a value from 0 to 1", calibration.high_confidence, *BOTH, 99),
    refused("not one PRNG key", calibration.bootstrap, calibration.ece, *BOTH, 0.5, 10),
    refused("what the metric returns", calibration.bootstrap, lambda p, y, mask=None: p, *BOTH, jax.random.key(0), 10),
    refused("metric is str: give a function", calibration.bootstrap, "ece", *BOTH, 0, 10),
    refused("metrics is ece: give a list of names", streaming.make, "ece", 3),
    refused("num_classes is 2.5: give a whole number", streaming.make, ["ece"], 2.5),
    refused("metrics is nll: give a list", calibration.all_metrics, *BOTH, names="nll"),
    refused("for a loss take linearized_hvp", curvature.lambda_max, lambda w: w @ w, np.ones(3, "f"), 0),
    refused("weight are <U1: give numbers", curvature.with_trace_penalty, lambda params: params @ params, "a"),
    refused(r"weight has shape \(3,\)", curvature.with_trace_penalty, lambda params: params @ params, np.ones(3)),
    refused("weight is nan: give finite", curvature.with_trace_penalty, lambda params: params @ params, np.nan),
    refused(r"give each as \(logits, labels\)", calibration.compare, np.tile(LOGITS, (2, 1))),
    refused(r"give each as \(logits, labels\)", calibration.compare, BOTH, LOGITS[:1]),
    refused("loss is None: choose one of", losses.make_loss, None),
    refused(r"loss is \['focal_loss'\]: did you mean 'focal_loss'", losses.make_loss, ["focal_loss"]),
    refused("metrics is .*: did you mean 'ece'", calibration.all_metrics, *BOTH, names=[["ece"]]),
    refused("cannot read None as a calibrator.json", calibration.read_calibrator, None),
    refused("n minus the successes is -2", calibration.wilson_interval, 7, 5),
    refused("temperature is 0: give a finite value above 0", calibration.temperature_scaling, LOGITS, 0.0),
    refused(r"temperature has shape \(3,\)", calibration.temperature_scaling, LOGITS, np.ones(3)),
    refused("gamma is -1", calibration.focal_calibration, LOG_PROBS, -1.0),
    refused(r"scales has shape \(2,\)", calibration.focal_vector_scaling, LOGITS, 0.0, 1.0, np.ones(2), np.zeros(3)),
    refused("biases is inf", calibration.focal_vector_scaling, LOGITS, 0.0, 1.0, np.ones(3), np.full(3, np.inf)),
    refused("logits of 5 examples are not finite", calibration.fit_temperature, LOGITS * np.nan, LABELS),
    refused("make 1000000 points", calibration.grid_search, *BOTH, np.linspace(0, 9, 1000), np.linspace(1, 9, 1000)),
    refused("two different values", calibration.line_search, *BOTH, [1.0, 1.0], [0.5, 1.0]),
    refused(
        "structured matrix scaling takes 200", calibration.fit, "structured_matrix_scaling", 2 * np.eye(5, 300), LABELS
    ),
    refused("the method is .*: choose one of", calibration.fit, *BOTH),
    refused("give logits, or probabilities as probs=, one", calibration.fit, "temperature", *BOTH, probs=LOGITS),
    refused("labels are missing: give class numbers", calibration.fit, "temperature", LOGITS),
    refused("labels are <U1: .* np.unique", calibration.fit, "temperature", LOGITS, ["a"] * 5),
    refused("criterion of temperature_scaling", calibration.fit, "temperature_scaling", *BOTH, criterion="line_search"),
    refused("takes no gammas", calibration.fit, "focal_temperature_scaling", *BOTH, gammas=[0.0]),
    *(
        refused(r"labels\[2\] is 3", loss, *FROM_1)
        for loss in (losses.cross_entropy, losses.brier_loss, losses.mmce, partial(losses.focal_loss, gamma=2.0))
    ),
    refused("smoothing is 2", losses.label_smoothed_cross_entropy, *BOTH, 2.0),
    refused("p is 1.5", losses.sample_gamma, 1.5, (0.2,), (5.0, 3.0)),
    refused("gamma is inf", theory.gradient_ratio, 0.5, np.inf),
]


@pytest.mark.parametrize(("call", "says"), CASES)
def test_a_call_is_refused_in_one_line(call, says):
    with warnings.catch_warnings(action="error"), pytest.raises(InputError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)
