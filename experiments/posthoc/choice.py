"""The method that is chosen on the first half of each split, and how it does on the second."""

import time
from pathlib import Path

import jax
import numpy as np

from experiments.posthoc.measured import missing, remember
from experiments.posthoc.splits import Split, halves
from focalgeo import calibration

AGAINST = ("uncalibrated", "temperature_scaling")
COMPARED = ("nll", "brier", "accuracy", "ece")
NUM_RESAMPLES = 1000


def metrics(log_probs: jax.Array, labels: jax.Array, mask: jax.Array | None = None) -> dict[str, jax.Array]:
    """The metrics by which the chosen method is held against the plain ones."""
    return {name: calibration.METRICS[name].function(log_probs, labels, mask=mask) for name in COMPARED}


def differences(log_probs: np.ndarray, against: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, dict]:
    """Each metric with one method less that with another: the value and its 95% interval by the paired bootstrap."""
    key = jax.random.key(seed)
    found = calibration.paired_bootstrap(metrics, log_probs, against, labels, key, NUM_RESAMPLES)
    return {
        name: {"value": float(each.difference), "low": float(each.low), "high": float(each.high)}
        for name, each in found.items()
    }


def measured(split: Split) -> dict:
    """The choice on the first half, what was refused and beaten, and its differences on the second half."""
    before = time.process_time()
    found = calibration.compare(split.val, criteria=("nll",), metrics=("nll",), seed=split.seed)
    taken = {"processor_seconds": time.process_time() - before}
    chosen = found.choice.fitted
    of_test = {each.method.name: each.predict_log_proba(split.test.logits) for each in found.fits}
    own = of_test[chosen.method.name]
    against = {
        name: differences(own, of_test[name], split.test.labels, split.seed)
        for name in AGAINST
        if name != chosen.method.name
    }
    held_out = {each.method.name: float(calibration.nll(each.log_probs, split.val.labels)) for each in found.held_out}
    reasons = {"least": min(held_out, key=held_out.get), "refused": found.choice.refused, "beaten": found.choice.beaten}
    return {"chosen": chosen.method.name, **reasons, "against": against} | taken


def measure(path: Path, networks: dict[str, tuple[Path, ...]], num_splits: int) -> None:
    """Measure every split that `path` does not have yet, the networks in turn."""
    for key in missing(path, ({"network": n, "seed": seed} for seed in range(num_splits) for n in networks)):
        remember(path, key, measured(halves(key["network"], networks[key["network"]], key["seed"])))
