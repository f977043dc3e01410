"""Door 2: a file of logits or probabilities in, a calibrated report out. `python -m focalgeo.calibrate --help`."""

from focalgeo.calibrate.calibrator import SavedCalibrator, read_calibrator

__all__ = ["SavedCalibrator", "read_calibrator"]
