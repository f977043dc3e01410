"""Calibration: maps, metrics and searches, all pure functions of arrays."""

from focalgeo.calibration.binning import Reliability, adaptive_reliability, reliability
from focalgeo.calibration.intervals import bootstrap, wilson_interval
from focalgeo.calibration.maps import focal_calibration, focal_temperature_scaling, temperature_scaling
from focalgeo.calibration.metrics import (
    HighConfidence,
    accuracy,
    adaptive_ece,
    brier,
    classwise_ece,
    ece,
    high_confidence,
    mce,
    nll,
)
from focalgeo.calibration.predictions import check_predictions
from focalgeo.calibration.search import GAMMAS, TEMPERATURES, GridSearch, best_point, grid_search

__all__ = [
    "GAMMAS",
    "TEMPERATURES",
    "GridSearch",
    "HighConfidence",
    "Reliability",
    "accuracy",
    "adaptive_ece",
    "adaptive_reliability",
    "best_point",
    "bootstrap",
    "brier",
    "check_predictions",
    "classwise_ece",
    "ece",
    "focal_calibration",
    "focal_temperature_scaling",
    "grid_search",
    "high_confidence",
    "mce",
    "nll",
    "reliability",
    "temperature_scaling",
    "wilson_interval",
]
