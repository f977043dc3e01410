"""Attribution of a loss's trace and lambda_max to its parts, and the example probabilities that explain them."""

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Float, Int

from focalgeo import checks, curvature, parallel
from focalgeo.evaluation.curvature import Curvature, Problem, as_argument, count_examples, on_device
from focalgeo.rows import AttributionPart, Diagnostic, Row, Trace, finite
from focalgeo.trees import at_highest
from focalgeo.types import Array, Batch, InputError, PyTree

REFERENCE = "cross_entropy"
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
PARALLEL = 1e-3  # relative difference below which two gradients count as parallel; float32 keeps 2e-5
RAISED = 1e-3  # relative difference above which two second derivatives count as different; float32 keeps 1e-4


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

    Raises:
        InputError: the problem has no cross-entropy or no example, or num_probes is below 4.

    Accuracy: parts and traces against dense matrices; tests/evaluation/test_attribution.py.

    Source: Kimura & Naganuma, arXiv 2405.00442, section 3. Eq. 28 there holds the focal weight constant, which leaves
    out rank_one; Kwon et al., ASAM (2021) for the elementwise scale.
    """
    if REFERENCE not in problem.losses:
        raise InputError(f'losses lack "{REFERENCE}", to which the others are compared')
    num_probes, n = checks.count("num_probes", num_probes, 4), count_examples(problem)
    problem = on_device(problem)
    examples = compare_examples(problem)
    probability = examples.pop(REFERENCE).probability
    weights = {name: float(found.weight.mean()) for name, found in examples.items() if found.parallel.all()}
    form, matvecs = make_form(problem, weights), list(measured.matvecs.values())
    of_trace = partial(_samples, params=problem.params, key=key, num_probes=num_probes)
    # v' H v differs from lambda_max by at most the square of the residual over the gap.
    tops = _beyond_scaling({name: form(top.vector)[name] for name, top in measured.tops.items()}, weights)
    parts = _beyond_scaling(of_trace(form, matvecs), weights)
    # D H D is the Hessian in the logarithms of |theta| (but for the gradient's share), which no rescaling moves.
    scaled = partial(_multiplied, problem.params)
    free = of_trace(
        lambda vector: form(scaled(vector)), [lambda vector, m=matvec: scaled(m(scaled(vector))) for matvec in matvecs]
    )
    of_split = {"split": split, "n": n}

    def estimated(samples: Array) -> dict[str, Array]:
        return {**curvature.sample_mean(samples)._asdict(), "probes": num_probes, **of_split}

    rows = [
        AttributionPart("attribution", of="lambda_max", part=part, value=value, loss=name, **of_split)
        for name, named in tops.items()
        for part, value in named.items()
    ]
    rows += [
        AttributionPart("attribution", of="trace", part=part, loss=name, **estimated(samples))
        for name, named in parts.items()
        for part, samples in named.items()
    ]
    rows += [Trace("scale_free_trace", loss=name, **estimated(named["whole"])) for name, named in free.items()]
    quantiles = zip(QUANTILES, np.quantile(probability, QUANTILES), strict=True)
    rows += [Diagnostic("true_class_probability", value, quantile=level, **of_split) for level, value in quantiles]
    for name, found in examples.items():
        means = {"share_raised": found.raised.mean(), "share_negative": found.negative.mean()}
        means |= {"mean_weight": weights[name]} if name in weights else {}
        rows += [Diagnostic(mean, value, loss=name, **of_split) for mean, value in means.items()]
    return [finite(row) for row in rows]


def make_form(problem: Problem, split: Collection[str]) -> Callable[[PyTree], dict[str, dict[str, Array]]]:
    """The function v -> loss -> part -> value of the parts of v' H v, with one batch's activations in memory.

    split: names of the losses whose gauss_newton is split into softmax_weighted and rank_one.
    """
    plain, n = problem.losses.get(REFERENCE), count_examples(problem)
    weighted = {f"weighted {name}": with_constant_weight(problem.losses[name], plain) for name in split}
    losses = {name: as_argument(loss) for name, loss in {**problem.losses, **weighted}.items()}
    network = (as_argument(problem.apply), problem.params, problem.model_state)

    @at_highest
    def form(vector: PyTree) -> dict[str, dict[str, Array]]:
        # One after the other: devices of one CPU take independent programs in any order, and their sums never meet.
        shares = [jax.device_get(_parts_of(vector, losses, n, *network, batch)) for batch in problem.batches]
        total = jax.tree.map(lambda *each: np.sum(each, dtype=np.float64), *shares)
        named = {}
        for name in problem.losses:
            parts = total[name]
            held = total[f"weighted {name}"].gauss_newton if name in split else None
            own = {} if held is None else {"softmax_weighted": held, "rank_one": parts.gauss_newton - held}
            named[name] = {**own, **parts._asdict(), "whole": parts.gauss_newton + parts.residual}
        return named

    return form


@jax.jit
def _parts_of(
    vector: PyTree,
    losses: dict[str, Partial],
    n: int,
    apply: Partial,
    params: PyTree,
    model_state: PyTree,
    batch: Batch,
) -> dict[str, curvature.Parts]:
    def network(params: PyTree) -> Array:
        return apply({"params": params, **model_state}, batch.x)

    def share(loss: Callable, logits: Array) -> Array:
        return jnp.sum(jnp.where(batch.mask, loss(logits, batch.y), 0.0)) / n

    return curvature.quadratic_parts(
        network, {name: partial(share, loss) for name, loss in losses.items()}, params, vector
    )


def _beyond_scaling(parts: dict[str, dict[str, Array]], weights: dict[str, float]) -> dict[str, dict[str, Array]]:
    """Adds scale_only, cross-entropy's whole times the mean weight, and beyond_scaling, the rest of the whole."""
    for name, weight in weights.items():
        scaled = weight * parts[REFERENCE]["whole"]
        parts[name] |= {"scale_only": scaled, "beyond_scaling": parts[name]["whole"] - scaled}
    return parts


_multiplied = jax.jit(partial(jax.tree.map, jnp.multiply))


def _samples(form: Callable, matvecs: list[Callable], *, params: PyTree, key: Array, num_probes: int) -> PyTree:
    basis_key, sample_key = jax.random.split(key)
    basis = curvature.dominant_basis(matvecs, params, basis_key, max(1, num_probes // 3 // len(matvecs)))
    return curvature.trace_samples(form, params, sample_key, max(2, num_probes - len(basis)), basis=basis)


class Examples(NamedTuple):
    """A loss on each example at fixed logits, compared with the reference, cross-entropy."""

    probability: Array  # [examples] softmax probability of the true class
    weight: Array  # [examples] the loss's derivative in the true logit over cross-entropy's
    parallel: Array  # bool [examples] the loss's gradient in the logits is `weight` times cross-entropy's
    raised: Array  # bool [examples] its second derivative in the true logit is above cross-entropy's, p_y (1 - p_y)
    negative: Array  # bool [examples] that second derivative is negative


def compare_examples(problem: Problem) -> dict[str, Examples]:
    """`Examples` of every loss, unmasked, in the order of the batches, as NumPy arrays."""
    network = (as_argument(problem.apply), problem.params, problem.model_state)
    found = [parallel.to_host(_compare_all(problem.losses, *network, batch)) for batch in problem.batches]
    mask = np.concatenate([parallel.to_host(batch.mask) for batch in problem.batches])
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[mask], *found)


@jax.jit
@at_highest
def _compare_all(
    losses: dict[str, Partial], apply: Partial, params: PyTree, model_state: PyTree, batch: Batch
) -> dict[str, Examples]:
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
    (own, second), (plain, plain_second) = (
        (_gradient(function, logits, labels), _second_derivative(function, logits, labels))
        for function in (loss, reference)
    )
    weight = _ratio(own, plain, labels)
    apart = jnp.max(jnp.abs(own - weight[:, None] * plain), axis=-1)
    size = jnp.max(jnp.abs(own), axis=-1)
    return Examples(
        probability=jnp.exp(-reference(logits, labels)),
        weight=weight,
        parallel=apart <= PARALLEL * size + jnp.finfo(size.dtype).tiny,
        raised=second > (1 + RAISED) * plain_second,
        negative=second < -RAISED * plain_second,
    )


def with_constant_weight(loss: Callable, reference: Callable) -> Callable:
    """The loss w * cross_entropy with w, the ratio of both gradients in the true logit, a constant to derivatives."""
    return Partial(_weighted, as_argument(loss), as_argument(reference))


def _weighted(loss: Partial, reference: Partial, logits: Array, labels: Array) -> Array:
    gradients = (_gradient(each, logits, labels) for each in (loss, reference))
    return jax.lax.stop_gradient(_ratio(*gradients, labels)) * reference(logits, labels)


def _gradient(loss: Callable, logits: Array, labels: Array) -> Array:
    return jax.grad(lambda point: jnp.sum(loss(point, labels)))(logits)


def _ratio(own: Array, plain: Array, labels: Array) -> Array:
    is_true = jax.nn.one_hot(labels, own.shape[-1], dtype=bool)
    numerator, denominator = (jnp.sum(jnp.where(is_true, each, 0), axis=-1) for each in (own, plain))
    # Cross-entropy's is p_y - 1: where it underflows the example has no curvature left to weigh.
    gone = denominator == 0
    return jnp.where(gone, 0, numerator / jnp.where(gone, 1, denominator))


def _second_derivative(loss: Callable, logits: Array, labels: Array) -> Array:
    """[examples]: of each example's loss in its true logit."""
    true_logit = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)

    def slope(point: Array) -> Array:
        return jax.jvp(lambda z: loss(z, labels), (point,), (true_logit,))[1]

    return jax.jvp(slope, (logits,), (true_logit,))[1]
