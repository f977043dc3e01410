"""Fast grid search on the CPU: the surfaces of `plain_surfaces` in `calibration/search.py`, 40 to 130 times as fast.

Of processor time, on the 5,000 points of the default grid on two cores of an AMD EPYC, the plain search takes 130 times
as much for 5,000 examples of 100 classes with bins of equal width (53 s against 0.40 s) and 100 times as much with bins
of equal mass; for 10,000 examples of 10 classes 50 times as much (38 s against 0.76 s), and 40.

What is gained: chunks of examples stay in a core's cache, a thread a core, and NumPy sorts; a temperature's work is
shared by all gammas, as only three numbers per example depend on gamma: the focal weights h of the top class, of the
true class, and the sum over all others; and no gamma enters the sums over improbable classes.

For p below about 1/4 the ratio f = h(p) / p of the focal map is to float32 a short polynomial in p and p log p, with
coefficients that depend on gamma alone. So the sum of h over all classes but the few largest costs the same for one
gamma as for fifty. The sums of r^(1 + a) log(r)^b that it needs, with r = exp(d / T), are the function
M_b(x) = sum of (x d)^b exp(x d) at x = (1 + a) / T. It is smooth in log x and gives its own derivatives,
dM_b / dlog x = b M_b + M_(b + 1), so that values at a few dozen nodes give it at all temperatures.

Nothing as large as the logits is made: the peak stays below their size, a second such table and 300 MB
(experiments/benchmarks/README.md).
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from math import comb
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.calibration.binning import bin_edges
from focalgeo.checks import Examples
from focalgeo.trees import matmul
from focalgeo.types import Array

_CHUNK = 2**16  # numbers in a table [classes, examples] worked on at once: a few such tables fit a core's cache
_FEWEST = 64  # examples in a chunk, where there are that many: below that the calls cost more than the work
_KEPT = 2**25  # confidences of all examples kept at once for equal-mass bins: 128 MB

_FAR = -1e20  # a logit difference this far down has probability 0 at any temperature; unlike -inf, times 0 it is 0
_SURE = 80.0  # log-odds whose exponential float32 still holds

_ORDER = 5
TERMS = tuple((a, b) for a in range(_ORDER + 1) for b in range(a + 1))  # (p / cap)^a log(p / cap)^b
_FIRST = 1  # classes below the top that are computed one by one, doubled until the polynomial is good enough
_TOLERANCE = 2e-6  # of f, relative
_FARTHEST = -80.0  # log(p / p_second) below which a class adds nothing that float32 can hold
_SPACING = 1 / 8  # of the nodes in log x: the quintic is right to 1e-9 for each class, to 1e-6 of the sum
_MOMENTS = _ORDER + 3  # M_0 to M_5 and two more for the derivatives of the last


def surfaces(
    examples: Examples, gammas: np.ndarray, temperatures: np.ndarray, num_bins: int, *, by_rank: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Surfaces of ECE and NLL [gammas, temperatures] over the grid."""
    examples = Examples(*map(np.asarray, examples))
    tail = fit_tail(gammas, examples.rows.shape[1])
    kernel = partial(
        _chunk_surface,
        gammas=gammas,
        coefficients=tail.coefficients,
        num_exact=tail.num_exact,
        num_bins=None if by_rank else num_bins,
    )
    num_blocks = -(-gammas.size * temperatures.size * len(examples.labels) // _KEPT) if by_rank else 1
    blocks = _blocks(temperatures, num_blocks)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = [
            _block(examples, partial(kernel, temperatures=block, nodes=nodes), num_bins, pool, by_rank)
            for block, nodes in zip(blocks, _nodes(blocks, tail), strict=True)
        ]
    gaps, nll = (np.concatenate(part)[: temperatures.size].T for part in zip(*parts, strict=True))
    return gaps.astype(np.float32), (nll / examples.weight.sum(dtype=np.float64)).astype(np.float32)


def _block(examples, kernel, num_bins, pool, by_rank):
    """ECE and sum of the negative log-likelihood [temperatures, gammas] of some temperatures."""
    starts = _starts(examples)
    chunks = pool.map(lambda start: jax.device_get(kernel(*_chunk(examples, start, starts.step))), starts)
    if by_rank:
        return _gaps_by_rank(list(chunks), examples.weight, num_bins, pool)
    sums, nll = 0.0, 0.0
    for chunk in chunks:  # added up as they come: all of them together would be larger than the logits
        sums, nll = sums + chunk.bins.astype(np.float64), nll + chunk.nll.astype(np.float64)
    return np.abs(sums).sum(axis=-1) / examples.weight.sum(dtype=np.float64), nll


def _gaps_by_rank(chunks, weight, num_bins, pool):
    """The same with equal-mass bins, which take the confidences of all examples at once."""
    times = np.round(weight).astype(np.int64)
    drawn = np.repeat(np.arange(times.size), times)
    correct = np.concatenate([chunk.correct for chunk in chunks])[drawn]

    def gap(i):
        confidence = np.concatenate([chunk.bins[i] for chunk in chunks], axis=1)[:, : times.size]
        confidence = confidence if (times == 1).all() else confidence[:, drawn]
        return np.abs(rank_bin_sums(confidence, correct, num_bins)).sum(axis=-1) / drawn.size

    nll = sum(chunk.nll.astype(np.float64) for chunk in chunks)
    return np.stack(list(pool.map(gap, range(len(nll))))), nll


def _starts(examples):
    """First examples of the chunks, all of one size, which leaves the last little padding."""
    num_examples, num_classes = examples.rows.shape
    size = min(max(_CHUNK // num_classes, _FEWEST), num_examples)
    return range(0, num_examples, -(-num_examples // -(-num_examples // size)))


def _chunk(examples, start, size):
    """Logits, labels and weights of `size` examples, padded with weight 0 where there are no more."""
    rows, labels, weight = (array[start : start + size] for array in examples)
    chunk = rows.astype(np.float32), labels, weight.astype(np.float32)
    return [np.pad(array, [(0, size - len(labels))] + [(0, 0)] * (array.ndim - 1)) for array in chunk]


def _blocks(temperatures, num_blocks):
    """[blocks, temperatures]: equally many in each, the last repeated where they do not come out even."""
    size = -(-temperatures.size // num_blocks)
    return np.pad(temperatures, (0, -temperatures.size % size), mode="edge").reshape(-1, size)


def _nodes(blocks, tail):
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
        Tested in tests/calibration/test_fast_search.py.
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


def _rank_ends(num_examples, num_bins):
    """Ranks at which the bins that are not empty end; the first `examples mod bins` bins hold one more."""
    step = np.arange(1, min(num_bins, num_examples) + 1)
    return step * (num_examples // num_bins) + np.minimum(step, num_examples % num_bins)


def _tie_correction(keys, bits, correct, end):
    """Number of right examples to add to the first `end` if ties keep their order; the keys put wrong ones first."""
    value = keys[end] | 1
    first = np.searchsorted(keys, value - 1)
    members = np.flatnonzero((bits | 1) == value)
    members = members[np.argsort(bits[members], kind="stable")][: end - first]
    return np.count_nonzero(correct[members]) - np.count_nonzero(keys[first:end] & 1)


class ChunkSurface(NamedTuple):
    """Sums over a chunk of examples, which add up to the surfaces."""

    nll: Array  # [temperatures, gammas] sum of weight times -log p_true, nats
    bins: Array  # [temperatures, gammas, bins] sum of weight times (correct - confidence), or all confidences
    correct: Array  # bool [examples]


class _Rows(NamedTuple):
    """Some examples, prepared once for all temperatures."""

    head: Array  # [exact, examples] logit minus the second largest, of the largest classes below the top
    below: Array  # [classes, examples] the same of all classes; _FAR at the top and in the head
    second: Array  # [examples] second largest logit minus the largest
    true: Array  # [examples] true class's logit minus the largest
    correct: Array  # bool [examples]


class _Shared(NamedTuple):
    """Numbers of one temperature that all gammas share; [examples] but for `ratio` and `log_complement` of the head."""

    head: Array  # [exact, examples] p / p_second
    head_log_complement: Array  # log(1 - p)
    head_ratio: Array  # -p log(p) / (1 - p), 0 to 1, as the other ratios
    sums: Array | None  # [terms, examples] of the tail
    log_second: Array
    log_top: Array
    log_complement: Array  # of the top
    ratio: Array  # of the top
    true_ratio: Array
    linear: Array  # log p_top - log p_true, 0 where correct
    slope: Array  # log(1 - p_top) - log(1 - p_true), 0 where correct


@partial(jax.jit, static_argnames=("num_exact", "num_bins"))
def _chunk_surface(
    logits, labels, weight, *, gammas, temperatures, coefficients, nodes, num_exact, num_bins
) -> ChunkSurface:
    """Sums over a chunk of examples, for every temperature and gamma.

    Coefficients and `num_exact` are those of `fit_tail`, `nodes` those of `interpolation_nodes`, None where there are
    no coefficients; without `num_bins` it gives the confidences [temperatures, gammas, examples].
    """
    tail = Tail(num_exact, coefficients)
    rows = _prepared(logits, labels, num_exact)
    moments = None if nodes is None else moments_at(nodes.x, rows.below)

    def at_temperature(point):
        temperature, *near = point
        sums = None if nodes is None else tail_sums(moments, *near)
        shared = _shared(rows, temperature, sums)
        rest = _rest(shared, gammas, tail)
        confidence, nll = jax.vmap(lambda h, gamma: _confidence_and_nll(shared, rows.correct, h, gamma))(rest, gammas)
        nll = matmul(nll, weight) + matmul(shared.linear, weight) - gammas * matmul(shared.slope, weight)
        return nll, confidence if num_bins is None else _bin_sums(confidence, weight, rows.correct, num_bins)

    points = (temperatures,) if nodes is None else (temperatures, nodes.left, nodes.weights)
    return ChunkSurface(*jax.lax.map(at_temperature, points), rows.correct)


def _prepared(logits, labels, num_exact):
    # without the barrier XLA on CPU turns the selection into a full sort, a hundred times slower
    largest, classes = jax.lax.optimization_barrier(jax.lax.top_k(logits, num_exact + 1))
    top, second = largest[:, :1], largest[:, 1:2]
    true = jnp.take_along_axis(logits, labels[:, None], axis=1)
    taken = logits.at[jnp.arange(len(logits), dtype=jnp.int32)[:, None], classes].set(-jnp.inf)
    head, below, second, true = (
        jnp.maximum(a - b, _FAR).T for a, b in ((largest[:, 1:], second), (taken, second), (second, top), (true, top))
    )
    return _Rows(head, below, second[0], true[0], classes[:, 0] == labels)


def _shared(rows, temperature, sums):
    head = jnp.exp(rows.head / temperature)
    total = jnp.sum(head, axis=0)
    if sums is not None:
        total = total + sums[0]
    second = rows.second / temperature
    log_odds = -(second + jnp.log(total))
    log_top, log_complement = jax.nn.log_sigmoid(log_odds), jax.nn.log_sigmoid(-log_odds)
    log_second = second + log_top
    bounded = jnp.clip(log_odds, -_SURE, _SURE)
    log_true = jnp.where(rows.correct, -1.0, rows.true / temperature + log_top)
    true_log_complement, true_ratio = _below_half(log_true, jnp.exp(log_true))
    return _Shared(
        head,
        *_below_half(rows.head / temperature + log_second[None], head * jnp.exp(log_second)[None]),
        sums,
        log_second,
        log_top,
        log_complement,
        jax.nn.softplus(-bounded) * jnp.exp(bounded),
        true_ratio,
        jnp.where(rows.correct, 0, log_top - log_true),
        jnp.where(rows.correct, 0, log_complement - true_log_complement),
    )


def _below_half(log_p, p):
    """The log of 1 - p and -p log(p) / (1 - p), for p up to 1/2."""
    return jnp.log1p(-p), -log_p * p / (1 - p)


def _rest(shared, gammas, tail):
    """[gammas, examples]: sum of h over all classes but the top, divided by p_second."""

    def of_head(gamma):
        ratio = jnp.exp(-gamma * shared.head_log_complement) / (1 + gamma * shared.head_ratio)
        return jnp.sum(shared.head * ratio, axis=0)

    rest = jax.vmap(of_head)(gammas)
    return rest if shared.sums is None else rest + tail_weights(shared.sums, shared.log_second, tail)


def _confidence_and_nll(shared, correct, rest, gamma):
    """Both [examples]; the NLL lacks what is linear in gamma, which is summed over examples first."""
    top = 1 + gamma * shared.ratio
    odds = jnp.exp(shared.log_second - shared.log_top + gamma * shared.log_complement) * rest * top
    wrong = (1 + odds) * (1 + gamma * shared.true_ratio) / top - 1
    return 1 / (1 + odds), jnp.log1p(jnp.where(correct, odds, wrong))


def _bin_sums(confidence, weight, correct, num_bins):
    """[gammas, bins]: sum over each bin's examples of weight times (correct - confidence)."""
    excess = weight[None] * (correct.astype(confidence.dtype)[None] - confidence)
    edges = jnp.asarray(bin_edges(num_bins, confidence.dtype)[1:-1])
    above = (confidence[:, None, :] > edges[None, :, None]).astype(confidence.dtype)
    beyond = jnp.einsum("gen,gn->ge", above, excess, precision="highest")
    total = jnp.sum(excess, axis=1, keepdims=True)
    beyond = jnp.concatenate([total, beyond, jnp.zeros_like(total)], axis=1)
    return beyond[:, :-1] - beyond[:, 1:]


class Tail(NamedTuple):
    """Split of the sum over classes: the largest few one by one, the others by the polynomial."""

    num_exact: int  # classes below the top that are computed one by one
    coefficients: np.ndarray | None  # float32 [gammas, terms]; None where no class is left over


class Nodes(NamedTuple):
    """Nodes at which M_b is computed, and the weights that interpolate it to each temperature."""

    x: np.ndarray  # float32 [nodes], equally spaced in log x
    left: np.ndarray  # int32 [temperatures, order + 1], the node to the left of (1 + a) / T
    weights: np.ndarray  # float32 [temperatures, terms, 2, 3], of M_b, M_(b + 1), M_(b + 2) at the two nodes


def fit_tail(gammas: np.ndarray, num_classes: int) -> Tail:
    """The least split for which the polynomial meets h(p) / p within 2e-6 of its value for every gamma given.

    The class of rank k has p <= 1 / k at any temperature, so the bound holds for all logits. Large gammas need more
    classes one by one, up to all of them. Tested in tests/calibration/test_fast_search.py.
    """
    num_exact = _FIRST
    while num_classes - 1 > 2 * num_exact:
        coefficients, error = _fitted(tuple(np.asarray(gammas, np.float64).tolist()), cap(num_exact))
        if error < _TOLERANCE:
            return Tail(num_exact, coefficients.astype(np.float32))
        num_exact *= 2
    return Tail(num_classes - 1, None)


def cap(num_exact: int) -> float:
    """The largest probability that a class can have after the top and `num_exact` more."""
    return 1 / (num_exact + 2)


def interpolation_nodes(temperatures: np.ndarray) -> Nodes:
    """Nodes around (1 + a) / T for all temperatures [temperatures] and a, with the weights of quintic Hermite."""
    powers = np.arange(1, _ORDER + 2)
    position = np.log(powers / np.asarray(temperatures, np.float64)[:, None]) / _SPACING
    first = np.floor(position.min())
    left = np.floor(position).astype(np.int32)
    x = np.exp(_SPACING * np.arange(first, left.max() + 2))
    basis = _hermite(position - left)  # [2, 3, temperatures, powers]
    weights = np.stack([_moment_weights(basis[..., a], b) / (1 + a) ** b for a, b in TERMS])
    return Nodes(x.astype(np.float32), left - np.int32(first), weights.transpose(3, 0, 1, 2).astype(np.float32))


def _hermite(t):
    """[2, 3, ...]: weights of value, first and second derivative in log x, at the left and the right node."""
    right = t**3 * np.stack([10 - 15 * t + 6 * t**2, -4 + 7 * t - 3 * t**2, (1 - 2 * t + t**2) / 2])
    s = 1 - t  # the left node is the right one mirrored, which turns the sign of the first derivative
    left = s**3 * np.stack([10 - 15 * s + 6 * s**2, 4 - 7 * s + 3 * s**2, (1 - 2 * s + s**2) / 2])
    spacings = np.array([1, _SPACING, _SPACING**2]).reshape(3, *[1] * t.ndim)
    return np.stack([left, right]) * spacings


def _moment_weights(basis, b):
    """[2, 3, temperatures]: from weights of M_b and its derivatives to weights of M_b, M_(b + 1), M_(b + 2)."""
    value, first, second = basis[:, 0], basis[:, 1], basis[:, 2]
    return np.stack([value + b * first + b**2 * second, first + (2 * b + 1) * second, second], axis=1)


def moments_at(x, below):
    """[nodes, moments, examples]: M_b at each node x [nodes], of `below` [classes, examples], differences of logits."""

    def at_node(x):
        z = jnp.maximum(below * x, _FARTHEST)
        z, power = jax.lax.optimization_barrier((z, jnp.exp(z)))  # without it every sum would compute exp anew
        sums = []
        for _ in range(_MOMENTS):
            sums.append(jnp.sum(power, axis=0))
            power = power * z
        return jnp.stack(sums)

    return jax.lax.map(at_node, x)


def tail_sums(moments, left, weights):
    """[terms, examples]: sums over classes of r^(1 + a) log(r)^b at one temperature, r = exp(below / T) = p / p_second.

    From the moments of `moments_at`, and one temperature's entries of `Nodes`.
    """
    sums = []
    for (a, b), weight in zip(TERMS, weights, strict=True):
        near = jax.lax.dynamic_slice_in_dim(moments, left[a], 2)[:, b : b + 3]
        sums.append(jnp.sum(weight[..., None] * near, axis=(0, 1)))
    return jnp.stack(sums)


def tail_weights(sums, log_second, tail):
    """[gammas, examples]: sum of h over the tail's classes divided by p_second, from `tail_sums`."""
    shift = jnp.clip(log_second - np.float32(np.log(cap(tail.num_exact))), _FARTHEST, None)
    moments = dict(zip(TERMS, sums, strict=True))
    shifted = []
    for a, b in TERMS:
        terms = [comb(b, c) * shift ** (b - c) * moments[a, c] for c in range(b + 1)]
        shifted.append(jnp.exp(a * shift) * sum(terms))
    return matmul(tail.coefficients, jnp.stack(shifted))


@cache  # a fit takes as long as a small search, and every fold asks for the same one
def _fitted(gammas, largest):
    """Coefficients [gammas, terms] by least squares of the relative error, and the largest such error."""
    share = np.concatenate([np.geomspace(1e-12, 1, 500), np.linspace(1e-3, 1, 500)])
    basis = np.stack([share**a * np.log(share) ** b for a, b in TERMS], axis=1)
    p = share * largest
    surprise = -p * np.log(p) / (1 - p)
    inverse = np.exp(np.outer(gammas, np.log1p(-p))) * (1 + np.outer(gammas, surprise))
    coefficients = np.stack(
        [np.linalg.lstsq(basis * scale[:, None], np.ones_like(p), rcond=1e-9)[0] for scale in inverse]
    )
    return coefficients, np.abs(coefficients @ basis.T * inverse - 1).max()
