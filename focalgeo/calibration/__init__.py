"""Calibration: maps, metrics, searches and fits as pure functions; methods, estimators and calibrator.json."""

from focalgeo.calibration.binning import Reliability, adaptive_reliability, check_predictions, reliability
from focalgeo.calibration.crossfit import candidates, choose, cross_fit, folds
from focalgeo.calibration.decomposition import (
    BrierSplit,
    ByOutcome,
    brier_split,
    entropy,
    entropy_by_outcome,
    nll_by_outcome,
    overconfidence,
    underconfidence,
)
from focalgeo.calibration.ece_variants import (
    binary_adaptive_ece,
    binary_ece,
    binary_reliability,
    binary_smooth_ece,
    debiased_ece,
    debiased_squared_ece,
    interpolated_adaptive_ece,
    smooth_ece,
)
from focalgeo.calibration.fits import CalibrationFit, fit_focal_temperature, fit_temperature
from focalgeo.calibration.intervals import PairedDifference, bootstrap, paired_bootstrap, wilson_interval
from focalgeo.calibration.inverse import inverse_focal_calibration
from focalgeo.calibration.maps import (
    binary_focal_calibration,
    focal_calibration,
    focal_temperature_scaling,
    temperature_scaling,
)
from focalgeo.calibration.methods import (
    METHODS,
    Calibrated,
    Fitted,
    Method,
    configured,
    fit_methods,
    searched,
    searched_members,
    usable,
)
from focalgeo.calibration.metrics import (
    DEFAULT_METRICS,
    METRICS,
    HighConfidence,
    MetricEntry,
    accuracy,
    adaptive_ece,
    all_metrics,
    brier,
    classwise_ece,
    ece,
    high_confidence,
    log_probabilities,
    mce,
    nll,
)
from focalgeo.calibration.ranking import aurc, auroc
from focalgeo.calibration.saved import (
    SavedCalibrator,
    calibrator_json,
    plain_numbers,
    read_calibrator,
    saved_calibrator,
)
from focalgeo.calibration.search import (
    GAMMAS,
    TEMPERATURES,
    GridSearch,
    LineSearch,
    best_point,
    grid_search,
    line_search,
)
from focalgeo.probabilities import PROBABILITY_FLOOR, ProbabilityWarning

_ESTIMATORS = ("FocalTemperatureScaling", "TemperatureScaling")  # they need scikit-learn, slow to import: on first use

__all__ = [
    "DEFAULT_METRICS",
    "GAMMAS",
    "METHODS",
    "METRICS",
    "PROBABILITY_FLOOR",
    "TEMPERATURES",
    "BrierSplit",
    "ByOutcome",
    "Calibrated",
    "CalibrationFit",
    "Fitted",
    "FocalTemperatureScaling",
    "GridSearch",
    "HighConfidence",
    "LineSearch",
    "Method",
    "MetricEntry",
    "PairedDifference",
    "ProbabilityWarning",
    "Reliability",
    "SavedCalibrator",
    "TemperatureScaling",
    "accuracy",
    "adaptive_ece",
    "adaptive_reliability",
    "all_metrics",
    "aurc",
    "auroc",
    "best_point",
    "binary_adaptive_ece",
    "binary_ece",
    "binary_focal_calibration",
    "binary_reliability",
    "binary_smooth_ece",
    "bootstrap",
    "brier",
    "brier_split",
    "calibrator_json",
    "candidates",
    "check_predictions",
    "choose",
    "classwise_ece",
    "configured",
    "cross_fit",
    "debiased_ece",
    "debiased_squared_ece",
    "ece",
    "entropy",
    "entropy_by_outcome",
    "fit_focal_temperature",
    "fit_methods",
    "fit_temperature",
    "focal_calibration",
    "focal_temperature_scaling",
    "folds",
    "grid_search",
    "high_confidence",
    "interpolated_adaptive_ece",
    "inverse_focal_calibration",
    "line_search",
    "log_probabilities",
    "mce",
    "nll",
    "nll_by_outcome",
    "overconfidence",
    "paired_bootstrap",
    "plain_numbers",
    "read_calibrator",
    "reliability",
    "saved_calibrator",
    "searched",
    "searched_members",
    "smooth_ece",
    "temperature_scaling",
    "underconfidence",
    "usable",
    "wilson_interval",
]


def __getattr__(name: str):
    """Import a scikit-learn estimator on first use."""
    if name in _ESTIMATORS:
        from focalgeo.calibration import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
