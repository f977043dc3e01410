"""The papers' split rule and the sizes of splits."""

import numpy as np
import pytest

from focalgeo.data.splits import RawDataset, Sizes, divide, gaps, split_indices
from focalgeo.types import InputError, Split


def numbered(n, offset=0):
    return Split(np.arange(offset, offset + n)[:, None].astype(np.uint8), (np.arange(n) >= n // 2).astype(np.int32))


def made(sizes=(), *, parts, seed=1):
    return divide(RawDataset(parts, ("a", "b"), "c"), Sizes(*sizes), name="made", seed=seed)


def test_cifar_split_is_the_papers():
    train, val = split_indices(50000, 5000, 1)
    assert val[:5].tolist() == [26247, 35067, 34590, 16668, 12196]
    assert val.sum() == 122592196
    assert len(train) == 45000
    np.testing.assert_array_equal(np.sort(np.concatenate([train, val])), np.arange(50000))


@pytest.mark.parametrize(("n", "val_size", "seed"), [(5, 5, 1), (5, -1, 1), (0, 0, 1), (5, 1, -1), (5, 1, 2**32)])
def test_split_indices_out_of_range(n, val_size, seed):
    with pytest.raises(InputError):
        split_indices(n, val_size, seed)


def test_default_val_is_a_tenth_of_train_by_the_rule():
    data = made(parts={"train": numbered(50), "test": numbered(20, 100)})
    train, val = split_indices(50, 5, 1)
    np.testing.assert_array_equal(data.val.x[:, 0], val)
    np.testing.assert_array_equal(data.train.x[:, 0], train)
    np.testing.assert_array_equal(data.test.x, numbered(20, 100).x)


def test_without_test_split_the_three_are_disjoint_and_complete():
    data = made(parts={"train": numbered(100)})
    assert [len(s.y) for s in (data.train, data.val, data.test)] == [60, 20, 20]
    np.testing.assert_array_equal(
        np.sort(np.concatenate([s.x[:, 0] for s in (data.train, data.val, data.test)])), np.arange(100)
    )
    for split in (data.train, data.val, data.test):
        np.testing.assert_array_equal(split.y, split.x[:, 0] >= 50)


def test_own_val_split_is_kept():
    data = made(parts={"train": numbered(30), "val": numbered(9, 50), "test": numbered(8, 70)})
    np.testing.assert_array_equal(data.val.x, numbered(9, 50).x)
    np.testing.assert_array_equal(np.sort(data.train.x[:, 0]), np.arange(30))


@pytest.mark.parametrize("parts", [("train", "test"), ("train", "val", "test")])
def test_smaller_train_is_a_mixed_prefix_of_the_larger(parts):
    parts = {part: numbered(100, 100 * i) for i, part in enumerate(parts)}
    whole, small = made(parts=parts), made((20,), parts=parts)
    np.testing.assert_array_equal(small.train.x, whole.train.x[:20])
    assert 4 <= small.train.y.sum() <= 16


def test_smaller_test_is_a_mixed_subset_in_ascending_order():
    data = made((None, None, 20), parts={"train": numbered(20), "test": numbered(100)})
    assert np.all(np.diff(data.test.x[:, 0].astype(int)) > 0)
    assert len(data.test.y) == 20
    assert 4 <= data.test.y.sum() <= 16


@pytest.mark.parametrize(
    ("sizes", "part", "have"),
    [((46, None, None), "train", 45), ((None, 50, None), "val", 50), ((None, None, 21), "test", 20)],
)
def test_more_than_there_are(sizes, part, have):
    with pytest.raises(InputError, match=rf"^made: {part}.* {have} ex.*data.{part}_size to at most") as caught:
        made(sizes, parts={"train": numbered(50), "test": numbered(20)})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sizes", [(0, None, None), (None, 0, None), (None, None, -3)])
def test_sizes_below_one(sizes):
    with pytest.raises(InputError, match="give at least 1"):
        made(sizes, parts={"train": numbered(50), "test": numbered(20)})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((None, None, 50), "test_size to at most 39"),
        ((None, None, 49), "test_size to at most 39"),
        ((None, 49, 49), "config.data.val_size to 1: set config.data.test_size to at most 48"),
        ((None, 10, 45), "val takes 10 and train needs one: set config.data.test_size to at most 39"),
        ((None, 45, 10), "test takes 10 and train needs one: set config.data.val_size to at most 39"),
        ((40, 10, 10), "train_size to at most 30"),
    ],
)
def test_sizes_that_leave_nothing_are_told_what_works(sizes, message):
    with pytest.raises(InputError, match=message):
        made(sizes, parts={"train": numbered(50)})


def test_advised_sizes_work():
    assert len(made((None, None, 39), parts={"train": numbered(50)}).train.y) == 1
    assert len(made((None, 1, 48), parts={"train": numbered(50)}).train.y) == 1
    assert len(made((30, 10, 10), parts={"train": numbered(50)}).train.y) == 30


@pytest.mark.parametrize(
    ("n", "parts", "message"),
    [(2, (), "2 examples for test and val and train.* at least 3"), (1, ("test",), "for val and train.* at least 2")],
)
def test_fewer_examples_than_splits(n, parts, message):
    with pytest.raises(InputError, match=message):
        made(parts={"train": numbered(n)} | {part: numbered(3) for part in parts})


def test_gaps_name_absent_classes_and_shared_examples():
    train, other = numbered(10), numbered(10, 100)
    shared = Split(np.concatenate([other.x[:9], train.x[:1]]), other.y)
    data = made(parts={"train": train, "val": other, "test": shared})
    assert gaps(data) == ["train holds 1 of the 10 examples of test too: results there are too good"]
    one = data._replace(train=Split(train.x[5:], train.y[5:]), test=other)
    assert gaps(one) == ["train has no example of 1 of 2 classes (a): they cannot be learnt"]
    assert gaps(data._replace(test=other)) == []
    trees = Split(np.zeros((1, 3, 3), np.int32), np.array([[-1, 0, 1]], np.int32))
    assert gaps(data._replace(train=trees, val=other, test=other)) == []
