"""Train, val and test splits: the papers' seeded rule, subsets, and the checks of every split."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from focalgeo.types import Dataset, InputError, Split

# Of val or test. Published data sets have some examples twice, which is not worth a warning.
LEAST_COMMON = 0.01


class Sizes(NamedTuple):
    """Number of examples in each split; None means the default of the data set, or of `divide`."""

    train: int | None = None
    val: int | None = None
    test: int | None = None


class RawDataset(NamedTuple):
    """A data set as published; `splits` holds "train" and, where they exist, "val" and "test".

    Texts hold positions in `vocabulary`, which has all words: see focalgeo.data.texts.
    `split_off` holds the sizes of splits that are missing, where the data set has a rule of its own.
    `features` names the numbers along x's last axis, where they are to be standardised.
    """

    splits: dict[str, Split]
    class_names: tuple[str, ...]
    checksum: str
    vocabulary: tuple[str, ...] = ()
    split_off: Sizes = Sizes()
    max_words: int | None = None  # of the vocabulary that is kept; None keeps all that occur in train
    features: tuple[str, ...] = ()


def split_indices(n: int, val_size: int, seed: int) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " val"]]:
    """Indices (train, val) of n examples: shuffled by NumPy's legacy generator, the first `val_size` are validation.

    Args:
        n: number of examples, at least 1.
        val_size: 0 <= val_size < n.
        seed: 0 <= seed < 2**32.

    Returns:
        train int64 [n - val_size] and val int64 [val_size], both in shuffled order.

    Raises:
        InputError: a size or seed outside its range.

    Accuracy:
        exact, tested in tests/data/test_registry.py: for (50000, 5000, 1) val starts 26247, 35067, 34590, 16668, 12196.

    Source:
        the published code of Komisarenko & Kull, arXiv 2408.11598, and Mukhoti et al., arXiv 2002.09437. They number
        CIFAR's images in the order of its binary files; another copy of the data numbers them otherwise, so the same
        indices name other images there.

    Example:
        >>> train, val = data.split_indices(50000, 5000, 1)
        >>> len(train), val[:5].tolist()
        (45000, [26247, 35067, 34590, 16668, 12196])
    """
    if not (0 <= val_size < n and 0 <= seed < 2**32):
        ranges = f"give a number from 0 to {n - 1} and a seed from 0 to {2**32 - 1}"
        raise InputError(f"{val_size} of {n} examples cannot be split off by the split seed {seed}: {ranges}")
    order = np.random.RandomState(seed).permutation(n)
    return order[val_size:], order[:val_size]


def divide(raw: RawDataset, sizes: Sizes, *, name: str, seed: int) -> Dataset:
    """The three splits of `raw`: those it lacks are split off from train, then each is cut down to its size.

    By default val is a tenth of train. Without a test split, a fifth of all examples is split off for test
    and as many for val. `raw.split_off` may say otherwise. Train is in shuffled order, so its first examples are
    a random subset; a subset of a split that `raw` has itself is a seeded choice in its own order.

    Raises:
        InputError: a size below 1, or more examples than there are.
    """
    train, splits = raw.splits["train"], {}
    n = len(train.y)
    default, rows = max(1, n // (10 if "test" in raw.splits else 5)), np.arange(n)
    for part in ("test", "val"):
        size, split = getattr(sizes, part), raw.splits.get(part)
        if split is None:
            split, size = train, getattr(raw.split_off, part) or default if size is None else size
            _check_size(size, len(rows) - 1, name, part)
            rows, taken = (rows[indices] for indices in split_indices(len(rows), size, seed))
        else:
            _check_size(size, len(split.y), name, part)
            taken = np.sort(np.random.RandomState(seed).permutation(len(split.y))[:size])
        splits[part] = split.at(taken)
    if len(rows) == n:
        rows, _ = split_indices(n, 0, seed)
    _check_size(sizes.train, len(rows), name, "train")
    splits["train"] = train.at(rows[: sizes.train])
    return Dataset(name, class_names=raw.class_names, checksum=raw.checksum, vocabulary=raw.vocabulary, **splits)


def _check_size(size, most, name, part):
    if size is not None and not 1 <= size <= most:
        mend = f"set config.data.{part}_size from 1 to {most}, or others lower"
        raise InputError(f"{name}: {part} can have {most} examples, {size} were asked for: {mend}")


def gaps(dataset: Dataset) -> Iterator[str]:
    """Sentences on classes of which train has no example, and on examples of val and test that train holds too.

    The latter from `LEAST_COMMON` of a split on.
    """
    classes = dataset.class_names
    absent = np.setdiff1d(np.arange(len(classes)), dataset.train.y)
    if absent.size:
        names = ", ".join(classes[label] for label in absent[:5]) + (", ..." if absent.size > 5 else "")
        yield f"train has no example of {absent.size} of {len(classes)} classes ({names}): they cannot be learnt"
    trained = {row.tobytes() for row in dataset.train.x}
    for part in ("val", "test"):
        x = getattr(dataset, part).x
        # The splits of a graph are one array with labels of their own, and share no label.
        common = 0 if x is dataset.train.x else sum(row.tobytes() in trained for row in x)
        if common > LEAST_COMMON * len(x):
            yield f"train holds {common:,} of the {len(x):,} examples of {part} too: results there are too good"


def check_labels(raw: RawDataset, *, name: str) -> None:
    """Refuse a split without examples or with a label that is no class, and a train split of one class.

    -1 stands for a node of a tree without a label; every example needs one.
    """
    classes = len(raw.class_names)
    for part, (_, y) in raw.splits.items():
        top = y.max(axis=tuple(range(1, y.ndim)), initial=-1)
        wrong = (top < 0) | (top >= classes)
        if wrong.any() or not len(y):
            what = f"label of example {np.argmax(wrong)} is none" if len(y) else "split is empty"
            raise InputError(f"{name}: {part}: the {what}: give examples with labels from 0 to {classes - 1}")
    labels = raw.splits["train"].y
    if (labels[labels >= 0] == labels.max()).all():
        raise InputError(f"{name}: train holds one class only: give at least two")
