"""Train, val and test splits: the papers' seeded rule, subsets, and the checks of every split."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from focalgeo.types import Dataset, InputError, Split

LEAST_COMMON = 0.01  # of val or test; published data sets have some


class Sizes(NamedTuple):
    """Number of examples in each split; None means the default of the data set, or of `divide`."""

    train: int | None = None
    val: int | None = None
    test: int | None = None


class RawDataset(NamedTuple):
    """A data set as published; `splits` holds "train" and, where they exist, "val" and "test".

    Texts hold positions in `vocabulary`, which has all words: see focalgeo.data.vocabulary.
    `split_off` holds the sizes of splits that are missing, where the data set has a rule of its own.
    """

    splits: dict[str, Split]
    class_names: tuple[str, ...]
    checksum: str
    vocabulary: tuple[str, ...] = ()
    split_off: Sizes = Sizes()


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
        exact, tested in tests/data/test_splits.py: for (50000, 5000, 1) val starts 26247, 35067, 34590, 16668, 12196.

    Source:
        the published code of Komisarenko & Kull, arXiv 2408.11598, and Mukhoti et al., arXiv 2002.09437. They number
        CIFAR's images in the order of its binary files; another copy of the data numbers them otherwise, so the same
        indices name other images there.
    """
    if n < 1:
        raise InputError(f"there are {n} examples: give one at least")
    if not 0 <= val_size < n:
        raise InputError(f"{val_size} of {n} examples cannot be split off: give a number from 0 to {n - 1}")
    if not 0 <= seed < 2**32:
        raise InputError(f"split seed {seed} is out of range: give an integer from 0 to {2**32 - 1}")
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
    train = raw.splits["train"]
    rows = np.arange(len(train.y))
    for part, size in sizes._asdict().items():
        _check_size(size, part, name)
    off = _split_off_sizes(raw, sizes, name)
    parts = {}
    for part in ("test", "val"):
        if part in raw.splits:
            parts[part] = _subset(raw.splits[part], getattr(sizes, part), where=f"{name}: {part}", seed=seed)
            continue
        rest, taken = split_indices(len(rows), off[part], seed)
        rows, taken = rows[rest], rows[taken]
        parts[part] = _take(train, taken)
    if len(rows) == len(train.y):
        rows, _ = split_indices(len(rows), 0, seed)
    if sizes.train is not None and sizes.train > len(rows):
        raise InputError(
            f"{name}: train has {len(rows)} examples, {sizes.train} were asked for: "
            f"set config.data.train_size to at most {len(rows)}"
        )
    kept = _take(train, rows[: sizes.train])
    return Dataset(
        name,
        train=kept,
        val=parts["val"],
        test=parts["test"],
        class_names=raw.class_names,
        checksum=raw.checksum,
        vocabulary=raw.vocabulary,
    )


def gaps(dataset: Dataset) -> list[str]:
    """Sentences on classes of which train has no example, and on examples of val and test that train holds too.

    The latter from `LEAST_COMMON` of a split on.
    """
    found, classes = [], dataset.class_names
    absent = np.setdiff1d(np.arange(len(classes)), dataset.train.y)
    if absent.size:
        shown = ", ".join(classes[label] for label in absent[:5]) + (", ..." if absent.size > 5 else "")
        found.append(
            f"train has no example of {absent.size} of {len(classes)} classes ({shown}): they cannot be learnt"
        )
    for part in ("val", "test"):
        common = _common(dataset.train.x, getattr(dataset, part).x)
        n = len(getattr(dataset, part).x)
        if common > LEAST_COMMON * n:
            found.append(f"train holds {common:,} of the {n:,} examples of {part} too: results there are too good")
    return found


def _common(train: np.ndarray, other: np.ndarray) -> int:
    """The number of rows of `other` that are rows of `train`."""
    keys = [row.tobytes() for row in other]
    found = set(keys).intersection(row.tobytes() for row in train)
    return sum(key in found for key in keys)


def check_split(split: Split, num_classes: int, *, where: str = "the split") -> None:
    """Refuses a split that is empty, of unequal lengths, with labels outside 0..num_classes-1 or non-finite values.

    Args:
        split: x [examples, ...] of any dtype, y integers [examples], or [examples, nodes] where -1 is a node without a
            label and every example needs one label at least.
        num_classes: at least 2.
        where: what the message calls the split, for example "digits: train".

    Raises:
        InputError: one line naming the first offending example.
    """
    if num_classes < 2:
        raise InputError(f"{where} has {num_classes} class: give at least two, nothing can be learnt from one")
    if len(split.x) != len(split.y):
        raise InputError(f"{where} has {len(split.x)} examples but {len(split.y)} labels: give one label per example")
    if len(split.y) == 0:
        raise InputError(f"{where} is empty: give at least one example")
    _check_labels(split.y, num_classes, where)
    if np.issubdtype(split.x.dtype, np.floating):
        _check_finite(split.x, where)


def _check_labels(labels: np.ndarray, num_classes: int, where: str) -> None:
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"{where} has labels of type {labels.dtype}: give integers 0..{num_classes - 1}")
    lowest = 0 if labels.ndim == 1 else -1
    wrong = (labels < lowest) | (labels >= num_classes)
    if wrong.any():
        raise InputError(
            f"{where}: example {np.argwhere(wrong)[0, 0]} has label {labels[wrong][0]} but {num_classes} classes mean "
            f"labels 0..{num_classes - 1}: mend the labels or the list of classes"
        )
    if labels.ndim > 1 and (bare := (labels < 0).all(axis=1)).any():
        raise InputError(f"{where}: example {int(np.argmax(bare))} has no label at any node: label one or drop it")


def _check_finite(x: np.ndarray, where: str) -> None:
    wrong = ~np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if wrong.any():
        raise InputError(
            f"{where}: {int(wrong.sum())} examples hold NaN or infinite values, the first is example "
            f"{int(np.argmax(wrong))}: mend or remove them"
        )


def _check_size(size: int | None, part: str, name: str) -> None:
    if size is not None and size < 1:
        raise InputError(f"{name}: {part}_size is {size}: give at least 1, or None for the default")


def _split_off_sizes(raw: RawDataset, sizes: Sizes, name: str) -> dict[str, int]:
    """The sizes of the splits that are split off from train, those asked for or else the default ones.

    Raises:
        InputError: nothing would be left for train.
    """
    n = len(raw.splits["train"].y)
    default = max(1, n // (10 if "test" in raw.splits else 5))
    missing = [part for part in ("test", "val") if part not in raw.splits]
    if n <= len(missing):
        parts, least = " and ".join((*missing, "train")), len(missing) + 1
        raise InputError(f"{name} has {n} examples for {parts}, which need one each: give at least {least}")
    taken = {part: getattr(sizes, part) or getattr(raw.split_off, part) or default for part in missing}
    if sum(taken.values()) >= n:
        raise _too_large(taken, max((part for part in missing if getattr(sizes, part)), key=taken.__getitem__), n, name)
    return taken


def _too_large(taken: dict[str, int], part: str, n: int, name: str) -> InputError:
    """The error that `part` takes too many of n examples, with a size that is not too large."""
    others = [other for other in taken if other != part]
    most, needed = n - 1 - sum(taken[other] for other in others), "train needs one"
    if others:
        needed = f"{others[0]} takes {taken[others[0]]} and {needed}"
    if most < 1:
        most, needed = n - 2, f"{needed}, set config.data.{others[0]}_size to 1"
    return InputError(
        f"{name}: {part} is split off from train, which has {n} examples, and {taken[part]} were asked for; {needed}: "
        f"set config.data.{part}_size to at most {most}"
    )


def _subset(split: Split, size: int | None, *, where: str, seed: int) -> Split:
    n = len(split.y)
    if size is None or size == n:
        return split
    if size > n:
        field = f"config.data.{where.rpartition(' ')[2]}_size"
        raise InputError(f"{where} has {n} examples, {size} were asked for: set {field} to at most {n}")
    _, taken = split_indices(n, size, seed)
    return _take(split, np.sort(taken))


def _take(split: Split, rows: np.ndarray) -> Split:
    return Split(split.x[rows], split.y[rows])
