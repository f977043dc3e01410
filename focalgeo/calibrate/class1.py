"""Two classes: calibration of the probability of class 1, whatever is predicted."""

from functools import partial

import jax
import numpy as np

from focalgeo import calibration
from focalgeo.evaluation import Calibrator
from focalgeo.types import Array, Estimate, Predictions


def class1_rows(
    calibrator: Calibrator, split: str, predictions: Predictions, key: Array, *, num_bins: int, num_resamples: int
) -> list[dict]:
    """A row of class-1 ECE with its 95% interval, and one for each non-empty bin of the probability of class 1."""
    gamma, temperature = np.float32(calibrator.gamma), np.float32(calibrator.temperature)
    settings = {"num_bins": num_bins, "num_resamples": num_resamples}
    found, bins, (low, high) = jax.device_get(_measured(*predictions[:2], gamma, temperature, key, **settings))
    place = {"split": split, **calibrator.place}
    ends = {"value": float(found.value), "low": float(found.low), "high": min(float(found.high), 1.0)}
    rows = [{"name": "class1_ece", **place, **ends, "n": int(found.n)}]
    columns = {"lower": bins.lower, "upper": bins.upper, "confidence": bins.confidence}
    columns |= {"value": bins.accuracy, "low": low, "high": high}
    for index in np.flatnonzero(bins.count):
        numbers = {column: float(values[index]) for column, values in columns.items()}
        row = {"name": "class1_reliability", **place, "bin": int(index), **numbers}
        rows.append({**row, "n": int(bins.count[index])})
    return rows


@partial(jax.jit, static_argnames=("num_bins", "num_resamples"))
def _measured(
    logits: Array, labels: Array, gamma: Array, temperature: Array, key: Array, *, num_bins: int, num_resamples: int
) -> tuple[Estimate, calibration.Reliability, tuple[Array, Array]]:
    log_probs = calibration.focal_temperature_scaling(logits, gamma, temperature)
    bins = calibration.binary_reliability(log_probs, labels, num_bins=num_bins)
    interval = calibration.wilson_interval(bins.accuracy * bins.count, bins.count)
    metric = partial(calibration.binary_ece, num_bins=num_bins)
    return calibration.bootstrap(metric, log_probs, labels, key, num_resamples), bins, interval
