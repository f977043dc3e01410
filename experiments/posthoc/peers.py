"""Other libraries' methods, each by its documented way for held-out predictions of a network that is trained already.

An entry fits log-probabilities [examples, classes] float32 and labels, and gives a function from log-probabilities to
probabilities.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from sklearn import calibration, frozen, isotonic, linear_model

Predict = Callable[[np.ndarray], np.ndarray]


class Peer(NamedTuple):
    """A method of another library: its package, its title in tables, its fit, and the method here that is the same."""

    package: str
    title: str
    fit: Callable[[np.ndarray, np.ndarray], Predict]
    counterpart: str | None


def _probmetrics(name):
    def fit(log_probs, labels):
        from probmetrics.calibrators import get_calibrator

        fitted = get_calibrator(name).fit(np.exp(log_probs), labels.astype(np.int64))
        return lambda test: fitted.predict_proba(np.exp(test))

    return fit


def _sklearn(method):
    """CalibratedClassifierCV around a frozen classifier whose decision function is its input."""

    def fit(log_probs, labels):
        classes = log_probs.shape[1]
        given = linear_model.LogisticRegression()
        given.classes_, given.intercept_ = np.arange(classes), np.zeros(classes, np.float32)
        given.coef_ = np.eye(classes, dtype=np.float32)
        fitted = calibration.CalibratedClassifierCV(frozen.FrozenEstimator(given), method=method)
        return fitted.fit(log_probs, labels).predict_proba

    return fit


def _pooled_isotonic(log_probs, labels):
    """One IsotonicRegression for the probabilities of all classes, their sum then made 1."""
    came_true = np.arange(log_probs.shape[1]) == labels[:, None]
    fitted = isotonic.IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    fitted.fit(np.exp(log_probs).ravel(), came_true.ravel())

    def predict(test):
        probs = fitted.predict(np.exp(test).ravel()).reshape(test.shape).astype(np.float64)
        return probs / probs.sum(1, keepdims=True)

    return predict


def _netcal(name, dtype, **options):
    def fit(log_probs, labels):
        import netcal.binning
        import netcal.scaling

        module = netcal.scaling if hasattr(netcal.scaling, name) else netcal.binning
        fitted = getattr(module, name)(**options)
        fitted.fit(np.exp(log_probs).astype(dtype), labels)
        return lambda test: fitted.transform(np.exp(test).astype(dtype))

    return fit


PLAIN = "temperature_scaling"
_MIXED = "temperature, mixed with the uniform (ts-mix)"
PEERS = {
    "probmetrics temperature": Peer("probmetrics", "temperature", _probmetrics("temp-scaling"), PLAIN),
    "probmetrics ts-mix": Peer("probmetrics", _MIXED, _probmetrics("ts-mix"), PLAIN),
    "probmetrics svs": Peer("probmetrics", "structured vector scaling (svs)", _probmetrics("svs"), "vector_scaling"),
    "probmetrics sms": Peer(
        "probmetrics", "structured matrix scaling (sms)", _probmetrics("sms"), "structured_matrix_scaling"
    ),
    "scikit-learn temperature": Peer("scikit-learn", "temperature", _sklearn("temperature"), PLAIN),
    "scikit-learn isotonic": Peer("scikit-learn", "isotonic, one versus rest", _sklearn("isotonic"), None),
    "scikit-learn pooled isotonic": Peer("scikit-learn", "isotonic, classes pooled", _pooled_isotonic, "isotonic"),
    "netcal temperature": Peer("netcal", "temperature, of float32", _netcal("TemperatureScaling", np.float32), PLAIN),
    "netcal temperature float64": Peer(
        "netcal", "temperature, of float64", _netcal("TemperatureScaling", np.float64), PLAIN
    ),
    "netcal histogram": Peer(
        "netcal", "histogram binning, one versus rest", _netcal("HistogramBinning", np.float64, bins=15), None
    ),
}


def fitted(name: str, log_probs: np.ndarray, labels: np.ndarray) -> Predict:
    """A function from log-probabilities to log-probabilities by a peer's method."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside other libraries
        predict = PEERS[name].fit(log_probs, labels)

    def predict_log(test):
        with np.errstate(divide="ignore"):  # isotonic regression and histograms say 0
            return np.log(np.asarray(predict(test), np.float64))

    return predict_log
