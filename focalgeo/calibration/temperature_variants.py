"""Relatives of temperature scaling: ensemble temperature scaling, and a temperature after the loss-implied map."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from focalgeo.arguments import check_above, check_distribution, marked, number_array
from focalgeo.calibration.binning import Labels, Logits, Mask
from focalgeo.calibration.fits import checked, fit_temperature
from focalgeo.calibration.fitted import Params
from focalgeo.calibration.maps import (
    Numbers,
    Rows,
    focal_temperature_scaling,
    normalised,
    temperature_scaling,
    top_class,
)
from focalgeo.types import Array

_MOST_STEPS = 10_000  # of the shares; each costs a softmax over three numbers for each example
_GAIN = {"float32": 1e-6, "float64": 1e-9}  # nats that other shares could still gain where a fit has converged


def ensemble_temperature_scaling(logits: Rows, temperature: Numbers, shares: Float[Array, "3"]) -> Rows:
    """Log-probabilities of shares[0] softmax(z / T) + shares[1] softmax(z) + shares[2] / K, for K classes.

    Args:
        logits: Float [..., classes], finite; types narrower than float32 are computed in float32.
        temperature: Float scalar or [...], above 0; a traced one that is not gives NaN.
        shares: Float [3], each 0 or more, with the sum 1.

    Returns:
        [..., classes] float32 log-probabilities, normalised, with the argmax of the logits.

    Raises:
        InputError: shapes and types that do not fit; a concrete temperature or shares out of range.

    Source: Zhang, Kailkhura & Han, arXiv 2003.07329, section 3.2 (ensemble temperature scaling).
    """
    shares = number_array("shares", shares, (3,))
    check_distribution("shares", shares)
    parts = _parts(logits, temperature)
    log_shares = jnp.log(jnp.broadcast_to(jnp.asarray(shares, parts.dtype), (3,)))
    scores = jax.nn.logsumexp(parts + log_shares.reshape((3,) + (1,) * (parts.ndim - 1)), axis=0)
    return normalised(scores, top_class(parts[1]))


def _parts(logits: Rows, temperature: Numbers) -> Array:
    """Log-probabilities of the three parts, [3, ..., classes]."""
    scaled, plain = temperature_scaling(logits, temperature), temperature_scaling(logits, 1.0)
    return jnp.stack([scaled, plain, jnp.full_like(plain, -np.log(plain.shape[-1]))])


def fit_ensemble_temperature(logits: Logits, labels: Labels, mask: Mask = None) -> Params:
    """Ensemble temperature scaling: T by least NLL, then the shares by least NLL, which is convex in them.

    Args:
        logits: Float [examples, classes].
        labels: Int [examples].
        mask: Bool [examples], or how often each example counts; None counts each once.

    Returns:
        "temperature", "shares" [3] for `ensemble_temperature_scaling`, and "converged", False too where T ends at its
        bracket. Shares within 1e-6 nats of the least NLL, and never worse than the temperature alone. For use inside
        jit and vmap.

    Raises:
        InputError: as `fit_temperature`; of traced values that are not valid, the numbers are NaN.

    Source: Zhang, Kailkhura & Han, arXiv 2003.07329, section 3.2; they minimise over the shares by SLSQP, here it is
    expectation maximisation (Dempster, Laird & Rubin 1977), stopped where the largest of mean(part / mixture) - 1
    bounds what is left to gain.
    """
    rows, labels, weight = checked(logits, labels, mask)
    first = fit_temperature(rows, labels, weight)
    shares, converged = _fit_shares(rows, labels, weight, first.temperature)
    valid = ~jnp.isnan(first.nll)
    params = {"temperature": first.temperature, "shares": marked(valid, shares)}
    return {**params, "converged": first.converged & converged & valid}


@jax.jit
def _fit_shares(rows: Array, labels: Array, weight: Array, temperature: Array) -> tuple[Array, Array]:
    """The shares, and whether no others gain more than the tolerance."""
    is_true = jax.nn.one_hot(labels, rows.shape[-1], dtype=bool)
    parts = jnp.sum(jnp.where(is_true[None], _parts(rows, temperature), 0), axis=-1)  # [3, examples]
    each = (weight / jnp.sum(weight))[None]

    def ratios(shares: Array) -> Array:
        """The mean of part / mixture: above 1 where a part deserves more."""
        mixture = jax.nn.logsumexp(parts + jnp.log(shares)[:, None], axis=0, keepdims=True)
        return jnp.sum(each * jnp.exp(parts - mixture), axis=-1)

    def going(state: tuple[Array, Array, Array]) -> Array:
        return (jnp.max(state[1]) - 1 > _GAIN[rows.dtype.name]) & (state[2] < _MOST_STEPS)

    def advance(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        shares = state[0] * state[1]
        shares = shares / jnp.sum(shares)
        return shares, ratios(shares), state[2] + 1

    start = jnp.full(3, 1 / 3, rows.dtype)
    shares, _, steps = jax.lax.while_loop(going, advance, (start, ratios(start), jnp.int32(0)))

    def nll(shares: Array) -> Array:
        return -jnp.sum(each[0] * jax.nn.logsumexp(parts + jnp.log(shares)[:, None], axis=0))

    alone = jnp.asarray([1, 0, 0], rows.dtype)
    return jnp.where(nll(shares) < nll(alone), shares, alone), steps < _MOST_STEPS


def loss_implied_temperature_scaling(logits: Rows, trained_gamma: Numbers, temperature: Numbers) -> Rows:
    """Log-probabilities of softmax(log p / T), with p the focal calibration map of softmax(logits).

    The other order than `focal_temperature_scaling`: the map of the gamma of the training is the theory's, known and
    applied first, and T is fitted to what the theory leaves.

    Args:
        logits: Float [..., classes], finite.
        trained_gamma: Float scalar or [...], above -1: of the focal loss that the model was trained with.
        temperature: Float scalar or [...], above 0.

    Returns:
        [..., classes] float32 log-probabilities, normalised, with the argmax of the logits.

    Raises:
        InputError: as `focal_temperature_scaling`.

    Source: our own; the map is Komisarenko & Kull, arXiv 2408.11598, Proposition 4.
    """
    return temperature_scaling(focal_temperature_scaling(logits, trained_gamma, 1.0), temperature)


def fit_loss_implied_temperature(
    logits: Logits, labels: Labels, mask: Mask = None, *, trained_gamma: Numbers
) -> Params:
    """The T of `loss_implied_temperature_scaling` with the least NLL.

    Returns:
        "gamma", which is `trained_gamma`, "temperature" and "converged". Arguments and errors as `fit_temperature`.
    """
    gamma = number_array("trained_gamma", trained_gamma, ())
    check_above("trained_gamma", gamma, -1)
    rows, labels, weight = checked(logits, labels, mask)
    gamma = jnp.asarray(gamma, rows.dtype)
    found = fit_temperature(_implied(rows, gamma), labels, weight)
    return {"gamma": gamma, "temperature": found.temperature, "converged": found.converged}


@jax.jit
def _implied(rows: Array, gamma: Array) -> Array:
    return focal_temperature_scaling(rows, gamma, 1.0)
