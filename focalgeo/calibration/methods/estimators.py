"""Calibration methods as scikit-learn estimators, made from METHODS; imported only on first use."""

import inspect

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.model_selection import cross_val_predict
from sklearn.utils import get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, has_fit_parameter, indexable, validate_data

from focalgeo import checks
from focalgeo.calibration.examples import as_logits
from focalgeo.calibration.methods import METHODS, fitting
from focalgeo.types import PROBABILITY_FLOOR, Array, InputError, floored_log

_DEFAULTS = {"criterion": "nll", "num_bins": 15}  # None of all other options


class _Calibrator(ClassifierMixin, BaseEstimator):
    """A method of METHODS: logits [examples, classes] in, probabilities out, columns in the order of `classes_`."""

    _method: str

    def fit(self, logits=None, labels=None, sample_weight=None, *, probs=None):
        """Fit the parameters on these examples, which the network was not trained on.

        Args:
            logits: Float [examples, classes]; column i belongs to the i-th of the sorted classes.
            labels: [examples], of any kind that scikit-learn takes for classes. Where one of them is missing among the
                labels, all are to be given as `classes`.
            sample_weight: [examples], how often each counts.
            probs: In place of logits, here and where it predicts, see `log_probabilities`.

        Where the fit does not converge, a ConvergenceWarning of focalgeo says so.
        """
        logits, labels = _validated(self, as_logits(logits, probs), labels, reset=True)
        check_classification_targets(labels)
        self.classes_ = np.unique(labels if self.classes is None else self.classes)
        options = {name: value for name, value in self.get_params(deep=False).items() if name != "classes"}
        return self._fit(logits, labels, sample_weight, **options)

    def _fit(self, logits, labels, sample_weight, **options):
        if logits.shape[1] != len(self.classes_):
            mend = (
                checks.SHAPES[1].format("logits")
                if logits.shape[1] == 1
                else "give all classes as `classes`, or fix the columns"
            )
            columns = f"logits have {logits.shape[1]} columns (n_features = {logits.shape[1]})"
            raise InputError(f"{columns}, and there are {len(self.classes_)} classes: {mend}")
        # a label beyond the last class gets the last one's place, where the comparison finds it out
        index = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        unknown = labels[self.classes_[index] != labels]
        if unknown.size:
            raise InputError(f"label {unknown.tolist()[0]!r} is not among the classes given: add it there")
        weight = None if sample_weight is None else np.asarray(sample_weight)
        self.fitted_ = fitted = fitting.fit(self._method, logits, index.astype(np.int32), weights=weight, **options)
        self.params_ = {name: np.asarray(value) for name, value in fitted.params.items() if name != "converged"}
        self.converged_ = fitted.converged
        for name, value in fitted.searched.items():
            setattr(self, f"{name}_", value)
        return self

    def _logits(self, logits, probs=None):
        return _validated(self, as_logits(logits, probs), reset=False)

    def predict_log_proba(self, logits=None, *, probs=None) -> np.ndarray:
        """Calibrated log-probabilities, float32 [examples, classes]; they keep what probabilities round to 0 or 1."""
        check_is_fitted(self)
        return self.fitted_.predict_log_proba(self._logits(logits, probs))

    def predict_proba(self, logits=None, *, probs=None) -> np.ndarray:
        """Calibrated probabilities, float64 [examples, classes], of the classes in the order of `classes_`."""
        probs = np.exp(self.predict_log_proba(logits, probs=probs).astype(np.float64))
        return probs / probs.sum(axis=1, keepdims=True)

    def predict(self, logits=None, *, probs=None) -> np.ndarray:
        """The class of the largest calibrated probability, which is that of the largest logit where none changes it."""
        check_is_fitted(self)
        logits = self._logits(logits, probs)
        scores = logits if self.fitted_.method.keeps_class else self.fitted_.predict_log_proba(logits)
        return self.classes_[np.argmax(scores, axis=1)]


class CalibratedClassifier(MetaEstimatorMixin, _Calibrator):
    """A classifier with calibrated outputs: estimator and calibration method, fitted to the same examples.

    The method is fitted to outputs for examples that the estimator was not trained on: by cross-validation, after which
    the estimator is fitted to all, or with cv="prefit" to examples held out from a fitted estimator. Outputs are its
    log-probabilities, its probabilities or, where it has neither, what its decision function gives as logits.

    Args:
        estimator: A scikit-learn classifier, or a Pipeline that ends in one.
        method: A name of METHODS, or a short one of `fit`; scikit-learn's "isotonic" is "binary_isotonic".
        cv: The number of folds, a splitter whose test folds part the examples, or "prefit".
        criterion: By which the method is fitted; None for its first.
        n_jobs: Number of joblib's jobs, for the folds.
        prevalence: Share of the second class of two in use, for rebalanced examples; see `prevalence_weights`.

    Attributes of a fitted one: `estimator_`, and those of the other estimators here. Tested in
    tests/calibration/test_classifier.py.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> classifier = calibration.CalibratedClassifier(LogisticRegression(), "temperature_scaling", cv=3)
        >>> probs = classifier.fit(scores, drawn).predict_proba(scores)
        >>> round(classifier.temperature_, 1), round(float(calibration.ece(np.log(probs), drawn)), 2)
        (1.1, 0.06)
    """

    def __init__(
        self, estimator, method="focal_temperature_scaling", *, cv=5, criterion=None, n_jobs=None, prevalence=None
    ):
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.criterion = criterion
        self.n_jobs = n_jobs
        self.prevalence = prevalence

    def fit(self, X: Array, y: Array, sample_weight: Array | None = None):  # type: ignore[override]
        """Fit the estimator, unless it is prefit, and the calibration of its outputs.

        The weights [examples] are those of the calibration, and of the estimator where its `fit` takes them.
        """
        self._method = fitting.named(self.method).name
        check_classification_targets(y)
        X, y, sample_weight = indexable(X, column_or_1d(y, warn=True), sample_weight)
        if self.cv == "prefit":
            check_is_fitted(self.estimator)
            self.estimator_ = self.estimator
            logits = self._logits(X)
        else:
            weighted = sample_weight is not None and has_fit_parameter(self.estimator, "sample_weight")
            params = {"sample_weight": sample_weight} if weighted else {}
            self.estimator_ = clone(self.estimator).fit(X, y, **params)
            output = _output(self.estimator_)
            with np.errstate(divide="ignore"):
                scores = cross_val_predict(
                    self.estimator, X, y, cv=self.cv, method=output, params=params, n_jobs=self.n_jobs
                )
            logits = _as_logits(scores, output)
        self.classes_ = self.estimator_.classes_
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self._fit(logits, y, sample_weight, criterion=self.criterion, prevalence=self.prevalence)

    def _logits(self, X, probs=None):
        if probs is not None:
            raise InputError("probs are those of the classifier itself: give X")
        output = _output(self.estimator_)
        with np.errstate(divide="ignore"):
            return _as_logits(getattr(self.estimator_, output)(X), output)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags


def _output(estimator):
    """The name of the method that gives the estimator's outputs."""
    for name in ("predict_log_proba", "predict_proba", "decision_function"):
        if hasattr(estimator, name):
            return name
    kind = type(estimator).__name__
    raise InputError(f"{kind} has no predict_log_proba, predict_proba or decision_function: give a classifier with one")


def _as_logits(scores, output):
    """Outputs as logits [examples, classes] above the logarithm of the least probability."""
    scores = np.asarray(scores, np.float64)
    if output == "decision_function":
        return scores if scores.ndim > 1 else np.stack([0 * scores, scores], axis=1)
    return floored_log(scores) if output == "predict_proba" else np.maximum(scores, np.log(PROBABILITY_FLOOR))


def _validated(estimator, logits, *labels, reset):
    """The result of validate_data, whose errors of several lines become one line."""
    try:
        return validate_data(estimator, logits, *labels, dtype=(np.float64, np.float32), reset=reset)
    except ValueError as error:
        first = str(error).splitlines()[0].rstrip(":.")
        if np.ndim(logits) in checks.SHAPES:
            first += f". Reshape your data: {checks.SHAPES[np.ndim(logits)].format('logits')}"
        raise InputError(first) from error


_DOC = """{title} on held-out logits, as a scikit-learn classifier: what `calibration.fit("{method}", ...)` fits.

Without `classes`, the classes are those among the labels. Attributes of a fitted one: `params_` (and its numbers
`gamma_` and `temperature_`, where it has them), `converged_`, False where a fit ends at the end of its range,
`classes_`, `n_features_in_` and `fitted_`, the `Fitted`. Tested in tests/calibration/test_estimators.py.

Example:
    >>> calibrator = calibration.{name}({options}).fit(scores[:, :2], drawn > 0)
    >>> probs = calibrator.predict_proba(scores[:, :2])
    >>> calibrator.converged_, probs.shape, bool(np.allclose(probs.sum(axis=1), 1))
    (True, (300, 2), True)
"""


def _estimator(name: str, method: str, *options: str) -> type[_Calibrator]:
    """The class of a method. Its constructor takes these options of `calibration.fit`, `prevalence` and `classes`."""
    defaults = {option: _DEFAULTS.get(option) for option in (*options, "prevalence", "classes")}

    def construct(self, **values):
        signature.bind(self, **values)  # refuses other names
        vars(self).update(defaults | values)

    keywords = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=defaults[key]) for key in defaults]
    signature = inspect.Signature([inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *keywords])
    # scikit-learn reads an estimator's options from its constructor's signature
    construct.__signature__ = signature
    doc = _DOC.format(
        title=METHODS[method].title, method=method, name=name, options="trained_gamma=3" * ("trained_gamma" in options)
    )
    members = {"__init__": construct, "__doc__": doc, "__module__": __name__, "_method": method}
    return type(name, (_Calibrator,), members)


TemperatureScaling = _estimator("TemperatureScaling", "temperature_scaling", "criterion", "num_bins", "temperatures")
TemperatureScaling.gamma_ = 0.0
FocalTemperatureScaling = _estimator(
    "FocalTemperatureScaling", "focal_temperature_scaling", "criterion", "num_bins", "gammas", "temperatures"
)
EnsembleTemperatureScaling = _estimator("EnsembleTemperatureScaling", "ensemble_temperature_scaling")
VectorScaling = _estimator("VectorScaling", "vector_scaling")
FocalVectorScaling = _estimator("FocalVectorScaling", "focal_vector_scaling")
StructuredMatrixScaling = _estimator("StructuredMatrixScaling", "structured_matrix_scaling")
HistogramBinning = _estimator("HistogramBinning", "histogram_binning", "num_bins")
IsotonicCalibration = _estimator("IsotonicCalibration", "isotonic")
PlattScaling = _estimator("PlattScaling", "platt_scaling")
BetaCalibration = _estimator("BetaCalibration", "beta_calibration")
QuadraticScaling = _estimator("QuadraticScaling", "quadratic_scaling")
BinaryIsotonicCalibration = _estimator("BinaryIsotonicCalibration", "binary_isotonic")
LossImpliedTemperatureScaling = _estimator(
    "LossImpliedTemperatureScaling", "loss_implied_temperature_scaling", "trained_gamma"
)
LossImpliedMap = _estimator("LossImpliedMap", "loss_implied_map", "trained_gamma")
Stacking = _estimator("Stacking", "stacking")
