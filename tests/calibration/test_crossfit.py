import numpy as np
import pytest

from focalgeo.calibration import METHODS, Fitted, choose, cross_fit, fit_methods, folds
from focalgeo.calibration.fits import ScoreTest
from focalgeo.calibration.methods import Method
from focalgeo.rows import Difference

PLAIN, FOCAL = METHODS["temperature_scaling"], METHODS["focal_temperature_scaling"]
SETTINGS = {"gammas": (0.0, 1.0), "temperatures": (0.5, 1.0, 1.5, 2.0), "num_bins": 10}


def predictions(num_examples=300, num_classes=3, stretch=1.6, seed=0):
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(num_examples, num_classes)) * 3).astype(np.float32)
    return logits, np.argmax(logits / stretch + rng.gumbel(size=logits.shape), axis=1).astype(np.int32)


def test_folds_are_of_one_size_and_depend_on_the_seed_alone():
    labels = np.random.default_rng(0).choice(4, 203, p=[0.6, 0.3, 0.08, 0.02])
    fold = folds(labels, 5, 0)
    sizes = np.bincount(fold, minlength=5)
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(fold, folds(labels, 5, 0))
    np.testing.assert_array_equal(fold, folds(np.sort(labels), 5, 0))
    assert (fold != folds(labels, 5, 1)).any()


def test_cross_fitting_measures_each_example_by_a_fit_that_never_saw_it():
    logits, labels = predictions(31)
    seen = []

    def fit(logits, labels, *, criterion, mask):
        seen.append(mask)
        return {"shift": np.float32(len(seen))}

    shifting = Method("shifting", "", fit, lambda params, logits: logits + params["shift"], criteria=("nll",))
    found = cross_fit({"a": shifting, "plain": PLAIN}, logits, labels, settings=SETTINGS, num_folds=4, seed=3)
    assert [(each.method.name, each.criterion) for each in found] == [
        ("shifting", "nll"),
        ("temperature_scaling", "nll"),
        ("temperature_scaling", "ece"),
    ]
    assert len(seen) == 4
    for index, mask in enumerate(seen):
        left_out = np.asarray(mask) == 0
        np.testing.assert_array_equal(left_out, folds(labels, 4, 3) == index)
        np.testing.assert_array_equal(found[0].log_probs[left_out], logits[left_out] + np.float32(index + 1))


def test_cross_fitted_log_probs_are_those_of_the_fits_of_the_other_folds():
    logits, labels = predictions()
    searches = METHODS  # any object: searches of all examples must not be used
    found = cross_fit(METHODS, logits, labels, settings={**SETTINGS, "trained_gamma": 1.0, "searches": searches})
    others = folds(labels, 5, 0) != 2
    fits = fit_methods(METHODS, logits, labels, settings={**SETTINGS, "trained_gamma": 1.0}, mask=others)
    for fitted, each in zip(fits, found, strict=True):
        assert (each.method.name, each.criterion) == (fitted.method.name, fitted.criterion)
        np.testing.assert_array_equal(each.log_probs[~others], np.asarray(fitted.predict_log_proba(logits))[~others])


OTHER = Method("other", "Other", None, None, keeps_class=False)


def fits_of(*methods, converged=(True, True)):
    """Uncalibrated, temperature scaling and focal temperature scaling by NLL, and other methods."""
    fits = [Fitted(METHODS["uncalibrated"], None, {})]
    for method, inside in zip((PLAIN, FOCAL), converged, strict=True):
        fits.append(Fitted(method, "nll", {"temperature": 1.5 if inside else 0.01, "converged": inside}))
    return fits + [Fitted(method, "nll", {}) for method in methods]


def differences(fits, n=500, **given):
    """A row for each pair of the fits and metric; `given` are (value, p-value) by names and metric, else (0, 1)."""
    rows = []
    for later, fitted in enumerate(fits):
        for against in fits[:later]:
            for metric in ("nll", "brier", "ece", "accuracy"):
                value, p = given.get(f"{fitted.method.name}_less_{against.method.name}_{metric}", (0.0, 1.0))
                half = abs(value) / 2 if p < 0.05 else abs(value) + 0.01
                other = None if against.criterion == fitted.criterion else against.criterion
                names = fitted.method.name, against.method.name, fitted.criterion, other
                rows.append(
                    Difference(f"{metric}_difference", value, value - half, value + half, p, n, "cross_fit", *names)
                )
    return rows


BETTER, WORSE = (-0.02, 1e-4), (0.02, 1e-4)
USEFUL = {f"{name}_less_uncalibrated_nll": BETTER for name in (PLAIN.name, FOCAL.name, "other")}


def chosen_of(*methods, n=500, converged=(True, True), criterion="nll", **given):
    fits = fits_of(*methods, converged=converged)
    return choose(fits, differences(fits, n, **given), criterion=criterion)


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({}, "uncalibrated"),
        ({"temperature_scaling_less_uncalibrated_nll": BETTER}, "temperature_scaling"),
        (USEFUL, "temperature_scaling"),
        ({**USEFUL, "focal_temperature_scaling_less_temperature_scaling_nll": BETTER}, "focal_temperature_scaling"),
        ({**USEFUL, "focal_temperature_scaling_less_temperature_scaling_nll": (-0.02, 0.06)}, "temperature_scaling"),
        ({"focal_temperature_scaling_less_uncalibrated_nll": BETTER}, "temperature_scaling"),
        ({"temperature_scaling_less_uncalibrated_nll": WORSE}, "uncalibrated"),
    ],
)
def test_the_plainest_method_that_none_beats_beyond_noise_is_chosen(given, chosen):
    assert chosen_of(**given).fitted.method.name == chosen


def test_a_later_method_beats_the_plainest_and_is_taken_only_if_none_plainer_does_as_well():
    beats = {f"other_less_{name}_nll": BETTER for name in ("uncalibrated", PLAIN.name)}
    found = chosen_of(OTHER, **{**USEFUL, **beats})
    assert found.fitted.method is FOCAL  # which OTHER does not beat
    assert found.beaten == {"uncalibrated": PLAIN.name, PLAIN.name: "other"}
    found = chosen_of(OTHER, **{**USEFUL, **beats, "other_less_focal_temperature_scaling_nll": BETTER})
    assert found.fitted.method is OTHER


def test_the_level_of_a_difference_is_divided_by_the_number_of_other_methods():
    assert chosen_of().level == 0.05 / 2
    assert chosen_of(OTHER).level == 0.05 / 3
    barely = {"temperature_scaling_less_uncalibrated_nll": (-0.01, 0.04)}  # two-sided, as rows have it
    assert chosen_of(**barely).fitted.method is PLAIN
    assert chosen_of(OTHER, **barely).fitted.method.name == "uncalibrated"


def test_with_few_examples_temperature_scaling_is_taken():
    assert chosen_of(n=99).fitted.method is PLAIN
    assert chosen_of(n=100).fitted.method.name == "uncalibrated"


@pytest.mark.parametrize("metric", ["nll", "brier"])
def test_a_method_with_a_proper_score_worse_than_a_plainer_one_s_is_refused(metric):
    """As the focal map fitted by ECE often is: its ECE is less and its NLL is worse."""
    given = {
        f"{name}_less_uncalibrated_{score}": BETTER for name in (PLAIN.name, FOCAL.name) for score in ("ece", "nll")
    }
    given["focal_temperature_scaling_less_temperature_scaling_ece"] = BETTER
    fits = [each._replace(criterion=each.criterion and "ece") for each in fits_of()]
    assert choose(fits, differences(fits, **given), criterion="ece").fitted.method is FOCAL
    given[f"focal_temperature_scaling_less_temperature_scaling_{metric}"] = (0.02, 0.04)
    found = choose(fits, differences(fits, **given), criterion="ece")
    assert found.fitted.method is PLAIN
    assert "worse than temperature scaling's beyond noise" in found.refused[FOCAL.name]


def test_a_method_that_may_change_the_class_must_not_lose_accuracy():
    beats = {f"other_less_{name}_nll": BETTER for name in ("uncalibrated", PLAIN.name, FOCAL.name)}
    assert chosen_of(OTHER, **beats).fitted.method is OTHER
    found = chosen_of(OTHER, **beats, other_less_temperature_scaling_accuracy=(-0.01, 0.01))
    assert found.fitted.method is not OTHER
    assert found.refused["other"].startswith("its accuracy is worse")


@pytest.mark.parametrize(("converged", "chosen"), [((True, False), PLAIN), ((False, True), FOCAL)])
def test_a_fit_at_the_end_of_its_range_is_refused(converged, chosen):
    given = {**USEFUL, "focal_temperature_scaling_less_temperature_scaling_nll": BETTER}
    found = chosen_of(converged=converged, **given)
    assert found.fitted.method is chosen
    assert list(found.refused.values()) == ["its fit ended at the end of the range searched"]


@pytest.mark.parametrize(("p", "chosen"), [(0.024, PLAIN.name), (0.026, "uncalibrated")])
def test_the_score_test_stands_in_place_of_one_difference_alone(p, chosen):
    test, fits = ScoreTest(-2.0, p, 500), fits_of()
    for given in ({}, {"temperature_scaling_less_uncalibrated_nll": BETTER}):
        found = choose(fits, differences(fits, **given), criterion="nll", test=test)
        assert (found.fitted.method.name, found.test) == (chosen, test)
    focal = {"focal_temperature_scaling_less_uncalibrated_nll": BETTER}
    assert choose(fits, differences(fits, **focal), criterion="nll", test=test).fitted.method is PLAIN
    for criterion, converged in (("ece", True), ("nll", False)):  # another metric, or temperature scaling refused
        fits = fits_of(converged=(converged, True))
        found = choose(fits, differences(fits), criterion=criterion, test=test)
        assert (found.fitted.method.name, found.test) == ("uncalibrated", None)


@pytest.mark.parametrize(
    ("params", "criterion", "at_end"),
    [
        ({"temperature": 100.0}, "nll", True),
        ({"temperature": 0.93}, "nll", False),
        ({"temperature": 0.93}, "ece", True),  # of a grid nothing else is not converged
        ({"gamma": -0.9, "temperature": 0.93}, "nll", True),
        ({"shares": [1.0, 0.0, 0.0]}, "nll", False),
    ],
)
def test_a_fit_that_did_not_converge_inside_its_range_says_so(params, criterion, at_end):
    fits = fits_of()
    fits[2] = Fitted(FOCAL, criterion, {**params, "converged": False})
    assert fits[2].at_end == at_end
    why = choose(fits, differences(fits), criterion="nll").refused[FOCAL.name]
    assert why == ("its fit ended at the end of the range searched" if at_end else "its fit did not converge")
