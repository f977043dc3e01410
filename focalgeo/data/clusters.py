"""Four Gaussian clusters in the plane, two classes, a tenth of the labels flipped."""

import hashlib
import math

import numpy as np

from focalgeo.data.splits import Sizes, Source
from focalgeo.types import InputError, Split

CENTRES = np.array([(-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0)])
FLIPPED = 10  # one in
EXAMPLES = 1000


def make_clusters(place: str, *, sizes: Sizes, seed: int) -> Source:
    """Normal points about (+-1, +-1), float32 [examples, 2], as many in each cluster; a tenth of each flipped.

    The class is 1 where the first coordinate of the centre is positive, else 0, and the other one for exactly one in
    ten points of every cluster.

    Args:
        place: the standard deviation in both coordinates, 0 or more, as text.
        sizes: examples of each split, multiples of 40; 1000 where None.
        seed: of the draws, 0 or more; each split has draws of its own.

    Returns:
        A source whose checksum is that of its recipe: sizes and seed do not change it.

    Raises:
        InputError: a deviation that is no such number, a size that is no multiple of 40, or a negative seed.

    Accuracy:
        counts are exact, means and deviations within their standard errors: tests/data/test_clusters.py.

    Source:
        Mukhoti et al., arXiv 2002.09437, App. G, which states neither deviation nor number of points.
    """
    deviation = _number(place)
    if seed < 0:
        raise InputError(f"split seed {seed} is out of range: give an integer of at least 0")
    splits = {
        part: _draw(_size(part, size), deviation, np.random.default_rng([seed, index]))
        for index, (part, size) in enumerate(sizes._asdict().items())
    }
    checksum = hashlib.sha256(f"clusters {deviation!r} {FLIPPED}".encode()).hexdigest()
    return Source(splits, ("negative", "positive"), checksum)


def _draw(n: int, deviation: float, rng: np.random.Generator) -> Split:
    in_cluster, cluster = np.divmod(np.arange(n), len(CENTRES))
    x = CENTRES[cluster] + deviation * rng.standard_normal((n, 2))
    flipped = in_cluster < n // len(CENTRES) // FLIPPED
    y = (CENTRES[cluster, 0] > 0) != flipped
    order = rng.permutation(n)
    return Split(x[order].astype(np.float32), y[order].astype(np.int32))


def _size(part: str, size: int | None) -> int:
    size = EXAMPLES if size is None else size
    unit = len(CENTRES) * FLIPPED
    if size < 1 or size % unit:
        raise InputError(f"clusters: {part}_size is {size}: give a multiple of {unit}, so that flips are exact")
    return size


def _number(place: str) -> float:
    try:
        deviation = float(place)
    except ValueError:
        deviation = math.nan
    if not 0 <= deviation < math.inf:
        raise InputError(f"clusters:{place}: give the standard deviation of the clusters, 0 or more, as clusters:0.5")
    return deviation
