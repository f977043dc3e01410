"""calibration.compare: what it fits, cross-fits, chooses and measures, and what it refuses."""

import jax
import numpy as np
import pytest
from msgspec.structs import replace
from outputs import outputs

from focalgeo import calibration, checks
from focalgeo.calibration import METHODS, Fitted, choose, compare, fit_methods, folds
from focalgeo.calibration.fits import stacking
from focalgeo.calibration.fits.focal import ScoreTest
from focalgeo.calibration.methods import MEMBERS, Method
from focalgeo.calibration.methods.fitting import checked_settings, cross_fit
from focalgeo.rows import Difference, Fit, Metric, ReliabilityBin, select
from focalgeo.types import DataWarning, InputError

NAMES = ("temperature_scaling", "focal_temperature_scaling")
FEW = {"criteria": ("nll", "ece"), "num_resamples": 100, "temperatures": (0.5, 1.0, 1.5, 2.0), "gammas": (0.0, 1.0)}


@pytest.fixture(scope="module")
def found():
    return compare(outputs(600, 4), outputs(600, 4, seed=1), NAMES, **FEW)


def test_methods_are_chosen_on_val_and_measured_on_test(found):
    assert found.choice.fitted.method.name == "temperature_scaling"
    assert found.choice.fitted.criterion == "nll"
    assert repr(found).endswith(f" rows; choice: {found.choice.fitted}>")
    assert {row.split for row in select(found.rows, Metric)} == {"test", "cross_fit"}
    assert {row.split for row in select(found.rows, Fit)} == {"val"}
    columns = {(row.method, row.criterion) for row in select(found.rows, Metric, split="test", group=None)}
    assert columns == {("uncalibrated", None), *((name, by) for name in NAMES for by in ("nll", "ece"))}
    assert set(found.search) == {"gammas", "temperatures", "ece", "nll"}
    held_out = {(row.method, row.criterion) for row in select(found.rows, Metric, split="cross_fit")}
    assert held_out == {("uncalibrated", None), *((name, "nll") for name in NAMES)}


def test_rows_are_those_of_the_functions(found):
    (logits, labels), fitted = outputs(600, 4, seed=1), found.choice.fitted
    (row,) = select(found.rows, Metric, name="nll", split="test", method="temperature_scaling", criterion="nll")
    log_probs = fitted.predict_log_proba(logits)
    np.testing.assert_allclose(row.value, calibration.nll(log_probs, labels), rtol=1e-5)
    key = jax.random.split(jax.random.PRNGKey(0), 4)[3]
    direct = calibration.bootstrap(calibration.nll, log_probs, labels, key, 100)
    np.testing.assert_allclose((row.low, row.high), (direct.low, direct.high), atol=0.6 * direct.stderr)  # other draws
    gap, _ = select(found.rows, Metric, name="class_gap", group="2")  # as given, and with the method to use
    probs = np.asarray(jax.nn.softmax(logits))
    assert gap.value == pytest.approx(np.mean(probs[:, 2] - (labels == 2)), abs=1e-6)
    half = 1.96 * np.std(probs[:, 2] - (labels == 2), ddof=1) / np.sqrt(600)
    assert (gap.low, gap.high) == pytest.approx((gap.value - half, gap.value + half), abs=1e-5)


def test_a_class_without_an_example_has_no_gap():
    logits, labels = outputs(300, 4)
    rows = compare((logits, labels % 3), methods=NAMES, **FEW).rows
    assert {row.group for row in select(rows, Metric, name="class_gap")} == {"0", "1", "2"}


def test_predictions_from_elsewhere_are_measured_and_never_chosen():
    (logits, labels), (other, truth) = outputs(300, 4), outputs(300, 4, seed=1)
    best = [np.asarray(jax.nn.log_softmax(each / 1.7)) for each in (logits, other)]
    both = compare((logits, labels), (other, truth), NAMES, also={"mine": tuple(best)}, **FEW)
    (row,) = select(both.rows, Metric, name="nll", split="test", method="mine")
    assert row.value == pytest.approx(float(calibration.nll(best[1], truth)), rel=1e-5)
    assert select(both.rows, Difference, name="nll_difference", split="test", method="mine", against=NAMES[0])
    assert both.choice.fitted.method.name in METHODS


def test_too_few_resamples_are_refused():
    with pytest.raises(InputError, match="num_resamples is 99: give a whole number, 100 to 100000"):
        compare(outputs(50, 4), num_resamples=99)


VAL, TEST = outputs(60, 4), outputs(60, 4, seed=1)
LOG_PROBS = [np.array(jax.nn.log_softmax(logits)) for logits, _ in (VAL, TEST)]


def changed(array, value):
    return np.concatenate([array[:-1], [np.full_like(array[-1], value)]])


@pytest.mark.parametrize(
    ("val", "test", "also", "words"),
    [
        (VAL, (TEST[0], changed(TEST[1], 7)), None, r"test: labels\[59\] is 7"),
        (VAL, outputs(60, 3), None, "test has another number of classes than the 4 of val"),
        ((*VAL, ["a"] * 59), None, None, r"val: group: has shape \(59,\)"),
        (VAL, TEST, (LOG_PROBS[0], np.exp(LOG_PROBS[1])), r"also mine, test: log_probs are .*: of logits give"),
        (VAL, TEST, (LOG_PROBS[0], None), "also mine, test: log_probs are missing: give numbers"),
        (VAL, None, (LOG_PROBS[0][:-1], None), r"also mine, val: log_probs: has shape \(59, 4\)"),
        (VAL, None, (np.where(np.eye(4)[VAL[1]], -np.inf, 0), None), "also mine, val: log_probs"),
    ],
)
def test_what_is_wrong_with_test_groups_or_others_predictions_is_said_at_once(val, test, also, words):
    with pytest.raises(InputError, match=words):
        compare(val, test, NAMES, also=also and {"mine": also}, **FEW)


@pytest.mark.parametrize(("criterion", "criteria"), [("line_search", ()), ("adaptive_ece", ("nll", "ece"))])
def test_a_method_competes_by_the_same_criterion_on_held_out_parts_and_in_its_fit(criterion, criteria):
    found = compare(
        outputs(150, 4), outputs(150, 4, seed=1), NAMES, criterion=criterion, **FEW | {"criteria": criteria}
    )
    competing = [found.fits[index] for index in calibration.candidates(found.fits, criterion)]
    held_out = [(each.method.name, each.criterion) for each in found.held_out]
    assert held_out == [("uncalibrated", None), *((each.method.name, each.criterion) for each in competing)]


PLAIN, FOCAL = METHODS["temperature_scaling"], METHODS["focal_temperature_scaling"]
SETTINGS = {"gammas": (0.0, 1.0), "temperatures": (0.5, 1.0, 1.5, 2.0), "num_bins": 10}


def test_folds_are_of_one_size_and_depend_on_the_seed_alone():
    labels = np.random.default_rng(0).choice(4, 203, p=[0.6, 0.3, 0.08, 0.02])
    fold = folds(labels, 5, 0)
    sizes = np.bincount(fold, minlength=5)
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(fold, folds(labels, 5, 0))
    np.testing.assert_array_equal(fold, folds(np.sort(labels), 5, 0))
    assert (fold != folds(labels, 5, 1)).any()


def test_folds_part_no_cluster():
    clusters = np.random.default_rng(0).choice(["a", "b", "c", "d", "e", "f", "g"], 200)
    fold = folds(np.zeros(200), 3, 0, clusters=clusters)
    assert {len(set(fold[clusters == name])) for name in set(clusters)} == {1}
    assert sorted(np.bincount([fold[clusters == name][0] for name in set(clusters)])) == [2, 2, 3]
    np.testing.assert_array_equal(folds(fold, 5, 3, clusters=np.arange(200)), folds(fold, 5, 3))
    with pytest.raises(InputError, match="num_folds is 8 for 7 clusters"):
        folds(fold, 8, 0, clusters=clusters)


def test_rows_that_repeat_their_cluster_are_worth_no_more_than_one():
    """Every interval, p-value and fold of five copies of each example is that of the examples alone."""
    logits, labels = outputs(300, 2)
    once = calibration.Outputs(logits, labels, clusters=np.arange(300))
    copies = calibration.Outputs(*(np.repeat(each, 5, axis=0) for each in once[:2]), clusters=np.repeat(range(300), 5))
    options = {"methods": ("temperature_scaling",), "num_resamples": 200}
    with pytest.warns(DataWarning):  # test is val
        alone, repeated, naive, plain = (
            compare(each, each, **options) for each in (once, copies, copies[:2], once[:2])
        )
    by_name = compare(copies[:2], methods=options["methods"], num_resamples=200, clusters=copies.clusters.astype(str))
    np.testing.assert_allclose(by_name.choice.test, repeated.choice.test)
    assert alone.choice.test.p_value == pytest.approx(repeated.choice.test.p_value, rel=1e-4)
    narrow = 0
    # a floor is of independent examples alone, and events are counted
    left_out = ("noise_floor", "events")
    compared = ([row for row in of.rows if not row.name.endswith(left_out)] for of in (alone, repeated, plain, naive))
    for row, other, independent, wrong in zip(*compared, strict=True):
        assert row.name == other.name
        if row.name == "spiegelhalter_z":  # a sum of independent examples, no mean of them
            continue
        for end in ("low", "high", "p_value"):
            if hasattr(row, end):
                close = 3e-2 if isinstance(row, ReliabilityBin) else 2e-3  # a bin is never worth more than it holds
                np.testing.assert_allclose(getattr(row, end), getattr(other, end), atol=close)
        if hasattr(row, "low") and "ece" not in row.name and row.n > 29:
            # one example each is what is independent
            np.testing.assert_allclose(row.high - row.low, independent.high - independent.low, rtol=0.2, atol=2e-3)
            narrow += wrong.high - wrong.low < 0.7 * (row.high - row.low)
    assert narrow > 10


def test_cross_fitted_log_probs_are_those_of_the_fits_of_the_other_folds():
    (logits, labels), settings = outputs(300, 2), {**SETTINGS, "trained_gamma": 1.0}
    fold, examples = folds(labels, 5, 0), checks.predicted_logits(logits, labels)
    found = cross_fit(METHODS, examples, checked_settings(settings), fold)
    others = fold != 2
    fits = fit_methods(METHODS, logits, labels, settings=settings, mask=others)
    for fitted, each in zip(fits[:-1], found[:-1], strict=True):
        assert (each.method.name, each.criterion) == (fitted.method.name, fitted.criterion)
        np.testing.assert_array_equal(each.log_probs[~others], np.asarray(fitted.predict_log_proba(logits))[~others])
    by_nll = {each.method.name: each.log_probs for each in found if each.criterion in ("nll", None)}
    rows = [by_nll[name] for name in MEMBERS]
    of_labels = np.exp([member[others, labels[others]] for member in rows])
    shares = stacking.mixture_shares(of_labels, np.ones(others.sum()), stacking.PRIOR / 2)
    mixture = sum(share * np.exp(member[~others]) for share, member in zip(shares, rows, strict=True))
    np.testing.assert_allclose(np.exp(found[-1].log_probs[~others]), mixture, atol=1e-5)


OTHER = Method("other", "Other", None, None, keeps_class=False)
STACKING, UNCALIBRATED, ERROR = METHODS["stacking"], METHODS["uncalibrated"], 0.01


def fits_of(*methods, converged=(True, True), temperature=0.01):
    """Uncalibrated, temperature scaling and focal temperature scaling by NLL, and other methods."""
    fits = [Fitted(UNCALIBRATED, None, {})]
    for method, inside in zip((PLAIN, FOCAL), converged, strict=True):
        fits.append(Fitted(method, "nll", {"temperature": 1.5 if inside else temperature, "converged": inside}))
    return fits + [Fitted(method, "nll", {}) for method in methods]


def differences(fits, values, n=500, metric="nll"):
    """A row for each pair of the fits, of a metric whose values are given in standard errors of every difference."""
    rows = []
    for later, (fitted, value) in enumerate(zip(fits, values, strict=True)):
        for against, other in zip(fits[:later], values, strict=False):
            less = ERROR * (value - other)
            half = 1.96 * ERROR
            by = None if against.criterion == fitted.criterion else against.criterion
            names = fitted.method.name, against.method.name, fitted.criterion, by
            numbers = less, less - half, less + half, 0.5, n
            rows.append(Difference(f"{metric}_difference", *numbers, "cross_fit", *names))
    return rows


def chosen_of(*methods, values, n=500, converged=(True, True), temperature=0.01, **options):
    fits = fits_of(*methods, converged=converged, temperature=temperature)
    rows = differences(fits, values, n)
    others = [replace(row, criterion="ece", value=-1.0) for row in rows]  # of other fits: of no account
    others += [replace(row, name="brier_difference", value=-1.0) for row in rows]
    return choose(fits, rows + others, criterion="nll", **options)


@pytest.mark.parametrize(
    ("values", "chosen"),
    [
        ((0, 0, 0, 0), UNCALIBRATED),
        ((0.4, 0, 0, 0), UNCALIBRATED),
        ((0.6, 0, 0, 0), PLAIN),
        ((0.6, 0.4, 0, 0.1), PLAIN),
        ((3, 0.6, 0.2, 0), FOCAL),
        ((3, 0.6, 0.7, 0), OTHER),
        ((0, 0.6, 0.7, 1), UNCALIBRATED),
    ],
)
def test_the_plainest_method_within_half_a_standard_error_of_the_least_is_chosen(values, chosen):
    found = chosen_of(OTHER, values=values)
    assert found.fitted.method is chosen
    fits = fits_of(OTHER)  # by an ECE too
    rows = differences(fits, values, metric="ece") + differences(fits, (0, 9, 9, -9))
    fits = [each._replace(criterion=each.criterion and "ece") for each in fits]
    rows = [replace(row, criterion="ece") for row in rows]
    assert choose(fits, rows, criterion="ece").fitted.method is chosen


@pytest.mark.parametrize(
    ("values", "p", "chosen", "plainest"),
    [
        ((0.4, 1, 1, 0), 0.051, UNCALIBRATED, UNCALIBRATED),
        ((0.4, 1, 1, 0), 0.049, STACKING, UNCALIBRATED),
        ((0.6, 0.4, 0, 0), 0.9, STACKING, UNCALIBRATED),  # nor is a temperature
        ((0.6, 0.6, -9, 0), 0.9, STACKING, UNCALIBRATED),  # a single map is no candidate
        ((9, 8, 1.9, 0), 0.0, STACKING, FOCAL),
        ((9, 8, 2.1, 0), 0.0, STACKING, STACKING),
    ],
)
def test_the_choice_is_between_outputs_as_given_and_the_mixture(values, p, chosen, plainest):
    test = ScoreTest(-2.0, p, 500)
    found = chosen_of(STACKING, values=values, test=test)
    assert (found.fitted.method, found.plainest.method, found.test) == (chosen, plainest, test)


def test_a_single_map_that_keeps_the_class_is_taken_where_it_is_preferred():
    found = chosen_of(OTHER, STACKING, values=(9, 2, 0.6, -5, 1), prefer="plain")
    assert found.fitted.method is FOCAL
    assert chosen_of(STACKING, values=(9, 2, 1.6, 0), prefer="plain").fitted.method is PLAIN


def test_of_two_classes_the_plain_choice_keeps_the_ranking():
    """Where P(1) is off by a shift, no temperature mends it."""
    logits, labels = outputs(600, 2)
    shifted = logits + np.float32([0, 3])
    methods = ("temperature", "platt", "vector_scaling")
    found = compare((shifted, labels), methods=methods, prefer="plain", num_resamples=100, thresholds=[0.3])
    assert found.choice.fitted.method.name == "platt_scaling"
    ranks = [np.argsort(np.diff(rows)[:, 0]) for rows in (shifted, found.choice.fitted.predict_log_proba(shifted))]
    np.testing.assert_array_equal(*ranks)
    rows = {row.method: row for row in select(found.rows, Metric, name="net_benefit", group="0.3")}
    acted = np.float64(np.exp(np.asarray(found.held_out[0].log_probs))[:, 1] >= 0.3)
    expected = (acted @ (labels == 1) - acted @ (labels == 0) * 0.3 / 0.7) / 600  # as R's dcurves computes it
    assert rows["uncalibrated"].value == pytest.approx(expected)
    assert rows.keys() == {"uncalibrated", "platt_scaling"}
    (of_all,) = select(found.rows, Metric, name="net_benefit_of_all", group="0.3")
    assert of_all.value == pytest.approx(labels.mean() - (1 - labels.mean()) * 0.3 / 0.7)
    assert of_all.low < of_all.value < of_all.high
    with pytest.raises(InputError, match="thresholds are of P\\(1\\) of two classes, here are 3"):
        compare(outputs(60, 3), thresholds=[0.3])
    with pytest.raises(InputError, match="thresholds is 1"):
        compare((shifted, labels), thresholds=[1])


def test_with_few_examples_temperature_scaling_is_taken():
    assert chosen_of(values=(0, 0, 0), n=99).fitted.method is PLAIN
    assert chosen_of(values=(0, 0, 0), n=100).fitted.method is UNCALIBRATED


@pytest.mark.parametrize("n", [99, 500])
@pytest.mark.parametrize(("converged", "chosen"), [((True, False), PLAIN), ((False, True), FOCAL)])
def test_a_fit_at_the_sharp_end_of_its_range_is_refused(converged, chosen, n):
    found = chosen_of(values=(9, 5, 0) if converged[0] else (9, 0, 5), converged=converged, n=n)
    assert found.fitted.method is chosen
    assert chosen_of(values=(9, 0, 0), converged=(False, False), n=n).fitted.method is UNCALIBRATED


def test_a_temperature_at_the_flat_end_of_its_range_is_taken():
    """As of predictions that have nothing to do with the labels: probabilities that are nearly equal cost less."""
    found = chosen_of(values=(9, 0, 5), converged=(False, True), temperature=100.0)
    assert (found.fitted.method, found.refused) == (PLAIN, {})
    labels = np.random.default_rng(0).integers(0, 3, 400)
    logits = 30 * np.eye(3)[np.random.default_rng(1).integers(0, 3, 400)]
    with pytest.warns(DataWarning, match="chance"):
        found = compare((logits[:200], labels[:200]), (logits[200:], labels[200:]), num_resamples=100)
    table = {row.method: row.value for row in select(found.rows, Metric, name="nll", split="test")}
    assert table[found.choice.fitted.method.name] < 1.15 < 9 < table["uncalibrated"]


def test_a_method_with_numbers_of_each_class_is_no_candidate_where_val_lacks_one():
    """And so the accuracy on test, where the classes are, is that of the outputs as given."""
    logits, labels = outputs(3000, 10)
    kept = ~np.isin(labels[:1500], (3, 8))
    options = {"num_resamples": 100, "methods": ("temperature_scaling", "vector_scaling", "stacking")}
    found = compare((logits[:1500][kept], labels[:1500][kept]), (logits[1500:], labels[1500:]), **options)
    assert found.choice.fitted.method.name == "temperature_scaling"
    for name in ("vector_scaling", "stacking"):
        assert "val lacks examples of some" in found.choice.refused[name]
    table = {row.method: row.value for row in select(found.rows, Metric, name="accuracy", split="test")}
    assert table["vector_scaling"] < table["uncalibrated"] - 0.02  # what would have come of it


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
    why = choose(fits, differences(fits, (0, 0, 0)), criterion="nll").refused
    ended = "its fit ended at the end of the range searched" if at_end else "its fit did not converge"
    assert why == ({} if params.get("temperature") == 100 else {FOCAL.name: ended})  # flat is no harm
