"""What speaks against outputs: any order of columns is named, leakage is counted, sound outputs bring out nothing."""

import re
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outputs import outputs
from sklearn.ensemble import RandomForestClassifier

from focalgeo.calibration import DataWarning, compare, log_probabilities
from focalgeo.calibration.study import suspicions

quick = settings(max_examples=60, deadline=None, derandomize=True)


def said(logits, labels, *, clustered=False):
    return list(suspicions.of_split("val", logits, labels, np.ones(len(labels)), clustered=clustered))


@quick
@given(st.permutations(range(10)), st.integers(2, 10), st.integers(0, 10**6))
def test_any_permutation_of_columns_is_named_and_undone_by_what_is_named(order, classes, seed):
    order = [column for column in order if column < classes]
    logits, labels = outputs(800, classes, seed=seed)
    found = said(logits[:, order], labels)
    if order == sorted(order):
        assert found == []
        return
    (sentence,) = found
    assert sentence.startswith("Columns of val seem, beyond chance, to be in another order than the labels")
    named = eval(re.search(r"logits\[:, (\[.*?\])\]", sentence)[1])  # as one would paste it
    np.testing.assert_array_equal(logits[:, order][:, named], logits)


@pytest.mark.parametrize(("classes", "n"), [(100, 1000), (1000, 5000)])
def test_a_permutation_of_many_columns_is_found_in_few_examples_of_each(classes, n):
    logits, labels = outputs(n, classes)
    shuffled = np.random.default_rng(0).permutation(classes)
    (sentence,) = said(logits[:, shuffled], labels)
    assert "column" in sentence
    order = suspicions.permutation(logits[:, shuffled].argmax(1), labels, classes)
    restored, right = (np.mean(each.argmax(1) == labels) for each in (logits[:, shuffled][:, order], logits))
    assert restored > right - 0.01


def test_sound_outputs_bring_out_nothing():
    """Weak and biased ones, a long tail and classes without an example: 1 of 1,000 at most."""
    generator, alarms, files = np.random.default_rng(0), 0, 0
    for _ in range(60):
        for n in (300, 2000):
            for classes in (2, 5, 10, 100):
                logits = generator.standard_normal((n, classes))
                logits += generator.choice([0, 1]) * np.log(np.geomspace(1, 0.1, classes))
                labels = (logits + generator.gumbel(size=logits.shape)).argmax(1)
                kept = labels >= generator.choice([0, classes // 4])
                found = said((1.5 * logits + 0.5 * generator.standard_normal(classes))[kept], labels[kept])
                alarms, files = alarms + len(found), files + 1
    assert alarms <= 2 < files / 100


def test_labels_at_chance_are_said_to_be_at_chance():
    logits, labels = outputs(500, 5)
    (sentence,) = said(logits, np.random.default_rng(0).permutation(labels))
    assert "no more of the labels than chance" in sentence
    assert "shuffled" in sentence
    (sentence,) = said(np.float32([[0, 1, 0, 0, 0]] * 500), labels)
    assert "than chance" in sentence
    assert "always 1" in sentence
    rare = (np.arange(2000) % 50 == 0).astype(int)  # always predicted 0, and informed all the same
    assert said(np.stack([np.full(2000, 3.0), rare + np.random.default_rng(0).normal(size=2000)], 1), rare) == []


@pytest.mark.parametrize("copied", [1, 7, 600, 2000])
def test_rows_that_test_shares_with_val_are_counted(copied):
    val, test = outputs(2000, 5), outputs(2000, 5, seed=1)
    order = np.random.default_rng(0).permutation(2000)
    mixed = [np.concatenate([mine[:copied], other[copied:]])[order] for mine, other in zip(val, test, strict=True)]
    (sentence,) = suspicions.of_both(val, mixed)
    assert sentence.startswith(f"{copied:,} of 2,000 rows of test are rows of val too, logits and label, 0 by")
    assert list(suspicions.of_both(val, test)) == []


def test_votes_that_are_alike_by_chance_are_no_leakage_and_shared_rows_of_finer_numbers_are():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(6000, 3))
    y = (x[:, 0] + generator.normal(size=6000) > 0) + (x[:, 1] > 1.0)
    votes = RandomForestClassifier(10, random_state=0).fit(x[:1000], y[:1000]).predict_proba(x)
    rows = np.asarray(log_probabilities(votes)), y
    val, test = ([each[part] for each in rows] for part in (slice(1000, 3500), slice(3500, 6000)))
    assert list(suspicions.of_both(val, test)) == []
    mixed = [np.concatenate([mine[:750], other[750:]]) for mine, other in zip(val, test, strict=True)]
    assert list(suspicions.of_both(val, mixed)) == []  # nor can copies be told where nearly every row is another's
    many = rows[0] + 1e-3 * generator.normal(size=rows[0].shape)
    val, test = ([each[part] for each in (many, y)] for part in (slice(1000, 3500), slice(2250, 4750)))
    assert "1,250 of 2,500" in next(suspicions.of_both(val, test))


@pytest.mark.parametrize("size", [20, 100])
def test_neighbouring_rows_that_go_together_are_told_unless_their_clusters_are_known(size):
    generator = np.random.default_rng(size)
    logits, _ = outputs(2000, 5)
    easy = np.repeat(generator.normal(1, 1, 2000 // size), size)[:, None]  # to tell apart, as one patient's visits are
    labels = (easy * logits / 1.7 + generator.gumbel(size=logits.shape)).argmax(1)
    (sentence,) = said(logits, labels)
    assert sentence.startswith("Neighbouring rows of val are right and wrong together")
    assert said(logits, labels, clustered=True) == []
    order = generator.permutation(2000)
    assert said(logits[order], labels[order]) == []
    by_label, by_confidence = np.argsort(labels[order]), np.argsort(logits[order].max(1))
    for sort in (by_label, by_confidence):  # which puts together what is of one label
        assert said(logits[order][sort], labels[order][sort]) == []


def test_compare_warns_of_it_and_keeps_it():
    val, options = outputs(300, 3), {"methods": ("temperature_scaling",), "num_resamples": 100}
    with pytest.warns(DataWarning, match="300 of 300 rows of test are rows of val too"):
        found = compare(val, [each[::-1] for each in val], **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        swapped = compare((val[0][:, [1, 0, 2]], val[1]), **options)
    assert [str(each.message) for each in caught if each.category is DataWarning] == swapped.suspicions
    assert "logits[:, [1, 0, 2]]" in swapped.suspicions[0]
    assert len(found.suspicions) == 1


def test_standard_errors_are_those_of_labels_in_random_order():
    rng = np.random.default_rng(0)
    logits, labels = outputs(200, 4)
    confidence, _ = suspicions.informed(logits, labels)
    shuffled = np.array([suspicions.informed(logits, rng.permutation(labels))[1] for _ in range(400)])
    assert abs(shuffled.mean()) < 0.2
    assert 0.9 < shuffled.std() < 1.1
    probs = np.exp(logits.astype(np.float64))
    np.testing.assert_allclose(confidence, (probs / probs.sum(axis=1, keepdims=True)).max(axis=1), rtol=1e-6)
