"""Fast grid search on the CPU: the surfaces of `plain_surfaces` in `calibration/search.py`, 40 to 130 times as fast.

Of processor time, on the 5,000 points of the default grid on two cores of an AMD EPYC, the plain search takes 130 times
as much for 5,000 examples of 100 classes with bins of equal width (53 s against 0.40 s) and 100 times as much with bins
of equal mass; for 10,000 examples of 10 classes 50 times as much (38 s against 0.76 s), and 40.

What is gained: chunks of examples stay in a core's cache, a thread a core, and NumPy sorts; a temperature's work is
shared by all gammas, as only three numbers per example depend on gamma: the focal weights h of the top class, of the
true class, and the sum over all others; and no gamma enters the sums over improbable classes.

For p below about 1/4 the ratio f = h(p) / p of the focal map is to float32 a short polynomial in p and p log p, with
coefficients that depend on gamma alone. So the sum of h over all classes but the few largest costs the same for one
gamma as for fifty. The sums of r^(1 + a) ((1 + a) log r)^b that it needs, with r = exp(d / T), are the function
M_b(x) = sum of (x d)^b exp(x d) at x = (1 + a) / T. It is so smooth in log x that values at a few dozen nodes give it
at all temperatures.

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
from scipy.interpolate import BarycentricInterpolator

from focalgeo.calibration.maps import FAR
from focalgeo.calibration.metrics.binning import EQUAL
from focalgeo.checks import Examples
from focalgeo.trees import matmul
from focalgeo.types import inner_ends

_CHUNK = 2**16  # numbers in a table [classes, examples] worked on at once: a few such tables fit a core's cache
_FEWEST = 64  # examples in a chunk, where there are that many: below that the calls cost more than the work
_KEPT = 2**25  # confidences of all examples kept at once for equal-mass bins: 128 MB

_SURE = 80.0  # log-odds whose exponential float32 still holds

_ORDER = 5  # of the polynomial: the usual gammas then need one class beside the top
TERMS = tuple((a, b) for a in range(_ORDER + 1) for b in range(a + 1))  # (p / cap)^a ((1 + a) log(p / cap))^b
_TOLERANCE = 2e-6  # of f, relative: what float32 loses in a sum of many classes
FARTHEST = -80.0  # log(p / p_second) below which a class adds nothing that float32 can hold
_SPACING = 1 / 8  # of the nodes in log x
_NEAR = 8  # nodes that interpolate a value: right to 1e-8 for each class


def surfaces(
    examples: Examples, gammas: np.ndarray, temperatures: np.ndarray, num_bins: int, *, by_rank: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Surfaces of ECE and NLL [gammas, temperatures] over the grid."""
    num_examples, num_classes = examples.rows.shape
    num_exact, coefficients = fit_tail(gammas, num_classes)
    nodes = interpolation_nodes(temperatures)
    size = min(max(_CHUNK // num_classes, _FEWEST), num_examples)
    size = -(-num_examples // -(-num_examples // size))  # all of one size, which leaves the last little padding

    surface = partial(_chunk_surface, num_exact=num_exact, num_bins=None if by_rank else num_bins)

    def sums(start, block):
        points = temperatures[block], nodes.left[block], nodes.weights[block]
        index = np.arange(start, start + size)
        rows, labels, weight = (np.take(array, index, axis=0, mode="clip") for array in examples)
        rows = np.maximum(rows, rows.max(axis=1, keepdims=True) + FAR, dtype=np.float32)  # of -inf too
        chunk = rows, labels, np.where(index < num_examples, weight, 0).astype(np.float32)
        return jax.device_get(surface(*chunk, gammas, points, nodes.x, coefficients))

    parts, total = [], examples.weight.sum(dtype=np.float64)
    num_blocks = -(-gammas.size * temperatures.size * num_examples // _KEPT) if by_rank else 1
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for block in np.array_split(np.arange(temperatures.size), num_blocks):
            chunks = pool.map(partial(sums, block=block), range(0, num_examples, size))
            if by_rank:
                parts.append(_by_rank(list(chunks), examples, num_bins, pool))
                continue
            nll, bins = 0.0, 0.0
            # added up as they come: all of them together would be larger than the logits
            for of_nll, of_bins in chunks:
                nll, bins = nll + of_nll.astype(np.float64), bins + of_bins.astype(np.float64)
            parts.append((np.abs(bins).sum(axis=-1) / total, nll))
    gaps, nll = (np.concatenate(part).T for part in zip(*parts, strict=True))
    return gaps.astype(np.float32), (nll / total).astype(np.float32)


def _by_rank(chunks, examples, num_bins, pool):
    """ECE of equal-mass bins, which take the confidences of all examples at once, and sum of -log p of the labels."""
    # ranks are of examples, so one that counts twice stands there twice
    drawn = np.repeat(np.arange(len(examples.labels)), np.round(examples.weight).astype(np.int64))
    correct = (examples.rows.argmax(axis=1) == examples.labels)[drawn]

    def gap(index):
        confidence = np.concatenate([confidences[index] for _, confidences in chunks], axis=1)[:, drawn]
        return np.abs(rank_bin_sums(confidence, correct, num_bins)).sum(axis=-1) / drawn.size

    nll = sum(nll.astype(np.float64) for nll, _ in chunks)
    return np.stack(list(pool.map(gap, range(len(nll))))), nll


def rank_bin_sums(confidence: np.ndarray, correct: np.ndarray, num_bins: int) -> np.ndarray:
    """Sums of (correct - confidence) over each equal-count bin by rank that is not empty, as `equal_mass` forms them.

    Args:
        confidence: Float32 [rows, examples], 0 to 1. Equal confidences keep the order of the examples.
        correct: Bool [examples].
        num_bins: 1 or more.

    Returns:
        Float64 [rows, bins]. Sorted are integers of 64 bits, the confidence above the example's number and `correct`:
        six times as fast as an argsort. Tested in tests/calibration/test_fast_search.py.
    """
    examples = np.arange(len(correct))
    # numbers of one sign are ordered as their bits are, so one sort of integers orders value, place and outcome
    bits = np.ascontiguousarray(confidence, np.float32).view(np.int32).astype(np.int64)
    keys = np.sort(bits << 32 | examples << 1 | correct, axis=1)
    confidence = (keys >> 32).astype(np.int32).view(np.float32)
    excess = (keys & 1) - confidence
    bounds = np.array([part[0] for part in np.array_split(examples, min(num_bins, len(correct)))])
    sums = np.add.reduceat(excess, bounds, axis=1, dtype=np.float64)
    at_bound = confidence[:, bounds - 1][:, 1:]
    for row in np.flatnonzero((confidence[:, bounds[1:]] <= at_bound + np.float32(EQUAL)).any(axis=1)):  # parts equals
        first, end = (
            np.searchsorted(confidence[row], at_bound[row] + np.float32(sign * EQUAL), side)
            for sign, side in ((-1, "left"), (1, "right"))
        )
        cuts = np.maximum.accumulate(np.where(bounds[1:] - first <= end - bounds[1:], first, end))
        sums[row] = np.diff(np.append(0, np.cumsum(excess[row], dtype=np.float64))[[0, *cuts, len(correct)]])
    return sums


@partial(jax.jit, static_argnames=("num_exact", "num_bins"))
def _chunk_surface(logits, labels, weight, gammas, points, x, coefficients, *, num_exact, num_bins):
    """Sums over a chunk of examples, which add up to the surfaces, for every temperature and gamma.

    They are those of weight times -log p_true, in nats [temperatures, gammas], and of weight times (correct -
    confidence) in each bin [temperatures, gammas, bins], or without `num_bins` all confidences [temperatures, gammas,
    examples]. Points are the temperatures, each with its entries of `interpolation_nodes`, whose nodes are x.
    """
    # without the barrier XLA on CPU turns the selection into a full sort, a hundred times slower
    largest, classes = jax.lax.optimization_barrier(jax.lax.top_k(logits, num_exact + 1))
    top, second, correct = largest[:, :1], largest[:, 1:2], classes[:, 0] == labels
    true = jnp.take_along_axis(logits, labels[:, None], axis=1)
    # what is computed one by one leaves the tail
    others = logits.at[jnp.arange(len(logits), dtype=jnp.int32)[:, None], classes].set(-jnp.inf)
    head, below, second, true = (
        jnp.maximum(a - b, FAR).T for a, b in ((largest[:, 1:], second), (others, second), (second, top), (true, top))
    )
    moments, log_cap = moments_at(x, below), np.float32(np.log(cap(num_exact)))
    has_tail = num_exact + 1 < logits.shape[1]

    def at_temperature(point):
        temperature, left, weights = point
        sums = tail_sums(moments, left, weights) if has_tail else jnp.zeros((1, 1))
        relative, log_second = jnp.exp(head / temperature), second[0] / temperature  # to the second class, to the top
        log_odds = -(log_second + jnp.log(jnp.sum(relative, axis=0) + sums[0]))
        log_top, log_rest = jax.nn.log_sigmoid(log_odds), jax.nn.log_sigmoid(-log_odds)
        log_true = jnp.where(correct, -1.0, true[0] / temperature + log_top)
        # the product below tends to 1 as the top is sure: the bound keeps 0 times infinity out of it
        bounded = jnp.clip(log_odds, -_SURE, _SURE)
        top_ratio = jax.nn.softplus(-bounded) * jnp.exp(bounded)
        true_complement, true_ratio = _below_half(log_true)
        head_complement, head_ratio = _below_half(head / temperature + (log_second + log_top)[None])

        def at_gamma(gamma, tail):
            weights = relative * jnp.exp(-gamma * head_complement) / (1 + gamma * head_ratio)
            top_weight = 1 + gamma * top_ratio
            odds = jnp.exp(log_second + gamma * log_rest) * (jnp.sum(weights, axis=0) + tail) * top_weight
            # the NLL is log1p of what the true class lacks, so that a right and sure row keeps its digits
            wrong = (1 + odds) * (1 + gamma * true_ratio) / top_weight - 1
            shift = jnp.where(correct, 0, log_top - log_true - gamma * (log_rest - true_complement))
            return 1 / (1 + odds), jnp.log1p(jnp.where(correct, odds, wrong)) + shift

        tail = jnp.zeros((len(gammas), 1))
        if has_tail:
            tail = tail_weights(sums, log_second + log_top - log_cap, coefficients)
        confidence, nll = jax.vmap(at_gamma)(gammas, tail)
        return matmul(nll, weight), confidence if num_bins is None else _bin_sums(confidence, weight, correct, num_bins)

    return jax.lax.map(at_temperature, points)


def _below_half(log_p):
    """The log of 1 - p and -p log(p) / (1 - p), for p up to 1/2."""
    p = jnp.exp(log_p)
    return jnp.log1p(-p), -log_p * p / (1 - p)


def _bin_sums(confidence, weight, correct, num_bins):
    """[gammas, bins]: sum over each bin's examples of weight times (correct - confidence)."""
    excess = weight[None] * (correct.astype(confidence.dtype)[None] - confidence)
    ends = jnp.asarray(inner_ends(num_bins, confidence.dtype))
    above = (confidence[:, None, :] > ends[None, :, None]).astype(confidence.dtype)
    beyond = jnp.einsum("gen,gn->ge", above, excess, precision="highest")
    total = jnp.sum(excess, axis=1, keepdims=True)
    beyond = jnp.concatenate([total, beyond, jnp.zeros_like(total)], axis=1)
    return beyond[:, :-1] - beyond[:, 1:]


class Nodes(NamedTuple):
    """Nodes at which M_b is computed, and the weights that interpolate it to each temperature."""

    x: np.ndarray  # float32 [nodes], equally spaced in log x
    left: np.ndarray  # int32 [temperatures, order + 1], the first node near (1 + a) / T
    weights: np.ndarray  # float32 [temperatures, order + 1, near]


def fit_tail(gammas: np.ndarray, num_classes: int) -> tuple[int, np.ndarray]:
    """How many classes below the top are computed one by one, and coefficients [gammas, terms] for all others.

    The least number for which the polynomial meets h(p) / p within 2e-6 of its value for every gamma given. The class
    of rank k has p <= 1 / k at any temperature, so the bound holds for all logits. Large gammas need more classes one
    by one, up to all of them. Tested in tests/calibration/test_fast_search.py.
    """
    most = num_classes - 1
    # powers of two alone, since each number of exact classes is a program to compile
    for num_exact in (*(2**i for i in range(most.bit_length()) if 2 ** (i + 1) < most), most):
        coefficients, error = _fitted(tuple(np.asarray(gammas, np.float64).tolist()), cap(num_exact))
        if error < _TOLERANCE:
            break
    return num_exact, coefficients.astype(np.float32)


def cap(num_exact: int) -> float:
    """The largest probability that a class can have after the top and `num_exact` more."""
    return 1 / (num_exact + 2)


def interpolation_nodes(temperatures: np.ndarray) -> Nodes:
    """Nodes around (1 + a) / T for all temperatures [temperatures] and a, with the weights of Lagrange's polynomial."""
    position = np.log(np.arange(1, _ORDER + 2) / np.asarray(temperatures, np.float64)[:, None]) / _SPACING
    left = np.floor(position).astype(np.int32) - (_NEAR // 2 - 1)
    first = left.min()
    x = np.exp(_SPACING * np.arange(first, left.max() + _NEAR))
    weights = BarycentricInterpolator(np.arange(_NEAR), np.eye(_NEAR))(position - left)
    return Nodes(x.astype(np.float32), left - first, weights.astype(np.float32))


def moments_at(x, below):
    """[nodes, order + 1, examples]: M_b at each node x, of `below` [classes, examples], differences of logits."""

    def at_node(x):
        z = jnp.maximum(below * x, FARTHEST)
        z, power = jax.lax.optimization_barrier((z, jnp.exp(z)))  # without it every sum would compute exp anew
        sums = []
        for _ in range(_ORDER + 1):
            sums.append(jnp.sum(power, axis=0))
            power = power * z
        return jnp.stack(sums)

    return jax.lax.map(at_node, x)


def tail_sums(moments, left, weights):
    """[terms, examples]: sums over classes of r^(1 + a) ((1 + a) log r)^b, r = p / p_second, at one temperature.

    From the moments of `moments_at`, and one temperature's entries of `Nodes`.
    """
    sums = []
    for a, weight in enumerate(weights):
        near = jax.lax.dynamic_slice_in_dim(moments, left[a], _NEAR)[:, : a + 1]
        sums.append(sum(weight[i] * near[i] for i in range(_NEAR)))
    return jax.lax.optimization_barrier(jnp.concatenate(sums))  # without it each use would compute its sum anew


def tail_weights(sums, log_share, coefficients):
    """[gammas, examples]: sum of h over the tail's classes divided by p_second, from `tail_sums`.

    `log_share` is the log of p_second / cap.
    """
    shift, moments, terms = jnp.maximum(log_share, FARTHEST), dict(zip(TERMS, sums, strict=True)), []
    for a, b in TERMS:
        parts = [comb(b, c) * ((1 + a) * shift) ** (b - c) * moments[a, c] for c in range(b + 1)]
        terms.append(jnp.exp(a * shift) * sum(parts))
    return matmul(coefficients, jnp.stack(terms))


@cache  # a fit takes as long as a small search, and every fold asks for the same one
def _fitted(gammas, largest):
    """Coefficients [gammas, terms] by least squares of the relative error, and the largest such error."""
    # geometric points for probabilities that vanish, equal steps for those near the cap
    share = np.concatenate([np.geomspace(1e-12, 1, 500), np.linspace(1e-3, 1, 500)])
    basis = np.stack([share**a * ((1 + a) * np.log(share)) ** b for a, b in TERMS], axis=1)
    p = share * largest
    surprise = -p * np.log(p) / (1 - p)
    inverse = np.exp(np.outer(gammas, np.log1p(-p))) * (1 + np.outer(gammas, surprise))
    coefficients = np.stack(
        [np.linalg.lstsq(basis * scale[:, None], np.ones_like(p), rcond=1e-9)[0] for scale in inverse]
    )
    return coefficients, np.abs(coefficients @ basis.T * inverse - 1).max()
