"""Trained state -> predictions -> calibration rows; state -> loss -> matvec -> curvature rows."""

from focalgeo.evaluation.attribution import attribution_rows
from focalgeo.evaluation.calibration import (
    UNCALIBRATED,
    Calibrator,
    calibration_rows,
    difference_rows,
    fit_calibrators,
    fit_rows,
    paired_rows,
)
from focalgeo.evaluation.curvature import Curvature, data_matvec, make_batch_loss, measure_curvature
from focalgeo.evaluation.prediction import predict
from focalgeo.evaluation.problem import Problem

__all__ = [
    "UNCALIBRATED",
    "Calibrator",
    "Curvature",
    "Problem",
    "attribution_rows",
    "calibration_rows",
    "data_matvec",
    "difference_rows",
    "fit_calibrators",
    "fit_rows",
    "make_batch_loss",
    "measure_curvature",
    "paired_rows",
    "predict",
]
