"""Fits of methods beyond temperature scaling: by class, of a mixture, after the implied map, and without a formula.

They are the `fit` of METHODS: fit(logits, labels, *, criterion, mask, <what the method needs besides>) -> params of the
map in `maps`. Logits float [examples, K], labels int [examples] and mask, how often each example counts, have been
checked, and rows that the mask leaves out are 0. Each fits by least NLL, for use inside jit and vmap (isotonic
regression aside). `temperature_fit` and `focal_fit` are the fits of `fits` to these examples.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import checks
from focalgeo.calibration import fits, maps, newton
from focalgeo.calibration.binning import Labels, Logits, Mask
from focalgeo.calibration.fits import GAMMA_BRACKET, TEMPERATURE_BRACKET
from focalgeo.trees import matmul
from focalgeo.types import Array, InputError

Params = dict[str, Array]

MOST_MATRIX_CLASSES = 200  # a fit of 10,000 examples takes 3 s on two shared cores: it grows with their square

_INSIDE = 1e-3  # share of a bracket that the joint fit keeps off its ends, where its slope is 0
_MOST_STEPS = 60  # of the shares; ten are usual
_STEP_SIZES = 0.5 ** np.arange(12)[:, None]  # of a step that are tried
_GAIN = {"float32": 1e-6, "float64": 1e-9}  # nats that other shares could still gain where a fit has converged
_ROUNDING = 64  # eps, by which log-odds that are equal may differ after two ways of computing them


def fit_vector_scaling(logits, labels, *, criterion, mask, temperature_fit) -> Params:
    """Vector scaling with a ridge: T by least NLL, then the least NLL + (K / n) (|scales - 1|^2 + |biases|^2).

    Returns:
        "temperature", "scales" [K], "biases" [K] for `focal_vector_scaling` with gamma 0, and "converged", False too
        where T ends at its bracket, as when all predictions are right. A class without labels keeps finite numbers.
        n is the sum of the mask. The objective is within 1e-6 of scipy's minimum in float64
        (tests/calibration/test_variants.py).

    Source: SVS of Berta, Holzmueller, Jordan & Bach, arXiv 2511.03685, with a ridge on scales and biases, as
    probmetrics 1.3.0 fits it. That mixes the temperature-scaled probabilities with 1 / ((n + 1) K) of a uniform one
    first; here they stay as they are.
    """
    ridge = _vector_ridge(logits, labels, mask, temperature_fit)
    return {"temperature": temperature_fit.temperature, **_vector_params(temperature_fit, ridge)}


def fit_focal_vector_scaling(logits, labels, *, criterion, mask, focal_fit) -> Params:
    """Focal vector scaling in two stages: gamma and T by least NLL, then scales and biases as `fit_vector_scaling`.

    Returns:
        "gamma", "temperature", "scales" [K], "biases" [K] for `focal_vector_scaling`, and "converged".

    Source: our own; see `fit_focal_temperature` and `fit_vector_scaling`.
    """
    params = _vector_params(focal_fit, _vector_ridge(logits, labels, mask, focal_fit))
    return {"gamma": focal_fit.gamma, "temperature": focal_fit.temperature, **params}


def fit_focal_vector_scaling_jointly(logits: Logits, labels: Labels, mask: Mask = None) -> Params:
    """As `fit_focal_vector_scaling`, and then all its numbers together, by the same penalised NLL: never worse in it.

    On two networks of CIFAR-100 (5,000 examples, three splits each) it lowers the objective by 1e-4 and changes the NLL
    of other 5,000 examples by -4e-4 to 2e-4, for three times the seconds of compilation: the two stages are the method.

    Source: our own.
    """
    examples = checks.predicted_logits(logits, labels, mask)
    first = fits.focal_fit(*examples, fits.temperature_fit(*examples))
    focal, found = _joint_ridge(*examples, first, _vector_ridge(*examples, first))
    return {**focal, **_vector_params(first, found)}


def fit_matrix_scaling(logits, labels, *, criterion, mask, temperature_fit) -> Params:
    """Structured matrix scaling: T by least NLL, then the least NLL + ridge over the matrix and the biases.

    The ridge is (K / n) (|diag(weights) - 1|^2 + |biases|^2) + (K (K - 1) / n) |off-diagonal weights|^2.

    Returns:
        "temperature", "weights" [K, K], "biases" [K] for `focal_matrix_scaling` with gamma 0, and "converged".

    Source: SMS of Berta, Holzmueller, Jordan & Bach, arXiv 2511.03685, with a ridge, as probmetrics 1.3.0 fits it, but
    for the mixture with a uniform distribution: see `fit_vector_scaling`.
    """
    params = _matrix_params(temperature_fit, _matrix_ridge(logits, labels, mask, temperature_fit))
    return {"temperature": temperature_fit.temperature, **params}


@jax.jit
def _matrix_params(first, found):
    weights = jnp.eye(len(found.params["weights"]), dtype=found.objective.dtype) + found.params["weights"]
    return {"weights": weights, "biases": found.params["biases"], "converged": first.converged & found.converged}


@jax.jit
def _vector_params(first, found):
    params, converged = found.params, first.converged & found.converged
    return {"scales": 1 + params["scales"], "biases": params["biases"], "converged": converged}


def _vector_scores(log_probs, params):
    scales, biases = (jnp.broadcast_to(params[name], log_probs.shape) for name in ("scales", "biases"))
    return log_probs + scales * log_probs + biases


@jax.jit
def _vector_ridge(rows, labels, weight, first):
    """The ridge fit of scales - 1 and biases; one program for vector scaling and focal vector scaling."""
    log_probs = maps.focal_temperature_scaling(rows, first.gamma, first.temperature)
    strengths = dict.fromkeys(("scales", "biases"), rows.shape[-1] / jnp.sum(weight))
    start = jax.tree.map(lambda _: jnp.zeros_like(rows[0]), strengths)
    return newton.ridge_fit(partial(_vector_scores, log_probs), start, strengths, labels, weight)


@jax.jit
def _matrix_ridge(rows, labels, weight, first):
    """The ridge fit of weights - I and biases."""
    log_probs = maps.focal_temperature_scaling(rows, first.gamma, first.temperature)
    classes = rows.shape[-1]
    ridge = classes / jnp.sum(weight)

    def scores(params):
        change = matmul(log_probs, params["weights"].T)
        return log_probs + change + jnp.broadcast_to(params["biases"], log_probs.shape)

    start = {"weights": jnp.zeros((classes, classes), rows.dtype), "biases": jnp.zeros_like(rows[0])}
    strengths = ridge * jnp.where(np.eye(classes, dtype=bool), 1, jnp.asarray(classes - 1, rows.dtype))
    return newton.ridge_fit(scores, start, {"weights": strengths, "biases": ridge}, labels, weight)


@jax.jit
def _joint_ridge(rows, labels, weight, first, before):
    """Gamma and T, and the ridge fit of scales and biases with them; those of before where it is not better."""
    ends = jnp.asarray(np.array([GAMMA_BRACKET, np.log(TEMPERATURE_BRACKET)]), rows.dtype)
    low, width = ends[:, 0], ends[:, 1] - ends[:, 0]
    begin = jnp.stack([first.gamma, jnp.log(first.temperature)])
    share = jnp.clip((begin - low) / width, _INSIDE, 1 - _INSIDE)

    def focal(params):
        gamma, log_temperature = low + width * jax.nn.sigmoid(params["focal"])
        return {"gamma": gamma, "temperature": jnp.exp(log_temperature)}

    def scores(params):
        return _vector_scores(maps.focal_temperature_scaling(rows, **focal(params)), params)

    ridge = rows.shape[-1] / jnp.sum(weight)
    start = {"focal": jnp.log(share) - jnp.log1p(-share), **before.params}
    strengths = {"focal": jnp.zeros_like(ridge), "scales": ridge, "biases": ridge}
    found = newton.ridge_fit(scores, start, strengths, labels, weight)
    together = focal(found.params), found._replace(params={name: found.params[name] for name in before.params})
    apart = {"gamma": first.gamma, "temperature": first.temperature}, before
    better = found.objective < before.objective
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), together, apart)


def fit_loss_implied_temperature(logits, labels, *, criterion, mask, trained_gamma) -> Params:
    """The T of `loss_implied_temperature_scaling` with the least NLL; "gamma" is `trained_gamma`."""
    gamma = jnp.asarray(trained_gamma, logits.dtype)
    found = fits.temperature_fit(_implied(logits, gamma), labels, mask)
    return {"gamma": gamma, "temperature": found.temperature, "converged": found.converged}


@jax.jit
def _implied(logits, gamma):
    return maps.focal_temperature_scaling(logits, gamma, 1.0)


def fit_ensemble_temperature(logits, labels, *, criterion, mask, temperature_fit) -> Params:
    """Ensemble temperature scaling: T by least NLL, then the shares by least NLL, which is convex in them.

    Returns:
        "temperature", "shares" [3] for `ensemble_temperature_scaling`, and "converged", False too where T ends at its
        bracket. Shares within 1e-6 nats of the least NLL, and never worse than the temperature alone.

    Source: Zhang, Kailkhura & Han, arXiv 2003.07329, section 3.2; they minimise over the shares by SLSQP, here it is
    Newton's method on the simplex, stopped where the largest of mean(part / mixture) - 1 bounds what is left to gain.
    """
    shares, converged = _fit_shares(logits, labels, mask, temperature_fit.temperature)
    converged &= temperature_fit.converged
    return {"temperature": temperature_fit.temperature, "shares": shares, "converged": converged}


class _Ascent(NamedTuple):
    shares: Array  # [3]
    bound: Array  # on the nats that other shares could have gained before the last step
    moved: Array  # bool
    step: Array


@jax.jit
def _fit_shares(rows, labels, weight, temperature):
    """The shares, and whether no others gain more than the tolerance."""
    is_true = jax.nn.one_hot(labels, rows.shape[-1], dtype=bool)
    log_parts = jnp.sum(jnp.where(is_true[None], maps.ensemble_parts(rows, temperature), 0), axis=-1)
    parts = jnp.exp(log_parts - jnp.max(log_parts, axis=0, keepdims=True))  # [3, examples]
    share, least = (weight / jnp.sum(weight))[None], 8 * jnp.finfo(weight.dtype).eps - 1

    def excess(shares):
        """Part / mixture - 1, [3, examples]; its mean is the gradient along the simplex."""
        mixture = matmul(shares[None], parts)
        return (parts - mixture) / mixture

    def gain(over, change):
        """Nats that changes [changes, 3] of the shares gain; minus infinity where an example is left nothing."""
        ratio = matmul(change, over)
        return jnp.sum(share * jnp.where(ratio > least, jnp.log1p(ratio), -jnp.inf), axis=-1)

    def advance(state):
        over = excess(state.shares)
        slope, curvature = jnp.sum(share * over, axis=-1), matmul(share * over, over.T)
        changes = sizes * _newton_step(state.shares, slope, curvature)[None]
        gains = gain(over, changes)
        best, moved = jnp.argmax(gains), jnp.max(gains) > 0
        shares = jnp.maximum(state.shares + jnp.where(moved, changes[best], 0), 0)
        return _Ascent(shares / jnp.sum(shares), jnp.max(slope), moved, state.step + 1)

    def going(state):
        return (state.bound > tolerance) & state.moved & (state.step < _MOST_STEPS)

    tolerance, sizes = _GAIN[rows.dtype.name], jnp.asarray(_STEP_SIZES, rows.dtype)
    thirds = jnp.full(3, 1 / 3, rows.dtype)
    start = _Ascent(thirds, jnp.full((), jnp.inf, rows.dtype), jnp.ones((), bool), jnp.int32(0))
    found = jax.lax.while_loop(going, advance, start)
    alone = jnp.asarray([1, 0, 0], rows.dtype)
    is_best = gain(excess(found.shares), (alone - found.shares)[None])[0] >= 0
    return jnp.where(is_best, alone, found.shares), found.bound <= tolerance


def _newton_step(shares, slope, curvature):
    """The change d with the largest slope'd - d' curvature d / 2 that keeps the shares on their simplex.

    It is the best of the edges, or without regard to the signs of the shares, if none of these is then negative.
    """
    corners = jnp.eye(3, dtype=shares.dtype)

    def rise(along, change):
        return matmul(along, slope - matmul(curvature, change))

    edges = []
    for first, second in ((0, 1), (0, 2), (1, 2)):
        along, begin = corners[second] - corners[first], corners[first] - shares
        bend = matmul(along, matmul(curvature, along))
        size = rise(along, begin) / jnp.maximum(bend, jnp.finfo(shares.dtype).tiny)
        edges.append(begin + jnp.clip(size, 0, 1) * along)
    sides = corners[1:] - corners[:1]
    (a, b), (_, c) = matmul(sides, matmul(curvature, sides.T))
    up = matmul(sides, slope)
    inside = matmul(jnp.stack([c * up[0] - b * up[1], a * up[1] - b * up[0]]) / (a * c - b * b), sides)
    changes = jnp.stack([*edges, inside])
    promised = jnp.stack([matmul(change, slope) / 2 + rise(change, change) / 2 for change in changes])
    valid = jnp.all(shares[None] + changes >= -jnp.finfo(shares.dtype).eps, axis=-1)
    return changes[jnp.argmax(jnp.where(valid, promised, -jnp.inf))]


def fit_histogram_binning(logits, labels, *, criterion, mask, num_bins) -> Params:
    """Bins of equal mass of the top class's log-odds, and (right + 1) / (count + 2) in each.

    The rule of succession keeps every accuracy inside (0, 1), so that no example has an infinite NLL. Examples of equal
    confidence stay in one bin; a bin may stay empty, with accuracy 1/2.

    Returns:
        "edges" [num_bins - 1] and "accuracies" [num_bins] for `histogram_binning`. Each edge is midway between the
        last log-odds of its bin and the next larger one, so that rounding in the application moves no example to
        another bin.

    Source: as `histogram_binning`; the bins of equal mass are Naeini, Cooper & Hauskrecht, AAAI 2015.
    """
    return _fit_bins(logits, labels, mask, num_bins)


@partial(jax.jit, static_argnames="num_bins")
def _fit_bins(rows, labels, weight, num_bins):
    log_probs = maps.temperature_scaling(rows, 1.0)  # as in the application
    log_odds = maps.top_log_odds(log_probs, maps.top_class(rows))[:, 0]
    right = (jnp.argmax(rows, axis=-1) == labels).astype(weight.dtype)
    edges = _equal_mass_edges(jnp.where(weight > 0, log_odds, jnp.inf), weight, num_bins)
    bins = jax.nn.one_hot(jnp.searchsorted(edges, log_odds, side="left"), num_bins, dtype=weight.dtype)
    count, correct = jnp.sum(weight[:, None] * bins, axis=0), jnp.sum((weight * right)[:, None] * bins, axis=0)
    return {"edges": edges, "accuracies": (correct + 1) / (count + 2)}


def _equal_mass_edges(values, weight, num_bins):
    """Edges [num_bins - 1] between values that differ by more than rounding, midway, so that no value is at an edge.

    Each is the first such place at or above its quantile, or else the last of all. There is one below all values too,
    for bins that stay empty; infinite values, those of weight 0, are beyond the last.
    """
    order = jnp.argsort(values)
    mass = jnp.cumsum(weight[order])
    quantiles = jnp.searchsorted(mass * num_bins, mass[-1] * jnp.arange(1, num_bins, dtype=mass.dtype))
    below = jnp.concatenate([jnp.finfo(values.dtype).min[None], values[order]])
    low, high = below[:-1], below[1:]
    apart = (high - low > _ROUNDING * jnp.finfo(values.dtype).eps * jnp.maximum(jnp.abs(low), 1)) & (high < jnp.inf)
    place = jnp.arange(len(values), dtype=quantiles.dtype)
    above = jax.lax.cummin(jnp.where(apart, place, len(values)), reverse=True)
    last = jnp.max(jnp.where(apart, place, 0))
    edges = jnp.minimum(above[jnp.minimum(quantiles + 1, len(values) - 1)], last)
    return low[edges] / 2 + high[edges] / 2


def fit_isotonic(logits, labels, *, criterion, mask) -> Params:
    """Isotonic regression of "k is the label" on log p_k, over all pairs (example, k) together, by scikit-learn.

    Returns:
        "thresholds" and "probabilities" for `isotonic_calibration`; none of these is below 1 / (pairs + 2), the rule
        of succession for pairs without a success, so that the NLL stays finite.

    Source: as `isotonic_calibration`.
    """
    if checks.is_traced(logits, labels, mask):
        raise InputError("isotonic regression is fitted by scikit-learn: call it outside jit and vmap")
    from sklearn.isotonic import IsotonicRegression  # heavy, and only this method needs it

    log_probs, labels, weight = map(np.asarray, (jax.jit(maps.temperature_scaling)(logits, 1.0), labels, mask))
    classes = log_probs.shape[1]
    is_label = (labels[:, None] == np.arange(classes)).astype(weight.dtype)
    model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    model.fit(log_probs.ravel(), is_label.ravel(), np.repeat(weight, classes))
    floor = 1 / (weight.sum() * classes + 2)
    return {
        "thresholds": model.X_thresholds_.astype(weight.dtype),
        "probabilities": np.maximum(model.y_thresholds_, floor).astype(weight.dtype),
    }
