"""Where the curvature of a loss comes from: the parts of trace and lambda_max, and the probabilities behind them."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from focalgeo import curvature
from focalgeo.evaluation.curvature import Curvature
from focalgeo.evaluation.logits import Examples, held_weight, look_at_examples
from focalgeo.evaluation.problem import Problem, as_argument, count_examples, on_device
from focalgeo.evaluation.rows import make_row
from focalgeo.types import Array, Batch, PyTree

REFERENCE = "cross_entropy"
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def attribution_rows(problem: Problem, measured: Curvature, key: Array, *, split: str, num_probes: int) -> list[dict]:
    """Rows "attribution" (of trace and lambda_max, by part), "scale_free_trace", and of the p_y that explain them.

    Each part is a quadratic form of the Hessian of the mean loss over the batches, and the parts of one vector sum to
    its whole: gauss_newton + residual = whole (see `curvature.quadratic_parts`). A loss that knows the logits through
    p_y alone has w_i times cross-entropy's gradient on example i; gauss_newton is then softmax_weighted, that of sum_i
    w_i CE_i with w_i held, never negative for w_i >= 0, plus rank_one, what the change of w_i adds, of either sign. So
    it is for focal losses with a gamma per example, class weights included; other losses (label smoothing, Brier and
    dual focal, of more than two classes) are known by their gradients and get no such split. scale_only is the mean of
    w times cross-entropy's whole, beyond_scaling is whole - scale_only.
    scale_free_trace is sum_i theta_i^2 H_ii: it stays when one layer is multiplied and the next divided.

    Args:
        problem: its losses hold "cross_entropy".
        measured: of the same problem, by `measure_curvature`.
        key: PRNG key of the probes.
        split: name for the rows.
        num_probes: 4 or more vectors for each trace: a third of them spans a subspace on which all parts are exact, the
            others are samples of the rest, the same for all parts and batches.

    Accuracy: parts and traces against dense matrices; tests/evaluation/test_attribution.py.

    Source: Kimura & Naganuma, arXiv 2405.00442, section 3. Eq. 28 there holds the focal weight fixed, which leaves out
    rank_one; Kwon et al., ASAM (2021) for the elementwise scale.
    """
    problem = on_device(problem)
    place = {"split": split, "n": count_examples(problem)}
    looked = look_at_examples(problem, REFERENCE)
    weights = {
        name: float(found.weight.mean()) for name, found in looked.items() if name != REFERENCE and found.parallel.all()
    }
    form = make_form(problem, split=tuple(weights))
    rows = _lambda_max_rows(form, measured, weights, place)
    rows += _trace_rows(form, problem.params, measured, weights, key, num_probes=num_probes, place=place)
    rows += _probability_rows(looked[REFERENCE], place)
    for name, examples in looked.items():
        rows += [] if name == REFERENCE else _share_rows(name, examples, weights.get(name), place)
    return rows


def make_form(problem: Problem, *, split: tuple[str, ...]) -> Callable[[PyTree], dict[str, dict[str, Array]]]:
    """The function v -> loss -> part -> value of the parts of v' H v, with one batch's activations in memory.

    split: names of the losses whose gauss_newton is split into softmax_weighted and rank_one.
    """
    plain = problem.losses.get(REFERENCE)
    held = {f"held {name}": held_weight(problem.losses[name], plain) for name in split}
    losses = {name: as_argument(loss) for name, loss in {**problem.losses, **held}.items()}
    n = count_examples(problem)
    network = (as_argument(problem.apply), problem.params, problem.model_state)

    def form(vector: PyTree) -> dict[str, dict[str, Array]]:
        # One after the other: devices of one CPU take independent programs in any order, and their sums never meet.
        shares = [jax.device_get(_parts_of(vector, losses, n, *network, batch)) for batch in problem.batches]
        total = jax.tree.map(lambda *each: np.sum(each, dtype=np.float64), *shares)
        return {name: _named(total[name], total.get(f"held {name}")) for name in problem.losses}

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

    shares = {name: partial(_share, loss, batch=batch, n=n) for name, loss in losses.items()}
    return curvature.quadratic_parts(network, shares, params, vector)


def _share(loss: Callable, logits: Array, *, batch: Batch, n: int) -> Array:
    return jnp.sum(jnp.where(batch.mask, loss(logits, batch.y), 0.0)) / n


def _named(parts: curvature.Parts, held: curvature.Parts | None) -> dict[str, Array]:
    named = {**parts._asdict(), "whole": parts.gauss_newton + parts.residual}
    if held is None:
        return named
    return {"softmax_weighted": held.gauss_newton, "rank_one": parts.gauss_newton - held.gauss_newton, **named}


def _beyond_scaling(parts: dict[str, dict[str, Array]], weights: dict[str, float]) -> dict[str, dict[str, Array]]:
    """Adds what scaling cross-entropy by the mean weight would leave, and what there is beyond it."""
    scaled = {name: weight * parts[REFERENCE]["whole"] for name, weight in weights.items()}
    more = {name: {"scale_only": only, "beyond_scaling": parts[name]["whole"] - only} for name, only in scaled.items()}
    return {name: {**parts[name], **more.get(name, {})} for name in parts}


def _lambda_max_rows(form: Callable, measured: Curvature, weights: dict[str, float], place: dict) -> list[dict]:
    """Of each loss at its own eigenvector: v' H v is lambda_max to the square of the residual over the gap."""
    parts = _beyond_scaling({name: form(top.vector)[name] for name, top in measured.tops.items()}, weights)
    return [
        {**make_row({"name": "attribution", "of": "lambda_max", "loss": name, "part": part}, {"value": value}), **place}
        for name, named in parts.items()
        for part, value in named.items()
    ]


def _trace_rows(
    form: Callable,
    params: PyTree,
    measured: Curvature,
    weights: dict[str, float],
    key: Array,
    *,
    num_probes: int,
    place: dict,
) -> list[dict]:
    matvecs = list(measured.matvecs.values())
    samples = _samples(form, matvecs, params, key, num_probes)
    rows = []
    for name, named in _beyond_scaling(samples, weights).items():
        for part, values in named.items():
            where = {"name": "attribution", "of": "trace", "loss": name, "part": part}
            rows.append(_estimate_row(where, values, num_probes, place))
    # D H D is the Hessian in the logarithms of |theta| (but for the gradient's share), which no rescaling moves.
    scaled = partial(_multiplied, params)
    scaled_matvecs = [lambda vector, matvec=matvec: scaled(matvec(scaled(vector))) for matvec in matvecs]
    samples = _samples(lambda vector: form(scaled(vector)), scaled_matvecs, params, key, num_probes)
    for name, named in samples.items():
        rows.append(_estimate_row({"name": "scale_free_trace", "loss": name}, named["whole"], num_probes, place))
    return rows


@jax.jit
def _multiplied(left: PyTree, right: PyTree) -> PyTree:
    return jax.tree.map(jnp.multiply, left, right)


def _samples(form: Callable, matvecs: list[Callable], params: PyTree, key: Array, num_probes: int) -> PyTree:
    basis_key, sample_key = jax.random.split(key)
    each = max(1, num_probes // 3 // len(matvecs))
    basis = curvature.dominant_basis(matvecs, params, basis_key, each)
    count = max(2, num_probes - len(basis))
    return curvature.trace_samples(form, params, sample_key, count, basis=basis)


def _estimate_row(where: dict, samples: Array, num_probes: int, place: dict) -> dict:
    found = curvature.sample_mean(samples)
    numbers = {"value": found.value, "low": found.low, "high": found.high, "stderr": found.stderr}
    return {**make_row(where, numbers), "probes": num_probes, **place}


def _probability_rows(examples: Examples, place: dict) -> list[dict]:
    """Quantiles of the true class's probability."""
    values = np.quantile(examples.probability, QUANTILES)
    return [
        {**make_row({"name": "true_class_probability", "quantile": quantile}, {"value": value}), **place}
        for quantile, value in zip(QUANTILES, values, strict=True)
    ]


def _share_rows(name: str, examples: Examples, weight: float | None, place: dict) -> list[dict]:
    """Shares of examples whose curvature in the true logit the loss raises, or makes negative; the mean weight."""
    numbers = {"share_raised": examples.raised.mean(), "share_negative": examples.negative.mean()}
    numbers |= {} if weight is None else {"mean_weight": weight}
    return [{**make_row({"name": each, "loss": name}, {"value": value}), **place} for each, value in numbers.items()]
