"""Weights equal repetition, soft labels one-hot ones, logits of -inf a class removed: metrics, fits and intervals."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outputs import outputs

from focalgeo import calibration
from focalgeo.calibration import METHODS, METRICS, compare, fit, maps
from focalgeo.calibration.study.comparison import Outputs
from focalgeo.rows import Fit, Metric, select
from focalgeo.types import InputError

quick = settings(max_examples=15, deadline=None, derandomize=True)
MEANS = ("nll", "brier")
BY_NLL = [name for name, method in METHODS.items() if method.criteria[:1] == ("nll",) and name != "stacking"]


HARD = [name for name, method in METHODS.items() if name == "histogram_binning" or method.most_classes == 2]


def weighted(n):
    """Logits, labels and whole weights, and how each is repeated."""
    logits, labels = outputs(n, 3)
    weights = np.random.default_rng(0).permutation(1 + np.arange(n) % 4)
    return logits, labels, weights, np.repeat(np.arange(n), weights)


def options(name):
    return {"trained_gamma": 2.0} if "trained_gamma" in METHODS[name].options else {}


def soft(labels, classes, seed=0):
    """Half of the rows as they are, half shares of the classes."""
    shares = np.random.default_rng(seed).dirichlet(np.ones(classes), len(labels))
    return np.where(np.arange(len(labels))[:, None] % 2, shares, np.eye(classes)[labels]).astype(np.float32)


def test_weights_that_are_not_whole_change_nothing_by_their_scale():
    logits, labels = outputs(500, 4)
    log_probs = jax.nn.log_softmax(logits)
    weights = np.random.default_rng(1).gamma(2.0, size=500).astype(np.float32)
    for name in ("ece", "adaptive_ece", "nll", "smooth_ece", "classwise_ece", "accuracy"):
        one, other = (METRICS[name].function(log_probs, labels, weights=weights * scale) for scale in (1, 0.01))
        np.testing.assert_allclose(one, other, rtol=2e-4, err_msg=name)
    bins = calibration.adaptive_reliability(log_probs, labels, num_bins=5, weights=weights)
    np.testing.assert_allclose(bins.count, weights.sum() / 5, atol=weights.max())


# of so few examples the best gamma of the focal map is at the end of its range
@pytest.mark.filterwarnings("ignore:focal.*range searched:focalgeo.calibration.ConvergenceWarning")
@pytest.mark.parametrize("name", BY_NLL)
def test_a_fit_with_weights_is_that_of_rows_repeated(name):
    logits, labels = outputs(300, min(METHODS[name].most_classes or 3, 3))
    weights = np.random.default_rng(0).permutation(np.arange(300) % 4)  # 0 leaves out, whatever is there
    spoiled = np.where(weights[:, None], logits, np.nan), np.where(weights, labels, -1)
    found = fit(name, *spoiled, weights=weights, **options(name))
    repeated = fit(name, np.repeat(logits, weights, axis=0), np.repeat(labels, weights), **options(name))
    np.testing.assert_allclose(
        found.predict_log_proba(logits), repeated.predict_log_proba(logits), atol=3e-3, rtol=1e-3
    )


def test_intervals_and_tests_with_weights_are_those_of_rows_repeated_in_clusters():
    logits, labels, weights, index = weighted(200)
    key, log_probs = jax.random.key(0), np.asarray(jax.nn.log_softmax(logits))
    for metric in (calibration.ece, calibration.nll):
        found = calibration.bootstrap(metric, log_probs, labels, key, 200, weights=weights)
        repeated = calibration.bootstrap(metric, log_probs[index], labels[index], key, 200, clusters=index)
        np.testing.assert_allclose(found[:4], repeated[:4], atol=1e-6)
    other = np.asarray(jax.nn.log_softmax(logits / 2))
    found = calibration.paired_bootstrap(calibration.nll, log_probs, other, labels, key, 200, weights=weights)
    repeated = calibration.paired_bootstrap(
        calibration.nll, log_probs[index], other[index], labels[index], key, 200, clusters=index
    )
    np.testing.assert_allclose(found[:5], repeated[:5], atol=1e-6)
    found = calibration.temperature_score_test(logits, labels, weights=weights)
    repeated = calibration.temperature_score_test(logits[index], labels[index], clusters=index)
    np.testing.assert_allclose(found, repeated, rtol=1e-5)


def test_a_comparison_with_weights_is_that_of_rows_repeated_in_clusters():
    logits, labels, weights, index = weighted(240)
    arguments = {"methods": ("temperature_scaling",), "criteria": ("nll",), "num_resamples": 100}
    found = compare(Outputs(logits, labels, weights=weights), **arguments)
    repeated = compare(Outputs(logits[index], labels[index], clusters=index), **arguments)
    assert found.choice.fitted.method.name == repeated.choice.fitted.method.name
    for kind in (Fit, Metric):
        pairs = list(zip(select(found.rows, kind), select(repeated.rows, kind), strict=True))
        assert pairs
        for one, other in pairs:
            assert (one.name, one.method) == (other.name, other.method)
            np.testing.assert_allclose(one.value, other.value, atol=1e-5)
            if kind is Metric:
                np.testing.assert_allclose([one.low, one.high], [other.low, other.high], atol=1e-5)


def test_weights_that_cannot_be_are_refused_in_one_line():
    logits, labels = outputs(100, 3)
    log_probs = jax.nn.log_softmax(logits)
    with pytest.raises(InputError, match="weights is -1: give a finite value of 0 or more"):
        calibration.ece(log_probs, labels, weights=-np.ones(100))
    with pytest.raises(InputError, match="weights is nan"):
        fit("temperature_scaling", logits, labels, weights=np.full(100, np.nan))
    with pytest.raises(InputError, match=r"weights for labels \(100,\)"):
        calibration.nll(log_probs, labels, weights=np.ones(99))
    with pytest.raises(InputError, match="weights is 0: give a finite value above 0"):
        calibration.bootstrap(calibration.nll, log_probs, labels, jax.random.key(0), 9, weights=np.arange(100))
    with pytest.warns(calibration.DataWarning, match=r"Weights of val sum to 1 for 100 rows.*mean is 1"):
        compare(
            Outputs(logits, labels, weights=np.full(100, 0.01)), methods=("temperature_scaling",), num_resamples=100
        )


@pytest.mark.parametrize("name", MEANS)
def test_soft_labels_are_shares_of_rows_with_each_class(name):
    logits, labels = outputs(80, 4)
    log_probs, shares = np.asarray(jax.nn.log_softmax(logits)), soft(labels, 4)
    metric = METRICS[name].function
    rows, classes = np.nonzero(shares)
    found = metric(log_probs, shares)
    np.testing.assert_allclose(found, metric(log_probs[rows], classes, weights=shares[rows, classes]), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(metric)(log_probs, shares), found, rtol=1e-6)
    np.testing.assert_allclose(metric(log_probs, np.eye(4)[labels]), metric(log_probs, labels), rtol=1e-7)
    mask = np.arange(80) < 40
    np.testing.assert_allclose(metric(log_probs, shares, mask=mask), metric(log_probs[:40], shares[:40]), rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in BY_NLL if name not in HARD])
def test_a_fit_to_soft_labels_is_that_of_rows_with_each_class(name):
    logits, labels = outputs(250, 3)
    shares = soft(labels, 3)
    rows, classes = np.nonzero(shares)
    found = fit(name, logits, shares, **options(name))
    repeated = fit(name, logits[rows], classes, weights=shares[rows, classes], **options(name))
    np.testing.assert_allclose(
        found.predict_log_proba(logits), repeated.predict_log_proba(logits), atol=3e-3, rtol=1e-3
    )
    one_hot, hard = (fit(name, logits, each, **options(name)) for each in (np.eye(3)[labels], labels))
    np.testing.assert_array_equal(one_hot.predict_log_proba(logits), hard.predict_log_proba(logits))


def test_what_takes_no_soft_labels_says_so_and_takes_one_hot_ones():
    logits, labels = outputs(60, 3)
    shares = soft(labels, 3)
    for name in ("ece", "adaptive_ece", "accuracy"):
        metric, log_probs = METRICS[name].function, jax.nn.log_softmax(logits)
        np.testing.assert_array_equal(metric(log_probs, np.eye(3)[labels]), metric(log_probs, labels))
    with pytest.raises(InputError, match="labels are soft, which temperature_scaling does not take: fit by NLL"):
        fit("temperature_scaling", logits, shares, criterion="ece")
    with pytest.raises(InputError, match="labels are soft, which histogram_binning does not take"):
        fit("histogram_binning", logits, shares)
    with pytest.raises(InputError, match="soft labels"):
        calibration.ece(jax.nn.log_softmax(logits), shares)
    with pytest.raises(InputError, match=r"labels is 1\.2: give a value from 0 to 1"):
        calibration.nll(jax.nn.log_softmax(logits), shares * 1.2)


@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if method.most_classes != 2 and name != "stacking"]
)
def test_a_logit_of_minus_infinity_is_a_class_removed(name):
    logits, labels = outputs(300, 4)
    masked = np.insert(logits, 2, -np.inf, axis=1).astype(np.float32)
    others = labels + (labels >= 2)
    fitted = fit(name, logits, labels, **options(name))
    keep = np.array([0, 1, 3, 4])
    for criterion in METHODS[name].criteria:
        if name not in ("vector_scaling", "focal_vector_scaling", "structured_matrix_scaling"):  # ridges differ
            one, other = (
                fit(name, *pair, criterion=criterion, **options(name)) for pair in ((logits, labels), (masked, others))
            )
            found = np.asarray(other.predict_log_proba(masked))
            np.testing.assert_allclose(found[:, keep], one.predict_log_proba(logits), atol=1e-3)
            assert (found[:, 2] == -np.inf).all()
    if METHODS[name].criteria:
        found = fit(name, masked, others, **options(name))
        assert found.converged == fitted.converged
        found = np.asarray(found.predict_log_proba(masked))
        assert (found[:, 2] == -np.inf).all()
        np.testing.assert_allclose(np.exp(found).sum(axis=1), 1, atol=1e-5)
    alone = np.array([[-np.inf, 3.0, -np.inf, -np.inf]], np.float32)
    np.testing.assert_allclose(fitted.predict_proba(alone), [[0, 1, 0, 0]], atol=1e-6)


@quick
@given(seed=st.integers(0, 10**6), column=st.integers(0, 3), gamma=st.floats(-0.5, 5), temperature=st.floats(0.1, 5))
def test_every_map_of_a_class_removed_is_that_of_the_others(seed, column, gamma, temperature):
    generator, keep = np.random.default_rng(seed), np.arange(4) != column
    logits = (generator.normal(size=(20, 4)) * 3).astype(np.float32)
    masked = np.where(keep, logits, -np.inf).astype(np.float32)
    by_class = generator.uniform(0.5, 1.5, 4), generator.normal(size=4)
    matrix, shares = np.eye(4) + 0.1 * generator.normal(size=(4, 4)), generator.dirichlet(np.ones(3))
    for name, of_all, of_kept in (
        ("temperature_scaling", (temperature,), (temperature,)),
        ("focal_calibration", (gamma,), (gamma,)),
        ("focal_temperature_scaling", (gamma, temperature), (gamma, temperature)),
        ("loss_implied_temperature_scaling", (gamma, temperature), (gamma, temperature)),
        ("ensemble_temperature_scaling", (temperature, shares), (temperature, shares)),
        ("focal_vector_scaling", (gamma, temperature, *by_class), (gamma, temperature, *(of[keep] for of in by_class))),
        (
            "focal_matrix_scaling",
            (gamma, temperature, matrix, by_class[1]),
            (gamma, temperature, matrix[keep][:, keep], by_class[1][keep]),
        ),
        ("isotonic_calibration", ([-9.0, -1, 0], [0.01, 0.4, 0.9]), ([-9.0, -1, 0], [0.01, 0.4, 0.9])),
    ):
        calibration_map = getattr(maps, name)
        found = np.asarray(calibration_map(masked, *map(np.float32, of_all)))
        expected = calibration_map(logits[:, keep], *map(np.float32, of_kept))
        np.testing.assert_allclose(found[:, keep], expected, atol=2e-5, rtol=1e-5, err_msg=name)
        assert (found[:, column] == -np.inf).all()


def test_metrics_take_minus_infinity_and_a_label_there_is_refused():
    logits, labels = outputs(200, 3)
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    masked = np.concatenate([log_probs, np.full((200, 1), -np.inf, np.float32)], axis=1)
    for name, entry in METRICS.items():
        if entry.among is None and name not in ("classwise_ece", *BINARY):
            np.testing.assert_allclose(entry.function(masked, labels), entry.function(log_probs, labels), atol=1e-6)
    with pytest.raises(InputError, match="the logit of label 7 is -inf"):
        fit("temperature_scaling", masked, np.where(np.arange(200) == 7, 3, labels))
    with pytest.raises(InputError, match="logits of 1 examples are not finite, the first in row 1"):
        fit("temperature_scaling", np.where(np.arange(200)[:, None] == 1, -np.inf, masked), labels)


BINARY = [name for name, entry in METRICS.items() if entry.shown.note.startswith("of P(1)")]


def test_a_temperature_for_each_group_is_the_fit_of_the_group_alone():
    logits, labels = outputs(400, 3)
    group = np.where(np.arange(400) % 4 == 0, "b", "a")
    scaled = np.where(group[:, None] == "b", 3.0, 1.0).astype(np.float32) * logits
    fitted = fit("temperature_scaling_by_group", scaled, labels, group=group)
    assert fitted.groups == ("a", "b")
    for name, temperature in zip("ab", np.asarray(fitted.params["temperature"]), strict=True):
        alone = fit("temperature_scaling", scaled[group == name], labels[group == name])
        np.testing.assert_allclose(temperature, alone.params["temperature"], rtol=1e-4)
        np.testing.assert_allclose(
            fitted.predict_log_proba(scaled, group)[group == name],
            alone.predict_log_proba(scaled[group == name]),
            atol=1e-3,
        )
    with pytest.raises(InputError, match="group 'c' has no numbers of its own: give group, names such as a, b"):
        fitted.predict_log_proba(scaled, np.full(400, "c"))
    found = compare(
        Outputs(scaled, labels, group),
        methods=("temperature_scaling", "temperature_scaling_by_group"),
        criteria=("nll",),
        num_resamples=100,
    )
    assert found.choice.fitted.method.name == "temperature_scaling_by_group"


@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_multi_label_outputs_are_binary_ones_of_each_label(seed):
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=(300, 3)).astype(np.float32) * 2
    labels = (generator.random((300, 3)) < 1 / (1 + np.exp(-scores / 2))).astype(int)
    found = calibration.binary_outputs(scores, labels, ["x", "y", "z"])
    assert found.logits.shape == (900, 2)
    temperature = calibration.fit_temperature(found.logits, found.labels).temperature
    assert 1.5 < temperature < 2.8
    rows = compare(found, methods=("temperature_scaling",), criteria=("nll",), num_resamples=100).rows
    macro = next(row for row in select(rows, Metric, name="macro_class1_ece") if row.method == "uncalibrated")
    log_probs = np.asarray(jax.nn.log_softmax(found.logits))
    alone = [calibration.binary_ece(log_probs[found.group == name], labels[:, k]) for k, name in enumerate("xyz")]
    np.testing.assert_allclose(macro.value, np.mean(alone), atol=1e-6)
    assert 0 <= macro.low < macro.high < 2 * macro.value
    unknown = generator.random((300, 3)) < 0.3
    for missing in (-1, np.nan):  # each label is judged on the rows that have it
        part = calibration.binary_outputs(scores, np.where(unknown, missing, labels), ["x", "y", "z"])
        for some, every in zip(part[:4], found[:4], strict=True):
            np.testing.assert_array_equal(some, every[~unknown.ravel()])
    with pytest.raises(InputError, match="give a 0 or a 1 for each"):
        calibration.binary_outputs(scores, labels * 2)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.most_classes == 2])
def test_rows_with_one_class_that_can_be_say_nothing_to_fits_of_two_classes(name):
    logits, labels = outputs(200, 2)
    masked = np.concatenate([logits, [[0, -np.inf], [-np.inf, 3]]]).astype(np.float32)
    found, expected = fit(name, masked, np.append(labels, [0, 1])), fit(name, logits, labels)
    np.testing.assert_allclose(found.predict_proba(logits), expected.predict_proba(logits), atol=5e-4)
    np.testing.assert_array_equal(found.predict_proba(masked[-2:]), [[1, 0], [0, 1]])


def test_a_mask_leaves_out_soft_labels_of_any_content():
    logits, labels = outputs(100, 3)
    shares, mask = soft(labels, 3), np.arange(100) != 3
    shares[3] = np.nan
    for name in ("ensemble_temperature_scaling", "isotonic", "vector_scaling"):
        found, expected = fit(name, logits, shares, mask=mask), fit(name, logits[mask], shares[mask])
        np.testing.assert_allclose(found.predict_proba(logits), expected.predict_proba(logits), atol=5e-4)


PREVALENCES = {
    "a mixture": lambda z, y, **how: [*fit("stacking", z, y, **how).parameters.values()],
    "an estimator": lambda z, y, prevalence=None, weights=None: [
        *calibration.VectorScaling(prevalence=prevalence).fit(z, y, weights).params_.values()
    ],
    "a comparison": lambda z, y, prevalence=None, weights=None: [
        getattr(row, "value", 0)
        for row in compare(
            Outputs(z, y, weights=weights), methods=["platt_scaling"], num_resamples=100, prevalence=prevalence
        ).rows
    ],
}


@pytest.mark.parametrize("door", PREVALENCES)
def test_a_prevalence_is_weights_of_the_two_classes(door):
    logits, labels = outputs(400, 2)
    weights = np.where(labels == 1, 0.02 / labels.mean(), 0.98 / (1 - labels.mean()))
    found, expected = (PREVALENCES[door](logits, labels, **how) for how in ({"prevalence": 0.02}, {"weights": weights}))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), found, expected)


def test_a_fit_at_a_prevalence_undoes_the_undersampling():
    """Log-odds that are calibrated at the file's share move by the difference of the prior log-odds."""
    labels = np.arange(4000) % 2
    scores = np.random.default_rng(0).normal(2 * labels - 1.0, np.sqrt(2)).astype(np.float32)
    fitted = fit("platt_scaling", np.stack([0 * scores, scores], axis=1), labels, prevalence=0.02)
    np.testing.assert_allclose([*fitted.parameters.values()], [1, np.log(0.02 / 0.98)], rtol=0.05)


@pytest.mark.parametrize(
    ("labels", "prevalence", "says"),
    [
        ([0, 1, 2], 0.1, r"\[0, 1, 2\]: for a prevalence"),
        ([1, 1], 0.1, r"classes \[1\]"),
        ([0, 1], 2, "prevalence is 2"),
    ],
)
def test_a_prevalence_that_cannot_be_is_one_line(labels, prevalence, says):
    with pytest.raises(InputError, match=says):
        calibration.prevalence_weights(np.array(labels), prevalence)
