import numpy as np
import pytest

from focalgeo.calibration.binning import running_sum


@pytest.mark.parametrize("size", [1, 99, 100, 101, 1234])
def test_running_sums_are_exact(size):
    values = np.random.default_rng(size).integers(0, 2**20, (2, size)).astype(np.int32) % (2**30 // size)
    np.testing.assert_array_equal(running_sum(values), np.cumsum(values, axis=1))
    numbers = (values[0] % 64 / 64).astype(np.float32)  # sums of multiples of 1/64 are exact
    np.testing.assert_array_equal(running_sum(numbers), np.cumsum(numbers, dtype=np.float64))
