"""Evidence for the default criterion: temperature and focal temperature fitted by NLL and by ECE."""

from pathlib import Path

import jax
import numpy as np

from experiments.posthoc.measured import missing, remember, scores
from experiments.posthoc.splits import Split, halves
from focalgeo import calibration

CRITERIA = ("nll", "ece")
METHODS = ("temperature_scaling", "focal_temperature_scaling")
NUM_RESAMPLES = 1000


def less(log_probs: np.ndarray, against: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, float]:
    """The NLL with one method less that with another, and its 95% interval by the paired bootstrap."""
    found = calibration.paired_bootstrap(
        calibration.nll, log_probs, against, labels, jax.random.key(seed), NUM_RESAMPLES
    )
    return {"value": float(found.difference), "low": float(found.low), "high": float(found.high)}


def measured(split: Split) -> dict:
    """Scores of each fit on the second half, and NLL less that of temperature scaling by NLL."""
    log_probs = {
        f"{name} by {criterion}": np.asarray(
            calibration.fit(name, *split.val, criterion=criterion).predict_log_proba(split.test.logits)
        )
        for name in METHODS
        for criterion in CRITERIA
    }
    plain = log_probs[f"{METHODS[0]} by nll"]
    return {
        name: scores(each, split.test.labels) | {"nll_difference": less(each, plain, split.test.labels, split.seed)}
        for name, each in log_probs.items()
    }


def measure(path: Path, networks: dict[str, tuple[Path, ...]], num_splits: int) -> None:
    """Measure every split that `path` does not have yet."""
    for key in missing(path, ({"network": n, "seed": seed} for n in networks for seed in range(num_splits))):
        remember(path, key, {"fits": measured(halves(key["network"], networks[key["network"]], key["seed"]))})
