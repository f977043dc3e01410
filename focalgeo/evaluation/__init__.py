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

__all__ = [
    "Curvature",
    "Diagnosis",
    "Problem",
    "attribution_rows",
    "check_last_layer",
    "data_matvec",
    "density_rows",
    "diagnose",
    "diagnosis_rows",
    "make_batch_loss",
    "measure_curvature",
    "predict",
]
