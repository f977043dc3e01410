"""What is measured of a trained member: predictions saved once, calibration before and after its maps, curvature."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from focalgeo import evaluation, records
from focalgeo.job import curvature, preparation
from focalgeo.job.members import Member
from focalgeo.job.preparation import Prepared
from focalgeo.types import Predictions, TrainState


def evaluate(
    member: Member,
    folder: Path,
    prepared: Prepared,
    state: TrainState,
    predictions: dict[str, Predictions],
    say: Callable[[str], None] | None,
) -> list[dict]:
    """The member's evaluation rows; its predictions and its search over (gamma, T) are written to `folder`."""
    for name, predicted in predictions.items():
        records.write_predictions(folder, name, predicted.logits, predicted.labels)
    if say is not None:
        say("calibrating: temperature scaling, focal temperature scaling")
    rows, search = _calibrate(member.config, predictions, member.keys["bootstrap"])
    records.write_arrays(folder, "search", search)
    if state.best is not None:
        rows.append({"name": "selected_epoch", "value": float(state.best.epoch)})
    return rows + curvature.curvature_rows(member, prepared, state, say)


def _calibrate(config, predictions: dict[str, Predictions], key: jax.Array) -> tuple[list[dict], dict[str, np.ndarray]]:
    settings = config.evaluation
    gammas = np.asarray(settings.gammas, np.float32)
    count = round(settings.max_temperature / settings.temperature_step)
    temperatures = (np.arange(1, count + 1) * settings.temperature_step).astype(np.float32)
    val, size = predictions["val"], {"num_bins": settings.num_bins, "num_resamples": settings.num_resamples}
    calibrators, search = evaluation.fit_calibrators(
        val, gammas=gammas, temperatures=temperatures, num_bins=settings.num_bins, binning=settings.binning
    )
    rows = [row for calibrator in calibrators for row in evaluation.fit_rows(calibrator, len(val.labels))]
    for calibrator in (evaluation.UNCALIBRATED, *calibrators):
        for split, predicted in predictions.items():
            rows += evaluation.calibration_rows(calibrator, split, predicted, key, **size)
    on_test = {"split": "test", "predictions": predictions["test"], "key": key, **size}
    rows += evaluation.difference_rows(calibrators, **on_test)
    for calibrator in preparation.unfocalled(config):
        rows += evaluation.calibration_rows(calibrator, **on_test)
        rows += evaluation.paired_rows(calibrator, evaluation.UNCALIBRATED, **on_test)
    arrays = {
        "gammas": gammas,
        "temperatures": temperatures,
        "ece": np.asarray(search.ece),
        "nll": np.asarray(search.nll),
    }
    return rows, arrays
