"""All rows of one split: metrics, paired differences, the un-focalled map, two classes, groups."""

from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

from focalgeo import evaluation
from focalgeo.calibrate.class1 import class1_rows
from focalgeo.calibrate.flags import Options
from focalgeo.calibrate.groups import group_rows
from focalgeo.data.logits_files import Outputs
from focalgeo.evaluation import UNCALIBRATED, Calibrator
from focalgeo.types import Array, Predictions


def measure(
    options: Options, split: str, outputs: Outputs, predictions: Predictions, fits: list[Calibrator]
) -> list[dict]:
    """Rows of the split on which maps are compared; a fit may hold a gamma and a temperature for each example."""
    per_example = np.ndim(fits[0].gamma) == 1
    before = _per_example(UNCALIBRATED, predictions) if per_example else UNCALIBRATED
    unfocalled = _unfocalled(options, predictions, per_example)
    chosen = [fit for fit in fits if fit.place["criterion"] == options.criterion]
    with ThreadPoolExecutor(2) as pool:  # two programs are compiled and run side by side
        metrics = pool.submit(_metric_rows, options, split, predictions, [before, *fits, *unfocalled])
        differences = pool.submit(_difference_rows, options, split, predictions, before, fits, [*chosen, *unfocalled])
        rows = metrics.result() + differences.result()
    if predictions.logits.shape[1] == 2:
        for calibrator in (before, *chosen):
            rows += class1_rows(calibrator, split, predictions, _key(options), **_settings(options))
    if outputs.group is not None:
        rows += group_rows([before, *chosen], split, predictions, outputs.group, _key(options), **_settings(options))
    return rows


def compare(options: Options, split: str, predictions: Predictions, fits: list[Calibrator]) -> list[dict]:
    """Paired differences alone of cross-fitted maps, from which one is chosen."""
    before = _per_example(UNCALIBRATED, predictions)
    chosen = [fit for fit in fits if fit.place["criterion"] == options.criterion]
    return _difference_rows(options, split, predictions, before, chosen, chosen)


def measure_val(options: Options, val: Predictions, fits: list[Calibrator]) -> list[dict]:
    """Metrics of the split on which the maps were fitted."""
    rows = _metric_rows(options, "val", val, [UNCALIBRATED])  # compiles; the rest is shared by two threads
    with ThreadPoolExecutor(2) as pool:
        parts = pool.map(lambda calibrator: _metric_rows(options, "val", val, [calibrator]), fits)
        return rows + [row for part in parts for row in part]


def _metric_rows(options: Options, split: str, predictions: Predictions, calibrators: list[Calibrator]) -> list[dict]:
    key, settings = _key(options), _settings(options)
    parts = [evaluation.calibration_rows(each, split, predictions, key, **settings) for each in calibrators]
    return [row for part in parts for row in part]


def _difference_rows(
    options: Options,
    split: str,
    predictions: Predictions,
    before: Calibrator,
    fits: list[Calibrator],
    others: list[Calibrator],
) -> list[dict]:
    """Of focal less plain temperature scaling, and of each of `others` less `before`."""
    key, settings = _key(options), _settings(options)
    rows = evaluation.difference_rows(fits, split, predictions, key, **settings)
    parts = [evaluation.paired_rows(each, before, split, predictions, key, **settings) for each in others]
    return rows + [row for part in parts for row in part]


def _unfocalled(options: Options, predictions: Predictions, per_example: bool) -> list[Calibrator]:
    if options.trained_gamma is None:
        return []
    calibrator = Calibrator({"map": "unfocalled"}, options.trained_gamma, 1.0)
    return [_per_example(calibrator, predictions) if per_example else calibrator]


def _per_example(calibrator: Calibrator, predictions: Predictions) -> Calibrator:
    """The same map with arrays, so that it shares a compiled program and a pair with cross-fitted ones."""
    ones = np.ones(len(predictions.labels), np.float32)
    return calibrator._replace(gamma=calibrator.gamma * ones, temperature=calibrator.temperature * ones)


def _key(options: Options) -> Array:
    """The main job's bootstrap key of the same seed, so that its predictions give its own rows again."""
    return jax.random.split(jax.random.PRNGKey(options.seed), 4)[3]


def _settings(options: Options) -> dict[str, int]:
    return {"num_bins": options.num_bins, "num_resamples": options.num_resamples}
