"""calibrator.json: one fitted calibration method, enough to apply it anywhere."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from focalgeo.calibration.methods import METHODS, Fitted
from focalgeo.types import Array, InputError

FORMAT, VERSION = "focalgeo-calibrator", 2
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
            InputError: the logits are of another number of classes.
        """
        if np.ndim(logits) != 2 or np.shape(logits)[1] != self.num_classes:
            raise InputError(f"logits have shape {np.shape(logits)}: give [examples, {self.num_classes}]")
        params = {name: np.asarray(value, np.float32) for name, value in self.parameters.items()}
        return METHODS[self.method].apply(params, np.asarray(logits))


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
    try:
        found = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; check the path") from error
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {_AGAIN}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"{path} is no calibrator: give a calibrator.json of python -m focalgeo.calibrate")
    if found.get("version") != VERSION:
        raise InputError(f"{path} is of version {found.get('version')}, this focalgeo reads {VERSION}: {_AGAIN}")
    missing = [name for name in SavedCalibrator._fields if name not in found]
    if missing:
        raise InputError(f"{path} has no {missing[0]}: {_AGAIN}")
    if str(found["method"]) not in METHODS:
        raise InputError.of_choice(f"method in {path}", str(found["method"]), METHODS)
    calibrator = SavedCalibrator(**{name: found[name] for name in SavedCalibrator._fields})
    if not _works(calibrator):
        raise InputError(f"{path} holds parameters out of range: {_AGAIN}")
    return calibrator


def _works(calibrator: SavedCalibrator) -> bool:
    """Whether it gives finite log-probabilities for logits that are all equal."""
    num_classes = calibrator.num_classes
    if not isinstance(num_classes, int) or num_classes < 2 or not isinstance(calibrator.parameters, dict):
        return False
    if not all(_is_number(leaf) for leaf in jax.tree.leaves(calibrator.parameters)):
        return False
    try:
        log_probs = calibrator.log_probs(np.zeros((1, num_classes), np.float32))
    except (KeyError, TypeError, ValueError):  # one is missing, or is no number, or has another shape
        return False
    return log_probs.shape == (1, num_classes) and bool(np.isfinite(log_probs).all())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
