"""calibrator.json: one fitted map, enough to apply it anywhere."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from focalgeo import records
from focalgeo.types import InputError

FORMAT, VERSION = "focalgeo-calibrator", 1
MAPS = ("uncalibrated", "temperature_scaling", "focal_temperature_scaling")


class SavedCalibrator(NamedTuple):
    """A map for `calibration.focal_temperature_scaling(logits, gamma, temperature)`."""

    map: str  # "uncalibrated" (gamma 0, temperature 1), "temperature_scaling" (gamma 0) or "focal_temperature_scaling"
    gamma: float
    temperature: float
    criterion: str | None  # by which it was fitted: "ece" or "nll"
    num_classes: int


def write_calibrator(
    path: str | os.PathLike[str],
    calibrator: SavedCalibrator,
    *,
    inputs: Mapping[str, Any],
    fits: list[Mapping[str, Any]],
) -> None:
    """Write calibrator.json atomically: format, version, the map, checksums of what it was made from, and all fits.

    Raises:
        InputError: the file cannot be written.
    """
    head = {"format": FORMAT, "version": VERSION}
    records.write_json(path, {**head, **calibrator._asdict(), "inputs": inputs, "fits": fits})


def read_calibrator(path: str | os.PathLike[str]) -> SavedCalibrator:
    """Read calibrator.json.

    Raises:
        InputError: the file is missing, is no calibrator, is of a later version, or holds values out of range.
    """
    try:
        found = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; check the path") from error
    except ValueError as error:
        raise InputError(f"{path} is no JSON: write it again with python -m focalgeo.calibrate") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"{path} is no calibrator: give a calibrator.json of python -m focalgeo.calibrate")
    if found.get("version") != VERSION:
        raise InputError(f"{path} is of version {found.get('version')}, this focalgeo reads {VERSION}: update focalgeo")
    if not _in_range(found):
        raise InputError(f"{path} holds a map, gamma or temperature out of range: write it again")
    return SavedCalibrator(**{name: found[name] for name in SavedCalibrator._fields})


def _in_range(found: Mapping[str, Any]) -> bool:
    if not set(SavedCalibrator._fields) <= set(found) or found["map"] not in MAPS:
        return False
    numbers = (found["gamma"], found["temperature"])
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        return False
    return found["gamma"] > -1 and found["temperature"] > 0
