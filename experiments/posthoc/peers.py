"""Other libraries' methods fitted and measured on the same splits; a library that is not installed is left out.

What each is asked is its documented way for held-out predictions of a network that is trained already. Each entry
fits log-probabilities [examples, classes] float32 and labels, and gives a function from log-probabilities to
probabilities.
"""

import importlib.metadata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.posthoc.measured import missing, remember, scores, timed
from experiments.posthoc.splits import Split, halves

Predict = Callable[[np.ndarray], np.ndarray]


class Peer(NamedTuple):
    """A method of another library: its package, its title in tables, and its fit."""

    package: str
    title: str
    fit: Callable[[np.ndarray, np.ndarray], Predict]


def _probmetrics(name: str) -> Callable[[np.ndarray, np.ndarray], Predict]:
    def fit(log_probs: np.ndarray, labels: np.ndarray) -> Predict:
        from probmetrics.calibrators import get_calibrator

        fitted = get_calibrator(name).fit(np.exp(log_probs), labels.astype(np.int64))
        return lambda test: fitted.predict_proba(np.exp(test))

    return fit


def _sklearn(method: str) -> Callable[[np.ndarray, np.ndarray], Predict]:
    """CalibratedClassifierCV around a frozen classifier whose decision function is its input."""

    def fit(log_probs: np.ndarray, labels: np.ndarray) -> Predict:
        from sklearn.base import BaseEstimator, ClassifierMixin
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.frozen import FrozenEstimator

        class Given(ClassifierMixin, BaseEstimator):
            def fit(self, inputs: np.ndarray, labels: np.ndarray) -> "Given":
                self.classes_ = np.arange(inputs.shape[1])
                return self

            def decision_function(self, inputs: np.ndarray) -> np.ndarray:
                return inputs

            def predict(self, inputs: np.ndarray) -> np.ndarray:
                return inputs.argmax(1)

        given = FrozenEstimator(Given().fit(log_probs, labels))
        return CalibratedClassifierCV(given, method=method).fit(log_probs, labels).predict_proba

    return fit


def _pooled_isotonic(log_probs: np.ndarray, labels: np.ndarray) -> Predict:
    """One IsotonicRegression for the probabilities of all classes, their sum then made 1."""
    from sklearn.isotonic import IsotonicRegression

    came_true = np.arange(log_probs.shape[1]) == labels[:, None]
    fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(
        np.exp(log_probs).ravel(), came_true.ravel()
    )

    def predict(test: np.ndarray) -> np.ndarray:
        probs = fitted.predict(np.exp(test).ravel()).reshape(test.shape).astype(np.float64)
        return probs / probs.sum(1, keepdims=True)

    return predict


def _netcal(name: str, dtype: type, **options: int) -> Callable[[np.ndarray, np.ndarray], Predict]:
    def fit(log_probs: np.ndarray, labels: np.ndarray) -> Predict:
        import netcal.binning
        import netcal.scaling

        module = netcal.scaling if hasattr(netcal.scaling, name) else netcal.binning
        fitted = getattr(module, name)(**options)
        fitted.fit(np.exp(log_probs).astype(dtype), labels)
        return lambda test: fitted.transform(np.exp(test).astype(dtype))

    return fit


PEERS: dict[str, Peer] = {
    "probmetrics temperature": Peer("probmetrics", "temperature", _probmetrics("temp-scaling")),
    "probmetrics ts-mix": Peer("probmetrics", "temperature, mixed with the uniform (ts-mix)", _probmetrics("ts-mix")),
    "probmetrics svs": Peer("probmetrics", "structured vector scaling (svs)", _probmetrics("svs")),
    "probmetrics sms": Peer("probmetrics", "structured matrix scaling (sms)", _probmetrics("sms")),
    "scikit-learn temperature": Peer("scikit-learn", "temperature", _sklearn("temperature")),
    "scikit-learn isotonic": Peer("scikit-learn", "isotonic, one versus rest", _sklearn("isotonic")),
    "scikit-learn pooled isotonic": Peer("scikit-learn", "isotonic, classes pooled", _pooled_isotonic),
    "netcal temperature": Peer("netcal", "temperature, of float32", _netcal("TemperatureScaling", np.float32)),
    "netcal temperature float64": Peer("netcal", "temperature, of float64", _netcal("TemperatureScaling", np.float64)),
    "netcal histogram": Peer(
        "netcal", "histogram binning, one versus rest", _netcal("HistogramBinning", np.float64, bins=15)
    ),
}


def version(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def measured(split: Split, name: str) -> dict:
    """The scores of a peer on a split with the seconds of its fit, or "error" with what it raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside other libraries
        try:
            fit = lambda: PEERS[name].fit(split.val.logits, split.val.labels)  # noqa: E731
            predict, taken = timed(name, split.val.logits.shape, fit)
            probs = np.asarray(predict(split.test.logits), np.float64)
        except Exception as error:  # whatever a library raises is its answer
            return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    with np.errstate(divide="ignore"):
        return scores(np.log(probs), split.test.labels) | taken


def measure(path: Path, networks: dict[str, tuple[Path, ...]], num_splits: int) -> None:
    """Measure every installed peer on every split that `path` does not have yet."""
    names = [name for name, peer in PEERS.items() if version(peer.package)]
    keys = ({"network": n, "seed": seed, "method": m} for n in networks for m in names for seed in range(num_splits))
    for key in missing(path, keys):
        split = halves(key["network"], networks[key["network"]], key["seed"])
        remember(path, key, measured(split, key["method"]) | {"version": version(PEERS[key["method"]].package)})
