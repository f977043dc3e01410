"""CalibratedClassifier: a scikit-learn classifier with its calibration, against scikit-learn's own."""

import pickle

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, ShuffleSplit, cross_val_predict, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from focalgeo import calibration
from focalgeo.calibration import CalibratedClassifier, TemperatureScaling
from focalgeo.types import InputError


@pytest.mark.long  # every check has shapes of its own, which are compiled anew
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@parametrize_with_checks([CalibratedClassifier(LogisticRegression(), "temperature_scaling", cv=3)])
def test_scikit_learn_s_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order], np.char.add("d", y[order].astype(str))
    return (x[:900], y[:900]), (x[900:], y[900:])


@pytest.fixture(scope="module")
def pairs():
    x, y = make_classification(800, 8, n_informative=5, flip_y=0.15, random_state=0)
    return (x[:500], y[:500]), (x[500:], y[500:])


def test_it_is_at_least_as_good_as_scikit_learn_s_on_digits(digits):
    """Naive Bayes is overconfident: temperature scaling equals scikit-learn's, focal temperature scaling beats both."""
    train, (x, y) = digits
    plain = GaussianNB(var_smoothing=1e-2).fit(*train)
    own = CalibratedClassifier(GaussianNB(var_smoothing=1e-2), "temperature_scaling").fit(*train)
    theirs = CalibratedClassifierCV(GaussianNB(var_smoothing=1e-2), method="temperature", ensemble=False).fit(*train)
    focal = CalibratedClassifier(GaussianNB(var_smoothing=1e-2)).fit(*train)
    losses = [log_loss(y, each.predict_proba(x), labels=plain.classes_) for each in (focal, own, theirs, plain)]
    assert losses[0] <= losses[1] * 1.01
    assert losses[1] <= losses[2] * 1.01
    assert losses[2] < losses[3] / 2
    np.testing.assert_array_equal(own.predict(x), plain.predict(x))
    np.testing.assert_allclose(own.predict_proba(x).sum(1), 1, rtol=1e-12)
    assert (own.n_features_in_, own.classes_[0], own.converged_) == (64, "d0", True)


@pytest.mark.parametrize(
    "estimator", [GaussianNB(), LinearSVC(), RandomForestClassifier(20, random_state=0), KNeighborsClassifier(3)]
)
@pytest.mark.filterwarnings("ignore::focalgeo.calibration.ConvergenceWarning")
def test_it_is_the_method_on_outputs_for_examples_left_out(estimator, pairs):
    """Whatever the estimator has: log-probabilities, probabilities of 0 among them, or one column of scores."""
    (x, y), (more, _) = pairs
    name = "decision_function" if isinstance(estimator, LinearSVC) else "predict_proba"
    scores = cross_val_predict(estimator, x, y, cv=KFold(4), method=name)
    with np.errstate(divide="ignore"):
        logits = np.stack([0 * scores, scores], 1) if scores.ndim == 1 else np.maximum(np.log(scores), -87.3365)
    expected = calibration.fit("temperature_scaling", np.float32(logits), y.astype(np.int32))
    fitted = CalibratedClassifier(estimator, "temperature_scaling", cv=KFold(4)).fit(x, y)
    assert fitted.temperature_ == pytest.approx(float(expected.params["temperature"]), rel=1e-3)
    np.testing.assert_array_equal(fitted.predict(more), clone(estimator).fit(x, y).predict(more))
    assert np.isfinite(fitted.predict_log_proba(more)).all()


def test_prefit_fits_to_the_examples_given_and_leaves_the_estimator(pairs):
    train, held_out = pairs
    estimator = LogisticRegression(C=1e3).fit(*train)
    weights = estimator.coef_.copy()
    fitted = CalibratedClassifier(estimator, "vector_scaling", cv="prefit").fit(*held_out)
    expected = calibration.VectorScaling().fit(estimator.predict_log_proba(held_out[0]), held_out[1])
    np.testing.assert_allclose(
        fitted.predict_proba(train[0]), expected.predict_proba(estimator.predict_log_proba(train[0]))
    )
    np.testing.assert_array_equal(estimator.coef_, weights)
    assert fitted.estimator_ is estimator
    frozen = CalibratedClassifier(FrozenEstimator(estimator), "vector_scaling", cv=3).fit(*held_out)
    np.testing.assert_allclose(frozen.predict_proba(train[0]), fitted.predict_proba(train[0]), rtol=1e-5)
    with pytest.raises(ValueError, match="not fitted"):
        CalibratedClassifier(LogisticRegression(), cv="prefit").fit(*held_out)
    with pytest.raises(InputError, match="label 7 is not among"):
        CalibratedClassifier(estimator, cv="prefit").fit(held_out[0], held_out[1] * 7)


def test_weights_count_examples_as_often_in_both(pairs):
    (x, y), (more, _) = pairs
    often = np.random.default_rng(0).integers(0, 4, len(y))
    rows = np.repeat(np.arange(len(y)), often)
    estimator = LogisticRegression(tol=1e-8, max_iter=1000).fit(x, y, sample_weight=often)
    weighted = CalibratedClassifier(estimator, "temperature_scaling", cv="prefit").fit(x, y, sample_weight=often)
    repeated = CalibratedClassifier(estimator, "temperature_scaling", cv="prefit").fit(x[rows], y[rows])
    np.testing.assert_allclose(weighted.predict_proba(more), repeated.predict_proba(more), rtol=1e-4)
    folded = CalibratedClassifier(estimator, "temperature_scaling", cv=4).fit(x, y, sample_weight=list(often))
    np.testing.assert_allclose(folded.estimator_.coef_, estimator.coef_, rtol=1e-6)
    assert folded.temperature_ != CalibratedClassifier(estimator, "temperature_scaling", cv=4).fit(x, y).temperature_
    knn = CalibratedClassifier(KNeighborsClassifier(), "temperature_scaling").fit(x, y, sample_weight=often)  # has none
    assert knn.temperature_ > 0
    logits = estimator.predict_log_proba(x)
    by_hand = TemperatureScaling().fit(logits, y, sample_weight=often)
    assert by_hand.temperature_ == pytest.approx(TemperatureScaling().fit(logits[rows], y[rows]).temperature_, rel=1e-4)
    with pytest.raises(InputError, match="weights is -1"):
        TemperatureScaling().fit(logits, y, sample_weight=-np.ones(len(y)))


def test_pipelines_cross_validation_clone_and_pickle(digits):
    train, (x, y) = digits
    inner = make_pipeline(StandardScaler(), LogisticRegression(C=0.1))
    model = make_pipeline(StandardScaler(), CalibratedClassifier(inner, "temperature_scaling", cv=3))
    scores = cross_val_score(model, *train, cv=2, scoring="neg_log_loss")
    assert (scores > -0.5).all()
    fitted = model.fit(*train)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(x), fitted.predict_proba(x))
    copied = clone(fitted)
    assert copied[-1].get_params()["estimator__logisticregression__C"] == 0.1
    assert not hasattr(copied[-1], "estimator_")
    assert fitted.score(x, y) > 0.9


class Silent(BaseEstimator):
    """A classifier that says nothing but its class."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return self.classes_[np.zeros(len(X), int)]


def test_what_cannot_be_calibrated_is_refused(pairs):
    (x, y), _ = pairs
    with pytest.raises(InputError, match="Silent has no predict_log_proba"):
        CalibratedClassifier(Silent()).fit(x, y)
    with pytest.raises(InputError, match="the method is 'temp': did you mean 'temperature_scaling'"):
        CalibratedClassifier(GaussianNB(), "temp").fit(x, y)
    with pytest.raises(ValueError, match="only works for partitions"):
        CalibratedClassifier(RidgeClassifier(), cv=ShuffleSplit(3)).fit(x, y)
