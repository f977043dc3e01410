"""Confidence, bins and NLL of some examples at every point of a (gamma, temperature) grid.

Only three numbers per example depend on gamma: the focal weights h of the top class, of the true class, and the sum
over all others. What a temperature shares between gammas is computed once, and of the others only the few largest
are taken one by one (see `tail`).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from focalgeo.calibration.binning import bin_edges
from focalgeo.calibration.fast_search.tail import Nodes, Tail, moments_at, tail_sums, tail_weights
from focalgeo.precision import matmul
from focalgeo.types import Array

_FAR = -1e20  # a logit difference this far down has probability 0 at any temperature; unlike -inf, times 0 it is 0
_SURE = 80.0  # log-odds whose exponential float32 still holds


class ChunkSurface(NamedTuple):
    """Sums over a chunk of examples, which add up to the surfaces."""

    nll: Array  # [temperatures, gammas] sum of weight times -log p_true, nats
    bins: (
        Array  # [temperatures, gammas, bins] sum of weight times (correct - confidence); or the confidences themselves
    )
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
def chunk_surface(
    logits: Array,
    labels: Array,
    weight: Array,
    *,
    gammas: Array,
    temperatures: Array,
    coefficients: Array | None,
    nodes: Nodes | None,
    num_exact: int,
    num_bins: int | None,
) -> ChunkSurface:
    """Sums over a chunk of examples, for every temperature and gamma.

    Args:
        logits: Float32 [examples, classes].
        labels: Int32 [examples].
        weight: Float32 [examples]; where it is 0 the others may hold anything.
        gammas: Float32 [gammas].
        temperatures: Float32 [temperatures].
        coefficients: Of `fit_tail`, with `num_exact`.
        nodes: Of `interpolation_nodes` for these temperatures; None where there are no coefficients.
        num_exact: Of `fit_tail`.
        num_bins: Bins of equal width; None asks for the confidences [temperatures, gammas, examples].
    """
    tail = Tail(num_exact, coefficients)
    counted = weight > 0
    rows = _prepared(jnp.where(counted[:, None], logits, 0), jnp.where(counted, labels, 0), num_exact)

    moments = None if nodes is None else moments_at(nodes.x, rows.below)

    def at_temperature(point: tuple) -> tuple[Array, Array]:
        temperature, *near = point
        sums = None if nodes is None else tail_sums(moments, *near)
        shared = _shared(rows, temperature, sums)
        rest = _rest(shared, gammas, tail)
        confidence, nll = jax.vmap(lambda h, gamma: _confidence_and_nll(shared, rows.correct, h, gamma))(rest, gammas)
        nll = matmul(nll, weight) + matmul(shared.linear, weight) - gammas * matmul(shared.slope, weight)
        if num_bins is None:
            return nll, confidence
        return nll, _bin_sums(confidence, weight, rows.correct, num_bins)

    points = (temperatures,) if nodes is None else (temperatures, nodes.left, nodes.weights)
    return ChunkSurface(*jax.lax.map(at_temperature, points), rows.correct)


def _prepared(logits: Array, labels: Array, num_exact: int) -> _Rows:
    # without the barrier XLA on CPU turns the selection into a full sort, a hundred times slower
    largest, classes = jax.lax.optimization_barrier(jax.lax.top_k(logits, num_exact + 1))
    top, second = largest[:, :1], largest[:, 1:2]
    true = jnp.take_along_axis(logits, labels[:, None], axis=1)
    taken = logits.at[jnp.arange(len(logits), dtype=jnp.int32)[:, None], classes].set(-jnp.inf)
    head, below, second, true = (
        jnp.maximum(a - b, _FAR).T for a, b in ((largest[:, 1:], second), (taken, second), (second, top), (true, top))
    )
    return _Rows(head, below, second[0], true[0], classes[:, 0] == labels)


def _shared(rows: _Rows, temperature: Array, sums: Array | None) -> _Shared:
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


def _below_half(log_p: Array, p: Array) -> tuple[Array, Array]:
    """The log of 1 - p and -p log(p) / (1 - p), for p up to 1/2."""
    return jnp.log1p(-p), -log_p * p / (1 - p)


def _rest(shared: _Shared, gammas: Array, tail: Tail) -> Array:
    """[gammas, examples]: sum of h over all classes but the top, divided by p_second."""

    def of_head(gamma: Array) -> Array:
        ratio = jnp.exp(-gamma * shared.head_log_complement) / (1 + gamma * shared.head_ratio)
        return jnp.sum(shared.head * ratio, axis=0)

    rest = jax.vmap(of_head)(gammas)
    return rest if shared.sums is None else rest + tail_weights(shared.sums, shared.log_second, tail)


def _confidence_and_nll(shared: _Shared, correct: Array, rest: Array, gamma: Array) -> tuple[Array, Array]:
    """Both [examples]; the NLL lacks what is linear in gamma, which is summed over examples first."""
    top = 1 + gamma * shared.ratio
    odds = jnp.exp(shared.log_second - shared.log_top + gamma * shared.log_complement) * rest * top
    wrong = (1 + odds) * (1 + gamma * shared.true_ratio) / top - 1
    return 1 / (1 + odds), jnp.log1p(jnp.where(correct, odds, wrong))


def _bin_sums(confidence: Array, weight: Array, correct: Array, num_bins: int) -> Array:
    """[gammas, bins]: sum over each bin's examples of weight times (correct - confidence)."""
    excess = weight[None] * (correct.astype(confidence.dtype)[None] - confidence)
    edges = jnp.asarray(bin_edges(num_bins, confidence.dtype)[1:-1])
    above = (confidence[:, None, :] > edges[None, :, None]).astype(confidence.dtype)
    beyond = jnp.einsum("gen,gn->ge", above, excess, precision="highest")
    total = jnp.sum(excess, axis=1, keepdims=True)
    beyond = jnp.concatenate([total, beyond, jnp.zeros_like(total)], axis=1)
    return beyond[:, :-1] - beyond[:, 1:]
