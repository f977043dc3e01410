"""Which map to use, by paired differences on val alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from focalgeo.calibrate.calibrator import SavedCalibrator
from focalgeo.evaluation import Calibrator
from focalgeo.report.words import LEAST_EXAMPLES
from focalgeo.types import Array

CROSS_FIT = "cross_fit"  # val, each example measured with the fit of the other folds


def choose(
    rows: Sequence[Mapping[str, Any]],
    fits: Sequence[Calibrator],
    *,
    criterion: str,
    num_classes: int,
    ends: Array,
) -> SavedCalibrator:
    """Temperature scaling, unless focal temperature scaling beats it beyond noise, or no map is shown to be better.

    "Beyond noise" is a 95% interval of the paired difference of cross-fitted maps that leaves out 0, from 100 examples
    or more; with fewer it stays with temperature scaling. The two maps are compared by the criterion; a map is better
    than none where its ECE or its NLL is, as the ECE alone is a wary test. Where a temperature fell on one of the
    `ends` of the range searched, the maps are not compared: the limit would decide.
    """
    fitted = {fit.place["map"]: fit for fit in fits if fit.place["criterion"] == criterion}
    inside = all(np.float32(fit.temperature) not in np.float32(ends) for fit in fitted.values())
    name = "temperature_scaling"
    row = _difference(rows, criterion, criterion, "focal_temperature_scaling", name)
    if inside and row["n"] >= LEAST_EXAMPLES and row["high"] < 0:
        name = "focal_temperature_scaling"
    found = [_difference(rows, criterion, metric, name, "uncalibrated") for metric in ("ece", "nll")]
    if found[0]["n"] >= LEAST_EXAMPLES and all(row["high"] >= 0 for row in found):
        return SavedCalibrator("uncalibrated", 0.0, 1.0, None, num_classes)
    numbers = (float(str(np.float32(number))) for number in fitted[name][1:])  # 0.51, not 0.5099999904632568
    return SavedCalibrator(name, *numbers, criterion, num_classes)


def _difference(rows: Sequence[Mapping[str, Any]], criterion: str, metric: str, name: str, against: str) -> Mapping:
    place = {"name": f"{metric}_difference", "split": CROSS_FIT}
    place |= {"map": name, "criterion": criterion, "against": against}
    return next(row for row in rows if all(row.get(key) == value for key, value in place.items()))
