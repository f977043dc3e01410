"""The digits; Gaussian clusters of Mukhoti et al., App. G: exact counts and flips, moments, seeds."""

import subprocess
import sys

import numpy as np
import pytest

from focalgeo.data import load_dataset
from focalgeo.types import InputError

DIGITS_CHECKSUM = "fe61bc84cd6a594d5ed1b937b7d8f8f791d4091d2a9df91fe5d6066156a4db6e"


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    data = load_dataset("digits")
    assert [len(s.y) for s in (data.train, data.val, data.test)] == [1079, 359, 359]
    assert data.train.x.shape == (1079, 8, 8, 1)
    assert data.train.x.dtype == np.uint8
    assert data.train.y.dtype == np.int32
    assert data.train.x.max() == 16
    assert data.class_names == tuple("0123456789")
    raw = load_digits()
    ours = sorted(
        (x.tobytes(), int(y)) for split in (data.train, data.val, data.test) for x, y in zip(*split, strict=True)
    )
    theirs = zip(raw.images.astype(np.uint8)[..., None], raw.target, strict=True)
    assert ours == sorted((x.tobytes(), int(y)) for x, y in theirs)


def test_digits_are_the_same_bits_everywhere():
    """Golden; legitimate reasons to change: scikit-learn ships other digits."""
    assert load_dataset("digits").checksum == DIGITS_CHECKSUM


def test_split_seed_changes_the_split_and_not_the_checksum():
    one, again, two = (load_dataset("digits", split_seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.val.x, again.val.x)
    assert (one.val.x != two.val.x).any()
    assert one.checksum == two.checksum


def test_another_process_loads_the_same_digits():
    program = (
        "import hashlib; from focalgeo.data import load_dataset\n"
        "print(hashlib.sha256(b''.join(a.tobytes() for s in load_dataset('digits')[1:4] for a in s)).hexdigest())"
    )
    run = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in "ab"]
    assert run[0].stdout == run[1].stdout
    assert len(run[0].stdout) == 65


def test_without_deviation_points_are_centres_and_a_tenth_is_flipped():
    data = load_dataset("clusters:0", train_size=400, val_size=40, test_size=80)
    assert data.class_names == ("negative", "positive")
    for split, n in zip((data.train, data.val, data.test), (400, 40, 80), strict=True):
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
    for split in (data.train, data.val, data.test):
        assert len(split.y) == 1000
        assert 20 < split.y[:80].sum() < 60
        assert len(np.unique(split.x, axis=0)) == 1000
        assert 40 < (split.y == (split.x[:, 0] > 0))[:100].sum() < 100
    assert not set(map(tuple, data.val.x)) & set(map(tuple, data.test.x))


def test_seed_changes_the_points_and_not_the_checksum():
    one, again, two = (load_dataset("clusters:0.5", split_seed=seed) for seed in (1, 1, 2))
    for part in (1, 2, 3):
        np.testing.assert_array_equal(one[part].x, again[part].x)
        assert (one[part].x != two[part].x).all()
    assert one.checksum == two.checksum != load_dataset("clusters:0.6").checksum
    smaller = load_dataset("clusters:0.5", train_size=40)
    np.testing.assert_array_equal(smaller.test.x, one.test.x)


@pytest.mark.parametrize("text", ["", "x", "-0.1", "nan", "inf"])
def test_no_deviation(text):
    with pytest.raises(InputError, match="standard deviation"):
        load_dataset(f"clusters:{text}")


@pytest.mark.parametrize("options", [{"train_size": 41}, {"val_size": 0}, {"test_size": -40}, {"split_seed": -1}])
def test_sizes_and_seed_out_of_range(options):
    with pytest.raises(InputError, match="give a"):
        load_dataset("clusters:0.5", **options)


def test_digits_without_scikit_learn_say_what_is_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install scikit-learn"):
        load_dataset("digits")
