"""Other libraries' methods, each by its documented way for held-out predictions of a network that is trained already.

An entry fits what it takes, made of log-probabilities [examples, classes] float32, and labels, and gives a function
from the same of other examples to probabilities.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn import base, calibration, frozen

Predict = Callable[[np.ndarray], np.ndarray]


class Peer(NamedTuple):
    """A method of another library: its package, its title in tables, its fit, and the method here that is the same."""

    package: str
    title: str
    fit: Callable[[Any, np.ndarray], Predict]
    counterpart: str | None
    inputs: Callable[[np.ndarray], Any] = np.asarray  # log-probabilities -> what it takes


def _probmetrics(name):
    def fit(probs, labels):
        from probmetrics.calibrators import get_calibrator

        return get_calibrator(name).fit(probs, labels.astype(np.int64)).predict_proba

    return fit


class _Given(base.ClassifierMixin, base.BaseEstimator):
    """A fitted classifier whose decision function is its input."""

    def __init__(self, classes: int):
        self.classes = classes

    def __sklearn_is_fitted__(self):
        return True

    def fit(self, X, y):
        """Nothing is fitted."""
        return self

    @property
    def classes_(self):
        """0, 1, ..."""
        return np.arange(self.classes)

    def decision_function(self, X):
        """The log-probabilities."""
        return X

    def predict(self, X):
        """Which scikit-learn asks for, and does not call."""
        return np.argmax(X, axis=1)


def _sklearn(method):
    """CalibratedClassifierCV around a frozen classifier whose decision function is its input."""

    def fit(log_probs, labels):
        model = frozen.FrozenEstimator(_Given(log_probs.shape[1]))
        return calibration.CalibratedClassifierCV(model, method=method).fit(log_probs, labels).predict_proba

    return fit


def _netcal_temperature(probs, labels):
    from netcal.scaling import TemperatureScaling

    fitted = TemperatureScaling()
    fitted.fit(probs, labels)
    return fitted.transform


def _probs(log_probs, dtype):
    return np.exp(log_probs).astype(dtype)


PLAIN = "temperature_scaling"
_MIXED = "temperature, mixed with the uniform (ts-mix)"
_VECTOR, _MATRIX = "structured vector scaling (svs)", "structured matrix scaling (sms)"
_ISOTONIC = "isotonic, one versus rest"
_SINGLE, _DOUBLE = partial(_probs, dtype=np.float32), partial(_probs, dtype=np.float64)
PEERS = {  # of three classes or more
    "probmetrics temperature": Peer("probmetrics", "temperature", _probmetrics("temp-scaling"), PLAIN, np.exp),
    "probmetrics ts-mix": Peer("probmetrics", _MIXED, _probmetrics("ts-mix"), PLAIN, np.exp),
    "probmetrics svs": Peer("probmetrics", _VECTOR, _probmetrics("svs"), "vector_scaling", np.exp),
    "probmetrics sms": Peer("probmetrics", _MATRIX, _probmetrics("sms"), "structured_matrix_scaling", np.exp),
    "scikit-learn temperature": Peer("scikit-learn", "temperature", _sklearn("temperature"), PLAIN),
    "scikit-learn isotonic": Peer("scikit-learn", _ISOTONIC, _sklearn("isotonic"), None),
    "netcal temperature": Peer("netcal", "temperature, of float32", _netcal_temperature, PLAIN, _SINGLE),
    "netcal temperature float64": Peer("netcal", "temperature, of float64", _netcal_temperature, PLAIN, _DOUBLE),
}


def fitted(peer: Peer, log_probs: np.ndarray, labels: np.ndarray) -> Predict:
    """A function from log-probabilities to log-probabilities by a peer's method."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside other libraries
        predict = peer.fit(peer.inputs(log_probs), labels)

    def predict_log(test):
        with np.errstate(divide="ignore"):  # isotonic regression says 0
            return np.log(np.asarray(predict(peer.inputs(test)), np.float64))

    return predict_log
