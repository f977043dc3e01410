"""Information: Fisher information of a softmax and its KL divergence; the largest entropy under a mean energy."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from focalgeo.calibration.roots import bisection, implicit_step
from focalgeo.checks import (
    Rows,
    Scalar,
    broadcast,
    check_finite,
    floats,
    is_traced,
    marked,
    number_array,
    score_rows,
)
from focalgeo.types import Array, InputError

_FAR = 80.0  # beyond it a sum of exponentials may overflow, and a logarithm of sums loses little
_TERMS = 10  # Taylor terms of exp(x) - 1 - x below |x| = 1/2: the first one left out is below 1e-10 of the sum


def softmax_fisher(logits: Rows) -> Float[Array, "*batch classes classes"]:
    """Fisher information of softmax(logits) in its logits: diag(p) - p p^T.

    Args:
        logits: Float [..., classes].

    Returns:
        [..., classes, classes] float32, symmetric, positive semidefinite, with rows that sum to 0. Absolute error 1e-6;
        tested in tests/theory/test_information.py.

    Raises:
        InputError: logits that are not finite, where they are concrete (traced, they give NaN); fewer than two classes.

    Source: Kimura & Naganuma, arXiv 2405.00442, Theorem 2.
    """
    check_finite("logits", score_rows("logits", logits))
    (logits,) = floats(logits)
    p = jax.nn.softmax(logits)
    return jnp.vectorize(jnp.diag, signature="(n)->(n,n)")(p) - p[..., :, None] * p[..., None, :]


def softmax_divergence(logits: Rows, displacement: Rows) -> Float[Array, "*batch"]:
    """KL(softmax(z) || softmax(z + d)) in nats: log(1 + sum_k p_k (exp(d_k - m) - 1 - (d_k - m))), m = sum_k p_k d_k.

    Value and gradient vanish at d = 0 and the Hessian there is `softmax_fisher`(z): KL = d^T F d / 2 + O(|d|^3), so
    curvature of the loss and sharpness of the likelihood are the same thing.

    Args:
        logits: z, float [..., classes].
        displacement: d, float [..., classes].

    Returns:
        [...] float32, 0 or more, relative error 1e-5 however small d is (the difference of log-probabilities would
        lose a KL below 1e-7); tested in tests/theory/test_information.py.

    Raises:
        InputError: rows that are not finite, where they are concrete (traced, they give NaN); fewer than two classes.

    Source: Kimura & Naganuma, arXiv 2405.00442, Theorem 2, Eqs. 20-26.
    """
    for name, rows in (("logits", logits), ("displacement", displacement)):
        check_finite(name, score_rows(name, rows))
    logits, displacement = broadcast(logits=logits, displacement=displacement)
    log_p, p = jax.nn.log_softmax(logits), jax.nn.softmax(logits)
    centred = displacement - jnp.sum(p * displacement, axis=-1, keepdims=True)
    valid = jnp.all(jnp.isfinite(logits) & jnp.isfinite(displacement), axis=-1)
    far = jnp.max(centred, axis=-1) > _FAR
    near = jnp.log1p(jnp.sum(_exp_minus_line(log_p, jnp.where(far[..., None], 0, centred)), axis=-1))
    return marked(valid, jnp.where(far, jax.nn.logsumexp(log_p + centred, axis=-1), near))


def _exp_minus_line(log_p: Array, x: Array) -> Array:
    """The function p (exp(x) - 1 - x), by its series where the subtraction would cancel, right where p underflows."""
    p = jnp.exp(log_p)
    small = jnp.abs(x) < 0.5
    near = jnp.where(small, x, 0)
    series = jnp.ones_like(x)
    for order in range(_TERMS + 1, 2, -1):
        series = 1 + series * near / order
    direct = jnp.where(x > 10, jnp.exp(log_p + x) - p * (1 + x), p * (jnp.expm1(jnp.where(x > 10, 1, x)) - x))
    return jnp.where(small, p * near**2 / 2 * series, direct)


_HALVINGS = 60


def maxwell_boltzmann(
    energies: Float[Array, " states"] | Sequence[float], mean_energy: Scalar
) -> tuple[Float[Array, ""], Float[Array, " states"]]:
    """Inverse temperature beta and probabilities exp(-beta E_i) / Z that have the given mean energy.

    Of all distributions with that mean this one has the largest entropy, beta U + log Z. The mean falls strictly in
    beta, dU/dbeta = -Var(E), so beta is unique.

    Args:
        energies: Finite, [states], not all equal.
        mean_energy: Scalar U, strictly between the smallest and the largest energy.

    Returns:
        beta: Scalar float32, in units of 1 / energy; negative where U lies above the plain mean. Differentiable in both
            arguments. Relative error 1e-5 plus 1e-6 absolute, for energies of order 1; tested in
            tests/theory/test_maxwell_boltzmann.py.
        probs: [states] float32.

    Raises:
        InputError: energies that are not finite, fewer than two, or all equal; a mean outside their range. Traced,
            all of these give NaN.

    Source: Kimura & Naganuma, arXiv 2405.00442, Theorem 1, Eqs. 7-17. Their proof calls maximising the conditional
    entropy "minimizing entropy": the exponential family is the maximum.
    """
    _check(energies, mean_energy)
    energies, mean_energy = floats(energies, mean_energy)
    low, span = jnp.min(energies), jnp.max(energies) - jnp.min(energies)
    scaled, target = (energies - low) / span, (mean_energy - low) / span
    beta = _solve(scaled, target)
    valid = jnp.all(jnp.isfinite(energies)) & (target > 0) & (target < 1)
    return marked(valid, (beta / span, jax.nn.softmax(-beta * scaled)))


def _solve(energies: Array, mean: Array) -> Array:
    """Bisection for energies in [0, 1], then one Newton step that carries the implicit derivative."""
    fixed, target = jax.lax.stop_gradient((energies, mean))
    # x exp(-b x) <= 1 / (e b) and Z >= 1, so the mean is below states / (e b): the root lies within these ends.
    reach = energies.shape[0] / jnp.e
    ends = (-reach / jnp.maximum(1 - target, 1e-6), reach / jnp.maximum(target, 1e-6))

    beta = bisection(lambda beta: _mean(fixed, beta) > target, *ends, num_halvings=_HALVINGS)  # the mean falls in beta
    probs = jax.nn.softmax(-beta * fixed)
    variance = jnp.sum(probs * (fixed - jnp.sum(probs * fixed)) ** 2)
    return implicit_step(beta, mean - _mean(energies, beta), jnp.maximum(variance, 1e-12))


def _mean(energies: Array, beta: Array) -> Array:
    return jnp.sum(jax.nn.softmax(-beta * energies) * energies)


def _check(energies: Array, mean_energy: Array) -> None:
    check_finite("energies", energies)
    check_finite("mean_energy", mean_energy)
    number_array("mean_energy", mean_energy, ())
    if np.ndim(energies) != 1 or np.shape(energies)[0] < 2:
        raise InputError(f"energies has shape {np.shape(energies)}: give one axis of two states or more")
    if is_traced(energies, mean_energy):
        return
    low, high = float(np.min(energies)), float(np.max(energies))
    if low == high:
        raise InputError(f"energies are all {low:g}: every distribution has that mean, so beta is not determined")
    if not low < float(mean_energy) < high:
        raise InputError(f"mean_energy is {float(mean_energy):g}: give one strictly between {low:g} and {high:g}")
