"""What training does to single examples: how sure the network is of each, and how hard each pulls at its last layer."""

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import calibration, parallel
from focalgeo.calibration.binning import equal_width
from focalgeo.evaluation.last_layer import INTERMEDIATES, find_last_layer, weight_norms
from focalgeo.evaluation.problem import as_argument
from focalgeo.evaluation.rows import make_row
from focalgeo.types import Array, Batch, PyTree, TrainState

BY_OUTCOME = ("nll", "entropy", "true_class_probability", "gradient_norm")
OUTCOMES = {"correct": True, "wrong": False}
PER_DECADE = 4
NORM_EDGES = np.concatenate([[0.0], 10.0 ** (np.arange(-12 * PER_DECADE, 4 * PER_DECADE + 1) / PER_DECADE)])


class Diagnosis(NamedTuple):
    """What a network makes of each example, [examples] of one member or [members, examples]."""

    nll: Array  # -log p_y in nats
    entropy: Array  # of the softmax, in nats
    true_class_probability: Array  # p_y
    confidence: Array  # the largest probability
    correct: Array  # bool, the first largest logit is the true class's
    gradient_norm: Array  # of the example's own training loss, with respect to the last layer's kernel


def diagnose(
    apply: Callable, loss: Callable, states: TrainState, *, batches: Iterable[Batch]
) -> tuple[Diagnosis, np.ndarray]:
    """`Diagnosis` [members, examples] of all unmasked examples in order, and |W| [members] of the last layer's kernel.

    The last layer is linear, z = h W + b, so that an example's gradient in W is the outer product of h and dl/dz, and
    its Frobenius norm is |h| |dl/dz| without its being formed; the bias is left out of it, and of |W|. Activations of
    one batch alone are in memory.

    Args:
        apply: flax's signature; apply(variables, x, mutable=["intermediates"]) gives (logits, sown), where somewhere in
            sown "features" (h, [..., width] beside logits [..., classes]) and "kernel" (W, [width, outputs]) stand. W
            gives the last `outputs` logits; others, as in a logistic model's [0, w.x], are constant.
        loss: (logits, labels, loss_values) -> [...] in nats, the training loss without what is not of single examples
            (penalties on the batch or the parameters).
        states: params, model_state and loss_values of all members, leaves [members, ...].
        batches: of one shape; mask [examples], or [examples, nodes] for logits [examples, nodes, classes].

    Raises:
        InputError: the network sows no last layer, or several.

    Accuracy: float32 relative accuracy of every number, also where p_y rounds to 1 and where squares of a gradient
    would underflow. Norms against dense per-example gradients, and against gradient_ratio(p_y) times cross-entropy's;
    tests/evaluation/test_diagnostics.py.

    Source: Mukhoti et al., arXiv 2002.09437, Figs. 1, 3 and 4, and Proposition 1. They do not say whether their
    "gradient norms of the last linear layer" hold the bias.
    """
    variables = {"params": states.params, **states.model_state}
    variables, loss_values = parallel.replicated((variables, states.loss_values))
    forward, found, example = _compiled(apply, loss), [], None
    for batch in batches:
        labels = np.where(batch.mask, batch.y, 0)
        numbers = forward((variables, loss_values), batch._replace(x=(batch.x, labels)))
        found.append(numbers[batch.mask])
        example = batch.x[:1]
    columns = np.moveaxis(np.concatenate(found), (0, 1), (2, 1))
    diagnosis = Diagnosis(*columns)._replace(correct=columns[Diagnosis._fields.index("correct")] > 0)
    return diagnosis, jax.device_get(weight_norms(as_argument(apply), variables, example))


@functools.lru_cache(maxsize=8)
def _compiled(apply: Callable, loss: Callable) -> Callable:
    """The forward of `parallel.pmapped_forward` to numbers [examples, ..., members, fields], the same for all epochs.

    Each device computes its own examples by itself: under jit, members' convolutions would gather all of them.
    """

    def forward(member: PyTree, inputs: tuple[Array, Array]) -> Array:
        variables, loss_values = member
        x, labels = inputs
        logits, sown = apply(variables, x, mutable=[INTERMEDIATES])
        features, kernel = find_last_layer(sown)
        gradient = jax.grad(lambda point: jnp.sum(loss(point, labels, loss_values)))(logits)
        pull = _norm(gradient[..., -kernel.shape[-1] :]) * _norm(features.astype(gradient.dtype))
        return jnp.stack([each.astype(jnp.float32) for each in _judge(logits, labels, pull)], axis=-1)

    return parallel.pmapped_forward(jax.vmap(forward, in_axes=(0, None), out_axes=-2))


def _judge(logits: Array, labels: Array, gradient_norm: Array) -> Diagnosis:
    log_probs = calibration.temperature_scaling(logits, 1.0)
    is_true = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    nll = -jnp.sum(jnp.where(is_true, log_probs, 0), axis=-1)
    terms = jnp.where(log_probs > -jnp.inf, jnp.exp(log_probs) * log_probs, 0)
    return Diagnosis(
        nll=nll,
        entropy=-jnp.sum(terms, axis=-1),
        true_class_probability=jnp.exp(-nll),
        confidence=jnp.exp(jnp.max(log_probs, axis=-1)),
        correct=jnp.argmax(logits, axis=-1) == labels,
        gradient_norm=gradient_norm,
    )


def _norm(vectors: Array) -> Array:
    """Euclidean norm over the last axis, taken of multiples of the largest entry, whose squares do not underflow."""
    largest = jnp.max(jnp.abs(vectors), axis=-1)
    unit = jnp.where(largest > 0, largest, 1)
    return largest * jnp.linalg.norm(vectors / unit[..., None], axis=-1)


def diagnosis_rows(diagnosis: Diagnosis, *, split: str, num_bins: int) -> list[dict]:
    """Rows of one member on one split: means by outcome, a histogram of gradient norms, and reliability as trained.

    "nll", "entropy", "true_class_probability" and "gradient_norm" are means over n examples: of all without an
    "outcome", and of those predicted "correct" and "wrong". Weighted by n both parts average to the whole; an outcome
    that no example has gets no row. "gradient_norm_histogram" is the share of all examples whose norm is in [lower,
    upper), for the bins of `NORM_EDGES` that are not empty: four a decade, the first from 0 to 1e-12, the last holding
    all above it, the same for every epoch. "reliability" is as `calibration_rows` have it, without a map, with the
    "share" of the examples in each bin.
    """
    place = {"split": split}
    return (
        _mean_rows(diagnosis, place)
        + _histogram_rows(diagnosis.gradient_norm, place)
        + _bin_rows(diagnosis, place, num_bins)
    )


def _mean_rows(diagnosis: Diagnosis, place: dict) -> list[dict]:
    parts = [(place, np.ones_like(diagnosis.correct))]
    parts += [({**place, "outcome": name}, diagnosis.correct == right) for name, right in OUTCOMES.items()]
    rows = []
    for name in BY_OUTCOME:
        values = np.asarray(getattr(diagnosis, name), np.float64)
        for where, chosen in parts:
            if chosen.any():
                row = make_row({"name": name, **where}, {"value": values[chosen].mean()})
                rows.append({**row, "n": int(chosen.sum())})
    return rows


def _histogram_rows(norms: np.ndarray, place: dict) -> list[dict]:
    index = np.clip(np.searchsorted(NORM_EDGES, norms, side="right") - 1, 0, len(NORM_EDGES) - 2)
    counts = np.bincount(index, minlength=len(NORM_EDGES) - 1)
    rows = []
    for number in np.flatnonzero(counts):
        ends = {"lower": NORM_EDGES[number], "upper": NORM_EDGES[number + 1]}
        where = {"name": "gradient_norm_histogram", **place, "bin": int(number)}
        rows.append({**make_row(where, {"value": counts[number] / len(norms), **ends}), "n": len(norms)})
    return rows


def _bin_rows(diagnosis: Diagnosis, place: dict, num_bins: int) -> list[dict]:
    bins, low, high = jax.device_get(_bins(diagnosis.confidence, diagnosis.correct, num_bins=num_bins))
    columns = {"lower": bins.lower, "upper": bins.upper, "confidence": bins.confidence, "value": bins.accuracy}
    columns |= {"low": low, "high": high, "share": bins.count / len(diagnosis.confidence)}
    rows = []
    for number in np.flatnonzero(bins.count):
        numbers = {column: values[number] for column, values in columns.items()}
        row = make_row({"name": "reliability", **place, "bin": int(number)}, numbers)
        rows.append({**row, "n": int(bins.count[number])})
    return rows


@functools.partial(jax.jit, static_argnames="num_bins")
def _bins(confidence: Array, correct: Array, *, num_bins: int) -> tuple[calibration.Reliability, Array, Array]:
    bins = equal_width(confidence, correct, jnp.ones_like(confidence), num_bins)
    return bins, *calibration.wilson_interval(bins.accuracy * bins.count, bins.count)
