"""Data sets of the papers' shapes without their content: what is compiled depends on shapes alone."""

import numpy as np

from focalgeo import data
from focalgeo.types import Dataset, Split

IMAGES = {"tfds:cifar10": (32, 10), "tfds:cifar100": (32, 100), "tiny_imagenet": (64, 200)}  # size, classes
WORDS = 20_000  # of either vocabulary; the networks' largest matrix grows with it, their products do not
DOCUMENT = 1000  # words of a post that are read
LEAVES = 56  # of the Treebank's longest sentence


def stand_in(name: str) -> Dataset:
    """A data set of the shapes of the one that config.data.name calls `name`; digits and clusters are themselves."""
    rng = np.random.default_rng(0)
    if name in IMAGES:
        size, classes = IMAGES[name]
        counts = (90_000, 10_000, 10_000) if size == 64 else (45_000, 5_000, 10_000)
        splits = [_images(rng, count, size, classes) for count in counts]
        return Dataset(name, *splits, _names(classes), "none")
    if name == "newsgroups":
        splits = [_documents(rng, count) for count in (15_098, 900, 3_999)]
        return Dataset(name, *splits, _names(20), "none", _vocabulary())
    if name.startswith("sst:"):
        splits = [_trees(rng, count) for count in (6_920, 872, 1_821)]
        return Dataset("sst", *splits, _names(2), "none", _vocabulary())
    return data.load_dataset(name, split_seed=1)


def _images(rng: np.random.Generator, count: int, size: int, classes: int) -> Split:
    few = rng.integers(0, 256, (64, size, size, 3), np.uint8)  # the rest stays zero, and so takes no memory
    x = np.zeros((count, size, size, 3), np.uint8)
    x[: len(few)] = few
    return Split(x, rng.integers(0, classes, count).astype(np.int32))


def _documents(rng: np.random.Generator, count: int) -> Split:
    x = rng.integers(1, WORDS, (count, DOCUMENT), np.int32)
    return Split(x, rng.integers(0, 20, count).astype(np.int32))


def _trees(rng: np.random.Generator, count: int) -> Split:
    """Trees of 2 to LEAVES words, each of which joins one more word to all before it."""
    x = np.zeros((count, 2 * LEAVES - 1, 3), np.int32)
    y = np.full((count, 2 * LEAVES - 1), -1, np.int32)
    for tree, leaves in enumerate(rng.integers(2, LEAVES + 1, count)):
        inner = np.arange(leaves - 1)
        x[tree, :leaves, 0] = rng.integers(1, WORDS, leaves)
        x[tree, LEAVES + inner, 1] = np.where(inner == 0, 0, LEAVES + inner - 1)
        x[tree, LEAVES + inner, 2] = inner + 1
        y[tree, LEAVES + inner] = rng.integers(0, 2, leaves - 1)
    return Split(x, y)


def _names(classes: int) -> tuple[str, ...]:
    return tuple(map(str, range(classes)))


def _vocabulary() -> tuple[str, ...]:
    return ("", "<unk>", *map(str, range(WORDS - 2)))
