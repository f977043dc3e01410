import numpy as np
import pytest

from focalgeo.calibration.binning import running_sum
from focalgeo.calibration.fast_search import rank_bin_sums


def slow_bin_sums(confidence, correct, num_bins):
    rows = []
    for row in confidence.astype(np.float64):
        order = np.argsort(row, kind="stable")
        parts = np.array_split((correct - row)[order], num_bins)  # the first `examples mod bins` hold one more
        rows.append([part.sum() for part in parts])
    return np.array(rows)


@pytest.mark.parametrize("num_bins", [1, 4, 15])
@pytest.mark.parametrize("num_examples", [3, 15, 200, 1001])
@pytest.mark.parametrize("levels", [1, 3, 40, 2**24])
def test_ties_keep_the_order_of_the_examples(levels, num_examples, num_bins):
    generator = np.random.default_rng(levels + num_examples)
    confidence = (np.ceil(generator.random((6, num_examples)) * levels) / levels).astype(np.float32)
    correct = generator.random(num_examples) < 0.7
    got = rank_bin_sums(confidence, correct, num_bins)
    np.testing.assert_allclose(got, slow_bin_sums(confidence, correct, num_bins), atol=1e-7 * num_examples)


def test_neighbours_in_the_last_bit_are_told_apart():
    low = np.float32(0.75)
    high = np.nextafter(low, np.float32(1))  # the two differ in the bit that carries `correct`
    confidence = np.array([[high, low, high, low], [low, high, low, high]])
    correct = np.array([True, False, True, False])
    got = rank_bin_sums(confidence, correct, 2)
    np.testing.assert_allclose(got, slow_bin_sums(confidence, correct, 2), atol=1e-6)


@pytest.mark.parametrize("size", [1, 99, 100, 101, 1234])
def test_running_sums_are_exact(size):
    values = np.random.default_rng(size).integers(0, 2**20, (2, size)).astype(np.int32) % (2**30 // size)
    np.testing.assert_array_equal(running_sum(values), np.cumsum(values, axis=1))
    numbers = (values[0] % 64 / 64).astype(np.float32)  # sums of multiples of 1/64 are exact
    np.testing.assert_array_equal(running_sum(numbers), np.cumsum(numbers, dtype=np.float64))
