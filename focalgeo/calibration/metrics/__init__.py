"""Metrics of log-probabilities and labels, their table METRICS, and their errors by resampling."""

from focalgeo.calibration.metrics.binning import Reliability, adaptive_reliability, reliability
from focalgeo.calibration.metrics.table import METRICS, MetricEntry, all_metrics, metric_entries, metrics_of
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
    log_probabilities,
    mce,
    nll,
    overconfidence,
    smooth_ece,
    underconfidence,
)
from focalgeo.calibration.metrics.two_classes import (
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
