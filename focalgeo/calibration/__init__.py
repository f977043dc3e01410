"""Calibration: maps, metrics, searches and fits as pure functions; methods, estimators and calibrator.json.

`maps`, `metrics` and `binning` are the mathematics, `streaming` has metrics of chunks; `search`, `fits` and `variants`
fit the maps' numbers; `methods` holds METHODS and what is fitted, and `fitting` fits them, also fold by fold;
`stacking` mixes several; `resampling` gives numbers their errors, `metric_rows` makes rows of them, and `comparison`
chooses a method; `shift` asks whether it holds on other tests; `estimators` are scikit-learn's. Products run at full
float32 precision on every device.
"""

from focalgeo.calibration.binary import (
    binary_brier,
    binary_isotonic_calibration,
    calibration_intercept,
    calibration_slope,
    ici,
    logistic_calibration,
    rms_calibration_error,
    spiegelhalter_z,
)
from focalgeo.calibration.binning import Reliability, adaptive_reliability, reliability
from focalgeo.calibration.comparison import Comparison, Outputs, checked_methods, choose, compare, usual_resamples
from focalgeo.calibration.decisions import answers, decided, least_cost, prediction_sets
from focalgeo.calibration.dense import dense
from focalgeo.calibration.fits import fit_focal_temperature, fit_temperature, temperature_score_test
from focalgeo.calibration.fitting import fit, fit_methods, folds, searched, surfaces, usable
from focalgeo.calibration.maps import (
    binary_focal_calibration,
    focal_calibration,
    focal_temperature_scaling,
    focal_vector_scaling,
    inverse_focal_calibration,
    temperature_scaling,
)
from focalgeo.calibration.methods import (
    DEFAULT_METHODS,
    METHODS,
    ConvergenceWarning,
    Fitted,
    Method,
    calibrator_json,
    read_calibrator,
)
from focalgeo.calibration.metric_rows import calibration_rows, candidates, comparisons, fit_rows
from focalgeo.calibration.metrics import (
    METRICS,
    accuracy,
    adaptive_ece,
    all_metrics,
    aurc,
    auroc,
    binary_ece,
    binary_reliability,
    brier,
    brier_split,
    classwise_ece,
    confidence_auroc,
    debiased_ece,
    debiased_squared_ece,
    ece,
    high_confidence,
    log_probabilities,
    mce,
    nll,
    overconfidence,
    smooth_ece,
    underconfidence,
)
from focalgeo.calibration.multilabel import binary_outputs
from focalgeo.calibration.resampling import Sample, bootstrap, paired_bootstrap, wilson_interval
from focalgeo.calibration.search import GAMMAS, TEMPERATURES, best_point, grid_search, line_search
from focalgeo.calibration.shift import calibration_kept, on_tests
from focalgeo.types import (
    CRITERIA,
    DEFAULT_CRITERIA,
    DEFAULT_METRICS,
    PROBABILITY_FLOOR,
    DataWarning,
    ProbabilityWarning,
)


def __getattr__(name: str):
    """A scikit-learn estimator on first use: scikit-learn is slow to import, and an extra."""
    if name[:1].isupper():
        from focalgeo import types

        types.library("sklearn")
        from focalgeo.calibration import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
