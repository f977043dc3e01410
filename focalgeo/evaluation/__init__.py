"""Trained state -> predictions -> calibration rows; state -> loss -> matvec -> curvature rows."""

from focalgeo.evaluation.attribution import attribution_rows
from focalgeo.evaluation.calibration import (
    calibration_rows,
    class1_rows,
    comparisons,
    difference_rows,
    fit_rows,
    group_rows,
    reliability_rows,
)
from focalgeo.evaluation.curvature import (
    Curvature,
    Problem,
    data_matvec,
    density_rows,
    make_batch_loss,
    measure_curvature,
)
from focalgeo.evaluation.diagnostics import Diagnosis, check_last_layer, diagnose, diagnosis_rows, predict
from focalgeo.evaluation.forecast import (
    Forecast,
    Forward,
    check_fits,
    check_memory,
    forecast_forward,
    forecast_memory,
    seconds_of_product,
    tree_bytes,
)
from focalgeo.evaluation.resampling import Measured, Sample, measure_members

__all__ = [
    "Curvature",
    "Diagnosis",
    "Forecast",
    "Forward",
    "Measured",
    "Problem",
    "Sample",
    "attribution_rows",
    "calibration_rows",
    "check_fits",
    "check_last_layer",
    "check_memory",
    "class1_rows",
    "comparisons",
    "data_matvec",
    "density_rows",
    "diagnose",
    "diagnosis_rows",
    "difference_rows",
    "fit_rows",
    "forecast_forward",
    "forecast_memory",
    "group_rows",
    "make_batch_loss",
    "measure_curvature",
    "measure_members",
    "predict",
    "reliability_rows",
    "seconds_of_product",
    "tree_bytes",
]
