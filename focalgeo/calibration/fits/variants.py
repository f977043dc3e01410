"""Fits of methods beyond temperature scaling: by class, of a mixture, after the implied map, and without a formula.

They are the `fit` of METHODS: fit(logits, labels, *, criterion, weights, <what the method needs besides>) gives params
of the map in `maps`. Logits float [examples, K], labels int [examples] and weights, how often each example counts, have
been checked; weights are above 0. Each fits by least NLL, on the host. `start` are params near the best, or None;
`temperature_fit` and `focal_fit` are the fits of `focal` to these examples.
"""

from functools import partial

import numpy as np
from scipy import optimize

from focalgeo.calibration import blocks, maps
from focalgeo.calibration.fits import focal, linear, stacking
from focalgeo.types import Array

Params = dict[str, Array]

MOST_MATRIX_CLASSES = 200  # a fit of 10,000 examples takes 3 s on two shared cores: it grows with their square

_MOST_STEPS = 2000  # of EM, for shares at the least NLL
_ROUNDING = 64  # eps, by which log-odds that are equal may differ after two ways of computing them


def fit_by_class(
    logits, labels, *, criterion, weights, start, temperature_fit=None, focal_fit=None, full=False
) -> Params:
    """Vector, focal vector and structured matrix scaling: T, or gamma and T, by least NLL, then numbers of each class.

    These are scales, or in `full` the weights of a matrix, and biases: of K classes those of the least NLL + (K / n)
    (|scales - 1|^2 + |biases|^2), of a matrix with its diagonal as scales, + (K (K - 1) / n) |off-diagonal weights|^2.

    Returns:
        "gamma" with focal_fit, "temperature", "scales" [K] for `focal_vector_scaling` or "weights" [K, K] for
        `focal_matrix_scaling`, "biases" [K], and "converged", False too where T ends at its bracket, as when all
        predictions are right. A class without labels keeps finite numbers. n is the sum of the weights. The objective
        is within 1e-6 of scipy's minimum in float64 (tests/calibration/test_variants.py).

    Source: SVS and SMS of Berta, Holzmueller, Jordan & Bach, arXiv 2511.03685, with a ridge, as probmetrics 1.3.0 fits
    them. That mixes the temperature-scaled probabilities with 1 / ((n + 1) K) of a uniform one first; here they stay as
    they are. The focal one is our own; see `fit_focal_temperature`.
    """
    first = focal_fit or temperature_fit
    first_stage = partial(maps.focal_temperature_scaling, gamma=first.gamma, temperature=first.temperature)
    log_probs = blocks.mapped(first_stage, logits)
    classes, name = logits.shape[-1], "weights" if full else "scales"
    identity = np.eye(classes) if full else np.ones(classes)
    strength = classes / np.sum(weights, dtype=np.float64)
    ridge = strength * np.where(identity == 1, 1.0, classes - 1)[..., None].reshape(classes, -1)
    ridge = np.concatenate([ridge, np.full((classes, 1), strength)], axis=1)
    begin = np.zeros_like(ridge)
    if start is not None:
        begin = np.concatenate([(start[name] - identity).reshape(classes, -1), start["biases"][:, None]], axis=1)
    changes, converged = linear.fit(log_probs, labels, weights, ridge, begin)
    change, biases = changes[:, :-1].reshape(identity.shape), changes[:, -1]
    return {
        **({"gamma": first.gamma} if focal_fit else {}),
        "temperature": first.temperature,
        name: (identity + change).astype(logits.dtype),
        "biases": biases.astype(logits.dtype),
        "converged": first.converged and converged,
    }


def fit_loss_implied_temperature(logits, labels, *, criterion, weights, trained_gamma) -> Params:
    """The T of `loss_implied_temperature_scaling` with the least NLL; "gamma" is `trained_gamma`."""
    gamma = np.asarray(trained_gamma, logits.dtype)
    fit = focal.temperature_fit(maps.focal_temperature_scaling(logits, gamma, 1.0), labels, weights)
    return {"gamma": gamma, "temperature": fit.temperature, "converged": fit.converged}


def fit_ensemble_temperature(logits, labels, *, criterion, weights, temperature_fit) -> Params:
    """Ensemble temperature scaling: T by least NLL, then the shares by least NLL, which is convex in them.

    Returns:
        "temperature", "shares" [3] for `ensemble_temperature_scaling`, and "converged", False too where T ends at its
        bracket. Shares within 1e-6 nats of the least NLL, and never worse than the temperature alone.

    Source: Zhang, Kailkhura & Han, arXiv 2003.07329, section 3.2; they minimise over the shares by SLSQP, here it is
    expectation maximisation.
    """
    parts = maps.ensemble_parts(logits, temperature_fit.temperature)
    given, weight = stacking.likelihoods(parts, labels, weights)
    # EM may stop before it is as good as the temperature alone, which is one of its points
    shares, alone = stacking.mixture_shares(given, weight, most_steps=_MOST_STEPS), np.array([1.0, 0, 0])
    best = min((alone, shares), key=lambda point: -(weight @ np.log(np.maximum(point @ given, 1e-300))))
    return {
        "temperature": temperature_fit.temperature,
        "shares": best.astype(np.float32),
        "converged": temperature_fit.converged,
    }


def fit_histogram_binning(logits, labels, *, criterion, weights, num_bins) -> Params:
    """Bins of equal mass of the top class's log-odds, and (right + 1) / (count + 2) in each.

    The rule of succession keeps every accuracy inside (0, 1), so that no example has an infinite NLL. Examples of equal
    confidence stay in one bin; a bin may stay empty, with accuracy 1/2.

    Returns:
        "edges" [num_bins - 1] and "accuracies" [num_bins] for `histogram_binning`. Each edge is midway between the
        last log-odds of its bin and the next larger one, so that rounding in the application moves no example to
        another bin.

    Source: as `histogram_binning`; the bins of equal mass are Naeini, Cooper & Hauskrecht, AAAI 2015.
    """
    log_probs = maps.temperature_scaling(logits, 1.0)  # as in the application
    log_odds = maps.top_log_odds(log_probs, maps.top_class(logits))[:, 0]
    order = np.argsort(log_odds, kind="stable")
    low, high = log_odds[order][:-1], log_odds[order][1:]
    # an edge lies only between log-odds that differ by more than two ways of computing them do
    places = np.flatnonzero(high - low > _ROUNDING * np.finfo(low.dtype).eps * np.maximum(np.abs(low), 1))
    mass = np.cumsum(weights[order])
    quantiles = np.searchsorted(mass * num_bins, mass[-1] * np.arange(1, num_bins, dtype=mass.dtype))
    ends = np.append(low / 2 + high / 2, np.finfo(low.dtype).min)[[*places, -1]]  # the last is below all, for no place
    edges = ends[np.minimum(np.searchsorted(places, quantiles), len(places) - 1)]
    bins, right = np.searchsorted(edges, log_odds), logits.argmax(axis=1) == labels
    count, correct = (np.bincount(bins, counted, minlength=num_bins) for counted in (weights, weights * right))
    return {"edges": edges, "accuracies": ((correct + 1) / (count + 2)).astype(weights.dtype)}


def fit_isotonic(logits, labels, *, criterion, weights) -> Params:
    """Isotonic regression of "k is the label" on log p_k, over all pairs (example, k) together.

    Returns:
        "thresholds" and "probabilities" for `isotonic_calibration`; none of these is below 1 / (pairs + 2), the rule
        of succession for pairs without a success, so that the NLL stays finite.

    Source: as `isotonic_calibration`.
    """
    log_probs = maps.temperature_scaling(logits, 1.0)
    shares = np.eye(logits.shape[1], dtype=weights.dtype)[labels] if labels.ndim == 1 else labels
    possible = log_probs > -np.inf
    counted = np.broadcast_to(weights[:, None], shares.shape)[possible]
    return isotonic_regression(log_probs[possible], shares[possible], counted, 1 / (counted.sum() + 2), 1)


def isotonic_regression(scores, outcomes, weight, least, most) -> Params:
    """The thresholds of the scores, and the shares of outcomes there, none below `least` or above `most`."""
    scores, place = np.unique(scores, return_inverse=True)
    counts = np.bincount(place, weight)
    shares = np.bincount(place, weight * outcomes) / counts
    shares = optimize.isotonic_regression(shares, weights=counts).x.clip(least, most)
    # interpolation needs no more than the two ends of each flat step
    ends = np.diff(shares, prepend=np.nan, append=np.nan) != 0  # of the steps
    kept = ends[1:] | ends[:-1]
    found = {"thresholds": scores[kept], "probabilities": shares[kept]}
    return {name: values.astype(weight.dtype) for name, values in found.items()}
