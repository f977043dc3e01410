"""Calls of calibration, losses and theory with arguments that they do not mean: one for each class of fault and door.

What the doors themselves refuse stands in tests/test_checks.py.
"""

from functools import partial

import jax
import numpy as np
from hostile.cases import Call

from focalgeo import calibration, curvature, losses, theory
from focalgeo.calibration.metrics import streaming

LOGITS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
LOG_PROBS = np.asarray(LOGITS - np.log(np.exp(LOGITS).sum(axis=1, keepdims=True)), np.float32)
LABELS = np.int32([0, 1, 2, 1, 0])
KEY = np.uint32([0, 7])
BOTH = LOG_PROBS, LABELS
FROM_1 = LOG_PROBS, LABELS + 1


def refused(says, function, *args, **kwargs):
    name = getattr(function, "__name__", "a function")
    return Call("wrong result", f"{name}: {says}", partial(function, *args, **kwargs), says)


CASES = [
    *(refused(r"labels\[2\] is 3", getattr(calibration, name), *FROM_1) for name in ("ece", "aurc", "brier_split")),
    *(
        refused("num_bins is 0", getattr(calibration, name), *BOTH, num_bins=0)
        for name in ("ece", "mce", "brier_split")
    ),
    refused("of logits give", calibration.smooth_ece, 4 * LOGITS, LABELS),
    refused("threshold is 99: give a value from 0 to 1", calibration.high_confidence, *BOTH, 99),
    refused("expected .None, 2.", calibration.binary_ece, *BOTH),
    refused("num_resamples is 100000000", calibration.bootstrap, calibration.ece, *BOTH, KEY, 10**8),
    refused("not one PRNG key", calibration.bootstrap, calibration.ece, *BOTH, 0.5, 10),
    refused("key is -1: give a whole number", calibration.bootstrap, calibration.ece, *BOTH, -1, 10),
    refused("what the metric returns", calibration.bootstrap, lambda p, y, mask=None: p, *BOTH, jax.random.key(0), 10),
    refused("metric is str: give a function", calibration.bootstrap, "ece", *BOTH, 0, 10),
    refused("metric is str: give", calibration.paired_bootstrap, "ece", LOG_PROBS, *BOTH, 0, 10),
    refused("metrics is ece: give a list of names", streaming.make, "ece", 3),
    refused("metrics is None: give a list of names", streaming.make, None, 3),
    refused("num_classes is 2.5: give a whole number", streaming.make, ["ece"], 2.5),
    refused("metrics is nll: give a list", calibration.all_metrics, *BOTH, names="nll"),
    refused("weight are <U1: give numbers", curvature.with_trace_penalty, lambda params: params @ params, "a"),
    refused(r"weight has shape \(3,\)", curvature.with_trace_penalty, lambda params: params @ params, np.ones(3)),
    refused("n less the successes is -2", calibration.wilson_interval, 7, 5),
    refused("temperature is 0: give a finite value above 0", calibration.temperature_scaling, LOGITS, 0.0),
    refused(r"temperature has shape \(3,\)", calibration.temperature_scaling, LOGITS, np.ones(3)),
    refused("gamma is -1", calibration.focal_calibration, LOG_PROBS, -1.0),
    refused("gamma is -0.5", calibration.inverse_focal_calibration, LOG_PROBS, -0.5),
    refused(r"scales has shape \(2,\)", calibration.focal_vector_scaling, LOGITS, 0.0, 1.0, np.ones(2), np.zeros(3)),
    refused("biases is inf", calibration.focal_vector_scaling, LOGITS, 0.0, 1.0, np.ones(3), np.full(3, np.inf)),
    refused("logits of 5 examples are not finite", calibration.fit_temperature, LOGITS * np.nan, LABELS),
    refused("make 1000000 points", calibration.grid_search, *BOTH, np.linspace(0, 9, 1000), np.linspace(1, 9, 1000)),
    refused("gammas are <U", calibration.grid_search, *BOTH, ["a"]),
    refused("two different values", calibration.line_search, *BOTH, [1.0, 1.0], [0.5, 1.0]),
    refused("num_folds is 1", calibration.folds, np.zeros(9, int), 1, 0),
    refused(
        "structured matrix scaling takes 200", calibration.fit, "structured_matrix_scaling", 2 * np.eye(5, 300), LABELS
    ),
    refused("the method is 'platt'", calibration.fit, "platt", *BOTH),
    refused("criterion of temperature_scaling", calibration.fit, "temperature_scaling", *BOTH, criterion="line_search"),
    refused("takes no gammas", calibration.fit, "focal_temperature_scaling", *BOTH, gammas=[0.0]),
    refused("give trained_gamma", calibration.fit, "loss_implied_map", *BOTH),
    refused("probs is", calibration.log_probabilities, LOGITS),
    *(
        refused(
            r"labels\[2\] is 3",
            losses.make_loss(name) if name == "focal_loss" else getattr(losses, name),
            *FROM_1,
            *more,
        )
        for name, *more in (("cross_entropy",), ("brier_loss",), ("mmce",), ("focal_loss", {"gamma": 2.0}))
    ),
    refused("smoothing is 2", losses.label_smoothed_cross_entropy, *BOTH, 2.0),
    refused("gamma is inf", losses.focal_loss, *BOTH, np.inf),
    refused("p is 1.5", losses.sample_gamma, 1.5, (0.2,), (5.0, 3.0)),
    refused("gamma is inf", theory.gradient_ratio, 0.5, np.inf),
]
