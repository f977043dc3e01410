"""What the stored runs hold of training: curves over epochs, their changes, shares of bins, and S99."""

from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.cells import DIAGNOSED, LOSSES
from experiments.intervals import interval
from experiments.writing import Interval

Runs = list[dict[str, Any]]
PERCENT = ("error", "ece")
FIRST, MIDDLE, LAST = "first", "middle", "last"
SPLITS = ("train", "test")
NAMES = (
    *("error", "ece", "nll", "nll correct", "nll wrong", "entropy", "entropy correct", "entropy wrong"),
    *("true_class_probability", "gradient_norm"),
)
# gamma's p0, above which focal loss has the smaller gradient at equal p_y (M, Prop. 1), up to an edge of the histogram
THRESHOLDS = {"fl1": 0.4, "fl2": 0.32, "fl3": 0.28}
PLAIN, SCALED = "uncalibrated", "temperature_scaling/ece"


def diagnosed(runs: Runs) -> Runs:
    """The runs of cross-entropy and focal loss that were measured at every epoch."""
    return [run for run in runs if run["loss"] in DIAGNOSED and "diagnostics" in run]


def losses_of(runs: Runs) -> list[str]:
    """The losses that have runs, in the order of the papers' tables."""
    found = {run["loss"] for run in runs}
    return [loss for loss in LOSSES if loss in found]


def network(run: dict[str, Any]) -> str:
    """The network of a run, by the words of its config."""
    return "small ResNet" if "small" in run["record"]["config"] else "ResNet-50"


def epochs_of(runs: Runs) -> list[float]:
    """The epochs after which a run was measured."""
    return runs[0]["diagnostics"]["epochs"]


def epoch(run: dict[str, Any], when: str) -> float:
    """The first, the middle or the last epoch measured: those whose histograms are stored."""
    epochs = run["diagnostics"]["epochs"]
    return epochs[{FIRST: 0, MIDDLE: len(epochs) // 2, LAST: -1}[when]]


def curve(run: dict[str, Any], split: str, name: str) -> np.ndarray:
    """Values by epoch, NaN where no example has that outcome; "weight_norm" is of no split; error and ECE in %."""
    own = run["diagnostics"]
    values = own["weight_norm"] if name == "weight_norm" else own["means"][split][name]
    return np.asarray([np.nan if value is None else value for value in values]) * (100 if name in PERCENT else 1)


def band(runs: Runs, loss: str, split: str, name: str) -> list[Interval]:
    """The interval over the seeds at each epoch, of those seeds that have a value."""
    found = np.array([curve(run, split, name) for run in runs if run["loss"] == loss])
    return [interval(column[np.isfinite(column)]) for column in found.T]


def by_seed(runs: Runs, loss: str, number: Callable[[dict[str, Any]], float | None]) -> dict[int, float]:
    """Seed -> a number of the runs of a loss, of those that have one."""
    found = {run["seed"]: number(run) for run in runs if run["loss"] == loss}
    return {seed: value for seed, value in found.items() if value is not None and np.isfinite(value)}


def at(split: str, name: str, when: str = LAST) -> Callable[[dict[str, Any]], float]:
    """The number of a run that is a curve's value at an epoch."""
    return lambda run: curve(run, split, name)[run["diagnostics"]["epochs"].index(epoch(run, when))]


def change(split: str, name: str) -> Callable[[dict[str, Any]], float]:
    """The number of a run that is a curve's last value less its middle one."""
    return lambda run: at(split, name)(run) - at(split, name, MIDDLE)(run)


def surest(when: str = LAST, split: str = "train") -> Callable[[dict[str, Any]], float]:
    """The share of examples in the highest of 25 bins of confidence, in %."""
    return lambda run: 100 * sum(bin_[2] for bin_ in bins(run, "reliability", split, when) if bin_[0] > 0.959)


def beyond_threshold(run: dict[str, Any]) -> float | None:
    """The share of training examples, in %, whose p_y is above gamma's p0 at the end; None of cross-entropy."""
    if run["loss"] not in THRESHOLDS:
        return None
    own = bins(run, "true_class_probability", "train", LAST)
    return 100 * sum(share for lower, _, share in own if lower > THRESHOLDS[run["loss"]] - 1e-3)


def bins(run: dict[str, Any], name: str, split: str, when: str) -> list[list[float]]:
    """Stored bins, "reliability" or a histogram's, at an epoch: lower and upper edge, share, and what follows."""
    own = run["diagnostics"]
    return (own if name == "reliability" else own["histograms"])[name][split][f"{epoch(run, when):g}"]


def wrong_confidence(key: str) -> Callable[[dict[str, Any]], float | None]:
    """The mean confidence, in %, of the wrong ones among the stored test images: "confidence" or, with T, "after"."""

    def number(run: dict[str, Any]) -> float | None:
        own = run["diagnostics"]["images"]
        wrong = np.asarray(own["label"]) != np.asarray(own["predicted"])
        return 100 * float(np.asarray(own[key])[wrong].mean()) if wrong.any() else None

    return number


def error(run: dict[str, Any]) -> float:
    """The error as trained, in %, on all test examples."""
    return 100 - _of_test(run, "accuracy", scaled=False)


def s99(run: dict[str, Any], *, scaled: bool) -> float | None:
    """The share of test examples whose confidence is at least 0.99, in %."""
    return _of_test(run, "high_confidence", scaled=scaled)


def s99_accuracy(run: dict[str, Any], *, scaled: bool) -> float | None:
    """The accuracy of those, in %; None where there are none."""
    return _of_test(run, "high_confidence_accuracy", scaled=scaled)


def _of_test(run: dict[str, Any], name: str, *, scaled: bool) -> float | None:
    found = run["metrics"]["test"].get(SCALED if scaled else PLAIN, {}).get(name)
    return None if found is None else 100 * found
