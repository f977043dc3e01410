"""The scikit-learn estimators: what they fit, that they are good citizens, and what of check_estimator applies."""

import pickle
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import log_loss
from sklearn.utils.estimator_checks import parametrize_with_checks

from focalgeo import calibration
from focalgeo.calibration import METHODS, FocalTemperatureScaling, HistogramBinning, TemperatureScaling
from focalgeo.calibration.methods import estimators
from focalgeo.types import InputError

PAGE = Path(__file__).parents[2] / "docs" / "calibration.md"
NAMES = np.array(["ant", "bee", "cat", "dog"])
ESTIMATORS = {each._method: each for each in vars(estimators).values() if hasattr(each, "_method")}
COLUMNS = "its data has another number of columns than classes, which logits cannot have"
NAMED = "fit's arguments are named logits and labels, not X and y"
EXPECTED_TO_FAIL = {
    "check_fit_score_takes_y": NAMED,
    "check_sample_weight_equivalence_on_dense_data": NAMED,
    **dict.fromkeys(
        (
            "check_all_zero_sample_weights_error",
            "check_classifiers_classes",
            "check_classifiers_train",
            "check_dtype_object",
            "check_estimators_dtypes",
            "check_estimators_fit_returns_self",
            "check_estimators_nan_inf",
            "check_estimators_overwrite_params",
            "check_estimators_pickle",
            "check_n_features_in_after_fitting",
            "check_pipeline_consistency",
            "check_positive_only_tag_during_fit",
            "check_readonly_memmap_input",
        ),
        COLUMNS,
    ),
}


@pytest.fixture(scope="module")
def overconfident():
    """2,000 examples of four classes whose logits are twice those that the labels are drawn from."""
    rng = np.random.default_rng(0)
    truth = 2 * rng.standard_normal((2000, 4))
    return 2 * truth, NAMES[np.argmax(truth + rng.gumbel(size=truth.shape), axis=1)]


AT_RANDOM = "ignore::focalgeo.calibration.ConvergenceWarning"  # of labels that the logits do not tell


@pytest.mark.long  # every check has shapes of its own, which are compiled anew
@pytest.mark.filterwarnings("ignore:Skipping check", AT_RANDOM, "ignore::focalgeo.calibration.ProbabilityWarning")
@parametrize_with_checks(
    [TemperatureScaling(), HistogramBinning()], expected_failed_checks=lambda estimator: EXPECTED_TO_FAIL
)
def test_scikit_learn_s_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_is_its_method(name, overconfident):
    """The same fit and the same log-probabilities; predicted is the class of the largest of them."""
    logits, labels = overconfident
    few, names = np.where(labels == "bee", "cat", labels), NAMES  # "bee" is predicted and never right
    if METHODS[name].most_classes == 2:
        logits, names, few = logits[:, :2], NAMES[1:3], np.where(labels == "ant", "bee", "cat")
    options = {"trained_gamma": 1.5} if "trained_gamma" in METHODS[name].options else {}
    fitted = ESTIMATORS[name](classes=names, **options).fit(logits, few)
    index = np.searchsorted(names, few).astype(np.int32)
    expected = calibration.fit(name, np.float32(logits), index, **options)
    log_probs = fitted.predict_log_proba(logits)
    np.testing.assert_array_equal(log_probs, expected.predict_log_proba(np.float32(logits)))
    np.testing.assert_allclose(fitted.predict_proba(logits), np.exp(np.float64(log_probs)), atol=1e-6)
    np.testing.assert_allclose(fitted.predict_proba(logits).sum(1), 1, rtol=1e-12)
    kept = METHODS[name].keeps_class
    np.testing.assert_array_equal(fitted.predict(logits), names[(logits if kept else log_probs).argmax(1)])
    assert ("bee" in fitted.predict(logits)) == (kept or name == "histogram_binning" or len(names) == 2)
    assert fitted.params_.keys() == expected.params.keys() - {"converged"}
    for parameter, value in fitted.params_.items():
        np.testing.assert_array_equal(value, expected.params[parameter])
    for parameter, value in expected.searched.items():
        assert getattr(fitted, f"{parameter}_") == value
    assert fitted.converged_ == expected.converged
    assert (fitted.n_features_in_, list(fitted.classes_)) == (len(names), list(names))


@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        (FocalTemperatureScaling, {"criterion": "ece", "gammas": (0.0, 1.0), "temperatures": (0.5, 1.0, 2.0)}),
        (HistogramBinning, {"num_bins": 7}),
    ],
)
@pytest.mark.filterwarnings(AT_RANDOM)
def test_clone_pickle_and_repr_keep_the_parameters_and_the_fit(estimator, options, overconfident):
    fitted = estimator(**options).fit(*overconfident)
    assert clone(fitted).get_params() == fitted.get_params() == {**estimator().get_params(), **options}
    assert not hasattr(clone(fitted), "params_")
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(overconfident[0]), fitted.predict_proba(overconfident[0]))


def test_a_class_without_labels_is_given_by_name(overconfident):
    logits, labels = overconfident
    few = labels != "cat"
    with pytest.raises(InputError, match=r"logits have 4 columns .*, and there are 3 classes: give all classes"):
        TemperatureScaling().fit(logits[few], labels[few])
    fitted = TemperatureScaling(classes=NAMES).fit(logits[few], labels[few])
    with pytest.raises(InputError, match="X has 3 features"):
        fitted.predict_log_proba(logits[:, :3])
    assert fitted.predict_proba(logits).shape == (2000, 4)
    assert set(fitted.predict(logits)) == set(NAMES)


def test_importing_the_room_does_not_import_scikit_learn():
    lazy = "import sys, focalgeo.calibration as c; assert 'sklearn' not in sys.modules; c.TemperatureScaling"
    missing = "import sys; sys.modules['sklearn'] = None; import focalgeo.calibration as c; c.ece"
    for code in (lazy, missing):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_readme_s_lines_run(overconfident, tmp_path, monkeypatch, capsys):
    (text,) = re.findall(r"```python\n(from focalgeo\.calibration import.*?)```", PAGE.read_text(), re.DOTALL)
    assert len([line for line in text.splitlines() if line]) == 6
    monkeypatch.chdir(tmp_path)
    logits, names = overconfident
    labels = np.searchsorted(NAMES, names)
    for split in ("val", "test"):
        np.savez(f"{split}.npz", logits=logits, labels=labels)
    exec(text, {})
    assert float(capsys.readouterr().out) < log_loss(labels, np.asarray(jax.nn.softmax(np.float32(logits))))
