"""Batches of a split: shuffled for training, in order for evaluation, padded and masked to one shape."""

from collections.abc import Iterator

import numpy as np

from focalgeo.data.augmentation import Augmentation
from focalgeo.data.normalisation import Normalisation, normalise_images
from focalgeo.types import Batch, InputError, Split


def num_batches(split: Split, batch_size: int) -> int:
    """Batches in one pass over the split, ceil(examples / batch_size); the last may be short.

    Raises:
        InputError: batch_size below 1.
    """
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}: give at least 1")
    return -(-len(split.y) // batch_size)


def epoch_batches(
    split: Split,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    start: int = 0,
    augment: Augmentation | None = None,
    normalise: Normalisation | None = None,
    multiple_of: int = 1,
) -> Iterator[Batch]:
    """The batches of one training epoch: every example exactly once, in an order that (seed, epoch) fixes.

    Batch b is the same bits whether or not the earlier ones were made (its augmentation draws from (seed, epoch, b)),
    and its examples do not depend on `multiple_of`, so neither a restart nor the number of devices changes them.

    Args:
        split: x [examples, ...], y [examples].
        batch_size: examples per batch; every batch has this many rows, the last is filled up with zeros, label 0 and
            mask False.
        seed: 0 or more.
        epoch: 0 or more.
        start: the number of the first batch to make, 0..num_batches; at num_batches the iterator is empty.
        augment: applied to the stored values, before `normalise`.
        normalise: gives float32; None leaves x in the dtype it is stored in.
        multiple_of: rows per batch are filled up to a multiple of it (the number of devices).

    Raises:
        InputError: an argument outside its range; raised here, not at the first batch.
    """
    total = num_batches(split, batch_size)
    if seed < 0 or epoch < 0:
        raise InputError(f"seed is {seed} and epoch is {epoch}: give integers of at least 0")
    if not 0 <= start <= total:
        raise InputError(f"cannot start at batch {start}: the epoch has {total} batches, give 0 to {total}")
    rows = _num_rows(batch_size, multiple_of)
    order = np.random.default_rng([seed, epoch]).permutation(len(split.y))

    def make_batch(index: int) -> Batch:
        chosen = order[index * batch_size : (index + 1) * batch_size]
        x = split.x[chosen]
        if augment is not None:
            # index + 1: to NumPy's seeding, (seed, epoch, 0) is the same seed as (seed, epoch).
            x = augment(x, np.random.default_rng([seed, epoch, index + 1]))
        return _padded(x, split.y[chosen], rows=rows, normalise=normalise)

    return map(make_batch, range(start, total))


def evaluation_batches(
    split: Split, *, batch_size: int, normalise: Normalisation | None = None, multiple_of: int = 1
) -> Iterator[Batch]:
    """All examples of the split in its own order, none dropped or twice; the arguments are those of `epoch_batches`.

    Raises:
        InputError: batch_size or multiple_of below 1.
    """
    total = num_batches(split, batch_size)
    rows = _num_rows(batch_size, multiple_of)

    def make_batch(index: int) -> Batch:
        chosen = slice(index * batch_size, (index + 1) * batch_size)
        return _padded(split.x[chosen], split.y[chosen], rows=rows, normalise=normalise)

    return map(make_batch, range(total))


def _num_rows(batch_size: int, multiple_of: int) -> int:
    if multiple_of < 1:
        raise InputError(f"multiple_of is {multiple_of}: give at least 1")
    return -(-batch_size // multiple_of) * multiple_of


def _padded(x: np.ndarray, y: np.ndarray, *, rows: int, normalise: Normalisation | None) -> Batch:
    if normalise is not None:
        x = normalise_images(x, normalise)
    n = len(y)
    padded_x = np.zeros((rows, *x.shape[1:]), x.dtype)
    padded_y = np.zeros(rows, np.int32)
    padded_x[:n], padded_y[:n] = x, y
    return Batch(padded_x, padded_y, np.arange(rows) < n)
