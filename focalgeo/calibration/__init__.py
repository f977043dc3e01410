"""Calibration: maps, metrics, searches and fits as pure functions; methods, estimators and calibrator.json.

Products run at full float32 precision on every device.
"""

from focalgeo.calibration.binning import Reliability, adaptive_reliability, check_predictions, reliability
from focalgeo.calibration.classwise import focal_matrix_scaling, focal_vector_scaling
from focalgeo.calibration.classwise_fits import (
    fit_focal_vector_scaling,
    fit_focal_vector_scaling_jointly,
    fit_matrix_scaling,
    fit_vector_scaling,
)
from focalgeo.calibration.comparison import Comparison, Outputs, checked_methods, compare
from focalgeo.calibration.crossfit import Choice, candidates, choose, cross_fit, folds
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
from focalgeo.calibration.fits import (
    CalibrationFit,
    ScoreTest,
    fit_focal_temperature,
    fit_temperature,
    temperature_score_test,
)
from focalgeo.calibration.fitted import Calibrated, ConvergenceWarning, Fitted, Method, calibrator_json, plain_numbers
from focalgeo.calibration.intervals import PairedDifference, bootstrap, paired_bootstrap, wilson_interval
from focalgeo.calibration.inverse import inverse_focal_calibration
from focalgeo.calibration.maps import (
    binary_focal_calibration,
    focal_calibration,
    focal_temperature_scaling,
    temperature_scaling,
)
from focalgeo.calibration.methods import (
    DEFAULT_METHODS,
    METHODS,
    configured,
    fit,
    fit_methods,
    searched,
    searched_criteria,
    searched_members,
    surfaces,
    usable,
)
from focalgeo.calibration.metric_rows import (
    calibration_rows,
    class1_rows,
    class_gap_rows,
    comparisons,
    difference_rows,
    fit_rows,
    group_rows,
    reliability_rows,
)
from focalgeo.calibration.metrics import (
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
from focalgeo.calibration.nonparametric import (
    fit_histogram_binning,
    fit_isotonic,
    histogram_binning,
    isotonic_calibration,
)
from focalgeo.calibration.ranking import aurc, auroc
from focalgeo.calibration.resampling import Measured, Sample, measure_members
from focalgeo.calibration.saved import read_calibrator
from focalgeo.calibration.search import (
    GAMMAS,
    TEMPERATURES,
    GridSearch,
    LineSearch,
    best_point,
    grid_search,
    line_search,
)
from focalgeo.calibration.temperature_variants import (
    ensemble_temperature_scaling,
    fit_ensemble_temperature,
    fit_loss_implied_temperature,
    loss_implied_temperature_scaling,
)
from focalgeo.types import CRITERIA, DEFAULT_CRITERIA, DEFAULT_METRICS, PROBABILITY_FLOOR, ProbabilityWarning

_ESTIMATORS = (  # they need scikit-learn, slow to import: on first use
    "EnsembleTemperatureScaling",
    "FocalTemperatureScaling",
    "FocalVectorScaling",
    "HistogramBinning",
    "IsotonicCalibration",
    "StructuredMatrixScaling",
    "TemperatureScaling",
    "VectorScaling",
)

__all__ = [
    "CRITERIA",
    "DEFAULT_CRITERIA",
    "DEFAULT_METHODS",
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
    "Choice",
    "Comparison",
    "ConvergenceWarning",
    "EnsembleTemperatureScaling",
    "Fitted",
    "FocalTemperatureScaling",
    "FocalVectorScaling",
    "GridSearch",
    "HighConfidence",
    "HistogramBinning",
    "IsotonicCalibration",
    "LineSearch",
    "Measured",
    "Method",
    "MetricEntry",
    "Outputs",
    "PairedDifference",
    "ProbabilityWarning",
    "Reliability",
    "Sample",
    "ScoreTest",
    "StructuredMatrixScaling",
    "TemperatureScaling",
    "VectorScaling",
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
    "calibration_rows",
    "calibrator_json",
    "candidates",
    "check_predictions",
    "checked_methods",
    "choose",
    "class1_rows",
    "class_gap_rows",
    "classwise_ece",
    "compare",
    "comparisons",
    "configured",
    "cross_fit",
    "debiased_ece",
    "debiased_squared_ece",
    "difference_rows",
    "ece",
    "ensemble_temperature_scaling",
    "entropy",
    "entropy_by_outcome",
    "fit",
    "fit_ensemble_temperature",
    "fit_focal_temperature",
    "fit_focal_vector_scaling",
    "fit_focal_vector_scaling_jointly",
    "fit_histogram_binning",
    "fit_isotonic",
    "fit_loss_implied_temperature",
    "fit_matrix_scaling",
    "fit_methods",
    "fit_rows",
    "fit_temperature",
    "fit_vector_scaling",
    "focal_calibration",
    "focal_matrix_scaling",
    "focal_temperature_scaling",
    "focal_vector_scaling",
    "folds",
    "grid_search",
    "group_rows",
    "high_confidence",
    "histogram_binning",
    "interpolated_adaptive_ece",
    "inverse_focal_calibration",
    "isotonic_calibration",
    "line_search",
    "log_probabilities",
    "loss_implied_temperature_scaling",
    "mce",
    "measure_members",
    "nll",
    "nll_by_outcome",
    "overconfidence",
    "paired_bootstrap",
    "plain_numbers",
    "read_calibrator",
    "reliability",
    "reliability_rows",
    "searched",
    "searched_criteria",
    "searched_members",
    "smooth_ece",
    "surfaces",
    "temperature_scaling",
    "temperature_score_test",
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
