"""The registry of data sources: a name in, a `Dataset` out."""

import difflib
import os
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

import numpy as np

from focalgeo.data.checks import check_split
from focalgeo.data.digits import read_digits
from focalgeo.data.folders import read_folder
from focalgeo.data.splits import Sizes, Source, divide
from focalgeo.data.tfds import read_tfds
from focalgeo.types import Dataset, InputError

# By what stands before the colon; what stands behind it is handed to the reader.
READERS: MappingProxyType[str, Callable[..., Source]] = MappingProxyType({"tfds": read_tfds, "folder": read_folder})
KINDS = "digits, tfds:<name> or folder:<path>"


def load_dataset(
    name: str,
    *,
    split_seed: int = 1,
    val_size: int | None = None,
    test_size: int | None = None,
    train_size: int | None = None,
    image_size: int | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> Dataset:
    """Train, val and test of a data set by name, the same bits for the same arguments on every machine.

    Args:
        name: "digits", "tfds:<name>" (prepared by tensorflow-datasets) or "folder:<path>" (class folders of images, in
            a directory or a tar archive; decoded once, then kept in `cache_dir`).
        split_seed: of the papers' rule, focalgeo.data.split_indices, for whatever is split off or drawn.
        val_size: examples split off from train, by default a tenth (of 50,000: 5,000), or a fifth where a test split
            has to be made too; where the source has a val split of its own, how many of it to use.
        test_size: how many of the source's test examples to use, by default all; where it has none, how many to split
            off, by default a fifth.
        train_size: how many of the remaining, shuffled training examples to use; by default all.
        image_size: resize images to this height and width; by default they must all have one size.
        cache_dir: by default $XDG_CACHE_HOME/focalgeo or ~/.cache/focalgeo.

    Returns:
        Images uint8 [examples, height, width, channels], labels int32 [examples], the class names in label order, and a
        hex checksum of the source's content, which no argument but the name changes.

    Raises:
        InputError: one line for an unknown name, missing, empty, broken or one-class data, labels out of range, or more
            examples than there are.
    """
    source = _read(name, image_size, cache_dir)
    for part, split in source.splits.items():
        check_split(split, len(source.class_names), where=f"{name}: {part}")
    labels = source.splits["train"].y
    if np.all(labels == labels[0]):
        raise InputError(f"{name}: train holds one class only, {source.class_names[labels[0]]}: give at least two")
    return divide(source, Sizes(train_size, val_size, test_size), name=name, seed=split_seed)


def _read(name: str, image_size: int | None, cache_dir: str | os.PathLike | None) -> Source:
    if image_size is not None and image_size < 1:
        raise InputError(f"image_size is {image_size}: give at least 1, or None to keep the images' own size")
    kind, colon, place = name.partition(":")
    if name == "digits":
        if image_size not in (None, 8):
            raise InputError(f"digits are 8x8, image_size {image_size} does not apply to them: leave it out")
        return read_digits()
    if kind in READERS and colon:
        return READERS[kind](place, image_size=image_size, cache_dir=cache_dir)
    raise InputError(f"there is no data set {name!r}: names are {KINDS}; did you mean {_nearest(name)!r}?")


def _nearest(name: str) -> str:
    kind, colon, place = name.partition(":")
    if colon:
        matches = difflib.get_close_matches(kind.lower(), READERS, n=1, cutoff=0.0)
        return f"{matches[0]}:{place or '<path>'}"
    if difflib.get_close_matches(name.lower(), ["digits"]):
        return "digits"
    return f"folder:{name}" if Path(name).expanduser().exists() else f"tfds:{name}"
