"""Maps from logits or log-probabilities to calibrated log-probabilities: `focal`, and of `two_classes` alone."""

from focalgeo.calibration.maps.focal import (
    FAR,
    binary_focal_calibration,
    ensemble_parts,
    ensemble_temperature_scaling,
    focal_calibration,
    focal_matrix_scaling,
    focal_temperature_scaling,
    focal_vector_scaling,
    histogram_binning,
    inverse_focal_calibration,
    isotonic_calibration,
    log_sigmoid,
    log_sum,
    loss_implied_temperature_scaling,
    normalised_possible,
    quiet,
    scaled,
    surprise_ratio,
    temperature_scaling,
    top_class,
    top_log_odds,
)
from focalgeo.calibration.maps.two_classes import binary_isotonic_calibration, logistic_calibration
