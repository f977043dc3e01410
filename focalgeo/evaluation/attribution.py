"""Attribution of a loss's trace and lambda_max to its parts, and the example probabilities that explain them."""

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Float, Int

from focalgeo import curvature, parallel
from focalgeo.calibration.metrics.binning import of_label
from focalgeo.evaluation.curvature import Curvature, Problem, count_examples, on_device
from focalgeo.rows import AttributionPart, Diagnostic, Row, Trace, finite
from focalgeo.trees import at_highest
from focalgeo.types import Array

REFERENCE = "cross_entropy"
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# Relative difference below which two gradients count as parallel; float32 keeps 2e-5.
PARALLEL = 1e-3
# Relative difference above which two second derivatives count as different; float32 keeps 1e-4.
RAISED = 1e-3


def attribution_rows(problem: Problem, measured: Curvature, key: Array, *, split: str, num_probes: int) -> list[Row]:
    """Rows "attribution" (of trace and lambda_max, by part), "scale_free_trace", and of the p_y that explain them.

    Each part is a quadratic form of the Hessian of the mean loss over the batches, and the parts of one vector sum to
    its whole: gauss_newton + residual = whole (see `curvature.quadratic_parts`). The gradient in the logits of a loss
    that depends on them through p_y alone is w_i times cross-entropy's on example i. Then gauss_newton is
    softmax_weighted, that of sum_i w_i CE_i with w_i constant, never negative for w_i >= 0, plus rank_one, what the
    change of w_i adds, of either sign. Such are the focal losses with a gamma per example, class weights included;
    other losses (label smoothing, Brier and dual focal, of more than two classes) are recognised by their gradients and
    not split. scale_only is the mean of w times cross-entropy's whole, beyond_scaling is whole - scale_only.
    scale_free_trace is sum_i theta_i^2 H_ii: it does not change when one layer is multiplied and the next divided.

    Args:
        problem: its losses hold "cross_entropy".
        measured: of the same problem, by `measure_curvature`.
        key: PRNG key of the probes.
        split: name for the rows.
        num_probes: 4 or more vectors for each trace: a third of them spans a subspace on which all parts are exact, the
            others are samples of the rest, the same for all parts and batches.

    Accuracy: parts and traces against dense matrices; tests/evaluation/test_attribution.py.

    Source: Kimura & Naganuma, arXiv 2405.00442, section 3. Eq. 28 there holds the focal weight constant, which leaves
    out rank_one; Kwon et al., ASAM (2021) for the elementwise scale.
    """
    n, problem = count_examples(problem), on_device(problem)
    network = (problem.apply, problem.params, problem.model_state)
    by_batch = [(_compare_all(problem.losses, *network, batch), batch.mask) for batch in problem.batches]
    examples, mask = jax.tree.map(lambda *leaves: np.concatenate(leaves), *map(parallel.to_host, by_batch))
    examples = jax.tree.map(lambda leaf: leaf[mask], examples)
    probability = examples.pop(REFERENCE).probability
    weights = {name: float(of_loss.weight.mean()) for name, of_loss in examples.items() if of_loss.parallel.all()}
    form, matvecs = make_form(problem, weights), list(measured.matvecs.values())
    basis_key, sample_key = jax.random.split(key)

    def samples(form, matvecs):
        basis = curvature.dominant_basis(matvecs, problem.params, basis_key, max(1, num_probes // 3 // len(matvecs)))
        return curvature.trace_samples(form, problem.params, sample_key, max(2, num_probes - len(basis)), basis=basis)

    # D H D is the Hessian in the logarithms of |theta| (but for the gradient's share), which no rescaling moves.
    scaled = partial(_multiplied, problem.params)
    scaled_matvecs = [lambda vector, matvec=matvec: scaled(matvec(scaled(vector))) for matvec in matvecs]
    free = samples(lambda vector: form(scaled(vector)), scaled_matvecs)
    # v' H v differs from lambda_max by at most the square of the residual over the gap.
    tops, parts = {name: form(top.vector)[name] for name, top in measured.tops.items()}, samples(form, matvecs)
    for of_losses in (tops, parts):
        for name, weight in weights.items():
            whole, scale_only = of_losses[name]["whole"], weight * of_losses[REFERENCE]["whole"]
            of_losses[name] |= {"scale_only": scale_only, "beyond_scaling": whole - scale_only}
    of_split, rows = {"split": split, "n": n}, []

    def estimated(samples):
        return {**curvature.sample_mean(samples)._asdict(), "probes": num_probes, **of_split}

    for name in problem.losses:
        for part, value in tops[name].items():
            rows.append(AttributionPart("attribution", "lambda_max", part, value, loss=name, **of_split))
        for part, of_vectors in parts[name].items():
            rows.append(AttributionPart("attribution", "trace", part, loss=name, **estimated(of_vectors)))
        rows.append(Trace("scale_free_trace", loss=name, **estimated(free[name]["whole"])))
    for level, value in zip(QUANTILES, np.quantile(probability, QUANTILES), strict=True):
        rows.append(Diagnostic("true_class_probability", value, quantile=level, **of_split))
    for name, of_loss in examples.items():
        means = {"share_raised": of_loss.raised.mean(), "share_negative": of_loss.negative.mean()}
        means |= {"mean_weight": weights[name]} if name in weights else {}
        rows += [Diagnostic(mean, value, loss=name, **of_split) for mean, value in means.items()]
    return [*map(finite, rows)]


def make_form(problem: Problem, split: Collection[str]) -> Callable:
    """The function v -> loss -> part -> value of the parts of v' H v, with one batch's activations in memory.

    problem: as `on_device` gives it.
    split: names of the losses whose gauss_newton is split into softmax_weighted and rank_one.
    """
    n, losses = count_examples(problem), problem.losses
    held = {f"weighted {name}": Partial(constant_weight, losses[name], losses[REFERENCE]) for name in split}
    network = (problem.apply, problem.params, problem.model_state)

    @at_highest
    def form(vector):
        # One after the other: devices of one CPU take independent programs in any order, and their sums never meet.
        shares = [jax.device_get(_parts_of(vector, losses | held, n, *network, batch)) for batch in problem.batches]
        total = jax.tree.map(lambda *leaves: np.sum(leaves, dtype=np.float64), *shares)
        named = {name: {**total[name]._asdict(), "whole": sum(total[name])} for name in losses}
        for name in split:
            weighted = total[f"weighted {name}"].gauss_newton
            named[name] |= {"softmax_weighted": weighted, "rank_one": total[name].gauss_newton - weighted}
        return named

    return form


@jax.jit
def _parts_of(vector, losses, n, apply, params, model_state, batch):
    def network(params):
        return apply({"params": params, **model_state}, batch.x)

    def share(loss, logits):
        return jnp.sum(jnp.where(batch.mask, loss(logits, batch.y), 0.0)) / n

    return curvature.quadratic_parts(
        network, {name: partial(share, loss) for name, loss in losses.items()}, params, vector
    )


_multiplied = jax.jit(partial(jax.tree.map, jnp.multiply))


class Examples(NamedTuple):
    """A loss on each example at fixed logits, compared with the reference, cross-entropy."""

    probability: Array  # [examples] softmax probability of the true class
    weight: Array  # [examples] the loss's derivative in the true logit over cross-entropy's
    parallel: Array  # bool [examples] the loss's gradient in the logits is `weight` times cross-entropy's
    raised: Array  # bool [examples] its second derivative in the true logit is above cross-entropy's, p_y (1 - p_y)
    negative: Array  # bool [examples] that second derivative is negative


@jax.jit
@at_highest
def _compare_all(losses, apply, params, model_state, batch):
    logits = apply({"params": params, **model_state}, batch.x)
    return {name: compare(loss, losses[REFERENCE], logits, batch.y) for name, loss in losses.items()}


def compare(
    loss: Callable, reference: Callable, logits: Float[Array, "examples classes"], labels: Int[Array, " examples"]
) -> Examples:
    """`Examples` of a loss; both losses are (logits, labels) -> [examples], and reference is cross-entropy.

    The second derivative in the true logit is that along the log-odds of p_y: for a function of p_y alone its ratio to
    cross-entropy's is that of two classes, whatever their number. Tested in tests/evaluation/test_attribution.py.

    Source: Kimura & Naganuma, arXiv 2405.00442, section 3: the curvature that Eq. 28 gives for a constant weight.
    """
    true_logit = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)

    def derivatives(function):
        """The gradient [examples, classes] in the logits, and the second derivative [examples] in the true one."""
        gradient = jax.grad(lambda point: jnp.sum(function(point, labels)))
        slope = lambda point: jax.jvp(lambda z: function(z, labels), (point,), (true_logit,))[1]  # noqa: E731
        return gradient(logits), jax.jvp(slope, (logits,), (true_logit,))[1]

    (gradient, second), (plain, plain_second) = map(derivatives, (loss, reference))
    numerator, denominator = (of_label(z, labels) for z in (gradient, plain))
    # Cross-entropy's is p_y - 1: where it underflows the example has no curvature left to weigh.
    gone = denominator == 0
    weight = jnp.where(gone, 0, numerator / jnp.where(gone, 1, denominator))
    apart = jnp.max(jnp.abs(gradient - weight[:, None] * plain), axis=-1)
    size = jnp.max(jnp.abs(gradient), axis=-1)
    return Examples(
        probability=jnp.exp(-reference(logits, labels)),
        weight=weight,
        parallel=apart <= PARALLEL * size + jnp.finfo(size.dtype).tiny,
        raised=second > (1 + RAISED) * plain_second,
        negative=second < -RAISED * plain_second,
    )


def constant_weight(loss: Callable, reference: Callable, logits: Array, labels: Array) -> Array:
    """The loss w * cross_entropy with w, the ratio of both gradients in the true logit, a constant to derivatives."""
    return compare(loss, reference, jax.lax.stop_gradient(logits), labels).weight * reference(logits, labels)
