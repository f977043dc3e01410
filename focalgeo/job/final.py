"""Measurement of a trained member: predictions saved once, calibration by every method, curvature."""

from collections.abc import Callable
from pathlib import Path

from focalgeo import records
from focalgeo.job import calibration, curvature
from focalgeo.job.members import Member
from focalgeo.job.preparation import Prepared
from focalgeo.rows import Row, Scalar
from focalgeo.types import Predictions, TrainState


def evaluate(
    member: Member,
    folder: Path,
    prepared: Prepared,
    state: TrainState,
    predictions: dict[str, Predictions],
    say: Callable[[str], None] | None,
) -> list[Row]:
    """The member's evaluation rows; its predictions and its search of gamma and temperature are written to `folder`."""
    for name, predicted in predictions.items():
        records.write_predictions(folder, name, predicted.logits, predicted.labels)
    if say is not None:
        say("calibrating")
    rows, search = calibration.calibrate(member.config, predictions, member.keys["bootstrap"])
    if search:
        records.write_arrays(folder, "search", search)
    if state.best is not None:
        rows.append(Scalar("selected_epoch", float(state.best.epoch)))
    return rows + curvature.curvature_rows(member, prepared, state, say)
