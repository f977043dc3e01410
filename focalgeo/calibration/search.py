"""Search over a grid of (gamma, temperature) for focal temperature scaling, with ECE and NLL at every point.

Only three numbers per example depend on gamma: the weights h of the top class, of the true class, and the sum over all
others. What a temperature shares between gammas is computed once; examples pass in chunks, temperatures one at a time.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.calibration.binning import equal_mass, equal_width, expected_gap
from focalgeo.calibration.maps import log_focal_weight
from focalgeo.calibration.predictions import check_predictions
from focalgeo.types import Array, InputError

GAMMAS = (0.0, -0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)  # temperature scaling before the paper's nine
TEMPERATURES = tuple(i / 100 for i in range(1, 501))  # the paper's 0.01, 0.02, ..., 5.00
BINNINGS = {"ece": equal_width, "nll": equal_width, "adaptive_ece": equal_mass}

_CHUNK = 2**18  # numbers in a table [classes, examples] that are worked on at once: a few MB of cache
_FAR = -1e20  # a logit difference this far down has probability 0 at any temperature; unlike -inf, times 0 it is 0
_LARGEST_GAMMA = 100.0  # 2^gamma must stay within float32


class GridSearch(NamedTuple):
    """The best point of a grid and the whole surface."""

    gamma: Array
    temperature: Array
    value: Array  # the criterion at the best point
    ece: Array  # [gammas, temperatures]; equal-mass ECE where that is the criterion
    nll: Array  # [gammas, temperatures], nats


class _Rows(NamedTuple):
    """Some examples, prepared once for all temperatures."""

    below: Array  # [classes, examples] logit minus the second largest; _FAR at the top class
    second: Array  # [examples] second largest logit minus the largest
    true: Array  # [examples] true class's logit minus the largest
    correct: Array  # bool [examples]


def grid_search(
    logits: Array,
    labels: Array,
    gammas: Array = GAMMAS,
    temperatures: Array = TEMPERATURES,
    *,
    criterion: str = "ece",
    num_bins: int = 15,
    mask: Array | None = None,
) -> GridSearch:
    """The (gamma, temperature) of `focal_temperature_scaling` with the least ECE or NLL over a grid.

    Args:
        logits: Float [examples, classes], of a validation split.
        labels: Int [examples].
        gammas: Float [gammas], above -1 and at most 100. With 0 among them the best point is never worse than
            temperature scaling alone on the same examples.
        temperatures: Float [temperatures], above 0.
        criterion: "ece" (bins of equal width), "adaptive_ece" (equal mass) or "nll".
        num_bins: Bins of the ECE, 1 or more.
        mask: Bool [examples], or how often each example counts; None counts each once.

    Returns:
        GridSearch. Equal values go to the temperature nearest 1 in |log T|, then to the smallest |gamma|, then to the
        first. The surfaces agree with `ece` and `nll` of `focal_temperature_scaling` to 1e-5, but where a confidence
        lies within rounding of a bin's edge; held by tests/calibration/test_search.py. Not for use inside jit: the
        arguments are checked.

    Raises:
        InputError: predictions that `check_predictions` refuses, a value out of range, an unknown criterion, an empty
        mask.

    Source: Komisarenko & Kull, arXiv 2408.11598, sections 4.2 and 5.1 (their grid has no gamma = 0).
    """
    gammas, temperatures = np.asarray(gammas, np.float32), np.asarray(temperatures, np.float32)
    _check_grid(gammas, temperatures, criterion)
    weight = np.ones(np.shape(labels), np.float32) if mask is None else np.asarray(mask, np.float32)
    counted = _counted(weight, labels)
    check_predictions(np.asarray(logits)[counted], np.asarray(labels)[counted])
    logits = jnp.asarray(logits, jnp.float32)
    return _search(logits, jnp.asarray(labels, jnp.int32), gammas, temperatures, weight, criterion, num_bins)


def best_point(
    found: GridSearch, gammas: Array, temperatures: Array, *, criterion: str = "ece", gamma: float | None = None
) -> GridSearch:
    """The best point of surfaces already computed, by another criterion or for one gamma alone.

    One search serves four fits: with gamma=0 it gives temperature scaling from the very numbers of focal temperature
    scaling, so that the latter is never worse on the same examples (two searches differ in the last bit).

    Args:
        found: What `grid_search` returned for `gammas` and `temperatures`.
        gammas: Float [gammas].
        temperatures: Float [temperatures].
        criterion: "nll" or the ECE of the search ("ece" and "adaptive_ece" both stand for found.ece).
        gamma: Only points of this gamma are considered; None considers all.

    Raises:
        InputError: unknown criterion, or `gamma` is not among `gammas`.
    """
    gammas, temperatures = np.asarray(gammas, np.float32), np.asarray(temperatures, np.float32)
    _check_grid(gammas, temperatures, criterion)
    allowed = np.ones(gammas.shape, bool) if gamma is None else gammas == np.float32(gamma)
    if not allowed.any():
        raise InputError(f"gamma {gamma} is not on the grid {gammas.tolist()}: search with it, or choose one of these")
    surface = found.nll if criterion == "nll" else found.ece
    return _best(gammas, temperatures, found.ece, found.nll, jnp.where(allowed[:, None], surface, jnp.inf))


@partial(jax.jit, static_argnames=("criterion", "num_bins"))
def _search(
    logits: Array, labels: Array, gammas: Array, temperatures: Array, weight: Array, criterion: str, num_bins: int
) -> GridSearch:
    size = _chunk_size(*logits.shape)
    pad = -logits.shape[0] % size
    weight = jnp.pad(weight, (0, pad))
    logits = jnp.where(weight[:, None] > 0, jnp.pad(logits, ((0, pad), (0, 0))), 0)
    rows = _prepared(logits.reshape(-1, size, logits.shape[1]), jnp.pad(labels, (0, pad)).reshape(-1, size))
    correct, total = rows.correct.ravel(), jnp.sum(weight)

    def at_temperature(temperature: Array) -> tuple[Array, Array]:
        log_confidence, log_true = jax.lax.map(lambda chunk: _log_probs_at(chunk, gammas, temperature), rows)
        log_confidence, log_true = (jnp.moveaxis(a, 1, 0).reshape(len(gammas), -1) for a in (log_confidence, log_true))
        bins = jax.vmap(lambda c: BINNINGS[criterion](c, correct, weight, num_bins))(jnp.exp(log_confidence))
        return jax.vmap(expected_gap)(bins), -(log_true @ weight) / total

    ece, nll = (surface.T for surface in jax.lax.map(at_temperature, temperatures))
    return _best(gammas, temperatures, ece, nll, nll if criterion == "nll" else ece)


@jax.vmap
def _prepared(logits: Array, labels: Array) -> _Rows:
    predicted = jnp.argmax(logits, axis=-1)
    is_top = jax.nn.one_hot(predicted, logits.shape[-1], dtype=bool)
    others = jnp.where(is_top, -jnp.inf, logits)
    top, second = jnp.max(logits, axis=-1), jnp.max(others, axis=-1)
    true = jnp.sum(jnp.where(jax.nn.one_hot(labels, logits.shape[-1], dtype=bool), logits, 0), axis=-1)
    below = jnp.maximum(others - second[:, None], _FAR).T
    return _Rows(below, jnp.maximum(second - top, _FAR), jnp.maximum(true - top, _FAR), predicted == labels)


def _log_probs_at(rows: _Rows, gammas: Array, temperature: Array) -> tuple[Array, Array]:
    """Log-probability of the predicted and of the true class, both [gammas, examples]."""
    relative = jnp.exp(rows.below / temperature)
    second = rows.second / temperature
    log_odds = -(second + jnp.log(jnp.sum(relative, axis=0)))
    log_top = jax.nn.log_sigmoid(log_odds)
    log_second = second + log_top
    p = relative * jnp.exp(log_second)[None]
    log_complement = jnp.log1p(-p)
    ratio = -(rows.below / temperature + log_second[None]) * p / (1 - p)
    log_p_true = jnp.where(rows.correct, -1.0, rows.true / temperature + log_top)

    def at(gamma: Array) -> tuple[Array, Array]:
        others = jnp.sum(relative * jnp.exp(-gamma * log_complement) / (1 + gamma * ratio), axis=0)
        top = log_focal_weight(log_top, jax.nn.log_sigmoid(-log_odds), gamma)
        log_confidence = jax.nn.log_sigmoid(top - (log_second + jnp.log(others)))
        true = log_focal_weight(log_p_true, jnp.log1p(-jnp.exp(log_p_true)), gamma)
        return log_confidence, log_confidence + jnp.where(rows.correct, 0, true - top)

    return jax.vmap(at)(gammas)


def _best(gammas: Array, temperatures: Array, ece: Array, nll: Array, surface: Array) -> GridSearch:
    """The least value of the surface, ties by a fixed order of preference."""
    gamma = jnp.repeat(gammas, len(temperatures))
    temperature = jnp.tile(temperatures, len(gammas))
    order = jnp.lexsort((jnp.abs(gamma), jnp.abs(jnp.log(temperature))))
    best = order[jnp.argmin(surface.ravel()[order])]
    return GridSearch(gamma[best], temperature[best], surface.ravel()[best], ece, nll)


def _chunk_size(num_examples: int, num_classes: int) -> int:
    """Examples in a chunk, so that chunks are of one size and the last is padded by little."""
    chunks = -(-num_examples * num_classes // _CHUNK)
    return -(-num_examples // chunks)


def _counted(weight: np.ndarray, labels: Array) -> np.ndarray:
    if weight.shape != np.shape(labels):
        raise InputError(f"mask has shape {weight.shape}, labels {np.shape(labels)}: give one entry for each label")
    if weight.size and not weight.any():
        raise InputError("the mask leaves no example: give at least one")
    return weight > 0


def _check_grid(gammas: np.ndarray, temperatures: np.ndarray, criterion: str) -> None:
    if criterion not in BINNINGS:
        raise InputError(f"unknown criterion {criterion!r}: choose one of {', '.join(BINNINGS)}")
    if gammas.ndim != 1 or temperatures.ndim != 1 or not (gammas.size and temperatures.size):
        shapes = f"gammas have shape {gammas.shape}, temperatures {temperatures.shape}"
        raise InputError(f"{shapes}: give two non-empty lists")
    if not ((gammas > -1) & (gammas <= _LARGEST_GAMMA)).all():
        raise InputError(f"gammas run from {gammas.min()} to {gammas.max()}: give values above -1 and at most 100")
    if not ((temperatures > 0) & np.isfinite(temperatures)).all():
        raise InputError(f"temperatures run from {temperatures.min()} to {temperatures.max()}: give values above 0")
