"""Registry of data sets: a name in, a `Dataset` out; and those that need no file."""

import hashlib
import importlib.util
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from focalgeo.data import graphs, images, tables, texts
from focalgeo.data.splits import RawDataset, Sizes, check_labels, divide
from focalgeo.types import Dataset, InputError, Split

CENTRES = np.array([(-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0)])
# One label in so many is flipped.
FLIPPED = 10
EXAMPLES = 1000
MOST_DEVIATION = 1e6


class Reader(NamedTuple):
    """Reader of the data sets of one kind; the tables of docs say by the first line of its docstring what it reads."""

    read: Callable[..., RawDataset]  # of the text behind the colon; its other parameters are what it may be asked for
    argument: str = ""  # how messages write what stands behind the kind; in brackets where it may be missing

    @property
    def options(self) -> tuple[str, ...]:
        """What `read` takes besides that text, by name."""
        _, *names = inspect.signature(self.read).parameters
        return tuple(names)


def read_digits(_: str) -> RawDataset:
    """The 1,797 images of 8x8 that scikit-learn ships, which need no download.

    They are uint8 [1797, 8, 8, 1] with values 0..16, as one split: no test split was published.

    Source: the test part of UCI's "Optical Recognition of Handwritten Digits", as scikit-learn ships it.
    """
    # Found, not imported, which takes a second.
    package = Path(importlib.util.find_spec("sklearn").origin).parent
    table = np.loadtxt(package / "datasets/data/digits.csv.gz", np.uint8, delimiter=",")  # 64 pixels and the digit
    split = Split(table[:, :-1].reshape(-1, 8, 8, 1), table[:, -1].astype(np.int32))
    checksum = hashlib.sha256(split.x.tobytes() + split.y.astype("<i4").tobytes()).hexdigest()
    return RawDataset({"train": split}, tuple("0123456789"), checksum)


def make_clusters(deviation: str, sizes: Sizes | None = None, seed: int = 1) -> RawDataset:
    """Points about (+-1, +-1) in two classes, a tenth of the labels flipped.

    They are float32 [examples, 2], normal about their centres, as many in each cluster. The class is 1 where the first
    coordinate of the centre is positive, else 0, and the other one for exactly one in ten points of every cluster.

    Args:
        deviation: the standard deviation in both coordinates, 0 to a million, as text.
        sizes: of the splits, multiples of 40, and 1000 where None.
        seed: 0 or more, of the random numbers, of which each split has its own.

    Returns:
        The data set; its checksum is that of the recipe, which sizes and seed do not change.

    Raises:
        InputError: a deviation that is no such number, or a size that is no multiple of 40.

    Accuracy:
        counts are exact, means and deviations within their standard errors: tests/data/test_registry.py.

    Source:
        Mukhoti et al., ICLR 2020 submission, App. G, which states neither deviation nor number of points.
    """
    try:
        scale = float(deviation)
    except ValueError:
        scale = math.nan
    if not 0 <= scale <= MOST_DEVIATION:
        span = f"from 0 to at most {MOST_DEVIATION:,.0f}"
        raise InputError(f"clusters:{deviation}: give the standard deviation of the clusters, {span}, as clusters:0.5")
    unit, splits = len(CENTRES) * FLIPPED, {}
    for index, (part, size) in enumerate((sizes or Sizes())._asdict().items()):
        size = EXAMPLES if size is None else size
        if size < 1 or size % unit:
            raise InputError(f"clusters: {part}_size is {size}: give a multiple of {unit}, so that flips are exact")
        rng = np.random.default_rng([seed, index])
        in_cluster, cluster = np.divmod(np.arange(size), len(CENTRES))
        x = CENTRES[cluster] + scale * rng.standard_normal((size, 2))
        flipped = in_cluster < size // unit
        y = (CENTRES[cluster, 0] > 0) != flipped
        splits[part] = Split(x.astype(np.float32), y.astype(np.int32)).at(rng.permutation(size))
    checksum = hashlib.sha256(f"clusters {scale!r} {FLIPPED}".encode()).hexdigest()
    return RawDataset(splits, ("negative", "positive"), checksum)


# By the kind, which stands in front of the colon.
READERS = {
    "digits": Reader(read_digits),
    "tfds": Reader(images.read_tfds, ":NAME"),
    "folder": Reader(images.read_folder, ":PATH"),
    "tiny_imagenet": Reader(images.read_tiny_imagenet, ":PATH"),
    "newsgroups": Reader(texts.read_newsgroups, "[:PATH]"),
    "sst": Reader(texts.read_treebank, ":PATH"),
    "arrays": Reader(tables.read_arrays, ":FILE.npz"),
    "table": Reader(tables.read_columns, ":FILE"),
    "clusters": Reader(make_clusters, ":DEVIATION"),
}
GRAPH = "graph:"  # in front of a name: that data set as one graph


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
    label: str | None = None,
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
            "arrays:<path>", arrays of one's own in an .npz file, see focalgeo.data.tables;
            "table:<path>", a table with a column of classes, as .csv, .tsv, .parquet, .feather or .jsonl, .gz or not;
            "clusters:<deviation>", points about (+-1, +-1) in two classes, a tenth of the labels flipped;
            "graph:<name>", the graph of the examples of another of them, see focalgeo.data.graphs.
            A path is a directory or a tar or zip archive; archives are unpacked and images decoded once, then kept in
            the cache, see focalgeo.data.sources.
        split_seed: of the papers' rule, focalgeo.data.split_indices, for whatever is split off or chosen.
        val_size: examples split off from train, by default a tenth (of 50,000: 5,000), or a fifth where a test split
            has to be made too, and of newsgroups the paper's share (see focalgeo.data.texts); where the data set
            has a val split of its own, how many of it to use.
        test_size: how many of the published test examples to use, by default all; where it has none, how many to split
            off, by default a fifth, or the paper's share.
        train_size: how many of the remaining, shuffled training examples to use; by default all.
        image_size: resize images to this height and width; by default they must all have one size.
        max_words: size of the vocabulary of newsgroups and sst, which is the most frequent words of the train split
            that is returned; by default 20,000, and all for sst.
        max_length: words kept from the start of each post of newsgroups, by default 1000.
        label: the column of a table that holds the classes.

    Returns:
        Images uint8 [examples, height, width, channels], posts int32 [examples, length] of token ids (0 is padding, 1
        an unknown word), trees int32 [examples, slots, 3] (see focalgeo.data.texts), points float32 [examples, 2],
        features float32 [examples, ...], standardised by train; labels int32 [examples], or [examples, slots] of
        trees, -1 where a node must not count; the class names in label order, a hex checksum of the published content,
        which no argument but the name changes, the vocabulary by token id, and mean and deviation of the features.

    Raises:
        InputError: one line for an unknown name, an option that does not apply, missing, empty, corrupt or one-class
            data, labels out of range, or more examples than there are.
    """
    is_graph, name = name.startswith(GRAPH), name.removeprefix(GRAPH)
    kind, colon, argument = name.partition(":")
    reader = READERS.get(kind)
    if reader is None or reader.argument[:1] == ":" != colon or (colon and not reader.argument):
        forms = [f"{kind}{reader.argument}" for kind, reader in READERS.items()]
        raise InputError.of_choice("config.data.name", name, [*forms, f"{GRAPH}NAME"])
    own = {"image_size": image_size, "max_words": max_words, "max_length": max_length, "label": label}
    for option, value in own.items():
        if value is not None and (option not in reader.options or (option != "label" and value < 1)):
            raise InputError(f"{option} is {value} for {name}: give at least 1 where it applies, or leave it out")
    sizes = Sizes(train_size, val_size, test_size)
    asked = {"sizes": sizes, "seed": split_seed, **own}
    raw = reader.read(argument, **{option: asked[option] for option in reader.options})
    check_labels(raw, name=name)
    data = divide(raw, sizes, name=name, seed=split_seed)
    if raw.features:
        data = tables.standardised(data, raw.features)
    elif data.vocabulary:
        data = texts.encode_dataset(data, max_words=raw.max_words)
    return graphs.joined(data) if is_graph else data
