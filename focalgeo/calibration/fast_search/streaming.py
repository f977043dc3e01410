"""Surfaces of ECE and NLL over (gamma, temperature), from chunks of examples that fit a core's cache, a thread a core.

Nothing as large as the logits is made: the peak stays below their size, a second such table and 300 MB
(experiments/benchmarks/README.md).
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from focalgeo.calibration.fast_search.surface import ChunkSurface, chunk_surface
from focalgeo.calibration.fast_search.tail import Nodes, Tail, fit_tail, interpolation_nodes

_CHUNK = 2**16  # numbers in a table [classes, examples] worked on at once: a few such tables fit a core's cache
_FEWEST = 64  # examples in a chunk, where there are that many: below that the calls cost more than the work
_KEPT = 2**25  # confidences of all examples kept at once for equal-mass bins: 128 MB


class SearchInputs(NamedTuple):
    """The predictions and the grid; weight 0 leaves an example out."""

    logits: np.ndarray
    labels: np.ndarray
    weight: np.ndarray
    gammas: np.ndarray
    temperatures: np.ndarray


def surfaces(inputs: SearchInputs, num_bins: int, *, by_rank: bool) -> tuple[np.ndarray, np.ndarray]:
    """Surfaces of ECE and NLL [gammas, temperatures] over the grid."""
    tail = fit_tail(inputs.gammas, inputs.logits.shape[1])
    kernel = partial(
        chunk_surface,
        gammas=inputs.gammas,
        coefficients=tail.coefficients,
        num_exact=tail.num_exact,
        num_bins=None if by_rank else num_bins,
    )
    points = inputs.gammas.size * inputs.temperatures.size
    num_blocks = -(-points * len(inputs.labels) // _KEPT) if by_rank else 1
    total = inputs.weight.sum(dtype=np.float64)
    blocks = _blocks(inputs.temperatures, num_blocks)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = [
            _block(inputs, partial(kernel, temperatures=temperatures, nodes=nodes), num_bins, pool, by_rank=by_rank)
            for temperatures, nodes in zip(blocks, _nodes(blocks, tail), strict=True)
        ]
    gaps, nll = (np.concatenate(part)[: inputs.temperatures.size].T for part in zip(*parts, strict=True))
    return gaps.astype(np.float32), (nll / total).astype(np.float32)


def _block(
    inputs: SearchInputs, kernel: Callable, num_bins: int, pool: ThreadPoolExecutor, *, by_rank: bool
) -> tuple[np.ndarray, np.ndarray]:
    """ECE and sum of the negative log-likelihood [temperatures, gammas] of some temperatures."""
    starts = _starts(inputs)
    chunks = pool.map(lambda start: jax.device_get(kernel(*_chunk(inputs, start, starts.step))), starts)
    if by_rank:
        return _gaps_by_rank(chunks, inputs.weight, num_bins, pool)
    sums, nll = 0.0, 0.0
    for chunk in chunks:  # added up as they come: all of them together would be larger than the logits
        sums, nll = sums + chunk.bins.astype(np.float64), nll + chunk.nll.astype(np.float64)
    return np.abs(sums).sum(axis=-1) / inputs.weight.sum(dtype=np.float64), nll


def _gaps_by_rank(
    chunks: Iterable[ChunkSurface], weight: np.ndarray, num_bins: int, pool: ThreadPoolExecutor
) -> tuple[np.ndarray, np.ndarray]:
    """The same with equal-mass bins, which take the confidences of all examples at once."""
    chunks = list(chunks)
    times = np.round(weight).astype(np.int64)
    chosen = np.repeat(np.arange(times.size), times)
    correct = np.concatenate([chunk.correct for chunk in chunks])[chosen]

    def gap(i: int) -> np.ndarray:
        confidence = np.concatenate([chunk.bins[i] for chunk in chunks], axis=1)[:, : times.size]
        confidence = confidence if (times == 1).all() else confidence[:, chosen]
        return np.abs(rank_bin_sums(confidence, correct, num_bins)).sum(axis=-1) / chosen.size

    nll = sum(chunk.nll.astype(np.float64) for chunk in chunks)
    return np.stack(list(pool.map(gap, range(len(nll))))), nll


def _starts(inputs: SearchInputs) -> range:
    """First examples of the chunks, all of one size, which leaves the last little padding."""
    num_examples, num_classes = inputs.logits.shape
    size = min(max(_CHUNK // num_classes, _FEWEST), num_examples)
    return range(0, num_examples, -(-num_examples // -(-num_examples // size)))


def _chunk(inputs: SearchInputs, start: int, size: int) -> list[np.ndarray]:
    """Logits, labels and weights of `size` examples, padded with weight 0 where there are no more."""
    rows = slice(start, start + size)
    chunk = inputs.logits[rows].astype(np.float32), inputs.labels[rows], inputs.weight[rows]
    pad = size - len(chunk[1])
    return [np.pad(a, [(0, pad)] + [(0, 0)] * (a.ndim - 1)) for a in chunk]


def _blocks(temperatures: np.ndarray, num_blocks: int) -> np.ndarray:
    """[blocks, temperatures]: equally many in each, the last repeated where they do not come out even."""
    size = -(-temperatures.size // num_blocks)
    return np.pad(temperatures, (0, -temperatures.size % size), mode="edge").reshape(-1, size)


def _nodes(blocks: np.ndarray, tail: Tail) -> list[Nodes | None]:
    """The nodes of each block of temperatures, equally many, so that one compiled program serves all."""
    if tail.coefficients is None:
        return [None] * len(blocks)
    nodes_of = [interpolation_nodes(block) for block in blocks]
    most = max(nodes.x.size for nodes in nodes_of)
    return [nodes._replace(x=np.pad(nodes.x, (0, most - nodes.x.size), mode="edge")) for nodes in nodes_of]


def rank_bin_sums(confidence: np.ndarray, correct: np.ndarray, num_bins: int) -> np.ndarray:
    """[rows, bins]: sum of (correct - confidence) over each equal-count bin by rank, as `equal_mass` forms them.

    Args:
        confidence: Float32 [rows, examples], 0 to 1. Equal confidences keep the order of the examples.
        correct: Bool [examples].
        num_bins: 1 or more; where there are fewer examples than bins the last bins are empty.

    Returns:
        Float64. The sort carries `correct` in the last bit of the confidence, which is wrong by at most 6e-8 thereby.
        Tested in tests/calibration/test_ranks.py.
    """
    bits = np.ascontiguousarray(confidence, np.float32).view(np.int32)
    keys = np.sort((bits & ~1) | correct.astype(np.int32), axis=1)
    ends = _rank_ends(keys.shape[1], num_bins)
    starts = np.r_[0, ends[:-1]]
    sums = np.zeros((len(keys), num_bins))
    hits = np.add.reduceat(keys & 1, starts, axis=1)
    sums[:, : len(ends)] = hits - np.add.reduceat(keys.view(np.float32), starts, axis=1, dtype=np.float64)
    tied = (keys[:, ends[:-1] - 1] | 1) == (keys[:, ends[:-1]] | 1)
    for row, cut in np.argwhere(tied):
        moved = _tie_correction(keys[row], bits[row], correct, ends[cut])
        sums[row, cut] += moved
        sums[row, cut + 1] -= moved
    return sums


def _rank_ends(num_examples: int, num_bins: int) -> np.ndarray:
    """Ranks at which the bins that are not empty end; the first `examples mod bins` bins hold one more."""
    step = np.arange(1, min(num_bins, num_examples) + 1)
    return step * (num_examples // num_bins) + np.minimum(step, num_examples % num_bins)


def _tie_correction(keys: np.ndarray, bits: np.ndarray, correct: np.ndarray, end: int) -> int:
    """Number of right examples to add to the first `end` if ties keep their order; the keys put wrong ones first."""
    value = keys[end] | 1
    first = np.searchsorted(keys, value - 1)
    members = np.flatnonzero((bits | 1) == value)
    members = members[np.argsort(bits[members], kind="stable")][: end - first]
    return np.count_nonzero(correct[members]) - np.count_nonzero(keys[first:end] & 1)
