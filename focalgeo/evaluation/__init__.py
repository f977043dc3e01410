"""Trained state -> predictions; state -> loss -> matvec -> curvature rows; diagnostics of training."""

from focalgeo.evaluation.attribution import attribution_rows
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

__all__ = [
    "Curvature",
    "Diagnosis",
    "Forecast",
    "Forward",
    "Problem",
    "attribution_rows",
    "check_fits",
    "check_last_layer",
    "check_memory",
    "data_matvec",
    "density_rows",
    "diagnose",
    "diagnosis_rows",
    "forecast_forward",
    "forecast_memory",
    "make_batch_loss",
    "measure_curvature",
    "predict",
    "seconds_of_product",
    "tree_bytes",
]
