"""METHODS, what is fitted, its exports and estimators."""

from focalgeo.calibration.methods.table import (
    DEFAULT_METHODS,
    MEMBERS,
    METHODS,
    Calibrated,
    ConvergenceWarning,
    Fitted,
    Method,
    group_names,
)
