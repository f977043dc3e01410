from types import SimpleNamespace

import jax
import numpy as np
import pytest

from focalgeo.calibration import (
    METHODS,
    Fitted,
    choose,
    cross_fit,
    crossfit,
    fit_methods,
    folds,
    metric_differences,
    nll,
)
from focalgeo.calibration.methods import Method

PLAIN, FOCAL = METHODS["temperature_scaling"], METHODS["focal_temperature_scaling"]
SETTINGS = {"gammas": (0.0, 1.0), "temperatures": (0.5, 1.0, 1.5, 2.0), "num_bins": 10}
KEY = jax.random.PRNGKey(0)


def predictions(num_examples=300, num_classes=3, stretch=1.6, seed=0):
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(num_examples, num_classes)) * 3).astype(np.float32)
    return logits, np.argmax(logits / stretch + rng.gumbel(size=logits.shape), axis=1).astype(np.int32)


def test_folds_are_stratified_and_depend_on_the_seed_alone():
    labels = np.random.default_rng(0).choice(4, 203, p=[0.6, 0.3, 0.08, 0.02])
    fold = folds(labels, 5, 0)
    for members in (np.ones(203, bool), *(labels == k for k in range(4))):
        sizes = np.bincount(fold[members], minlength=5)
        assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(fold, folds(labels, 5, 0))
    assert (fold != folds(labels, 5, 1)).any()
    assert (np.diff(fold[labels == 0]) != 1).any()


def test_cross_fitting_measures_each_example_by_a_fit_that_never_saw_it():
    logits, labels = predictions(31)
    seen = []

    def fit(logits, labels, *, criterion, mask):
        seen.append(mask)
        return {"shift": np.float32(len(seen))}

    shifting = Method("shifting", "", fit, lambda params, logits: logits + params["shift"], criteria=("nll",))
    found = cross_fit({"a": shifting, "plain": PLAIN}, logits, labels, settings=SETTINGS, num_folds=4, seed=3)
    assert len(found) == 3
    assert len(seen) == 4
    for index, mask in enumerate(seen):
        np.testing.assert_array_equal(~mask, folds(labels, 4, 3) == index)
        np.testing.assert_array_equal(found[0][~mask], logits[~mask] + np.float32(index + 1))


def test_cross_fitted_log_probs_are_those_of_the_fits_of_the_other_folds():
    logits, labels = predictions()
    search = METHODS  # any object: a search of all examples must not be used
    found = cross_fit(METHODS, logits, labels, settings={**SETTINGS, "trained_gamma": 1.0, "search": search})
    others = folds(labels, 5, 0) != 2
    fits = fit_methods(METHODS, logits, labels, settings={**SETTINGS, "trained_gamma": 1.0}, mask=others)
    for fitted, log_probs in zip(fits, found, strict=True):
        np.testing.assert_array_equal(log_probs[~others], np.asarray(fitted.log_probs(logits))[~others])


def test_differences_of_metrics_are_those_of_the_two():
    logits, labels = predictions()
    first, second = (PLAIN.apply({"temperature": np.float32(t)}, logits) for t in (1.6, 0.7))
    found = metric_differences(first, second, labels, key=KEY, num_resamples=20)
    np.testing.assert_allclose(found["nll"].difference, nll(first, labels) - nll(second, labels), atol=1e-6)
    assert found["nll"].low < found["nll"].difference < found["nll"].high < 0
    assert found["accuracy"].difference == found["accuracy"].high == 0


def fits_and_held_out(n, converged=(True, True), extra=()):
    """Held-out log-probabilities that name their method, for differences that are given by name."""
    fits = [Fitted(METHODS["uncalibrated"], None, {})]
    fits += [Fitted(method, "ece", {"converged": c}) for method, c in zip((PLAIN, FOCAL), converged, strict=True)]
    fits += [Fitted(method, method.criteria[0], {}) for method in extra]
    return fits, [fitted.method.name for fitted in fits], np.zeros(n, np.int32)


def given(monkeypatch, **highs):
    """Make `metric_differences` return these upper ends, by names and metric; 0.1 where none is given."""

    def differences(first, second, labels, **_):
        high = {name: highs.get(f"{first}_less_{second}_{name}", 0.1) for name in ("ece", "nll", "accuracy")}
        return {name: SimpleNamespace(high=value) for name, value in high.items()}

    monkeypatch.setattr(crossfit, "metric_differences", differences)


@pytest.mark.parametrize(
    ("focal", "useful", "n", "chosen"),
    [
        (-0.01, -0.05, 500, "focal_temperature_scaling"),
        (0.01, -0.05, 500, "temperature_scaling"),
        (-0.01, -0.05, 99, "temperature_scaling"),
        (0.01, 0.05, 500, "uncalibrated"),
        (-0.01, 0.05, 500, "uncalibrated"),
        (0.01, 0.05, 99, "temperature_scaling"),
    ],
)
def test_the_method_is_chosen_by_paired_differences_alone(monkeypatch, focal, useful, n, chosen):
    against_none = {f"{name}_less_uncalibrated_ece": useful for name in (PLAIN.name, FOCAL.name)}
    given(monkeypatch, focal_temperature_scaling_less_temperature_scaling_ece=focal, **against_none)
    fits, names, labels = fits_and_held_out(n)
    found = choose(fits, names, labels, criterion="ece", key=KEY)
    assert found is fits[names.index(chosen)]


def test_the_nll_alone_may_show_a_method_better_than_none(monkeypatch):
    given(monkeypatch, temperature_scaling_less_uncalibrated_nll=-0.01)
    fits, names, labels = fits_and_held_out(500)
    assert choose(fits, names, labels, criterion="ece", key=KEY).method is PLAIN


@pytest.mark.parametrize("converged", [(True, False), (False, True)])
def test_a_fit_at_the_end_of_its_range_is_not_compared(monkeypatch, converged):
    better = {
        "focal_temperature_scaling_less_temperature_scaling_ece": -0.1,
        "temperature_scaling_less_uncalibrated_ece": -0.1,
    }
    given(monkeypatch, **better)
    fits, names, labels = fits_and_held_out(500, converged)
    assert choose(fits, names, labels, criterion="ece", key=KEY).method is PLAIN


@pytest.mark.parametrize(
    ("accuracy", "keeps_class", "chosen"), [(0.01, False, "other"), (-0.01, False, "plain"), (-0.01, True, "other")]
)
def test_another_method_takes_part_by_a_criterion_it_has_and_must_not_lose_accuracy(
    monkeypatch, accuracy, keeps_class, chosen
):
    other = Method("other", "", None, None, criteria=("nll",), keeps_class=keeps_class)
    below = {f"{name}_less_uncalibrated_ece": -0.1 for name in ("other", "temperature_scaling")}
    given(
        monkeypatch, other_less_temperature_scaling_ece=-0.1, other_less_temperature_scaling_accuracy=accuracy, **below
    )
    fits, names, labels = fits_and_held_out(500, extra=[other])
    assert (
        choose(fits, names, labels, criterion="ece", key=KEY).method.name
        == {"other": "other", "plain": PLAIN.name}[chosen]
    )


def test_overconfident_predictions_are_scaled_and_calibrated_ones_left_alone():
    for stretch, chosen in ((1.6, "temperature_scaling"), (1.0, "uncalibrated")):
        logits, labels = predictions(1000, stretch=stretch, seed=1)
        settings = {"gammas": (0.0, 1.0), "temperatures": tuple(np.arange(0.2, 4, 0.2))}
        methods = {name: METHODS[name] for name in ("uncalibrated", "temperature_scaling", "focal_temperature_scaling")}
        fits = fit_methods(methods, logits, labels, settings=settings)
        held_out = cross_fit(methods, logits, labels, settings=settings)
        found = choose(fits, held_out, labels, criterion="nll", key=KEY, num_resamples=100)
        assert found.method.name == chosen
