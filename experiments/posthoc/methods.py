"""Every method of focalgeo fitted by NLL and measured on the same splits, and the method that is chosen on each."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np

from experiments.posthoc.measured import missing, remember, scores, timed
from experiments.posthoc.splits import Half, Split, halves
from focalgeo import calibration
from focalgeo.calibration import variants

JOINT = "focal_vector_scaling, jointly"
NUM_RESAMPLES = 1000
COMPARED = ("nll", "brier", "accuracy", "ece")

Predict = Callable[[np.ndarray], np.ndarray]


def names() -> list[str]:
    """The methods that can be fitted without knowing how a network was trained, plainest first, and the joint fit."""
    usable = calibration.usable(calibration.METHODS, {})
    return [*usable, JOINT]


def fitted(name: str, val: Half) -> Predict:
    """A function from logits to log-probabilities, by the method fitted by NLL where it can be."""
    if name == JOINT:
        params = jax.block_until_ready(variants.fit_focal_vector_scaling_jointly(*val))
        return partial(calibration.METHODS["focal_vector_scaling"].apply, params)
    found = calibration.fit(name, *val)
    jax.block_until_ready(found.params)
    return found.predict_log_proba


def measured(split: Split, name: str) -> dict:
    """Scores on the second half of a method fitted on the first, with the seconds of its fit."""
    predict, taken = timed(name, split.val.logits.shape, lambda: fitted(name, split.val))
    return scores(np.asarray(predict(split.test.logits)), split.test.labels) | taken


def measure(path: Path, networks: dict[str, tuple[Path, ...]], num_splits: int) -> None:
    """Measure every method on every split that `path` does not have yet."""
    keys = ({"network": n, "seed": seed, "method": m} for n in networks for m in names() for seed in range(num_splits))
    for key in missing(path, keys):
        split = halves(key["network"], networks[key["network"]], key["seed"])
        remember(path, key, measured(split, key["method"]))
