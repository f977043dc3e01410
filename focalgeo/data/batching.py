"""Batches of a split: shuffled for training, in order for evaluation, padded and masked.

NumPy makes a `BatchSpec` of each training batch, a few numbers for each example. The examples themselves stay on the
device where they fit, and `make_batch` gathers, augments and normalises them inside the compiled step.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32

from focalgeo.data.images import AUGMENTATIONS, Augmentation, Changes, Normalisation, normalise_images
from focalgeo.types import Array, Batch, InputError, Split


class BatchSpec(NamedTuple):
    """A training batch in numbers: indices of its examples, a mask (False: padding), the augmentation's changes."""

    indices: Int32[Array, " examples"] | None  # None where the split that comes with it holds these examples alone
    mask: Bool[Array, " examples"]
    changes: Changes  # of the augmentation


def num_batches(split: Split, batch_size: int) -> int:
    """Batches in one pass over the split, ceil(examples / batch_size); the last may be short.

    Raises:
        InputError: batch_size below 1.
    """
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}: give at least 1")
    return -(-len(split.y) // batch_size)


def batch_specs(
    split: Split,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    start: int = 0,
    augmentation: Augmentation = AUGMENTATIONS["none"],
    multiple_of: int = 1,
) -> Iterator[BatchSpec]:
    """The batch specs of one training epoch: every example exactly once, in an order that (seed, epoch) fixes.

    Batch b is the same bits whether or not the earlier ones were made (its augmentation is seeded by (seed, epoch, b)),
    and its examples do not depend on `multiple_of`, so neither a restart nor the number of devices changes them.

    Args:
        split: x [examples, ...], y [examples, ...]; only the number of examples is read.
        batch_size: examples per batch; every batch has this many rows, the last is filled up with example 0 under a
            mask that is False.
        seed: 0 or more.
        epoch: 0 or more.
        start: the number of the first batch, 0..num_batches; at num_batches the iterator is empty.
        augmentation: samples the changes of a batch.
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
    order = np.random.default_rng([seed, epoch]).permutation(len(split.y)).astype(np.int32)

    def spec(index: int) -> BatchSpec:
        chosen = order[index * batch_size : (index + 1) * batch_size]
        # index + 1: to NumPy's seeding, (seed, epoch, 0) is the same seed as (seed, epoch).
        changes = augmentation.sample(np.random.default_rng([seed, epoch, index + 1]), len(chosen))
        changes = {name: _filled(leaf, rows) for name, leaf in changes.items()}
        return BatchSpec(_filled(chosen, rows), np.arange(rows) < len(chosen), changes)

    return map(spec, range(start, total))


def fetch(split: Split, spec: BatchSpec) -> tuple[Split, BatchSpec]:
    """The examples of one batch, gathered on the host, and their spec without indices, for splits too large to stay."""
    return Split(split.x[spec.indices], split.y[spec.indices]), spec._replace(indices=None)


def make_batch(
    split: Split,
    spec: BatchSpec,
    *,
    augmentation: Augmentation = AUGMENTATIONS["none"],
    normalise: Normalisation | None = None,
    shape: tuple[int, ...] | None = None,
) -> Batch:
    """The batch that a spec describes, of NumPy or, under jit, of JAX: examples gathered, augmented and normalised.

    shape: that of an example whose numbers the split holds in a row, see `in_rows`; None where it has its own.
    normalise: gives float32; None leaves x in the dtype it is stored in. A label below 0 stands for none: it counts for
    nothing, as padding does.
    """
    x, y = (leaf if spec.indices is None else leaf[spec.indices] for leaf in split)
    x = x if shape is None else x.reshape(len(x), *shape)
    x = augmentation.apply(x, spec.changes)
    x = x if normalise is None else normalise_images(x, normalise)
    return Batch(x, y.clip(0), _over_labels(spec.mask, y) & (y >= 0))


def in_rows(split: Split) -> Split:
    """The split with each example's numbers in one row, x [examples, numbers], as it best stays on a device.

    A TPU gathers rows where they lie. To gather images it first lays all of them out anew, in every step and at four
    times their size, as their few channels are padded (experiments/accelerators).
    """
    return split._replace(x=split.x.reshape(len(split.x), -1))


def evaluation_batches(
    split: Split, *, batch_size: int, normalise: Normalisation | None = None, multiple_of: int = 1
) -> Iterator[Batch]:
    """All examples of the split in its own order, none dropped or twice, made by NumPy and filled up with zeros.

    normalise and labels below 0: see `make_batch`.

    Raises:
        InputError: batch_size or multiple_of below 1.
    """
    total = num_batches(split, batch_size)
    rows = _num_rows(batch_size, multiple_of)

    def batch(index: int) -> Batch:
        x, y = (leaf[index * batch_size : (index + 1) * batch_size] for leaf in split)
        x = x if normalise is None else normalise_images(x, normalise)
        mask = _over_labels(np.arange(rows) < len(y), y)
        y = _filled(y, rows)
        return Batch(_filled(x, rows), y.clip(0), mask & (y >= 0))

    return map(batch, range(total))


def _num_rows(batch_size: int, multiple_of: int) -> int:
    if multiple_of < 1:
        raise InputError(f"multiple_of is {multiple_of}: give at least 1")
    return -(-batch_size // multiple_of) * multiple_of


def _filled(leaf: np.ndarray, rows: int) -> np.ndarray:
    """The array with zeros behind it, `rows` long."""
    filled = np.zeros((rows, *leaf.shape[1:]), leaf.dtype)
    filled[: len(leaf)] = leaf
    return filled


def _over_labels(mask: Array, y: Array) -> Array:
    """The examples' mask [examples] with an axis of length 1 for every further axis of the labels."""
    return mask.reshape((-1,) + (1,) * (y.ndim - 1))
