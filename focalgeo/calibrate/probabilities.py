"""The calibrated probabilities of the user's own examples."""

from pathlib import Path

import jax
import numpy as np

from focalgeo import calibration, records
from focalgeo.calibrate.calibrator import SavedCalibrator
from focalgeo.data.logits_files import Outputs
from focalgeo.evaluation import Calibrator
from focalgeo.types import Array

_MAP = jax.jit(calibration.focal_temperature_scaling)


def write(out: Path, choice: SavedCalibrator, val: Outputs, test: Outputs | None, held_out: list[Calibrator]) -> None:
    """Write probabilities/{val,test}.npz by the chosen map; without test also cross_fit.npz, each fold by its own fit.

    Each holds probs and log_probs, float32 [examples, classes], and labels; log_probs keep what probs round to 0 or 1.

    Raises:
        InputError: a file cannot be written.
    """
    _write_split(out, "val", val, choice.gamma, choice.temperature)
    if test is not None:
        _write_split(out, "test", test, choice.gamma, choice.temperature)
        return
    places = {(fit.place["map"], fit.place["criterion"]): fit for fit in held_out}
    fit = places.get((choice.map, choice.criterion), choice)
    _write_split(out, "cross_fit", val, fit.gamma, fit.temperature)


def _write_split(out: Path, split: str, outputs: Outputs, gamma: Array, temperature: Array) -> None:
    log_probs = np.asarray(_MAP(outputs.logits, np.float32(gamma), np.float32(temperature)))
    arrays = {"probs": np.exp(log_probs), "log_probs": log_probs, "labels": outputs.labels}
    records.write_arrays(out, f"probabilities/{split}", arrays)
