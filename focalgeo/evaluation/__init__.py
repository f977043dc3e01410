"""Trained state -> predictions; state -> loss -> matvec -> curvature rows; diagnostics of training."""

from focalgeo.evaluation.attribution import attribution_rows
from focalgeo.evaluation.curvature import (
    Curvature,
    Problem,
    data_matvec,
    density_rows,
    make_batch_loss,
    measure_curvature,
    sharpness_rows,
)
from focalgeo.evaluation.diagnostics import Diagnosis, diagnose, diagnosis_rows, predict
