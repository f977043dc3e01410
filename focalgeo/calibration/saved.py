"""calibrator.json: one fitted calibration method, enough to apply it anywhere."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from focalgeo.calibration.methods import METHODS, Fitted
from focalgeo.files import check_regular, opened, parse_json
from focalgeo.types import Array, InputError

FORMAT, VERSION = "focalgeo-calibrator", 2
MOST_CLASSES = 10_000_000
_OTHER_LENGTHS = ("edges", "accuracies", "thresholds", "probabilities", "shares")  # axes that are not of classes
_MOST_BYTES = 2**28  # a matrix of 3,000 x 3,000 numbers is as large
_AGAIN = "write it again with python -m focalgeo.calibrate"


class SavedCalibrator(NamedTuple):
    """A fitted method in plain Python numbers."""

    method: str  # its name in METHODS
    criterion: str | None  # by which it was fitted: "ece" or "nll"; None where nothing is fitted
    num_classes: int
    parameters: dict[str, Any]  # what `apply` of the method takes: numbers, or nested lists of them

    def log_probs(self, logits: Array) -> Array:
        """Calibrated log-probabilities [examples, classes] of logits of that shape.

        Raises:
            InputError: the logits are of another number of classes, or are no finite numbers.
        """
        logits = _checked_logits(logits, self.num_classes)
        params = {name: np.asarray(value, np.float32) for name, value in self.parameters.items()}
        return METHODS[self.method].apply(params, logits)


def saved_calibrator(fitted: Fitted, num_classes: int) -> SavedCalibrator:
    """The fitted method in plain numbers: 0.51 for the float32 next to it, not 0.5099999904632568."""
    parameters = {name: value for name, value in plain_numbers(fitted.params).items() if name != "converged"}
    return SavedCalibrator(fitted.method.name, fitted.criterion, num_classes, parameters)


def plain_numbers(params: Mapping[str, Array]) -> dict[str, Any]:
    """The params as Python numbers, truth values and nested lists, each with the fewest digits that give it back."""
    return {name: _plain(np.asarray(value)) for name, value in params.items()}


def _plain(value: np.ndarray) -> Any:
    if value.ndim:
        return [_plain(each) for each in value]
    return float(str(value)) if np.issubdtype(value.dtype, np.floating) else value.item()


def calibrator_json(
    calibrator: SavedCalibrator, *, inputs: Mapping[str, Any], fits: Sequence[Fitted] = ()
) -> dict[str, Any]:
    """The object that calibrator.json holds: the calibrator, checksums of what it was made from, and all fits."""
    listed = [
        {"method": fitted.method.name, "criterion": fitted.criterion, "parameters": plain_numbers(fitted.params)}
        for fitted in fits
    ]
    head = {"format": FORMAT, "version": VERSION}
    return {**head, **calibrator._asdict(), "inputs": dict(inputs), "fits": listed}


def read_calibrator(path: str | os.PathLike[str]) -> SavedCalibrator:
    """Read calibrator.json.

    Raises:
        InputError: the file is missing, is no calibrator, is of another version, names an unknown method, or holds
            parameters that the method cannot be applied with.
    """
    found = _read_json(Path(path))
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"{path} is no calibrator: give a calibrator.json of python -m focalgeo.calibrate")
    if found.get("version") != VERSION:
        raise InputError(
            f"{path} is of version {_short(found.get('version'))}, this focalgeo reads {VERSION}: {_AGAIN}"
        )
    missing = [name for name in SavedCalibrator._fields if name not in found]
    if missing:
        raise InputError(f"{path} has no {missing[0]}: {_AGAIN}")
    if found["method"] not in list(METHODS):
        raise InputError.of_choice(f"method in {path}", _short(found["method"]), METHODS)
    calibrator = SavedCalibrator(**{name: found[name] for name in SavedCalibrator._fields})
    if calibrator.criterion not in ("ece", "nll", None):
        raise InputError(f"{path}: criterion is {_short(calibrator.criterion)}, not ece, nll or null: {_AGAIN}")
    num_classes = calibrator.num_classes
    if type(num_classes) is not int or not 2 <= num_classes <= MOST_CLASSES:
        classes = f"{path}: num_classes is {_short(num_classes)}, out of range"
        raise InputError(f"{classes}: it must be from 2 to {MOST_CLASSES:,}; {_AGAIN}")
    if not _works(calibrator):
        raise InputError(f"{path} holds parameters out of range: {_AGAIN}")
    return calibrator


def _read_json(path: Path) -> Any:
    check_regular(path)
    try:
        with opened(path) as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InputError(f"{path} is larger than any calibrator: give a calibrator.json")
        return parse_json(data)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; check the path") from error
    except (ValueError, RecursionError, MemoryError) as error:  # nested too deep, or an integer of too many digits
        raise InputError(f"{path} is no JSON: {_AGAIN}") from error


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return ascii(text[:40])[1:-1]


def _checked_logits(logits: Array, num_classes: int) -> np.ndarray:
    try:
        logits = np.asarray(logits)
    except ValueError as error:  # rows of several lengths
        raise InputError(f"logits are no array: give [examples, {num_classes}]") from error
    if logits.ndim != 2 or logits.shape[1] != num_classes:
        raise InputError(f"logits have shape {logits.shape}: give [examples, {num_classes}]")
    if not jax.numpy.issubdtype(logits.dtype, np.floating) and logits.dtype.kind not in "iu":
        raise InputError(f"logits are of type {logits.dtype}: give numbers")
    if not np.isfinite(logits).all():
        raise InputError("logits are not all finite: remove or mend examples that are NaN or infinite")
    return logits


def _works(calibrator: SavedCalibrator) -> bool:
    """Whether it gives log-probabilities, and keeps the predicted class where the method promises that.

    Its parameters are numbers, or arrays of which each axis has an entry for each class, but for a few by name.
    """
    num_classes, parameters = calibrator.num_classes, calibrator.parameters
    if not isinstance(parameters, dict) or not all(map(_is_numeric, parameters.values())):
        return False
    try:
        with np.errstate(over="ignore"):
            per_class = (value for name, value in parameters.items() if name not in _OTHER_LENGTHS)
            if not all({num_classes}.issuperset(np.shape(value)) for value in per_class):
                return False
            logits = np.zeros((2, num_classes), np.float32)
            logits[1, 0] = 100
            log_probs = np.asarray(calibrator.log_probs(logits))
    except (KeyError, TypeError, ValueError, OverflowError):  # one is missing, or is no number, or has another shape
        return False
    if log_probs.shape != (2, num_classes) or not np.isfinite(log_probs).all():
        return False
    kept = not METHODS[calibrator.method].keeps_class or log_probs[1].max() == log_probs[1, 0]
    return bool(kept and np.allclose(np.exp(np.float64(log_probs)).sum(axis=1), 1, atol=1e-3))


def _is_numeric(value: Any) -> bool:
    """Whether it is a number or a list of such values."""
    if isinstance(value, list):
        return all(map(_is_numeric, value))
    return isinstance(value, int | float) and not isinstance(value, bool)
