"""Prediction sets, abstention and costs: scores against loops, coverage and bounds against many draws."""

import numpy as np
import pytest
from scipy import special, stats

from focalgeo import calibration
from focalgeo.calibration import METHODS, Fitted, Outputs, decisions
from focalgeo.types import DataWarning, InputError

CLASSES = 6


def drawn(rng, n, *, scale=1.5, hot=1.6):
    """Log-probabilities that are too sure, and labels drawn from those that are not."""
    logits = scale * rng.normal(size=(n, CLASSES))
    p = special.softmax(logits, axis=1)
    labels = (p.cumsum(axis=1) > rng.uniform(size=(n, 1))).argmax(axis=1)
    return special.log_softmax(hot * logits, axis=1).astype(np.float32), labels


def covered(rng, *, repeats=400, n=60, others=50, **options):
    """The share of labels inside their sets over many draws of val and others, and its standard error."""
    shares = []
    for seed in range(repeats):
        (val, labels), (rows, truth) = drawn(rng, n), drawn(rng, others)
        sets = decisions.prediction_sets(val, labels, rows, seed=seed, **options)
        shares.append(sets.members[np.arange(others), truth].mean())
    return np.mean(shares), np.std(shares) / repeats**0.5


@pytest.mark.parametrize("kind", decisions.KINDS)
@pytest.mark.parametrize("coverage", [0.7, 0.9])
def test_sets_cover_what_is_promised_and_hardly_more(kind, coverage):
    share, error = covered(np.random.default_rng(0), kind=kind, coverage=coverage)
    ranks = 49 if kind == "raps" else 61  # a fifth of val chooses the penalty
    exact = np.ceil(ranks * coverage) / ranks  # of continuous scores
    assert abs(share - exact) < 4 * error
    assert exact >= coverage


def test_scores_are_their_formulas():
    rng = np.random.default_rng(0)
    rows, _ = drawn(rng, 5)
    u = np.random.default_rng(3).uniform(size=5)
    for kind, penalty in (("aps", 0), ("raps", 0.3)):
        scores = decisions._scores(rows.astype(float), kind, penalty, 2, np.random.default_rng(3))
        for row, found, uniform in zip(np.exp(rows.astype(float)), scores, u, strict=True):
            for k in range(CLASSES):
                rank = 1 + (row > row[k]).sum()
                expected = row[row > row[k]].sum() + (1 - uniform) * row[k] + penalty * max(0, rank - 2)
                assert found[k] == pytest.approx(expected, abs=1e-6)
    sure = np.log([[1e-30, 1.0]]) + 0.0
    assert decisions._scores(np.array([[-1e-30, -69.0]]), "lac", 0, 0, None)[0, 0] == 1e-30
    assert decisions._scores(sure, "lac", 0, 0, None)[0, 1] == 0


def test_the_penalty_that_is_chosen_makes_sets_smaller_than_those_of_none():
    (val, labels), (rows, truth) = drawn(np.random.default_rng(2), 3000), drawn(np.random.default_rng(3), 3000)
    chosen, none = (
        decisions.prediction_sets(val, labels, rows, coverage=0.8, kind="raps", penalty=penalty)
        for penalty in (None, 0)
    )
    assert chosen.members.sum() < none.members.sum()
    assert chosen.members[np.arange(3000), truth].mean() > 0.78
    given = decisions.prediction_sets(val, labels, rows, kind="raps", penalty=0.1, free=1)
    assert given.expected == 2701 / 3001  # all of val sets the threshold


def test_each_class_group_and_cluster_of_classes_is_covered():
    rng = np.random.default_rng(1)
    (val, labels), (rows, truth) = drawn(rng, 6000), drawn(rng, 6000)
    val[:, 0] -= 2  # class 0 is overlooked: sets of all leave it out more often
    rows[:, 0] -= 2
    val, rows = (special.log_softmax(each, axis=1) for each in (val, rows))
    share = {}
    for part in ("all", "class", "class_cluster"):
        sets = decisions.prediction_sets(val, labels, rows, part=part)
        share[part] = sets.members[np.arange(6000), truth][truth == 0].mean()
    assert share["all"] < 0.75
    assert min(share["class"], share["class_cluster"]) > 0.86
    groups = [np.where(each == 0, "rare", "usual") for each in (labels, truth)]
    sets = decisions.prediction_sets(val, labels, rows, part="group", groups=groups)
    assert (sets.parts, sets.counts.tolist()) == (("rare", "usual"), [(labels == 0).sum(), (labels > 0).sum()])
    np.testing.assert_array_equal(sets.part[:, 1], truth > 0)
    assert sets.members[np.arange(6000), truth][truth == 0].mean() > 0.86
    with pytest.warns(DataWarning, match="fewer than 9 examples of val .* of group new: every class"):
        unseen = decisions.prediction_sets(val, labels, rows, part="group", groups=[groups[0], np.full(6000, "new")])
    assert unseen.members.all()
    assert (unseen.parts[0], unseen.counts[0], unseen.expected[0], unseen.low[0]) == ("new", 0, 1, 1)


def test_clusters_of_examples_cover_examples_of_new_clusters():
    def of_clusters(rng, number):  # all of a cluster are hard or easy together: sizes from 1 to 30
        sizes = rng.choice([1, 30], size=number)
        index = np.repeat(np.arange(number), sizes)
        logits = np.repeat(rng.gamma(1.0, 3.0, size=number), sizes)[:, None] * np.eye(CLASSES)[0]
        p = special.softmax(logits, axis=1)
        labels = (p.cumsum(axis=1) > rng.uniform(size=(len(p), 1))).argmax(axis=1)
        return special.log_softmax(logits, axis=1), labels, index

    rng, hits = np.random.default_rng(2), []
    for seed in range(600):
        (val, labels, index), (rows, truth, new) = of_clusters(rng, 20), of_clusters(rng, 20)
        sets = decisions.prediction_sets(val, labels, rows, kind="aps", coverage=0.8, clusters=index, seed=seed)
        hit = sets.members[np.arange(len(truth)), truth]
        hits.append(np.mean(np.bincount(new, hit) / np.bincount(new)))
    assert np.mean(hits) > 0.8 - 3 * np.std(hits) / len(hits) ** 0.5
    assert np.mean(hits) < 0.9


def test_coverage_given_val_is_between_its_ends():
    inside, rng = 0, np.random.default_rng(4)
    rows, truth = drawn(rng, 40_000)
    for seed in range(300):
        sets = decisions.prediction_sets(*drawn(rng, 80), rows, coverage=0.9, seed=seed)
        inside += bool(sets.low <= sets.members[np.arange(len(truth)), truth].mean() <= sets.high)
    assert stats.binomtest(inside, 300, 0.95).pvalue > 1e-3


def test_few_examples_take_all_classes():
    val, labels = drawn(np.random.default_rng(0), 8)
    with pytest.warns(DataWarning, match="fewer than 9 examples of val are too few for a threshold: every class"):
        sets = decisions.prediction_sets(val, labels, val, coverage=0.9)
    assert sets.members.all()
    assert (sets.thresholds, sets.low, sets.high) == (np.inf, 1, 1)


@pytest.mark.parametrize("kind", decisions.KINDS)
def test_sets_that_are_never_empty_are_the_others_and_the_predicted_class(kind):
    (val, labels), (rows, _) = drawn(np.random.default_rng(0), 300), drawn(np.random.default_rng(1), 300)
    sets, never = (
        decisions.prediction_sets(val, labels, rows, coverage=0.4, kind=kind, least_one=least_one)
        for least_one in (False, True)
    )
    assert not sets.members.any(axis=1).all()
    np.testing.assert_array_equal(never.members, sets.members | np.eye(CLASSES, dtype=bool)[rows.argmax(axis=1)])


@pytest.mark.parametrize(("bound", "confidence"), [(0.1, 0.9), (0.25, 0.8)])
def test_the_error_of_answers_is_above_its_bound_no_oftener_than_stated(bound, confidence):
    rng, above, shares = np.random.default_rng(5), 0, []
    rows, truth = drawn(rng, 40_000, scale=3)
    wrong = rows.argmax(axis=1) != truth
    for _ in range(1000):
        found = decisions.answers(*drawn(rng, 400, scale=3), rows, error_at_most=bound, confidence=confidence)
        above += bool(found.answered.any() and wrong[found.answered].mean() > bound)
        shares.append(found.answered.mean())
        assert not found.answered.any() or found.error <= found.high <= bound
    assert above <= stats.binom.ppf(0.999, 1000, 1 - confidence)
    assert np.mean(shares) > 0.1
    # hardly more than if the error were known
    ideal = np.cumsum(wrong[np.argsort(-rows.max(axis=1))]) / np.arange(1, 40_001)
    assert np.mean(shares) <= (ideal <= bound).nonzero()[0][-1] / 40_000 + 0.01


def test_answers_of_too_few_are_none():
    val, labels = drawn(np.random.default_rng(0), 30)
    found = decisions.answers(val, labels, val, error_at_most=0.01)
    assert (found.answered.any(), found.threshold, found.share) == (False, np.inf, 0)
    assert np.isnan([found.error, found.high]).all()


def test_costs_decide():
    rows = np.log(np.array([[0.9, 0.1], [0.6, 0.4], [0.1, 0.9]]))
    found = decisions.least_cost(
        rows, np.array([[0.0, 1.0], [5.0, 0.0]])
    )  # to overlook class 1 costs five times as much
    assert found.action.tolist() == [0, 1, 1]
    np.testing.assert_allclose(found.cost, [0.5, 0.6, 0.1])
    plain = decisions.least_cost(rows, 1 - np.eye(2))
    np.testing.assert_array_equal(plain.action, rows.argmax(axis=1))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"coverage": 1.0}, r"coverage is 1\.0: give a share above 0 and below 1"),
        ({"coverage": 90}, "coverage is 90: give a share above 0 and below 1, for example 0.9"),
        ({"coverage": [0.9, 0.8]}, "coverage is"),
        ({"coverage": "a"}, "coverage is a"),
        ({"kind": "raps", "free": -1}, "free is -1"),
        ({"kind": "raps", "free": "a", "penalty": 0.1}, "free is a"),
        ({"part": "group", "groups": np.zeros(20)}, "name the group of each example"),
        ({"part": "group", "groups": (np.zeros(20), None)}, "name the group of each example"),
        ({"seed": -1}, "seed is -1"),
        ({"kind": "best"}, "choose one of lac, aps, raps"),
        ({"part": "group"}, "name the group of each example, 20 of val and 20 others"),
        ({"penalty": -1.0}, "penalty"),
    ],
)
def test_errors_say_what_to_mend(options, says):
    val, labels = drawn(np.random.default_rng(0), 20)
    with pytest.raises(InputError, match=says):
        decisions.prediction_sets(val, labels, val, **options)
    for costs in (np.eye(2), np.zeros((CLASSES, 0))):
        with pytest.raises(InputError, match="costs"):
            decisions.least_cost(val, costs)
    for wrong in (val + 1, np.exp(val), np.full_like(val, np.nan)):  # logits, probabilities, nothing
        for decide in (
            lambda wrong: decisions.prediction_sets(val, labels, wrong),
            lambda wrong: decisions.answers(val, labels, wrong),
            lambda wrong: decisions.least_cost(wrong, np.eye(val.shape[1])),
        ):
            with pytest.raises(InputError, match="log_probs"):
                decide(wrong)


def test_intervals_on_test_are_of_clusters_where_there_are_any():
    """Of 300 data sets of 60 clusters, 95% of the intervals of a coverage hold the truth; row by row they would not."""
    rng, found = np.random.default_rng(0), []
    fitted, held_back = Fitted(METHODS["uncalibrated"], None, {}, CLASSES), Outputs(*drawn(rng, 500))
    for _ in range(300):
        logits, labels = (np.repeat(each, 20, axis=0) for each in drawn(rng, 60))
        test = Outputs(logits, labels, clusters=np.repeat(np.arange(60), 20))
        rows, _ = calibration.decided([fitted], held_back, test, coverage=0.8)
        found += [row for row in rows if row.name == "set_coverage"]
    truth = np.mean([row.value for row in found])
    assert 0.91 < np.mean([row.low <= truth <= row.high for row in found if row.group is None]) < 0.98
