"""Data sets that need no file: scikit-learn's handwritten digits, and Gaussian clusters in the plane."""

import hashlib
import importlib.util
import math
from pathlib import Path

import numpy as np

from focalgeo.data.splits import RawDataset, Sizes
from focalgeo.types import InputError, Split

CENTRES = np.array([(-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0)])
FLIPPED = 10  # one in
EXAMPLES = 1000
MOST_DEVIATION = 1e6


def read_digits(_: str) -> RawDataset:
    """The 1,797 images of 8x8 that scikit-learn ships, which need no download.

    They are uint8 [1797, 8, 8, 1] with values 0..16, as one split: no test split was published.

    Source: the test part of UCI's "Optical Recognition of Handwritten Digits", as scikit-learn ships it.
    """
    package = Path(importlib.util.find_spec("sklearn").origin).parent  # not imported, which takes a second
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
        Mukhoti et al., arXiv 2002.09437, App. G, which states neither deviation nor number of points.
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
        splits[part] = _sample(size, scale, np.random.default_rng([seed, index]))
    checksum = hashlib.sha256(f"clusters {scale!r} {FLIPPED}".encode()).hexdigest()
    return RawDataset(splits, ("negative", "positive"), checksum)


def _sample(n, deviation, rng):
    in_cluster, cluster = np.divmod(np.arange(n), len(CENTRES))
    x = CENTRES[cluster] + deviation * rng.standard_normal((n, 2))
    flipped = in_cluster < n // len(CENTRES) // FLIPPED
    y = (CENTRES[cluster, 0] > 0) != flipped
    order = rng.permutation(n)
    return Split(x[order].astype(np.float32), y[order].astype(np.int32))
