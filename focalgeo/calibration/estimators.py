"""Temperature scaling and focal temperature scaling as scikit-learn estimators; imported only on first use."""

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from focalgeo.arguments import warns_of_probabilities
from focalgeo.calibration.fits import fit_focal_temperature, fit_temperature
from focalgeo.calibration.methods import METHODS
from focalgeo.calibration.search import CRITERIA, GAMMAS, TEMPERATURES
from focalgeo.types import Array, InputError

_TWO_COLUMNS = "for two classes give two columns, np.stack([0 * z, z], axis=1) of the log-odds z"


class _Calibrator(ClassifierMixin, BaseEstimator):
    """Both estimators: logits [examples, classes] in, probabilities out, columns in the order of `classes_`."""

    def __init__(
        self,
        *,
        criterion: str = "nll",
        num_bins: int = 15,
        temperatures: Array | None = None,
        classes: Array | None = None,
    ):
        self.criterion = criterion
        self.num_bins = num_bins
        self.temperatures = temperatures
        self.classes = classes

    @warns_of_probabilities
    def fit(self, logits: Array, labels: Array):
        """Fit the parameters with the least `criterion` on these examples, which the network was not trained on.

        Args:
            logits: Float [examples, classes]; column i belongs to the i-th of the sorted classes.
            labels: [examples], of any kind that scikit-learn takes for classes. Where one of them is missing among the
                labels, all are to be given as `classes`.

        Raises:
            InputError: logits that are not finite, one column only, or another number of columns than classes.
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
        if self.criterion not in CRITERIA:
            raise InputError.of_choice("criterion", str(self.criterion), CRITERIA)
        self.gamma_, self.temperature_, self.converged_ = self._fitted(np.float32(logits), index.astype(np.int32))
        return self

    def predict_log_proba(self, logits: Array) -> np.ndarray:
        """Calibrated log-probabilities, float32 [examples, classes]; they keep what probabilities round to 0 or 1."""
        check_is_fitted(self)
        logits = _validated(self, logits, reset=False)
        params = {"gamma": np.float32(self.gamma_), "temperature": np.float32(self.temperature_)}
        return np.asarray(METHODS["focal_temperature_scaling"].apply(params, np.float32(logits)))

    def predict_proba(self, logits: Array) -> np.ndarray:
        """Calibrated probabilities, float64 [examples, classes], of the classes in the order of `classes_`."""
        probs = np.exp(self.predict_log_proba(logits).astype(np.float64))
        return probs / probs.sum(axis=1, keepdims=True)

    def predict(self, logits: Array) -> np.ndarray:
        """The class of the largest logit, which neither method changes."""
        check_is_fitted(self)
        logits = _validated(self, logits, reset=False)
        return self.classes_[np.argmax(logits, axis=1)]

    def _searched(
        self, method: str, logits: np.ndarray, labels: np.ndarray, gammas: Array
    ) -> tuple[float, float, bool]:
        """Gamma, temperature and whether that lies inside its range, by the grid search of a method of METHODS."""
        params = METHODS[method].fit(
            logits,
            labels,
            criterion="nll" if self.criterion == "nll" else "ece",
            binning="ece" if self.criterion == "nll" else self.criterion,
            gammas=gammas,
            temperatures=TEMPERATURES if self.temperatures is None else self.temperatures,
            num_bins=self.num_bins,
        )
        return float(params.get("gamma", 0.0)), float(params["temperature"]), bool(params["converged"])


class TemperatureScaling(_Calibrator):
    """Temperature scaling, softmax(logits / T), with the T of the least `criterion` on held-out examples.

    Parameters:
        criterion: "nll" (a continuous fit from 0.01 to 100, the default: with few examples an ECE is mostly noise), or
            "ece" or "adaptive_ece" (over the grid `temperatures`).
        num_bins: Bins of the ECE.
        temperatures: The grid, 0.01, 0.02, ..., 5 if None; with "nll", None fits T continuously.
        classes: All classes; None takes those among the labels.

    Attributes: `temperature_`, `gamma_` (0), `converged_` (False where the temperature is the end of its range, as with
    predictions that are all right), `classes_`, `n_features_in_`.

    Source: Guo et al., arXiv 1706.04599, section 4.2. Tested in tests/calibration/test_estimators.py.
    """

    def _fitted(self, logits: np.ndarray, labels: np.ndarray) -> tuple[float, float, bool]:
        if self.criterion == "nll" and self.temperatures is None:
            found = fit_temperature(logits, labels)
            return 0.0, float(found.temperature), bool(found.converged)
        return self._searched("temperature_scaling", logits, labels, [0.0])


class FocalTemperatureScaling(_Calibrator):
    """The focal calibration map of softmax(logits / T), gamma and T of the least `criterion` on held-out examples.

    Parameters:
        criterion: "nll" (a continuous fit of both, the default), or "ece" or "adaptive_ece" (over the grid).
        num_bins: Bins of the ECE.
        gammas: The grid, 0 and the paper's nine if None; with "nll", None for both grids fits continuously.
        temperatures: The grid, 0.01, 0.02, ..., 5 if None.
        classes: All classes; None takes those among the labels.

    Attributes: `gamma_`, `temperature_`, `converged_` (False where one of them is the end of its range), `classes_`,
    `n_features_in_`.

    Source: Komisarenko & Kull, arXiv 2408.11598, section 4.2. Tested in tests/calibration/test_estimators.py.
    """

    def __init__(
        self,
        *,
        criterion: str = "nll",
        num_bins: int = 15,
        gammas: Array | None = None,
        temperatures: Array | None = None,
        classes: Array | None = None,
    ):
        super().__init__(criterion=criterion, num_bins=num_bins, temperatures=temperatures, classes=classes)
        self.gammas = gammas

    def _fitted(self, logits: np.ndarray, labels: np.ndarray) -> tuple[float, float, bool]:
        if self.criterion == "nll" and self.gammas is None and self.temperatures is None:
            found = fit_focal_temperature(logits, labels)
            return float(found.gamma), float(found.temperature), bool(found.converged)
        gammas = GAMMAS if self.gammas is None else self.gammas
        return self._searched("focal_temperature_scaling", logits, labels, gammas)


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
