"""Reading calibrator.json: one fitted calibration method, enough to apply it anywhere."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from focalgeo.calibration.fitted import FORMAT, VERSION, Fitted, Params
from focalgeo.calibration.methods import METHODS
from focalgeo.files import check_regular, opened, parse_json
from focalgeo.types import CRITERIA, InputError

MOST_CLASSES = 10_000_000
_FIELDS = ("method", "criterion", "num_classes", "parameters")
_MOST_BYTES = 2**28  # a matrix of 3,000 x 3,000 numbers is as large
# one is missing, or is no number, or has another shape, or is nested too deep
_CANNOT_BE_APPLIED = (LookupError, TypeError, ValueError, OverflowError, RecursionError)
_AGAIN = "write it again with python -m focalgeo.calibrate"


def read_calibrator(path: str | os.PathLike[str]) -> Fitted:
    """The fitted method that calibrator.json holds, ready to predict.

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
    missing = [name for name in _FIELDS if name not in found]
    if missing:
        raise InputError(f"{path} has no {missing[0]}: {_AGAIN}")
    _check_head(path, found)
    try:
        fitted = Fitted(
            METHODS[found["method"]], found["criterion"], _params(found["parameters"]), found["num_classes"]
        )
        works = _works(fitted)
    except _CANNOT_BE_APPLIED:
        works = False
    if not works:
        raise InputError(f"{path} holds parameters out of range: {_AGAIN}")
    return fitted


def _check_head(path: str | os.PathLike[str], found: dict[str, Any]) -> None:
    """Refuse an unknown method or criterion, and a number of classes that the method does not take."""
    if found["method"] not in list(METHODS):
        raise InputError.of_choice(f"method in {path}", _short(found["method"]), METHODS)
    if found["criterion"] not in [*CRITERIA, None]:
        known = f"{', '.join(CRITERIA)} or null"
        raise InputError(f"{path}: criterion is {_short(found['criterion'])}, not {known}: {_AGAIN}")
    num_classes, most = found["num_classes"], METHODS[found["method"]].most_classes or MOST_CLASSES
    if type(num_classes) is not int or not 2 <= num_classes <= most:
        classes = f"{path}: num_classes is {_short(num_classes)}, out of range"
        raise InputError(f"{classes}: it must be from 2 to {most:,}; {_AGAIN}")


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


def _params(parameters: dict[str, Any]) -> Params:
    """The parameters as float32 arrays.

    Raises:
        TypeError, ValueError: one is no number or list of numbers, or not what its name stands for.
    """
    if not isinstance(parameters, dict):
        raise TypeError("parameters have no names")
    arrays = {name: np.asarray(value) for name, value in parameters.items()}
    with np.errstate(over="ignore"):
        params = {name: value.astype(np.float32) for name, value in arrays.items() if value.dtype.kind in "iuf"}
    if len(params) < len(arrays) or not all(_is_in_range(name, value) for name, value in params.items()):
        raise ValueError("a parameter is no number, or out of range")
    return params


def _works(fitted: Fitted) -> bool:
    """Whether it gives log-probabilities, and keeps the predicted class where the method promises that."""
    logits = np.zeros((2, fitted.num_classes), np.float32)
    logits[1, 0] = 100
    log_probs = np.asarray(fitted.predict_log_proba(logits))
    if log_probs.shape != logits.shape or not np.isfinite(log_probs).all():
        return False
    kept = not fitted.method.keeps_class or log_probs[1].max() == log_probs[1, 0]
    return bool(kept and np.allclose(np.exp(np.float64(log_probs)).sum(axis=1), 1, atol=1e-3))


def _is_in_range(name: str, value: np.ndarray) -> bool:
    return bool(np.isfinite(value).all() and (name not in _HOLDS or _HOLDS[name](value)))


def _is_number(value: np.ndarray) -> bool:
    return value.ndim == 0


def _ascends(value: np.ndarray) -> bool:
    return value.ndim == 1 and bool((np.diff(value) >= 0).all())


def _is_inside(value: np.ndarray) -> bool:
    return value.ndim == 1 and bool(((value > 0) & (value < 1)).all())


def _are_shares(value: np.ndarray) -> bool:
    return bool((value >= 0).all() and abs(value.sum() - 1) < 1e-4)


# What the methods' maps do not see of a value while they are traced; shapes they see.
_HOLDS = {
    "gamma": _is_number,
    "temperature": _is_number,
    "edges": _ascends,
    "thresholds": _ascends,
    "accuracies": _is_inside,
    "probabilities": lambda value: _ascends(value) and value.min() > 0 and value.max() <= 1,
    "shares": _are_shares,
}
