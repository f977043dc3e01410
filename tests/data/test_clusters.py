"""Gaussian clusters of Mukhoti et al., App. G: exact counts and flips, moments, seeds."""

import numpy as np
import pytest

from focalgeo.data import load_dataset
from focalgeo.types import InputError


def test_without_deviation_points_are_centres_and_a_tenth_is_flipped():
    data = load_dataset("clusters:0", train_size=400, val_size=40, test_size=80)
    assert data.class_names == ("negative", "positive")
    for split, n in zip(data[1:4], (400, 40, 80), strict=True):
        assert split.x.shape == (n, 2)
        assert split.x.dtype == np.float32
        assert split.y.dtype == np.int32
        for centre in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
            there = (split.x == np.array(centre, np.float32)).all(axis=1)
            assert there.sum() == n // 4
            assert (split.y[there] == (centre[0] > 0)).sum() == n // 4 - n // 40


def test_moments():
    data = load_dataset("clusters:0.3", train_size=40_000)
    noise = data.train.x - np.sign(data.train.x)
    near = data.train.x[np.abs(noise).max(axis=1) < 1]
    for sign in (-1, 1):
        for axis in (0, 1):
            there = near[near[:, axis] * sign > 0, axis]
            assert abs(there.mean() - sign) < 5 * 0.3 / np.sqrt(len(there))
            assert abs(there.std() - 0.3) < 0.01
    assert abs(np.corrcoef(noise.T)[0, 1]) < 5 / np.sqrt(len(noise))


def test_default_sizes_and_mixed_order():
    data = load_dataset("clusters:0.5")
    for split in data[1:4]:
        assert len(split.y) == 1000
        assert 20 < split.y[:80].sum() < 60
        assert len(np.unique(split.x, axis=0)) == 1000
        assert 40 < (split.y == (split.x[:, 0] > 0))[:100].sum() < 100
    assert not set(map(tuple, data.val.x)) & set(map(tuple, data.test.x))


def test_seed_changes_the_draws_and_not_the_checksum():
    one, again, two = (load_dataset("clusters:0.5", split_seed=seed) for seed in (1, 1, 2))
    for part in (1, 2, 3):
        np.testing.assert_array_equal(one[part].x, again[part].x)
        assert (one[part].x != two[part].x).all()
    assert one.checksum == two.checksum != load_dataset("clusters:0.6").checksum
    smaller = load_dataset("clusters:0.5", train_size=40)
    np.testing.assert_array_equal(smaller.test.x, one.test.x)


@pytest.mark.parametrize("place", ["", "x", "-0.1", "nan", "inf"])
def test_no_deviation(place):
    with pytest.raises(InputError, match="standard deviation"):
        load_dataset(f"clusters:{place}")


@pytest.mark.parametrize("options", [{"train_size": 41}, {"val_size": 0}, {"test_size": -40}, {"split_seed": -1}])
def test_sizes_and_seed_out_of_range(options):
    with pytest.raises(InputError, match="give a"):
        load_dataset("clusters:0.5", **options)
