"""Which map to use, by paired differences alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from focalgeo.calibrate.calibrator import SavedCalibrator
from focalgeo.evaluation import Calibrator
from focalgeo.report.words import LEAST_EXAMPLES


def choose(
    rows: Sequence[Mapping[str, Any]], fits: Sequence[Calibrator], split: str, *, criterion: str, num_classes: int
) -> SavedCalibrator:
    """Temperature scaling, unless focal temperature scaling beats it beyond noise, or no map beats it beyond noise.

    "Beyond noise" is a 95% interval of the paired ECE difference on `split` that leaves out 0, from 100 examples or
    more.
    """
    fitted = {fit.place["map"]: fit for fit in fits if fit.place["criterion"] == criterion}
    name = "temperature_scaling"
    row = _difference(rows, split, criterion, "focal_temperature_scaling", name)
    if row["n"] >= LEAST_EXAMPLES and row["high"] < 0:
        name = "focal_temperature_scaling"
    row = _difference(rows, split, criterion, name, "uncalibrated")
    if row["n"] >= LEAST_EXAMPLES and row["low"] > 0:
        return SavedCalibrator("uncalibrated", 0.0, 1.0, None, num_classes)
    numbers = (float(str(np.float32(number))) for number in fitted[name][1:])  # 0.51, not 0.5099999904632568
    return SavedCalibrator(name, *numbers, criterion, num_classes)


def _difference(rows: Sequence[Mapping[str, Any]], split: str, criterion: str, name: str, against: str) -> Mapping:
    place = {"name": "ece_difference", "split": split, "map": name, "criterion": criterion, "against": against}
    return next(row for row in rows if all(row.get(key) == value for key, value in place.items()))
