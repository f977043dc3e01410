"""Calls of calibration, losses and theory with arguments that they do not mean."""

from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from hostile.cases import Call

from focalgeo import calibration, losses

LOGITS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
LOG_PROBS = np.asarray(LOGITS - np.log(np.exp(LOGITS).sum(axis=1, keepdims=True)), np.float32)
LABELS = np.int32([0, 1, 2, 1, 0])
KEY = np.uint32([0, 7])
HUGE = np.float32(3e38)

METRICS: dict[str, Callable] = {
    name: getattr(calibration, name)
    for name in (
        "accuracy", "adaptive_ece", "adaptive_reliability", "aurc", "auroc", "brier", "brier_split", "classwise_ece",
        "debiased_ece",
        "debiased_squared_ece", "ece", "entropy", "entropy_by_outcome", "high_confidence", "interpolated_adaptive_ece",
        "mce", "nll", "nll_by_outcome", "overconfidence", "reliability", "smooth_ece", "underconfidence",
    )
}  # fmt: skip
BINNED = ("adaptive_ece", "brier_split", "classwise_ece", "debiased_ece", "ece", "mce", "interpolated_adaptive_ece")
OF_ROWS: dict[str, Callable] = {
    "cross_entropy": losses.cross_entropy,
    "label_smoothed_cross_entropy": lambda z, y: losses.label_smoothed_cross_entropy(z, y, 0.1),
    "brier_loss": losses.brier_loss,
    "focal_loss": lambda z, y: losses.focal_loss(z, y, 2.0),
    "signed_focal_loss": lambda z, y: losses.signed_focal_loss(z, y, -2.0),
    "dual_focal_loss": lambda z, y: losses.dual_focal_loss(z, y, 2.0),
    "confidence_penalised_cross_entropy": lambda z, y: losses.confidence_penalised_cross_entropy(z, y, 2.0),
    "sample_dependent_focal_loss": lambda z, y: losses.sample_dependent_focal_loss(z, y, (0.2,), (5.0, 3.0)),
    "scheduled_focal_loss": lambda z, y: losses.scheduled_focal_loss(z, y, 0, (100,), (5.0, 3.0)),
    "adafocal_loss": lambda z, y: losses.adafocal_loss(z, y, losses.adafocal_state()),
}
ON_BATCH = {"mmce": losses.mmce, "weighted_mmce": losses.weighted_mmce}


def wrong(name: str, says: str, function: Callable, *args, **kwargs) -> Call:
    return Call("wrong result", name, partial(function, *args, **kwargs), says)


def unhelpful(name: str, says: str, function: Callable, *args, **kwargs) -> Call:
    return Call("unhelpful line", name, partial(function, *args, **kwargs), says)


def endless(name: str, says: str, function: Callable, *args, **kwargs) -> Call:
    return Call("no end", name, partial(function, *args, **kwargs), says)


def traced(name: str, function: Callable, *args) -> Call:
    """The function under jit, where values are not known: NaN."""
    return Call("wrong result", f"{name} under jit", lambda: numbers(jax.jit(function)(*args)), None)


def numbers(result: object) -> object:
    """A result without the edges of bins, which do not depend on the examples."""
    if isinstance(result, calibration.Reliability):
        return result._replace(lower=result.count, upper=result.count)
    return result


BAD_TABLES = {
    "labels (n, 1)": (LOG_PROBS, LABELS[:, None], r"labels have shape \(5, 1\), log_probs \(5, 3\): .*labels\[:, 0\]"),
    "labels from 1": (LOG_PROBS, LABELS + 1, "labels run from 1 to 3: subtract 1"),
    "a label of -1": (LOG_PROBS, LABELS - 1, r"labels\[0\] is -1: with 3 classes give labels from 0 to 2"),
    "logits": (4 * LOGITS, LABELS, "log_probs .*: of logits give jax.nn.log_softmax"),
    "probabilities": (np.exp(LOG_PROBS), LABELS, "log_probs hold .* of probabilities calibration.log_probabilities"),
    "rows of one class": (LOG_PROBS[:, :1], LABELS, "log_probs have one class"),
    "a row alone": (LOG_PROBS[0], LABELS[:3], r"log_probs have shape \(3,\): give \[examples, classes\]"),
    "fewer labels": (LOG_PROBS, LABELS[:3], r"labels have shape \(3,\), log_probs \(5, 3\)"),
}
# every fault with a few metrics, so that every metric has a few faults
OF_METRICS = [
    wrong(f"{name} of {fault}", says, METRICS[name], log_probs, labels)
    for i, (fault, (log_probs, labels, says)) in enumerate(BAD_TABLES.items())
    for name in list(METRICS)[i % 4 :: 4]
]
OF_METRICS += [
    traced(f"{name} of {fault}", METRICS[name], *BAD_TABLES[fault][:2])
    for i, fault in enumerate(("logits", "labels from 1", "a label of -1"))
    for name in list(METRICS)[i::3]
]
OF_METRICS += [
    wrong("accuracy of labels as floats", "labels are float32: give class numbers", calibration.accuracy, LOG_PROBS,
          np.float32(LABELS)),
    wrong("nll of labels as truth values", "labels are bool", calibration.nll, LOG_PROBS, LABELS > 0),
    wrong("brier of one-hot labels", r"labels.argmax\(-1\)", calibration.brier, LOG_PROBS, np.eye(3)[LABELS]),
    wrong("ece of three axes", r"log_probs have shape \(1, 5, 3\)", calibration.ece, LOG_PROBS[None], LABELS[None]),
    wrong("ece of integers", "log_probs are int32", calibration.ece, np.int32(LOG_PROBS), LABELS),
    wrong("mce of complex numbers", "log_probs are complex64", calibration.mce, LOG_PROBS.astype(np.complex64), LABELS),
    unhelpful("nll of words", "log_probs are <U", calibration.nll, [["a", "b"]], [0]),
    unhelpful("nll of uneven lists", "log_probs are no array", calibration.nll, [[0.0], [-1.0, -2.0]], [0, 1]),
    wrong("ece with a mask (n, 1)", r"mask has shape \(5, 1\), labels \(5,\)", calibration.ece, LOG_PROBS, LABELS,
          mask=np.ones((5, 1), bool)),
    wrong("accuracy with a negative mask", "mask holds -1", calibration.accuracy, LOG_PROBS, LABELS,
          mask=np.float32([1, 1, -1, 1, 1])),
    wrong("ece with a mask of NaN", "mask holds nan", calibration.ece, LOG_PROBS, LABELS, mask=np.full(5, np.nan)),
    wrong("high_confidence at 99 per cent", "threshold is 99: give a value from 0 to 1", calibration.high_confidence,
          LOG_PROBS, LABELS, 99),
    wrong("binary_ece of rows that sum to 2", r"log_probs\[0\] .* sum to 2, not to 1", calibration.binary_ece,
          np.zeros((5, 2), np.float32), LABELS % 2),
    Call("wrong result", "smooth_ece of nothing", lambda: calibration.smooth_ece(LOG_PROBS[:0], LABELS[:0]), None),
    Call("wrong result", "ece of nothing", lambda: calibration.ece(LOG_PROBS[:0], LABELS[:0]), None),
    Call("wrong result", "accuracy of NaN", lambda: calibration.accuracy(LOG_PROBS * np.nan, LABELS), None),
    wrong("ece with half a bin", "num_bins is 1.5: give a whole number", calibration.ece, LOG_PROBS, LABELS,
          num_bins=1.5),
    *(endless(f"{name} with a million bins", "num_bins is 1000000: give at most 10000", METRICS[name], LOG_PROBS,
              LABELS, num_bins=10**6) for name in BINNED),
    *(wrong(f"{name} with no bin", "num_bins is 0: give 1 or more", METRICS[name], LOG_PROBS, LABELS, num_bins=0)
      for name in BINNED),
]  # fmt: skip

RESAMPLED = [
    endless("bootstrap with 1e8 resamples", "num_resamples is 100000000: give at most 100000", calibration.bootstrap,
            calibration.ece, LOG_PROBS, LABELS, KEY, 10**8),
    unhelpful("bootstrap with a half resample", "num_resamples is 2.5", calibration.bootstrap, calibration.ece,
              LOG_PROBS, LABELS, KEY, 2.5),
    unhelpful("bootstrap with a seed for a key", r"key is 0, not a PRNG key: give jax.random.key\(seed\)",
              calibration.bootstrap, calibration.ece, LOG_PROBS, LABELS, 0, 10),
    wrong("bootstrap of logits", "log_probs .*: of logits give", calibration.bootstrap, calibration.ece, 4 * LOGITS,
          LABELS, KEY, 10),
    wrong("bootstrap of labels (n, 1)", r"labels have shape \(5, 1\)", calibration.bootstrap, calibration.ece,
          LOG_PROBS, LABELS[:, None], KEY, 10),
    wrong("bootstrap of no metric", "metric is a str", calibration.bootstrap, "ece", LOG_PROBS, LABELS, KEY, 10),
    wrong("paired_bootstrap of labels from 1", "labels run from 1 to 3", calibration.paired_bootstrap, calibration.nll,
          LOG_PROBS, LOG_PROBS, LABELS + 1, KEY, 10),
    wrong("paired_bootstrap of probabilities", "of probabilities calibration.log_probabilities",
          calibration.paired_bootstrap, calibration.nll, LOG_PROBS, np.exp(LOG_PROBS), LABELS, KEY, 10),
    unhelpful("bootstrap with a key of four numbers", "key is uint32.4., not a PRNG key", calibration.bootstrap,
              calibration.ece, LOG_PROBS, LABELS, np.uint32([1, 2, 3, 4]), 10),
    unhelpful("bootstrap with 10^5000 resamples", "num_resamples is a value of type int: give at most",
              calibration.bootstrap, calibration.ece, LOG_PROBS, LABELS, KEY, 10**5000),
    unhelpful("ece with 10^5000 bins", "num_bins is a value of type int: give at most", calibration.ece, LOG_PROBS,
              LABELS, num_bins=10**5000),
    unhelpful("grid_search by criterion 10^5000", "criterion is a value of type int: choose one of ece",
              calibration.grid_search, LOGITS, LABELS, criterion=10**5000),
    wrong("wilson_interval of 7 out of 5", "successes are up to 7 out of n = 5", calibration.wilson_interval, 7, 5),
    wrong("wilson_interval of -1", "successes is -1", calibration.wilson_interval, -1, 5),
    traced("wilson_interval of 7 out of 5", calibration.wilson_interval, 7.0, 5.0),
    traced("bootstrap of logits", lambda z: calibration.bootstrap(calibration.ece, z, LABELS, jax.random.key(0), 3)[:4],
           4 * LOGITS),
]  # fmt: skip

MAPS_AND_FITS = [
    wrong("temperature_scaling at 0", "temperature is 0: give a finite value above 0", calibration.temperature_scaling,
          LOGITS, 0.0),
    wrong("temperature_scaling at infinity", "temperature is inf", calibration.temperature_scaling, LOGITS, np.inf),
    unhelpful("temperature_scaling with a vector", r"temperature has shape \(3,\): give one for all, or shape \(5,\)",
              calibration.temperature_scaling, LOGITS, np.ones(3)),
    wrong("temperature_scaling of one class", "logits have one class", calibration.temperature_scaling, LOGITS[:, :1],
          1.0),
    wrong("focal_calibration at gamma -1", "gamma is -1: give a finite value above -1", calibration.focal_calibration,
          LOG_PROBS, -1.0),
    wrong("focal_calibration of integers", "log_probs are int32", calibration.focal_calibration, np.int32(LOG_PROBS),
          1.0),
    wrong("focal_temperature_scaling of NaN", "gamma is nan", calibration.focal_temperature_scaling, LOGITS, np.nan, 1),
    wrong("inverse_focal_calibration at gamma -0.5", "gamma is -0.5", calibration.inverse_focal_calibration, LOG_PROBS,
          -0.5),
    wrong("binary_focal_calibration at gamma -2", "gamma is -2", calibration.binary_focal_calibration, 1.0, -2.0),
    traced("temperature_scaling of infinite logits", lambda z: calibration.temperature_scaling(z, 1.0),
           np.float32([[np.inf, 0, 1]])),
    traced("focal_calibration at gamma -1", calibration.focal_calibration, LOG_PROBS, np.float32(-1)),
    traced("focal_calibration at an infinite gamma", calibration.focal_calibration, LOG_PROBS, np.float32(np.inf)),
    wrong("fit_temperature of labels from 1", "labels run from 1 to 3", calibration.fit_temperature, LOGITS,
          LABELS + 1),
    wrong("fit_temperature of NaN", "logits of 5 examples are not finite", calibration.fit_temperature, LOGITS * np.nan,
          LABELS),
    traced("fit_temperature of labels from 1", lambda y: calibration.fit_temperature(LOGITS, y)[:3], LABELS + 1),
    wrong("fit_focal_temperature of labels (n, 1)", r"labels have shape \(5, 1\), logits \(5, 3\)",
          calibration.fit_focal_temperature, LOGITS, LABELS[:, None]),
    wrong("grid_search of labels (n, 1)", r"labels have shape \(5, 1\)", calibration.grid_search, LOGITS,
          LABELS[:, None]),
    wrong("grid_search of infinite logits", "logits of 1 examples are not finite, the first in row 0",
          calibration.grid_search, np.where(np.eye(5, 3, dtype=bool) & (LABELS[:, None] == 0), np.inf, LOGITS), LABELS),
    wrong("grid_search of nothing", "logits and labels are empty", calibration.grid_search, LOGITS[:0], LABELS[:0]),
    traced("grid_search of labels from 1", lambda y: calibration.grid_search(LOGITS, y, [0.0, 1.0], [1.0, 2.0]),
           LABELS + 1),
    endless("grid_search of a million points", "make 1000000 points: give at most 100000", calibration.grid_search,
            LOGITS, LABELS, np.linspace(0, 9, 1000), np.linspace(1, 9, 1000)),
    endless("line_search with a million temperatures", "give at most 100000", calibration.line_search, LOGITS, LABELS,
            [0.0, 1.0], np.linspace(1, 9, 10**6)),
    endless("grid_search with a million bins", "num_bins is 1000000", calibration.grid_search, LOGITS, LABELS,
            num_bins=10**6),
    unhelpful("grid_search with a table of gammas", r"gammas have shape \(2, 2\)", calibration.grid_search, LOGITS,
              LABELS, np.zeros((2, 2))),
    unhelpful("grid_search with words", "gammas are <U", calibration.grid_search, LOGITS, LABELS, ["a"]),
    unhelpful("cross_fit with one fold", "num_folds is 1: give 2 or more", calibration.cross_fit, calibration.METHODS,
              LOGITS, LABELS, settings={}, num_folds=1),
    unhelpful("folds of a table", r"labels have shape \(5, 1\)", calibration.folds, LABELS[:, None], 2, 0),
    *(
        wrong(f"{fit.__name__} of labels from 1", "labels run from 1 to 3", fit, LOGITS, LABELS + 1)
        for fit in (calibration.fit_vector_scaling, calibration.fit_focal_vector_scaling,
                    calibration.fit_matrix_scaling, calibration.fit_ensemble_temperature,
                    calibration.fit_histogram_binning, calibration.fit_isotonic)
    ),
    wrong("fit_matrix_scaling of 300 classes", "logits have 300 classes: matrix scaling is fitted for at most 200",
          calibration.fit_matrix_scaling, np.zeros((5, 300), np.float32), LABELS),
    wrong("fit of NaN", "logits of 5 examples are not finite", calibration.fit, "vector_scaling", LOGITS * np.nan,
          LABELS),
    unhelpful("fit of an unknown method", "the method is 'platt': choose one of uncalibrated", calibration.fit, "platt",
              LOGITS, LABELS),
    unhelpful("compare with 10 resamples", "num_resamples is 10: give 100 or more", calibration.compare,
              (LOGITS, LABELS), num_resamples=10),
    unhelpful("compare of labels from 1", "labels run from 1", calibration.compare, (LOGITS, LABELS + 1)),
    wrong("compare with a label of test that is none", r"test: labels\[4\] is 3", calibration.compare, (LOGITS, LABELS),
          (LOGITS, np.int32([0, 1, 2, 1, 3]))),
    unhelpful("compare of a group that is too short", r"val: group has shape \(4,\)", calibration.compare,
              (LOGITS, LABELS, ["a"] * 4)),
    wrong("compare with probabilities from elsewhere", "also mine, val: log_probs hold", calibration.compare,
          (LOGITS, LABELS), also={"mine": (np.exp(LOG_PROBS), None)}),
    unhelpful("fit of a loss-implied method without a gamma", "needs trained_gamma", calibration.fit,
              "loss_implied_temperature_scaling", LOGITS, LABELS),
    wrong("focal_vector_scaling of infinite scales", "scales", calibration.focal_vector_scaling, LOGITS, 0.0, 1.0,
          np.float32([1, np.inf, 1]), np.zeros(3, np.float32)),
    unhelpful("focal_vector_scaling of two scales", r"scales has shape \(2,\)", calibration.focal_vector_scaling,
              LOGITS, 0.0, 1.0, np.ones(2, np.float32), np.zeros(3, np.float32)),
    wrong("log_probabilities of logits", "give probabilities|probs", calibration.log_probabilities, LOGITS),
    wrong("fit_methods of labels from 1", "labels run from 1", calibration.fit_methods, calibration.METHODS, LOGITS,
          LABELS + 1, settings={"trained_gamma": 2.0}),
]  # fmt: skip

CASES = OF_METRICS + RESAMPLED + MAPS_AND_FITS
