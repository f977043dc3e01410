import numpy as np
import pytest

from focalgeo.calibration import METHODS, Fitted, candidates, choose, cross_fit, fit_methods, folds
from focalgeo.calibration.methods import Method
from focalgeo.rows import Difference

PLAIN, FOCAL = METHODS["temperature_scaling"], METHODS["focal_temperature_scaling"]
SETTINGS = {"gammas": (0.0, 1.0), "temperatures": (0.5, 1.0, 1.5, 2.0), "num_bins": 10}


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
    assert [(each.method.name, each.criterion) for each in found] == [
        ("shifting", "nll"),
        ("temperature_scaling", "ece"),
        ("temperature_scaling", "nll"),
    ]
    assert len(seen) == 4
    for index, mask in enumerate(seen):
        np.testing.assert_array_equal(~mask, folds(labels, 4, 3) == index)
        np.testing.assert_array_equal(found[0].log_probs[~mask], logits[~mask] + np.float32(index + 1))


def test_cross_fitted_log_probs_are_those_of_the_fits_of_the_other_folds():
    logits, labels = predictions()
    search = METHODS  # any object: a search of all examples must not be used
    found = cross_fit(METHODS, logits, labels, settings={**SETTINGS, "trained_gamma": 1.0, "search": search})
    others = folds(labels, 5, 0) != 2
    fits = fit_methods(METHODS, logits, labels, settings={**SETTINGS, "trained_gamma": 1.0}, mask=others)
    for fitted, each in zip(fits, found, strict=True):
        assert (each.method.name, each.criterion) == (fitted.method.name, fitted.criterion)
        np.testing.assert_array_equal(each.log_probs[~others], np.asarray(fitted.log_probs(logits))[~others])


def fits_of(*methods, converged=(True, True)):
    """Uncalibrated, temperature scaling and focal temperature scaling by ECE, and other methods by what they have."""
    fits = [Fitted(METHODS["uncalibrated"], None, {})]
    fits += [Fitted(method, "ece", {"converged": c}) for method, c in zip((PLAIN, FOCAL), converged, strict=True)]
    return fits + [Fitted(method, method.criteria[0], {}) for method in methods]


def differences(fits, n=500, **highs):
    """A row for each pair of the fits and each metric; `highs` are upper ends by names and metric, else 0.1."""
    rows = []
    for later, fitted in enumerate(fits):
        for against in fits[:later]:
            for metric in ("ece", "nll", "accuracy"):
                high = highs.get(f"{fitted.method.name}_less_{against.method.name}_{metric}", 0.1)
                other = None if against.criterion == fitted.criterion else against.criterion
                names = fitted.method.name, against.method.name, fitted.criterion, other
                rows.append(
                    Difference(f"{metric}_difference", high - 0.1, high - 0.2, high, 0.5, n, "cross_fit", *names)
                )
    return rows


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
def test_the_method_is_chosen_by_paired_differences_alone(focal, useful, n, chosen):
    highs = {f"{name}_less_uncalibrated_ece": useful for name in (PLAIN.name, FOCAL.name)}
    fits = fits_of()
    rows = differences(fits, n, focal_temperature_scaling_less_temperature_scaling_ece=focal, **highs)
    assert choose(fits, rows, criterion="ece").method.name == chosen


def test_the_nll_alone_may_show_a_method_better_than_none():
    fits = fits_of()
    rows = differences(fits, temperature_scaling_less_uncalibrated_nll=-0.01)
    assert choose(fits, rows, criterion="ece") is fits[1]


@pytest.mark.parametrize("converged", [(True, False), (False, True)])
def test_a_fit_at_the_end_of_its_range_is_not_compared(converged):
    fits = fits_of(converged=converged)
    names = ("focal_temperature_scaling_less_temperature_scaling", "temperature_scaling_less_uncalibrated")
    rows = differences(fits, **{f"{name}_ece": -0.1 for name in names})
    assert choose(fits, rows, criterion="ece") is fits[1]


@pytest.mark.parametrize(
    ("accuracy", "keeps_class", "chosen"), [(0.01, False, "other"), (-0.01, False, "plain"), (-0.01, True, "other")]
)
def test_another_method_takes_part_by_a_criterion_it_has_and_must_not_lose_accuracy(accuracy, keeps_class, chosen):
    other = Method("other", "", None, None, criteria=("nll",), keeps_class=keeps_class)
    fits = fits_of(other)
    assert candidates(fits, "ece") == [1, 2, 3]
    assert candidates(fits, "nll") == [3]
    highs = {f"{name}_less_uncalibrated_ece": -0.1 for name in ("other", PLAIN.name)}
    highs |= {"other_less_temperature_scaling_ece": -0.1, "other_less_temperature_scaling_accuracy": accuracy}
    found = choose(fits, differences(fits, **highs), criterion="ece")
    assert found.method is {"other": other, "plain": PLAIN}[chosen]


def test_each_method_is_compared_with_the_best_so_far():
    other = Method("other", "", None, None, criteria=("ece",))
    fits = fits_of(other)
    pairs = [(FOCAL.name, PLAIN.name), (FOCAL.name, "uncalibrated"), ("other", "uncalibrated")]
    highs = {f"{later}_less_{earlier}_ece": -0.1 for later, earlier in pairs}
    rows = differences(fits, other_less_temperature_scaling_ece=-0.1, **highs)
    assert choose(fits, rows, criterion="ece").method is FOCAL
    rows = differences(fits, other_less_focal_temperature_scaling_ece=-0.1, **highs)
    assert choose(fits, rows, criterion="ece").method is other
