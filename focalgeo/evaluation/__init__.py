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
from focalgeo.evaluation.curvature import (
    Curvature,
    Problem,
    data_matvec,
    density_rows,
    make_batch_loss,
    measure_curvature,
)
from focalgeo.evaluation.diagnostics import Diagnosis, check_last_layer, diagnose, diagnosis_rows
from focalgeo.evaluation.forecast import Forecast, check_memory, forecast_memory, seconds_of_product
from focalgeo.evaluation.prediction import predict

__all__ = [
    "UNCALIBRATED",
    "Calibrator",
    "Curvature",
    "Diagnosis",
    "Forecast",
    "Problem",
    "attribution_rows",
    "calibration_rows",
    "check_last_layer",
    "check_memory",
    "data_matvec",
    "density_rows",
    "diagnose",
    "diagnosis_rows",
    "difference_rows",
    "fit_calibrators",
    "fit_rows",
    "forecast_memory",
    "make_batch_loss",
    "measure_curvature",
    "paired_rows",
    "predict",
    "seconds_of_product",
]
