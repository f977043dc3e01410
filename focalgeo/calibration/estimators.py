"""Calibration methods as scikit-learn estimators; imported only on first use."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from focalgeo.calibration.fitted import Fitted
from focalgeo.calibration.methods import METHODS, fit
from focalgeo.types import Array, InputError

_TWO_COLUMNS = "for two classes give two columns, np.stack([0 * z, z], axis=1) of the log-odds z"


class _Calibrator(ClassifierMixin, BaseEstimator):
    """Any method of METHODS: logits [examples, classes] in, probabilities out, columns in the order of `classes_`.

    A subclass names its method; what its constructor takes but `classes` and `criterion` are options of that fit.
    """

    _method: str

    def __init__(self, *, classes: Array | None = None):
        self.classes = classes

    def fit(self, logits: Array, labels: Array):
        """Fit the parameters on these examples, which the network was not trained on.

        Args:
            logits: Float [examples, classes]; column i belongs to the i-th of the sorted classes.
            labels: [examples], of any kind that scikit-learn takes for classes. Where one of them is missing among the
                labels, all are to be given as `classes`.

        Where the fit does not converge, a ConvergenceWarning of focalgeo says so.

        Raises:
            InputError: logits that are not finite, one column only, or another number of columns than classes; a grid
                for a fit by NLL.
        """
        logits, labels = _validated(self, logits, labels, reset=True)
        check_classification_targets(labels)
        self.classes_ = np.unique(labels if self.classes is None else self.classes)
        if logits.shape[1] != len(self.classes_):
            raise InputError(_of_columns(logits.shape[1], len(self.classes_), given=self.classes is not None))
        index = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        unknown = labels[self.classes_[index] != labels]
        if unknown.size:
            raise InputError(f"label {unknown.tolist()[0]!r} is not among the classes given: add it there")
        self._keep(fit(self._method, _narrowed(logits), index.astype(np.int32), **self._options()))
        return self

    def _options(self) -> dict[str, Any]:
        """The criterion and the options of the fit, those that are given."""
        given = self.get_params(deep=False)
        return {name: value for name, value in given.items() if name != "classes" and value is not None}

    def _keep(self, fitted: Fitted) -> None:
        self.params_ = {name: np.asarray(value) for name, value in fitted.params.items() if name != "converged"}
        self.converged_ = fitted.converged
        for name in {"gamma", "temperature"} & self.params_.keys():
            setattr(self, f"{name}_", float(self.params_[name]))

    def predict_log_proba(self, logits: Array) -> np.ndarray:
        """Calibrated log-probabilities, float32 [examples, classes]; they keep what probabilities round to 0 or 1."""
        check_is_fitted(self)
        logits = _validated(self, logits, reset=False)
        fitted = Fitted(METHODS[self._method], None, self.params_, len(self.classes_))
        return np.asarray(fitted.predict_log_proba(_narrowed(logits)))

    def predict_proba(self, logits: Array) -> np.ndarray:
        """Calibrated probabilities, float64 [examples, classes], of the classes in the order of `classes_`."""
        probs = np.exp(self.predict_log_proba(logits).astype(np.float64))
        return probs / probs.sum(axis=1, keepdims=True)

    def predict(self, logits: Array) -> np.ndarray:
        """The class of the largest calibrated probability, which is that of the largest logit where none changes it."""
        check_is_fitted(self)
        keeps_class = METHODS[self._method].keeps_class
        scores = _validated(self, logits, reset=False) if keeps_class else self.predict_log_proba(logits)
        return self.classes_[np.argmax(scores, axis=1)]


class TemperatureScaling(_Calibrator):
    """Temperature scaling, softmax(logits / T), with the T of the least `criterion` on held-out examples.

    Parameters:
        criterion: "nll" (a continuous fit from 0.01 to 100, the default: with few examples an ECE is mostly noise), or
            "ece" or "adaptive_ece" (over the grid `temperatures`).
        num_bins: Bins of the ECE.
        temperatures: The grid of an ECE, 0.01, 0.02, ..., 5 if None; refused with "nll".
        classes: All classes; None takes those among the labels.

    Attributes: `temperature_`, `params_`, `converged_` (False where the temperature is the end of its range, as with
    predictions that are all right), `classes_`, `n_features_in_`; `gamma_` is 0.

    Source: Guo et al., arXiv 1706.04599, section 4.2. Tested in tests/calibration/test_estimators.py.
    """

    _method = "temperature_scaling"
    gamma_ = 0.0

    def __init__(
        self,
        *,
        criterion: str = "nll",
        num_bins: int = 15,
        temperatures: Array | None = None,
        classes: Array | None = None,
    ):
        super().__init__(classes=classes)
        self.criterion = criterion
        self.num_bins = num_bins
        self.temperatures = temperatures


class FocalTemperatureScaling(_Calibrator):
    """The focal calibration map of softmax(logits / T), gamma and T of the least `criterion` on held-out examples.

    Parameters:
        criterion: "nll" (a continuous fit of both, the default), "ece" or "adaptive_ece" (over the grid), or
            "line_search" (the paper's search by ECE along a line).
        num_bins: Bins of the ECE.
        gammas: The grid of an ECE, 0 and the paper's nine if None; refused with "nll".
        temperatures: The grid of an ECE, 0.01, 0.02, ..., 5 if None; refused with "nll".
        classes: All classes; None takes those among the labels.

    Attributes: `gamma_`, `temperature_`, `params_`, `converged_` (False where one of them is the end of its range),
    `classes_`, `n_features_in_`.

    Source: Komisarenko & Kull, arXiv 2408.11598, section 4.2. Tested in tests/calibration/test_estimators.py.
    """

    _method = "focal_temperature_scaling"

    def __init__(
        self,
        *,
        criterion: str = "nll",
        num_bins: int = 15,
        gammas: Array | None = None,
        temperatures: Array | None = None,
        classes: Array | None = None,
    ):
        super().__init__(classes=classes)
        self.criterion = criterion
        self.num_bins = num_bins
        self.gammas = gammas
        self.temperatures = temperatures


class EnsembleTemperatureScaling(_Calibrator):
    """A mixture of softmax(logits / T), softmax(logits) and 1 / classes, T and the shares by least NLL.

    Parameters:
        classes: All classes; None takes those among the labels.

    Attributes: `params_` with "shares" [3], `temperature_`, `converged_`, `classes_`, `n_features_in_`.

    Source: Zhang, Kailkhura & Han, arXiv 2003.07329, section 3.2. Tested in tests/calibration/test_estimators.py.
    """

    _method = "ensemble_temperature_scaling"


class VectorScaling(_Calibrator):
    """Vector scaling: temperature scaling, then a scale and a bias for each class, by least NLL with a ridge.

    Parameters:
        classes: All classes; None takes those among the labels.

    Attributes: `params_` with "scales" and "biases" [classes], `temperature_`, `converged_`, `classes_`,
    `n_features_in_`. It may change the predicted class.

    Source: Guo et al., arXiv 1706.04599, section 4.2; ridge: Berta et al., arXiv 2511.03685. Tested in
    tests/calibration/test_estimators.py.
    """

    _method = "vector_scaling"


class FocalVectorScaling(_Calibrator):
    """Focal temperature scaling, then a scale and a bias for each class, by least NLL with a ridge.

    Parameters:
        classes: All classes; None takes those among the labels.

    Attributes: `params_` with "scales" and "biases" [classes], `gamma_`, `temperature_`, `converged_`, `classes_`,
    `n_features_in_`. It may change the predicted class.

    Source: our own, see `focal_vector_scaling`. Tested in tests/calibration/test_estimators.py.
    """

    _method = "focal_vector_scaling"


class StructuredMatrixScaling(_Calibrator):
    """Temperature scaling, then a matrix and a bias, by least NLL with ridges on diagonal, other entries and bias.

    Parameters:
        classes: All classes, up to 200; None takes those among the labels.

    Attributes: `params_` with "weights" [classes, classes] and "biases" [classes], `temperature_`, `converged_`,
    `classes_`, `n_features_in_`. It may change the predicted class.

    Source: Berta et al., arXiv 2511.03685. Tested in tests/calibration/test_estimators.py.
    """

    _method = "structured_matrix_scaling"


class HistogramBinning(_Calibrator):
    """The accuracy of its bin for the top class, bins of equal mass in its confidence; the others share the rest.

    Parameters:
        num_bins: 1 or more.
        classes: All classes; None takes those among the labels.

    Attributes: `params_` with "edges" [num_bins - 1] and "accuracies" [num_bins], `converged_`, `classes_`,
    `n_features_in_`. It may change the predicted class.

    Source: Zadrozny & Elkan, ICML 2001; Gupta & Ramdas, arXiv 2107.08353. Tested in
    tests/calibration/test_estimators.py.
    """

    _method = "histogram_binning"

    def __init__(self, *, num_bins: int = 15, classes: Array | None = None):
        super().__init__(classes=classes)
        self.num_bins = num_bins


class IsotonicCalibration(_Calibrator):
    """Isotonic regression of "k is the label" on log p_k over all classes together, rows divided by their sum.

    Parameters:
        classes: All classes; None takes those among the labels.

    Attributes: `params_` with "thresholds" and "probabilities", `converged_`, `classes_`, `n_features_in_`.

    Source: Zadrozny & Elkan, KDD 2002; Zhang, Kailkhura & Han, arXiv 2003.07329, section 3.2. Tested in
    tests/calibration/test_estimators.py.
    """

    _method = "isotonic"


def _validated(estimator: BaseEstimator, logits: Array, *labels: Array, reset: bool):
    """The result of validate_data, whose errors of several lines become one line."""
    try:
        return validate_data(estimator, logits, *labels, dtype=(np.float64, np.float32), reset=reset)
    except ValueError as error:
        first = str(error).splitlines()[0].rstrip(":")
        raise InputError(f"{first}. Reshape your data: {_TWO_COLUMNS}" if np.ndim(logits) == 1 else first) from error


def _of_columns(columns: int, classes: int, *, given: bool) -> str:
    if columns == 1:
        return f"logits have one column (n_features = 1): {_TWO_COLUMNS}"
    if given:
        return f"logits have {columns} columns, classes {classes} entries: give one column for each class"
    return (
        f"logits have {columns} columns, labels {classes} classes: give all classes as `classes`, or mend the columns"
    )


def _narrowed(logits: np.ndarray) -> np.ndarray:
    """The logits as float32; `fit` and the prediction refuse those beyond what it holds."""
    with np.errstate(over="ignore"):
        return logits.astype(np.float32)
