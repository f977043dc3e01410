"""Examples on their way to the network, as config.data and the batch sizes say."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from focalgeo import data, parallel
from focalgeo.types import Batch, Dataset, PyTree, Split


def normalisation(config, split: Split) -> data.Normalisation | None:
    """How pixels become the network's input; None for what are no pixels."""
    if split.x.dtype != np.uint8:
        return None
    return data.Normalisation(config.data.mean, config.data.std, config.data.scale)


class Feed(NamedTuple):
    """Training examples on their way into a step: what stays on the devices, and the draws that batches are made of.

    draws(epoch, start): of an epoch from number `start` on, leaves [seeds, examples, ...], padded for all devices.
    make_batch: (draw, *resident) -> Batch, inside the compiled step.
    """

    draws: Callable[[int, int], Iterator[PyTree]]
    make_batch: Callable[..., Batch]
    resident: tuple[Split, ...]


def resident_bytes(dataset: Dataset) -> int:
    """What the training examples take of each device's memory while they stay there; 0 if they are sent instead."""
    free, needed = parallel.free_memory(), dataset.train.x.nbytes + dataset.train.y.nbytes
    return needed if free is None or 2 * needed <= free else 0


def make_feed(config, dataset: Dataset, seeds: Sequence[int]) -> Feed:
    """All training examples on every device if they take at most half of its free memory, else sent batch by batch."""
    train, fits = dataset.train, resident_bytes(dataset) > 0
    augmentation = data.AUGMENTATIONS[config.data.augment]
    options = {"augmentation": augmentation, "normalise": normalisation(config, train)}

    def draws(epoch: int, start: int) -> Iterator[PyTree]:
        size, multiple_of = config.optimizer.batch_size, parallel.device_count()
        each = {"batch_size": size, "epoch": epoch, "start": start, "augmentation": augmentation}
        sources = [data.batch_specs(train, seed=seed, multiple_of=multiple_of, **each) for seed in seeds]
        for drawn in zip(*sources, strict=True):
            drawn = drawn if fits else [data.fetch(train, draw) for draw in drawn]
            yield jax.tree.map(lambda *leaves: np.stack(leaves), *drawn)

    if fits:
        return Feed(draws, lambda draw, split: data.make_batch(split, draw, **options), (train,))
    return Feed(draws, lambda fetched: data.make_batch(*fetched, **options), ())


def evaluation_batches(config, split: Split) -> Iterator[Batch]:
    """All examples of a split in order, padded for all devices."""
    return data.evaluation_batches(
        split,
        batch_size=config.evaluation.batch_size,
        normalise=normalisation(config, split),
        multiple_of=parallel.device_count(),
    )


def curvature_batches(config, split: Split) -> list[Batch]:
    """The first examples of a split, as many as curvature is measured on, in batches of one shape."""
    few = Split(split.x[: config.curvature.examples], split.y[: config.curvature.examples])
    size = config.curvature.batch_size
    options = {"normalise": normalisation(config, split), "multiple_of": parallel.device_count()}
    return list(data.evaluation_batches(few, batch_size=size, **options))
