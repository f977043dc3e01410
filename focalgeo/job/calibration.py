"""Calibration of the members of the main job: methods fitted on val, and measured on val and test."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from focalgeo import calibration
from focalgeo.calibration import DEFAULT_METHODS, METHODS, Fitted, Sample
from focalgeo.job import preparation
from focalgeo.job.members import Member
from focalgeo.rows import Row
from focalgeo.types import Predictions, RunError


class Fits(NamedTuple):
    """The fits on val, and the search that they come from, as search.npz holds it."""

    fits: list[Fitted]
    search: dict[str, np.ndarray]  # gammas, temperatures, and on them ece, nll, ...; {} where none was needed


class Calibration(NamedTuple):
    """Calibration of one member on val and test."""

    rows: list[Row]
    search: dict[str, np.ndarray]  # on val, as in Fits


def calibrate_members(
    members: Sequence[Member], predictions: Mapping[str, Predictions]
) -> list[Calibration | RunError]:
    """Calibration of members of the main job on val and test; for one whose numbers are not finite, what is wrong.

    Methods are those of config.evaluation.methods, or all, as far as they can be used after a member's training.

    Args:
        members: Of one sweep.
        predictions: Of each split, logits [examples, members, classes].
    """
    wrong = [_not_finite(predictions, index) for index in range(len(members))]
    finite = [index for index, error in enumerate(wrong) if error is None]
    own = {split: outputs._replace(logits=outputs.logits[:, finite]) for split, outputs in predictions.items()}
    found = iter(_calibrate_finite([members[index] for index in finite], own) if finite else [])
    return [error or next(found) for error in wrong]


def _not_finite(predictions: Mapping[str, Predictions], index: int) -> RunError | None:
    split = next((name for name, each in predictions.items() if not np.isfinite(each.logits[:, index]).all()), None)
    return None if split is None else RunError(f"logits on {split} are not finite")


def _calibrate_finite(
    members: Sequence[Member], predictions: Mapping[str, Predictions]
) -> list[Calibration | RunError]:
    options, fits = members[0].config.evaluation, _fit_members(members, predictions["val"])
    parts = [[_attempted(calibration.fit_rows, each.fits, n=len(predictions["val"].labels))] for each in fits]
    for split, outputs in predictions.items():

        def sample(index: int, split: str = split, outputs: Predictions = outputs) -> Sample:
            calibrated = [fitted.calibrated(outputs.logits[:, index]) for fitted in fits[index].fits]
            key = members[index].keys["bootstrap"]
            return Sample(split, outputs.labels, calibrated, key, options.num_bins, options.num_resamples)

        samples = (sample(index) for index in range(len(members)))
        measured = calibration.measure_members(samples, options.metrics)
        for part, (of_member, numbers) in zip(parts, measured, strict=True):
            pairs = calibration.comparisons(of_member.calibrated, "nll") if split == "test" else ()
            part.append(_attempted(calibration.calibration_rows, of_member, pairs, options.metrics, measured=numbers))
    return [_calibration(part, each.search) for part, each in zip(parts, fits, strict=True)]


def _attempted(make: Callable[..., list[Row]], *arguments: Any, **options: Any) -> list[Row] | RunError:
    try:
        return make(*arguments, **options)
    except RunError as error:
        return error


def _calibration(parts: Sequence[list[Row] | RunError], search: dict[str, np.ndarray]) -> Calibration | RunError:
    errors = [part for part in parts if isinstance(part, RunError)]
    return errors[0] if errors else Calibration([row for part in parts for row in part], search)


def searches(config) -> bool:
    """Whether a method of config.evaluation.methods searches a grid of gamma and temperature."""
    methods = {name: METHODS[name] for name in config.evaluation.methods or DEFAULT_METHODS}
    return bool(calibration.searched_criteria(methods, {"criteria": config.evaluation.criteria}))


def _fit_members(members: Sequence[Member], val: Predictions) -> list[Fits]:
    """The fits of each member, every method by each of its criteria; one call makes the searches of all."""
    options = members[0].config.evaluation
    count = round(options.max_temperature / options.temperature_step)
    settings = {
        "gammas": np.asarray(options.gammas, np.float32),
        "temperatures": (np.arange(1, count + 1) * options.temperature_step).astype(np.float32),
        "criteria": options.criteria,
        "num_bins": options.num_bins,
    }
    logits = np.ascontiguousarray(np.moveaxis(val.logits, 1, 0))
    mask = None if np.all(val.mask) else val.mask
    chosen = ("uncalibrated", *(options.methods or DEFAULT_METHODS))
    methods = {name: method for name, method in METHODS.items() if name in chosen and method.takes(logits.shape[-1])}
    searches = calibration.searched_members(methods, logits, val.labels, settings=settings, mask=mask)
    fits = []
    for member, of_member, search in zip(members, logits, searches, strict=True):
        own = {**settings, "trained_gamma": preparation.trained_gamma(member.config), "searches": search}
        usable = calibration.usable(methods, own)
        fitted = calibration.fit_methods(usable, of_member, val.labels, settings=own, mask=mask)
        fits.append(Fits(fitted, calibration.surfaces(search, own)))
    return fits
