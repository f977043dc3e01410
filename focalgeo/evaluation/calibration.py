"""Fitted maps and predictions become calibration rows."""

from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from focalgeo import calibration
from focalgeo.evaluation.rows import make_row
from focalgeo.types import Array, Estimate, Predictions


class Calibrator(NamedTuple):
    """One fitted focal temperature scaling; `place` are the row fields that name it."""

    place: dict
    gamma: float  # or [examples], where each example has a fit that it took no part in
    temperature: float


SHARES = ("accuracy", "ece", "adaptive_ece")  # never above 1
UNCALIBRATED = Calibrator({"map": "uncalibrated"}, 0.0, 1.0)


class _Measured(NamedTuple):
    metrics: dict[str, Estimate]
    bins: calibration.Reliability
    low: Array  # [bins] Wilson's interval of the bin's accuracy; an empty bin's is NaN
    high: Array


def fit_calibrators(
    val: Predictions, *, gammas: Array, temperatures: Array, num_bins: int, binning: str
) -> tuple[list[Calibrator], calibration.GridSearch]:
    """Temperature scaling and focal temperature scaling, each by ECE and by NLL on val, and the search they come from.

    binning: "ece" or "adaptive_ece", the ECE that is searched. All four points are read off one grid, where temperature
    scaling is the row of gamma = 0, so that on val the focal map is never worse by its criterion. Masked examples count
    for nothing.
    """
    mask = None if np.all(val.mask) else val.mask
    search = calibration.grid_search(
        val.logits, val.labels, gammas, temperatures, criterion=binning, num_bins=num_bins, mask=mask
    )
    maps = {"temperature_scaling": 0.0, "focal_temperature_scaling": None}
    places = [{"map": name, "criterion": criterion} for criterion in ("ece", "nll") for name in maps]

    points = [
        calibration.best_point(search, gammas, temperatures, criterion=place["criterion"], gamma=maps[place["map"]])
        for place in places
    ]
    fits = [
        Calibrator(place, float(point.gamma), float(point.temperature))
        for place, point in zip(places, points, strict=True)
    ]
    return fits, search


def calibration_rows(
    calibrator: Calibrator, split: str, predictions: Predictions, key: Array, *, num_bins: int, num_resamples: int
) -> list[dict]:
    """A row per metric with its 95% bootstrap interval, and per non-empty reliability bin with its Wilson interval.

    All metrics share the resamples that `key` draws. Compiled once for each number of examples.
    """
    gamma, temperature = np.float32(calibrator.gamma), np.float32(calibrator.temperature)
    metrics, bins, low, high = jax.device_get(
        _measured(*predictions[:2], gamma, temperature, key, num_bins=num_bins, num_resamples=num_resamples)
    )
    place = {"split": split, **calibrator.place}
    rows = []
    for name, found in metrics.items():
        low_end, high_end = max(found.low, 0.0), min(found.high, 1.0) if name in SHARES else found.high
        if name == "accuracy":  # a bootstrap has no width where all or none are right
            low_end, high_end = jax.device_get(calibration.wilson_interval(found.value * found.n, found.n))
        row = make_row({"name": name, **place}, {"value": found.value, "low": low_end, "high": high_end})
        rows.append({**row, "n": int(found.n)})
    columns = {"lower": bins.lower, "upper": bins.upper, "confidence": bins.confidence}
    columns |= {"value": bins.accuracy, "low": low, "high": high}
    for index in np.flatnonzero(bins.count):
        numbers = {column: values[index] for column, values in columns.items()}
        row = make_row({"name": "reliability", **place, "bin": int(index)}, numbers)
        rows.append({**row, "n": int(bins.count[index])})
    return rows


@partial(jax.jit, static_argnames=("num_bins", "num_resamples"))
def _measured(
    logits: Array, labels: Array, gamma: Array, temperature: Array, key: Array, *, num_bins: int, num_resamples: int
) -> _Measured:
    """Everything that rows say about one calibrator on one split, in one program: apart, each part compiles anew."""
    log_probs = calibration.focal_temperature_scaling(logits, gamma, temperature)
    metric = partial(_metrics, num_bins=num_bins)
    bins = calibration.reliability(log_probs, labels, num_bins=num_bins)
    interval = calibration.wilson_interval(bins.accuracy * bins.count, bins.count)
    return _Measured(calibration.bootstrap(metric, log_probs, labels, key, num_resamples), bins, *interval)


def _metrics(log_probs: Array, labels: Array, *, num_bins: int, mask: Array | None = None) -> dict[str, Array]:
    return {
        "accuracy": calibration.accuracy(log_probs, labels, mask=mask),
        "nll": calibration.nll(log_probs, labels, mask=mask),
        "brier": calibration.brier(log_probs, labels, mask=mask),
        "ece": calibration.ece(log_probs, labels, num_bins=num_bins, mask=mask),
        "adaptive_ece": calibration.adaptive_ece(log_probs, labels, num_bins=num_bins, mask=mask),
    }


def difference_rows(
    calibrators: list[Calibrator],
    split: str,
    predictions: Predictions,
    key: Array,
    *,
    num_bins: int,
    num_resamples: int,
) -> list[dict]:
    """ECE and NLL of focal less plain temperature scaling, two rows for each criterion they were fitted by.

    Both maps are measured on the same resamples, so the 95% interval is of the difference itself: whether two intervals
    of their own overlap says little of it.
    """
    fitted = {(calibrator.place["map"], calibrator.place["criterion"]): calibrator for calibrator in calibrators}
    rows = []
    for criterion in dict.fromkeys(calibrator.place["criterion"] for calibrator in calibrators):
        pair = [fitted[name, criterion] for name in ("focal_temperature_scaling", "temperature_scaling")]
        rows += paired_rows(*pair, split, predictions, key, num_bins=num_bins, num_resamples=num_resamples)
    return rows


def paired_rows(
    first: Calibrator,
    second: Calibrator,
    split: str,
    predictions: Predictions,
    key: Array,
    *,
    num_bins: int,
    num_resamples: int,
) -> list[dict]:
    """ECE and NLL with the first calibrator less those with the second, with paired 95% intervals and p-values."""
    gammas, temperatures = (
        np.float32([first.gamma, second.gamma]),
        np.float32([first.temperature, second.temperature]),
    )
    settings = {"num_bins": num_bins, "num_resamples": num_resamples}
    differences = jax.device_get(_differences(*predictions[:2], gammas, temperatures, key, **settings))
    rows = []
    for name, found in differences.items():
        place = {"name": f"{name}_difference", "split": split, **first.place, "against": second.place["map"]}
        numbers = {"value": found.difference, "low": found.low, "high": found.high, "p_value": found.p_value}
        rows.append({**make_row(place, numbers), "n": int(found.n)})
    return rows


@partial(jax.jit, static_argnames=("num_bins", "num_resamples"))
def _differences(
    logits: Array, labels: Array, gammas: Array, temperatures: Array, key: Array, *, num_bins: int, num_resamples: int
) -> dict[str, calibration.PairedDifference]:
    """Paired bootstrap of the first map against the second."""

    def metric(log_probs: Array, labels: Array, *, mask: Array | None = None) -> dict[str, Array]:
        return {
            "ece": calibration.ece(log_probs, labels, num_bins=num_bins, mask=mask),
            "nll": calibration.nll(log_probs, labels, mask=mask),
        }

    first, second = jax.vmap(calibration.focal_temperature_scaling, (None, 0, 0))(logits, gammas, temperatures)
    return calibration.paired_bootstrap(metric, first, second, labels, key, num_resamples)


def fit_rows(calibrator: Calibrator, n: int) -> list[dict]:
    """The two fitted numbers of a calibrator as rows of val."""
    place = {"split": "val", **calibrator.place, "n": n}
    return [
        {"name": "temperature", "value": calibrator.temperature, **place},
        {"name": "calibration_gamma", "value": calibrator.gamma, **place},
    ]
