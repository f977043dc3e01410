"""Calibration of the members of the main job: methods fitted on val, and measured on val and test."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from focalgeo import calibration
from focalgeo.job import preparation
from focalgeo.job.members import Member
from focalgeo.rows import Row
from focalgeo.types import Predictions, RunError


class Calibration(NamedTuple):
    """Calibration of one member on val and test."""

    rows: list[Row]
    search: dict[str, np.ndarray]  # on val, as search.npz holds it; {} where no method needs one
    error: str | None = None  # what is wrong, of a member whose numbers are not finite


def calibrate_members(members: Sequence[Member], predictions: Mapping[str, Predictions]) -> list[Calibration]:
    """Calibration of members of the main job on val and test.

    Methods are those of config.evaluation.methods, or all, as far as they can be used after a member's training.

    Args:
        members: Of one sweep.
        predictions: Of each split, logits [examples, members, classes].
    """
    finite = {split: np.isfinite(outputs.logits).all(axis=(0, 2)) for split, outputs in predictions.items()}
    wrong = [next((split for split in finite if not finite[split][index]), None) for index in range(len(members))]
    kept = [index for index, split in enumerate(wrong) if split is None]
    own = {split: outputs._replace(logits=outputs.logits[:, kept]) for split, outputs in predictions.items()}
    calibrated = iter(_calibrate([members[index] for index in kept], own) if kept else ())
    return [Calibration([], {}, f"logits on {split} are not finite") if split else next(calibrated) for split in wrong]


def _calibrate(members: Sequence[Member], predictions: Mapping[str, Predictions]) -> list[Calibration]:
    """Calibration of members whose numbers are finite: one call makes the searches of all."""
    options, val = members[0].config.evaluation, predictions["val"]
    settings = {
        "gammas": np.asarray(options.gammas, np.float32),
        "temperatures": preparation.temperatures(options),
        "criteria": options.criteria,
        "num_bins": options.num_bins,
    }
    logits = np.ascontiguousarray(np.moveaxis(val.logits, 1, 0))
    mask = None if np.all(val.mask) else val.mask
    names = ("uncalibrated", *(options.methods or calibration.DEFAULT_METHODS))
    methods = {n: method for n, method in calibration.METHODS.items() if n in names and method.takes(logits.shape[-1])}
    searches = calibration.searched_members(methods, logits, val.labels, settings=settings, mask=mask)
    fits, surfaces, makers = [], [], []
    for member, of_member, search in zip(members, logits, searches, strict=True):
        own = {**settings, "trained_gamma": preparation.trained_gamma(member.config), "searches": search}
        usable = calibration.usable(methods, own)
        fits.append(calibration.fit_methods(usable, of_member, val.labels, settings=own, mask=mask))
        surfaces.append(calibration.surfaces(search, own))
        makers.append([partial(calibration.fit_rows, fits[-1], n=len(val.labels))])
    for split, outputs in predictions.items():
        samples = (
            calibration.Sample(
                split,
                outputs.labels,
                [fitted.calibrated(outputs.logits[:, index]) for fitted in fits[index]],
                member.keys["bootstrap"],
                options.num_bins,
                options.num_resamples,
            )
            for index, member in enumerate(members)
        )
        measured = calibration.measure_members(samples, options.metrics)
        for (sample, numbers), of_member in zip(measured, makers, strict=True):
            pairs = calibration.comparisons(sample.calibrated, "nll") if split == "test" else ()
            of_member.append(partial(calibration.calibration_rows, sample, pairs, options.metrics, measured=numbers))
    return [_made(of_member, search) for of_member, search in zip(makers, surfaces, strict=True)]


def _made(makers: Sequence[Callable[[], list[Row]]], search: dict[str, np.ndarray]) -> Calibration:
    try:
        return Calibration([row for make in makers for row in make()], search)
    except RunError as error:
        return Calibration([], {}, str(error))
