"""Calibration: maps, metrics, searches and fits as pure functions; methods, estimators and calibrator.json.

`maps` and `metrics` are the mathematics, blind to each other; `fits` finds the maps' numbers; `methods` holds METHODS,
what is fitted, its exports and its estimators; `decisions` makes sets, answers and actions; `study` compares methods
on a classifier's outputs and gives rows. What stands above maps and metrics is imported on first use. Products run at
full float32 precision on every device.
"""

import importlib
from typing import Any

from focalgeo.calibration import maps, metrics
from focalgeo.calibration.examples import Outputs, binary_outputs, log_probabilities, prevalence_weights
from focalgeo.calibration.maps import (
    binary_focal_calibration,
    binary_isotonic_calibration,
    focal_calibration,
    focal_temperature_scaling,
    focal_vector_scaling,
    inverse_focal_calibration,
    logistic_calibration,
    temperature_scaling,
)
from focalgeo.calibration.metrics import METRICS, all_metrics, streaming
from focalgeo.calibration.metrics.binning import Reliability, adaptive_reliability, reliability
from focalgeo.calibration.metrics.resampling import bootstrap, paired_bootstrap, wilson_interval
from focalgeo.calibration.metrics.top_label import (
    accuracy,
    adaptive_ece,
    aurc,
    brier,
    brier_split,
    classwise_ece,
    confidence_auroc,
    debiased_ece,
    debiased_squared_ece,
    ece,
    high_confidence,
    mce,
    nll,
    overconfidence,
    smooth_ece,
    underconfidence,
)
from focalgeo.calibration.metrics.two_classes import (
    adaptive_rms_calibration_error,
    auroc,
    binary_brier,
    binary_ece,
    binary_reliability,
    calibration_intercept,
    calibration_slope,
    ici,
    rms_calibration_error,
    spiegelhalter_z,
)
from focalgeo.types import (
    CRITERIA,
    DEFAULT_CRITERIA,
    DEFAULT_METRICS,
    PROBABILITY_FLOOR,
    DataWarning,
    ProbabilityWarning,
)

# module -> its public names, which are imported on first use: metrics alone load no fit
_UPPER = {
    "decisions": ("answers", "least_cost", "prediction_sets"),
    "fits.focal": ("fit_focal_temperature", "fit_temperature", "temperature_score_test"),
    "fits.search": ("GAMMAS", "TEMPERATURES", "best_point", "grid_search", "line_search"),
    "metrics.chance": ("calibration_test", "noise_floor"),
    "methods.fitting": ("fit", "fit_methods", "folds", "searched", "surfaces", "usable"),
    "methods.table": (
        "DEFAULT_METHODS",
        "METHODS",
        "ConvergenceWarning",
        "Fitted",
        "Method",
        "calibrator_json",
        "read_calibrator",
    ),
    "study.comparison": ("Comparison", "choose", "compare", "usual_resamples"),
    "study.decision_rows": ("decided",),
    "study.dense": ("dense",),
    "study.measurement": ("Sample",),
    "study.metric_rows": ("calibration_rows", "candidates", "comparisons", "fit_rows"),
    "study.shift": ("calibration_kept", "on_tests"),
}
HOMES = {name: home for home, names in _UPPER.items() for name in names}


def __getattr__(name: str) -> Any:
    """A name of an upper room, or a scikit-learn estimator: scikit-learn is slow to import, and an extra."""
    if name in HOMES:
        home = importlib.import_module(f"{__name__}.{HOMES[name]}")
    elif name[:1].isupper():
        from focalgeo import types

        types.library("sklearn")
        from focalgeo.calibration.methods import estimators as home
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(home, name)


def __dir__() -> list[str]:
    """The public names, those of the upper rooms too."""
    return sorted({*globals(), *HOMES})
