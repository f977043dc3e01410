"""A trained state becomes predictions, calibration rows and curvature rows."""

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import calibration, curvature, trees
from focalgeo.types import Array, Batch, Predictions, PyTree, RunError


class Calibrator(NamedTuple):
    """One fitted focal temperature scaling; `place` are the row fields that name it."""

    place: dict
    gamma: float
    temperature: float

    def log_probs(self, logits: Array) -> Array:
        """Calibrated log-probabilities of `logits`."""
        return calibration.focal_temperature_scaling(logits, self.gamma, self.temperature)


UNCALIBRATED = Calibrator({"map": "uncalibrated"}, 0.0, 1.0)


def predict(forward: Callable, variables: PyTree, batches: Iterable[Batch]) -> Predictions:
    """Logits of every example once, in order; forward is compiled by parallel.pmapped_forward."""
    logits, labels = [], []
    for batch in batches:
        outputs = forward(variables, batch)
        logits.append(outputs[batch.mask])
        labels.append(batch.y[batch.mask])
    logits = np.concatenate(logits).astype(np.float32)
    return Predictions(logits, np.concatenate(labels), np.ones(len(logits), bool))


def fit_calibrators(
    val: Predictions, *, gammas: Array, temperatures: Array, num_bins: int, binning: str
) -> tuple[list[Calibrator], calibration.GridSearch]:
    """Temperature scaling and focal temperature scaling, each by ECE and by NLL on val, and the search they come from.

    binning: "ece" or "adaptive_ece", the ECE that is searched. All four points are read off one grid, where temperature
    scaling is the row of gamma = 0, so that on val the focal map is never worse by its criterion.
    """
    search = calibration.grid_search(val.logits, val.labels, gammas, temperatures, criterion=binning, num_bins=num_bins)
    calibrators = []
    for criterion in ("ece", "nll"):
        for name, gamma in (("temperature_scaling", 0.0), ("focal_temperature_scaling", None)):
            found = calibration.best_point(search, gammas, temperatures, criterion=criterion, gamma=gamma)
            place = {"map": name, "criterion": criterion}
            calibrators.append(Calibrator(place, float(found.gamma), float(found.temperature)))
    return calibrators, search


def calibration_rows(
    calibrator: Calibrator, split: str, predictions: Predictions, key: Array, *, num_bins: int, num_resamples: int
) -> list[dict]:
    """A row per metric with its 95% bootstrap interval, and per non-empty reliability bin with its Wilson interval."""
    log_probs = calibrator.log_probs(predictions.logits)
    labels = predictions.labels
    rows = []
    for name, metric in _metrics(num_bins).items():
        estimate = calibration.bootstrap(metric, log_probs, labels, key, num_resamples)
        rows.append(
            {"name": name, **_numbers(value=estimate.value, low=estimate.low, high=estimate.high), "n": len(labels)}
        )
    rows += reliability_rows(log_probs, labels, num_bins=num_bins)
    return [{"split": split, **calibrator.place, **row} for row in rows]


def reliability_rows(log_probs: Array, labels: Array, *, num_bins: int) -> list[dict]:
    """Accuracy (value, with Wilson interval) and mean confidence of every bin that holds an example."""
    bins = jax.device_get(calibration.reliability(log_probs, labels, num_bins=num_bins))
    rows = []
    for index in np.flatnonzero(bins.count):
        low, high = calibration.wilson_interval(bins.accuracy[index] * bins.count[index], bins.count[index])
        numbers = {
            "lower": bins.lower[index],
            "upper": bins.upper[index],
            "confidence": bins.confidence[index],
            "value": bins.accuracy[index],
            "low": low,
            "high": high,
        }
        rows.append({"name": "reliability", "bin": int(index), **_numbers(**numbers), "n": int(bins.count[index])})
    return rows


def fit_rows(calibrator: Calibrator, n: int) -> list[dict]:
    """The two fitted numbers of a calibrator as rows of val."""
    place = {"split": "val", **calibrator.place, "n": n}
    return [
        {"name": "temperature", "value": calibrator.temperature, **place},
        {"name": "calibration_gamma", "value": calibrator.gamma, **place},
    ]


def mean_loss(apply: Callable, loss: Callable, model_state: PyTree, batch: Batch) -> Callable[[PyTree], Array]:
    """Params -> mean loss in nats over the unmasked examples of one batch, network in evaluation mode."""

    def of_params(params: PyTree) -> Array:
        losses = loss(apply({"params": params, **model_state}, batch.x), batch.y)
        return jnp.sum(jnp.where(batch.mask, losses, 0.0)) / jnp.sum(batch.mask).astype(losses.dtype)

    return of_params


def data_matvec(apply: Callable, loss: Callable, params: PyTree, model_state: PyTree, batches: list[Batch]) -> Callable:
    """Hessian-vector product of the mean loss over all batches, one batch in memory at a time."""
    total = sum(int(np.sum(batch.mask)) for batch in batches)

    @jax.jit
    def product(vector: PyTree, params: PyTree, model_state: PyTree, batch: Batch) -> PyTree:
        weight = jnp.sum(batch.mask).astype(jnp.float32) / total
        return trees.scale(curvature.hvp(mean_loss(apply, loss, model_state, batch), params, vector), weight)

    def matvec(vector: PyTree) -> PyTree:
        result = product(vector, params, model_state, batches[0])
        for batch in batches[1:]:
            result = trees.add(result, product(vector, params, model_state, batch))
        return result

    return matvec


def curvature_rows(
    apply: Callable,
    losses: dict[str, Callable],
    params: PyTree,
    model_state: PyTree,
    batches: list[Batch],
    key: Array,
    *,
    max_products: int,
    tolerance: float,
    num_probes: int,
    trace_method: str,
) -> list[dict]:
    """lambda_max (with residual) and trace (with standard error) of the Hessian of each loss's mean over the batches.

    losses: row name -> (logits, labels) -> [examples]. The determinism gate is passed first on the first batch.
    """
    n = sum(int(np.sum(batch.mask)) for batch in batches)
    key_lambda, key_trace = jax.random.split(key)
    rows = []
    for name, loss in losses.items():
        curvature.check_deterministic(jax.jit(mean_loss(apply, loss, model_state, batches[0])), params)
        matvec = data_matvec(apply, loss, params, model_state, batches)
        top = curvature.lambda_max(matvec, params, key_lambda, max_products=max_products, tolerance=tolerance)
        sharpest = _numbers(
            value=top.value, low=top.value - top.residual, high=top.value + top.residual, residual=top.residual
        )
        place = {"split": "val", "loss": name}
        products = {"products": int(top.num_matvecs), "converged": bool(top.converged), "n": n}
        rows.append({"name": "lambda_max", **place, **sharpest, **products})
        total = curvature.trace(matvec, params, key_trace, num_probes, method=trace_method)
        spread = _numbers(value=total.value, low=total.low, high=total.high, stderr=total.stderr)
        rows.append({"name": "trace", **place, **spread, "probes": num_probes, "method": trace_method, "n": n})
    return rows


@functools.cache  # the same functions every time, so that what is compiled for them serves again
def _metrics(num_bins: int) -> dict[str, Callable]:
    return {
        "accuracy": calibration.accuracy,
        "nll": calibration.nll,
        "brier": calibration.brier,
        "ece": functools.partial(calibration.ece, num_bins=num_bins),
        "adaptive_ece": functools.partial(calibration.adaptive_ece, num_bins=num_bins),
    }


def _numbers(**values: Array) -> dict[str, float]:
    """Python floats for a row; one that is not finite is an error of the measurement, never a value of a row."""
    numbers = {name: float(value) for name, value in values.items()}
    for name, number in numbers.items():
        if not np.isfinite(number):
            raise RunError(f"a measured {name} is {number}: the network has diverged; lower the learning rate")
    return numbers
