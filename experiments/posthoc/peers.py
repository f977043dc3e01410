"""Other libraries' methods, each by its documented way for held-out predictions of a network that is trained already.

An entry fits log-probabilities [examples, classes] float32 and labels, and gives a function from log-probabilities to
probabilities.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from sklearn import calibration, frozen, linear_model

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
        model = linear_model.LogisticRegression()
        model.classes_, model.intercept_ = np.arange(classes), np.zeros(classes, np.float32)
        model.coef_ = np.eye(classes, dtype=np.float32)
        fitted = calibration.CalibratedClassifierCV(frozen.FrozenEstimator(model), method=method)
        return fitted.fit(log_probs, labels).predict_proba

    return fit


def _netcal(dtype):
    def fit(log_probs, labels):
        from netcal.scaling import TemperatureScaling

        fitted = TemperatureScaling()
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
    "netcal temperature": Peer("netcal", "temperature, of float32", _netcal(np.float32), PLAIN),
    "netcal temperature float64": Peer("netcal", "temperature, of float64", _netcal(np.float64), PLAIN),
}


def fitted(name: str, log_probs: np.ndarray, labels: np.ndarray) -> Predict:
    """A function from log-probabilities to log-probabilities by a peer's method."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside other libraries
        predict = PEERS[name].fit(log_probs, labels)

    def predict_log(test):
        with np.errstate(divide="ignore"):  # isotonic regression says 0
            return np.log(np.asarray(predict(test), np.float64))

    return predict_log
