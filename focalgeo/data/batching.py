"""Batches of a split: shuffled for training, in order for evaluation, padded and masked, augmented and normalised.

NumPy makes a `BatchSpec` of each training batch, a few numbers for each example. The examples themselves stay on the
device where they fit, and `make_batch` gathers, augments and normalises them inside the compiled step: its functions
take arrays of NumPy and of JAX alike, so that this package loads without JAX.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32, Shaped

from focalgeo.types import Array, Batch, InputError, Split

# Pixels on every side, as the papers' published code has it.
PADDING = 4
Changes = dict[str, Array]  # the random numbers of each image, leaves [examples, ...]


class Normalisation(NamedTuple):
    """x -> (x / scale - mean) / std; mean and std hold one value per channel, or one for all, in units of x / scale."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0


# "digits": mean and deviation over all 1797 images; "unit" maps uint8 to 0..1.
NORMALISATIONS = {
    "cifar10": Normalisation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "digits": Normalisation((0.305,), (0.376,), 16.0),
    "unit": Normalisation((0.0,), (1.0,)),
}


def normalise_images(
    x: Shaped[Array, "*batch channels"], normalisation: Normalisation
) -> Float32[Array, "*batch channels"]:
    """(x / scale - mean) / std as float32.

    Args:
        x: [..., channels], of NumPy or, also under jit, of JAX.
        normalisation: mean and std of 1 or `channels` values; std and scale positive.

    Raises:
        InputError: another number of values.

    Accuracy:
        2e-6 absolute for uint8 and the constants above, held against float64 by tests/data/test_batching.py.

    Source:
        the "cifar10" constants: published code of Mukhoti et al., arXiv 2002.09437.
    """
    mean, std, scale = (np.asarray(value, np.float64) for value in normalisation)
    if not {mean.size, std.size} <= {1, x.shape[-1]}:
        raise InputError(f"normalisation is {normalisation}: give a number for each of {x.shape[-1]} channels or one")
    factor, shift = (np.array(value, np.float32, ndmin=x.ndim) for value in (1 / (scale * std), mean / std))
    return x.astype(np.float32) * factor - shift


class Augmentation(NamedTuple):
    """sample(rng, n) -> the changes of n images; apply(x, changes) -> the changed images, also under jit."""

    sample: Callable
    apply: Callable


def sample_crop_flip(rng: np.random.Generator, n: int, *, padding: int = PADDING) -> Changes:
    """The changes that `crop_flip` makes: all offsets are sampled first, then all coins.

    Returns:
        offsets int32 [n, 2], uniform on 0..2*padding; mirrored bool [n], True with probability 1/2.
    """
    offsets = rng.integers(0, 2 * padding + 1, (n, 2))
    return {"offsets": offsets.astype(np.int32), "mirrored": rng.random(n) < 0.5}


def crop_flip(
    x: Shaped[Array, "examples height width channels"], changes: Changes, *, padding: int = PADDING
) -> Shaped[Array, "examples height width channels"]:
    """Each image padded with zeros, cropped to its own size at its offset, and mirrored left-right if `changes` say so.

    Args:
        x: [examples, height, width, channels], any dtype, before normalisation (so the border is black).
        changes: of `sample_crop_flip` with the same padding.
        padding: pixels on every side, 0 or more.

    Returns:
        An array of the shape and dtype of x.

    Accuracy:
        exact, held against an image-by-image oracle by tests/data/test_batching.py.

    Source:
        Mukhoti et al., ICLR 2020 submission, App. D and its published code (padding 4).
    """
    n, height, width, _ = x.shape
    across = np.arange(width, dtype=np.int32)[None]
    mirrored = changes["mirrored"].astype(np.int32)[:, None]
    across = across + mirrored * (np.int32(width - 1) - np.int32(2) * across)
    rows = (changes["offsets"][:, :1] + np.arange(-padding, height - padding, dtype=np.int32)[None])[:, :, None]
    columns = (changes["offsets"][:, 1:] + across - np.int32(padding))[:, None]
    inside = (rows >= 0) & (rows < height) & ((columns >= 0) & (columns < width))
    images = np.arange(n, dtype=np.int32)[:, None, None]
    return x[images, rows.clip(0, height - 1), columns.clip(0, width - 1)] * inside[..., None].astype(x.dtype)


AUGMENTATIONS = {
    "none": Augmentation(lambda rng, n: {}, lambda x, changes: x),
    "crop_flip": Augmentation(sample_crop_flip, crop_flip),
}


class BatchSpec(NamedTuple):
    """A training batch in numbers: indices of its examples, a mask (False: padding), the augmentation's changes."""

    indices: Int32[Array, " examples"] | None  # None where the split that comes with it holds these examples alone
    mask: Bool[Array, " examples"]
    changes: Changes  # of the augmentation


def num_batches(split: Split, batch_size: int) -> int:
    """Batches in one pass over the split, ceil(examples / batch_size); the last may be short."""
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
        batch_size: examples per batch, 1 or more; every batch has this many rows, the last is filled up with example 0
            under a mask that is False.
        seed: 0 or more.
        epoch: 0 or more.
        start: the number of the first batch, 0..num_batches; at num_batches the iterator is empty.
        augmentation: samples the changes of a batch.
        multiple_of: rows per batch are filled up to a multiple of it (the number of devices).
    """
    order = np.random.default_rng([seed, epoch]).permutation(len(split.y)).astype(np.int32)

    def spec(index):
        indices = order[index * batch_size : (index + 1) * batch_size]
        # index + 1: to NumPy's seeding, (seed, epoch, 0) is the same seed as (seed, epoch).
        changes = augmentation.sample(np.random.default_rng([seed, epoch, index + 1]), len(indices))
        return _spec(indices, batch_size, multiple_of, changes)

    return map(spec, range(start, num_batches(split, batch_size)))


def fetch(split: Split, spec: BatchSpec) -> tuple[Split, BatchSpec]:
    """The examples of one batch, gathered on the host, and their spec without indices, for splits too large to stay."""
    return split.at(spec.indices), spec._replace(indices=None)


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
    x, y = split if spec.indices is None else split.at(spec.indices)
    x = augmentation.apply(x if shape is None else x.reshape(len(x), *shape), spec.changes)
    x = x if normalise is None else normalise_images(x, normalise)
    # Nodes of trees and graphs have labels of their own: the examples' mask gets an axis of length 1 for each such
    # axis.
    mask = spec.mask.reshape((-1,) + (1,) * (y.ndim - 1)) & (y >= 0)
    return Batch(x, y.clip(0), mask)


def in_rows(split: Split) -> Split:
    """The split with each example's numbers in one row, x [examples, numbers], as it best stays on a device.

    A TPU gathers rows where they lie. To gather images it first lays all of them out anew, in every step and at four
    times their size, as their few channels are padded (experiments/accelerators).
    """
    return split._replace(x=split.x.reshape(len(split.x), -1))


def evaluation_batches(
    split: Split, *, batch_size: int, normalise: Normalisation | None = None, multiple_of: int = 1
) -> Iterator[Batch]:
    """All examples of the split in its own order, none dropped or twice, made by NumPy and filled up as in training.

    normalise and labels below 0: see `make_batch`.
    """
    order = np.arange(len(split.y))
    for first in range(0, len(order), batch_size):
        spec = _spec(order[first : first + batch_size], batch_size, multiple_of, {})
        yield make_batch(split, spec, normalise=normalise)


def _spec(indices, batch_size, multiple_of, changes):
    """The spec of these examples, filled up with example 0 to the rows of a batch."""
    rows = -(-batch_size // multiple_of) * multiple_of

    def filled(leaf):
        return np.concatenate([leaf, np.zeros((rows - len(leaf), *leaf.shape[1:]), leaf.dtype)])

    changes = {name: filled(leaf) for name, leaf in changes.items()}
    return BatchSpec(filled(indices), np.arange(rows) < len(indices), changes)
