"""A trained state becomes predictions, calibration rows and curvature rows."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import calibration, curvature, trees
from focalgeo.types import Array, Batch, Estimate, Predictions, PyTree, RunError


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
        row = _row({"name": name, **place}, {"value": found.value, "low": low_end, "high": high_end})
        rows.append({**row, "n": int(found.n)})
    columns = {"lower": bins.lower, "upper": bins.upper, "confidence": bins.confidence}
    columns |= {"value": bins.accuracy, "low": low, "high": high}
    for index in np.flatnonzero(bins.count):
        numbers = {column: values[index] for column, values in columns.items()}
        row = _row({"name": "reliability", **place, "bin": int(index)}, numbers)
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
        rows.append({**_row(place, numbers), "n": int(found.n)})
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


def make_batch_loss(apply: Callable, loss: Callable, num_examples: int) -> Callable[[PyTree, PyTree, Batch], Array]:
    """Jitted (params, model_state, batch) -> the batch's share of a mean loss: sum of unmasked losses / num_examples.

    In nats, network in evaluation mode; summed over the batches of `num_examples` examples it is their mean loss. One
    such function serves the determinism gate and the products: what tracing has frozen is the same in both, so the gate
    tests the very function whose Hessian is taken. Parameters, state and batch are arguments and never frozen.
    """

    @jax.jit
    def batch_loss(params: PyTree, model_state: PyTree, batch: Batch) -> Array:
        losses = loss(apply({"params": params, **model_state}, batch.x), batch.y)
        return jnp.sum(jnp.where(batch.mask, losses, 0.0)) / num_examples

    return batch_loss


def data_matvec(batch_loss: Callable, params: PyTree, model_state: PyTree, batches: list[Batch]) -> Callable:
    """Hessian-vector product of the sum of batch_loss over the batches, with one batch's activations in memory.

    params, model_state and batches (of one shape) should lie on the device: they are read at each product.
    """

    @jax.jit
    def add_product(total: PyTree, vector: PyTree, params: PyTree, model_state: PyTree, batch: Batch) -> PyTree:
        share = partial(batch_loss, model_state=model_state, batch=batch)
        return trees.add(total, curvature.hvp(share, params, vector))

    zeros = jax.device_put(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), params))

    def matvec(vector: PyTree) -> PyTree:
        total = zeros
        for batch in batches:
            total = add_product(total, vector, params, model_state, batch)
        return total

    return matvec


def curvature_rows(
    apply: Callable,
    losses: dict[str, Callable],
    params: PyTree,
    model_state: PyTree,
    batches: list[Batch],
    key: Array,
    *,
    split: str,
    max_products: int,
    tolerance: float,
    num_probes: int,
    trace_method: str,
) -> list[dict]:
    """lambda_max (with residual) and trace (with standard error) of the Hessian of each loss's mean over the batches.

    losses: row name -> (logits, labels) -> [examples]. Every batch passes the determinism gate first.
    """
    n = sum(int(np.sum(batch.mask)) for batch in batches)
    params, model_state, batches = jax.device_put((params, model_state, batches))
    key_lambda, key_trace = jax.random.split(key)
    rows = []
    for name, loss in losses.items():
        place = {"split": split, "loss": name}
        batch_loss = make_batch_loss(apply, loss, n)
        for batch in batches:  # one by one: gradients of all together would hold all their activations
            curvature.check_deterministic(partial(batch_loss, model_state=model_state, batch=batch), params)
        matvec = data_matvec(batch_loss, params, model_state, batches)
        top = curvature.lambda_max(matvec, params, key_lambda, max_products=max_products, tolerance=tolerance)
        row = _row({"name": "lambda_max", **place}, {"value": top.value, "residual": top.residual})
        rows.append({**row, "products": int(top.num_matvecs), "converged": bool(top.converged), "n": n})
        total = curvature.trace(matvec, params, key_trace, num_probes, method=trace_method)
        spread = {"value": total.value, "low": total.low, "high": total.high, "stderr": total.stderr}
        row = _row({"name": "trace", **place}, spread)
        rows.append({**row, "probes": num_probes, "method": trace_method, "n": n})
    return rows


def _row(place: dict, numbers: dict[str, Array]) -> dict:
    """A row of Python floats; one that is not finite is an error of the measurement, never a value of a row."""
    numbers = {field: float(number) for field, number in numbers.items()}
    for field, number in numbers.items():
        if not math.isfinite(number):
            where = ", ".join(f"{key} {value}" for key, value in place.items() if key != "name")
            raise RunError(
                f"{place['name']} ({where}) has {field} {number}: the numbers it comes from are too large for float32; "
                "if training has diverged, lower the learning rate, else look for outlying inputs"
            )
    return {**place, **numbers}
