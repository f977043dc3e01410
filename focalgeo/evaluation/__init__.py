"""Trained state -> predictions -> calibration rows; state -> loss -> matvec -> curvature rows."""

from focalgeo.evaluation.calibration import (
    UNCALIBRATED,
    Calibrator,
    calibration_rows,
    difference_rows,
    fit_calibrators,
    fit_rows,
    paired_rows,
)
from focalgeo.evaluation.curvature import curvature_rows, data_matvec, make_batch_loss
from focalgeo.evaluation.prediction import predict

__all__ = [
    "UNCALIBRATED",
    "Calibrator",
    "calibration_rows",
    "curvature_rows",
    "data_matvec",
    "difference_rows",
    "fit_calibrators",
    "fit_rows",
    "make_batch_loss",
    "paired_rows",
    "predict",
]
