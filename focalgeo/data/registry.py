"""Registry of data sets: a name in, a `Dataset` out."""

import difflib
import os
from collections.abc import Callable
from numbers import Integral
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from focalgeo.data.builtin import make_clusters, read_digits
from focalgeo.data.folders import read_folder
from focalgeo.data.newsgroups import MAX_WORDS, fetch_newsgroups, read_newsgroups
from focalgeo.data.splits import RawDataset, Sizes, check_split, divide
from focalgeo.data.tfds import read_tfds
from focalgeo.data.tiny_imagenet import read_tiny_imagenet
from focalgeo.data.treebank import read_treebank
from focalgeo.data.vocabulary import encode_dataset
from focalgeo.files import UNUSABLE
from focalgeo.types import Dataset, InputError


class Reader(NamedTuple):
    """Reader of the data sets whose names begin with one prefix and a colon."""

    read: Callable[..., RawDataset]  # (text behind the colon, those of `keywords`)
    argument: str  # name of the text behind the colon, for messages
    keywords: tuple[str, ...]
    options: tuple[str, ...]  # options of `load_dataset` that apply


# By the prefix; the text behind the colon is handed to the reader.
READERS: MappingProxyType[str, Reader] = MappingProxyType(
    {
        "tfds": Reader(read_tfds, "<name>", ("image_size", "cache_dir", "tell"), ("image_size",)),
        "folder": Reader(read_folder, "<path>", ("image_size", "cache_dir", "tell"), ("image_size",)),
        "tiny_imagenet": Reader(read_tiny_imagenet, "<path>", ("image_size", "cache_dir", "tell"), ("image_size",)),
        "newsgroups": Reader(read_newsgroups, "<path>", ("max_length", "tell"), ("max_words", "max_length")),
        "sst": Reader(read_treebank, "<path>", (), ("max_words",)),
        "clusters": Reader(make_clusters, "<deviation>", ("sizes", "seed"), ()),
    }
)
# Names without a colon -> the options that apply.
PLAIN_NAMES: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {"digits": (), "newsgroups": ("max_words", "max_length")}
)
LARGEST = 2**53  # of sizes and seeds: beyond it, a float is no longer exact
DEFAULT_WORDS: MappingProxyType[str, int] = MappingProxyType({"newsgroups": MAX_WORDS})
KINDS = ", ".join((*PLAIN_NAMES, *(f"{kind}:{reader.argument}" for kind, reader in READERS.items())))


def load_dataset(
    name: str,
    *,
    split_seed: int = 1,
    val_size: int | None = None,
    test_size: int | None = None,
    train_size: int | None = None,
    image_size: int | None = None,
    max_words: int | None = None,
    max_length: int | None = None,
    cache_dir: str | os.PathLike | None = None,
    tell: Callable[[str], None] | None = None,
) -> Dataset:
    """Train, val and test of a data set by name, the same bits for the same arguments on every machine.

    Args:
        name: one of
            "digits", scikit-learn's;
            "tfds:<name>", images prepared by tensorflow-datasets;
            "folder:<path>", class folders of images;
            "tiny_imagenet:<path>", in its own layout; the official val split is test;
            "newsgroups:<path>", 20 Newsgroups as group folders, divided by date or not; "newsgroups" alone has
            scikit-learn download them;
            "sst:<path>", the Stanford Sentiment Treebank's trees, the binary task;
            "clusters:<deviation>", points about (+-1, +-1) in two classes, a tenth of the labels flipped.
            A path is a directory or a tar or zip archive; images are decoded once, then kept in `cache_dir`.
        split_seed: of the papers' rule, focalgeo.data.split_indices, for whatever is split off or chosen.
        val_size: examples split off from train, by default a tenth (of 50,000: 5,000), or a fifth where a test split
            has to be made too, and of newsgroups the paper's share (see focalgeo.data.newsgroups); where the data set
            has a val split of its own, how many of it to use.
        test_size: how many of the published test examples to use, by default all; where it has none, how many to split
            off, by default a fifth, or the paper's share.
        train_size: how many of the remaining, shuffled training examples to use; by default all.
        image_size: resize images to this height and width; by default they must all have one size.
        max_words: size of the vocabulary of newsgroups and sst, which is the most frequent words of the train split
            that is returned; by default 20,000, and all for sst.
        max_length: words kept from the start of each post of newsgroups, by default 1000.
        cache_dir: by default $XDG_CACHE_HOME/focalgeo or ~/.cache/focalgeo.
        tell: gets a line of progress every few seconds of reading, and one where another process is waited for that
            decodes the same images.

    Returns:
        Images uint8 [examples, height, width, channels], posts int32 [examples, length] of token ids (0 is padding, 1
        an unknown word), trees int32 [examples, slots, 3] (see focalgeo.data.treebank), points float32 [examples, 2];
        labels int32 [examples], or [examples, slots] of trees, -1 where a node must not count; the class names in
        label order, a hex checksum of the published content, which no argument but the name changes, and the vocabulary
        by token id.

    Raises:
        InputError: one line for an argument of another kind, an unknown name, an option that does not apply, missing,
            empty, corrupt or one-class data, labels out of range, or more examples or bytes than there are.
    """
    _check_name(name)
    _check_whole({"split_seed": split_seed})
    given = {"val_size": val_size, "test_size": test_size, "train_size": train_size, "image_size": image_size}
    given |= {"max_words": max_words, "max_length": max_length}
    _check_whole({field: value for field, value in given.items() if value is not None})
    sizes = Sizes(train_size, val_size, test_size)
    asked = {"image_size": image_size, "max_words": max_words, "max_length": max_length}
    raw = _read(name, asked, {"cache_dir": cache_dir, "sizes": sizes, "seed": split_seed, "tell": tell})
    for part, split in raw.splits.items():
        check_split(split, len(raw.class_names), where=f"{name}: {part}")
    labels = raw.splits["train"].y
    labels = labels[labels >= 0]
    if (labels == labels[0]).all():
        raise InputError(f"{name}: train holds one class only, {raw.class_names[labels[0]]}: give at least two")
    data = divide(raw, sizes, name=name, seed=split_seed)
    if not data.vocabulary:
        return data
    default = DEFAULT_WORDS.get(name.partition(":")[0])
    return encode_dataset(data, max_words=default if max_words is None else max_words)


def _check_name(name: Any) -> None:
    """Refuse what cannot be a name: no text, or none that the system takes and a line can show."""
    if not isinstance(name, str):
        raise InputError(f"name is {ascii(name)[:80]}: give text, as digits or folder:<path>")
    if UNUSABLE.search(name):
        raise InputError(f"data set {ascii(name)[:200]}: give a name of one line in UTF-8")


def _check_whole(values: dict[str, Any]) -> None:
    for field, value in values.items():
        if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
            raise InputError(f"{field} is {ascii(value)[:80]}: give a whole number")
        if abs(int(value)) >= LARGEST:
            raise InputError(f"{field} is out of range: give a whole number below {LARGEST:,}")


def _read(name: str, asked: dict[str, int | None], settings: dict[str, Any]) -> RawDataset:
    kind, colon, argument = name.partition(":")
    if name not in PLAIN_NAMES and not (kind in READERS and colon):
        raise InputError(
            f"there is no data set {name[:200]!r}: names are {KINDS}; did you mean {_nearest(name[:200])!r}?"
        )
    _check_options(name, asked, PLAIN_NAMES[name] if name in PLAIN_NAMES else READERS[kind].options)
    if name == "digits":
        return read_digits()
    if name == "newsgroups":
        return fetch_newsgroups(max_length=asked["max_length"], tell=settings["tell"])
    known = asked | settings
    return READERS[kind].read(argument, **{option: known[option] for option in READERS[kind].keywords})


def _check_options(name: str, asked: dict[str, int | None], applying: tuple[str, ...]) -> None:
    for option, value in asked.items():
        if value is None or (name == "digits" and option == "image_size" and value == 8):
            continue
        if option not in applying:
            raise InputError(f"{option} {value} does not apply to {name}: leave it out")
        if value < 1:
            raise InputError(f"{option} is {value}: give at least 1, or None for the data set's own")


def _nearest(name: str) -> str:
    kind, colon, argument = name.partition(":")
    near = difflib.get_close_matches(kind.lower(), READERS, n=1, cutoff=0.0 if colon else 0.6)
    if colon:
        return f"{near[0]}:{argument or READERS[near[0]].argument}"
    if alone := difflib.get_close_matches(name.lower(), PLAIN_NAMES, n=1):
        return alone[0]
    if os.path.exists(os.path.expanduser(name)):
        return f"folder:{name}"
    return f"{near[0]}:{READERS[near[0]].argument}" if near else f"tfds:{name}"
