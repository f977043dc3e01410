"""The score test of T = 1: a loop, its size, extreme logits, and the choice that it decides."""

import math

import numpy as np
import pytest

from focalgeo.calibration import compare, temperature_score_test


def drawn(seed, temperature=1.0, num_examples=300, num_classes=3):
    """Logits of which the labels are drawn at this T."""
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(num_examples, num_classes)) * 2).astype(np.float32)
    return logits, np.argmax(logits / temperature + rng.gumbel(size=logits.shape), axis=1).astype(np.int32)


def by_loop(logits, labels, weight):
    score = information = 0.0
    for z, y, w in zip(logits.tolist(), labels.tolist(), weight.tolist(), strict=True):
        total = sum(math.exp(each) for each in z)
        a = [each - math.log(total) for each in z]
        mean = sum(math.exp(each) * each for each in a)
        score += w * (a[y] - mean)
        information += w * sum(math.exp(each) * (each - mean) ** 2 for each in a)
    return score / math.sqrt(information)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_it_is_that_of_a_loop_in_float64(temperature):
    logits, labels = drawn(0, temperature, 120, 5)
    weight = np.arange(120) % 3
    found = temperature_score_test(logits, labels, weight)
    expected = by_loop(logits, labels, weight)
    assert found.statistic == pytest.approx(expected, rel=1e-6)
    assert found.p_value == pytest.approx(math.erfc(abs(expected) / math.sqrt(2)), rel=1e-5)
    assert found.n == weight.sum()


def test_its_sign_says_which_way_and_its_size_is_the_level():
    assert temperature_score_test(*drawn(0, 1.6)).statistic < -3  # overconfident
    assert temperature_score_test(*drawn(0, 0.6)).statistic > 3
    p = np.array([temperature_score_test(*drawn(seed)).p_value for seed in range(400)])
    for level in (0.05, 0.2):
        assert abs(np.mean(p < level) - level) < 3.5 * math.sqrt(level * (1 - level) / 400)


def test_a_shift_of_each_row_changes_nothing_and_what_the_mask_leaves_out_may_be_anything():
    logits, labels = drawn(0, 1.3)
    shift = np.random.default_rng(1).normal(size=(300, 1)) * 10
    plain = temperature_score_test(logits.astype(float), labels)
    assert temperature_score_test(logits + shift, labels).statistic == pytest.approx(plain.statistic, rel=1e-5)
    mask = np.arange(300) < 200
    alone = temperature_score_test(logits[mask], labels[mask])
    logits[~mask], labels[~mask] = np.nan, -1
    np.testing.assert_allclose(temperature_score_test(logits, labels, mask), alone, rtol=1e-12)


def test_saturated_and_equal_logits_give_numbers():
    labels = np.arange(200, dtype=np.int32) % 4
    logits = np.eye(4, dtype=np.float32)[labels] * 60
    right = temperature_score_test(logits, labels)
    assert np.isfinite(right).all()
    assert right.p_value > 0.99
    wrong = temperature_score_test(logits, np.roll(labels, 1))
    assert np.isfinite(wrong).all()
    assert wrong.p_value == 0
    assert temperature_score_test(logits * 100, labels)[:2] == (0, 1)
    assert temperature_score_test(logits * 100, np.roll(labels, 1))[:2] == (-np.inf, 0)
    for classes in (2, 3, 7):
        assert temperature_score_test(np.full((200, classes), 0.3), labels % classes)[:2] == (0, 1)


def test_few_examples_of_another_temperature_are_told_from_calibrated_ones():
    """In the first the difference of NLLs is within noise, and alone it kept the outputs as given."""
    chosen = []
    for temperature in (1.3, 1.0):
        found = compare(drawn(0, temperature), None, ("temperature_scaling",), criteria=("nll",), num_resamples=200)
        chosen.append(found.choice.fitted.method.name)
        if temperature == 1.3:
            (row,) = [each for each in found.rows if each.name == "nll_difference"]
            assert row.p_value / 2 > 0.2
            assert found.choice.test == temperature_score_test(*drawn(0, 1.3))
    assert chosen == ["temperature_scaling", "uncalibrated"]
