"""Predictions of all examples, and diagnostics of each: confidence, entropy, gradient norm at the last layer."""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from focalgeo import calibration, parallel
from focalgeo.calibration.metrics.binning import equal_width
from focalgeo.calibration.study.metric_rows import reliability_rows
from focalgeo.rows import OUTCOMES, Diagnostic, HistogramBin, Row, finite
from focalgeo.types import Array, Batch, InputError, Predictions, PyTree, TrainState

BY_OUTCOME = ("nll", "entropy", "true_class_probability", "gradient_norm")
# Four bins a decade: norms differ by orders of magnitude, and a bin is a factor of 1.8.
PER_DECADE = 4
INTERMEDIATES = "intermediates"  # flax's name of the collection
NORM_EDGES = np.concatenate([[0.0], 10.0 ** (np.arange(-12 * PER_DECADE, 4 * PER_DECADE + 1) / PER_DECADE)])
PROBABILITY_EDGES = np.arange(26) / 25
_equal_width = jax.jit(equal_width, static_argnums=3)


class Diagnosis(NamedTuple):
    """Diagnostics of each example: arrays [examples] of one member, or [members, examples]."""

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
        InputError: the network sows no last layer, or several; the batches hold no example.

    Accuracy: float32 relative accuracy of every number, also where p_y rounds to 1 and where squares of a gradient
    would underflow. Norms against dense per-example gradients, and against gradient_ratio(p_y) times cross-entropy's;
    tests/evaluation/test_diagnostics.py.

    Source: Mukhoti et al., ICLR 2020 submission, Figs. 1, 3 and 4, and Proposition 1. They do not say whether their
    "gradient norms of the last linear layer" hold the bias.
    """
    variables = {"params": states.params, **states.model_state}
    inputs = (batch._replace(x=(batch.x, batch.y)) for batch in batches)
    numbers, _ = _of_examples(_compiled(apply, loss), (variables, states.loss_values), inputs)
    *columns, weight_norm = np.moveaxis(numbers, (0, 1), (2, 1))
    diagnosis = Diagnosis(*columns)
    return diagnosis._replace(correct=diagnosis.correct > 0), weight_norm[:, 0]


@functools.lru_cache(maxsize=8)
def _compiled(apply, loss):
    """The forward of `parallel.pmapped_forward` to numbers [examples, ..., members, fields], the same for all epochs.

    Each device computes its own examples by itself: under jit, members' convolutions would gather all of them.
    """

    def forward(member, inputs):
        variables, loss_values = member
        x, labels = inputs
        logits, sown = apply(variables, x, mutable=[INTERMEDIATES])
        features, kernel = find_last_layer(sown)
        # The gradient in the last layer's kernel is the outer product of its input and this one, and is not formed.
        gradient = jax.grad(lambda point: jnp.sum(loss(point, labels, loss_values)))(logits)
        gradient_norm = _norm(gradient[..., -kernel.shape[-1] :]) * _norm(features.astype(gradient.dtype))
        log_probs = calibration.temperature_scaling(logits, 1.0)
        nll = -jnp.sum(log_probs, axis=-1, where=jax.nn.one_hot(labels, logits.shape[-1], dtype=bool))
        terms = jnp.where(log_probs > -jnp.inf, jnp.exp(log_probs) * log_probs, 0)  # 0 log 0 is 0
        diagnosis = Diagnosis(
            nll=nll,
            entropy=-jnp.sum(terms, axis=-1),
            true_class_probability=jnp.exp(-nll),
            confidence=jnp.exp(jnp.max(log_probs, axis=-1)),
            correct=jnp.argmax(logits, axis=-1) == labels,
            gradient_norm=gradient_norm,
        )
        numbers = (*diagnosis, jnp.broadcast_to(jnp.linalg.norm(kernel), gradient_norm.shape))
        return jnp.stack([number.astype(jnp.float32) for number in numbers], axis=-1)

    return parallel.pmapped_forward(jax.vmap(forward, in_axes=(0, None), out_axes=-2))


def _of_examples(forward, variables, batches):
    """The outputs and labels of all batches' examples, one or more."""
    variables, outputs, labels = parallel.replicated(variables), [], []
    for batch in batches:
        outputs.append(forward(variables, batch)[batch.mask])
        labels.append(batch.y[batch.mask])
    if not any(map(len, labels)):
        raise InputError("batches hold no example that counts: give one or more")
    return np.concatenate(outputs), np.concatenate(labels)


def _norm(vectors):
    """Euclidean norm over the last axis, taken of multiples of the largest entry, whose squares do not underflow."""
    largest = jnp.max(jnp.abs(vectors), axis=-1)
    return largest * jnp.linalg.norm(vectors / jnp.where(largest > 0, largest, 1)[..., None], axis=-1)


def diagnosis_rows(diagnosis: Diagnosis, *, split: str, num_bins: int) -> list[Row]:
    """Rows of one member on one split: means by outcome, histograms of p_y and gradient norms, reliability as trained.

    The rows of `BY_OUTCOME` are means over n examples: of all without an "outcome", and of those predicted "correct"
    and "wrong"; weighted by n, these average to that of all. An outcome of no example has no row.
    "gradient_norm_histogram" is the share of all examples whose norm is in [lower, upper), for the bins of `NORM_EDGES`
    that are not empty: four a decade, the first from 0 to 1e-12, the last holding all above it, the same for every
    epoch; "true_class_probability_histogram" is that of p_y in 25 even bins, the last holding 1. "reliability" is as in
    `calibration_rows`, of no method, with the "share" of the examples in each bin.
    """
    rows, total = [], len(diagnosis.confidence)
    masks = zip((None, *OUTCOMES), (np.ones(total, bool), diagnosis.correct, ~diagnosis.correct), strict=True)
    for (outcome, mask), name in itertools.product(masks, BY_OUTCOME):
        if mask.any():
            mean = np.mean(getattr(diagnosis, name)[mask], dtype=np.float64)
            rows.append(Diagnostic(name, mean, n=mask.sum(), split=split, outcome=outcome))
    for name, edges in (("gradient_norm", NORM_EDGES), ("true_class_probability", PROBABILITY_EDGES)):
        counts, _ = np.histogram(np.clip(getattr(diagnosis, name), edges[0], edges[-1]), edges)
        rows += [
            HistogramBin(f"{name}_histogram", counts[k] / total, k, edges[k], edges[k + 1], n=total, split=split)
            for k in np.flatnonzero(counts)
        ]
    confidence = diagnosis.confidence
    bins = _equal_width(confidence, diagnosis.correct, np.ones_like(confidence), num_bins)
    return [*map(finite, rows), *reliability_rows(bins, split=split, total=total)]


def find_last_layer(sown: Mapping) -> tuple[Float[Array, "*examples width"], Float[Array, "width outputs"]]:
    """The last layer's input and kernel, wherever in the sown collections they are.

    Raises:
        InputError: there is none, or more than one.
    """
    leaves = jax.tree_util.tree_leaves_with_path(sown)  # sown are tuples
    features, kernels = ([leaf for path, leaf in leaves if path[-2].key == name] for name in ("features", "kernel"))
    if not len(features) == len(kernels) == 1:
        raise InputError(
            f"config.diagnostics: the network sows {len(features)} features and {len(kernels)} kernel of a last layer, "
            "one of each is needed; set diagnostics.every=0, or let its last layer sow them"
        )
    return features[0], kernels[0]


def predict(forward: Callable, variables: PyTree, batches: Iterable[Batch]) -> Predictions:
    """Logits of every example once, in order; forward is compiled by parallel.pmapped_forward.

    Raises:
        InputError: the batches hold no example.
    """
    return Predictions(*_of_examples(forward, variables, batches))
