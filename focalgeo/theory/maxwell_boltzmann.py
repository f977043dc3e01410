"""Maxwell-Boltzmann distribution: the largest entropy under a given mean energy."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from focalgeo.calibration.roots import bisection, implicit_step
from focalgeo.theory.arguments import Scalar, check_finite, floats
from focalgeo.types import Array, InputError

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
            arguments. Relative error 1e-5 plus 1e-6 absolute, for energies of order 1; held by
            tests/theory/test_maxwell_boltzmann.py.
        probs: [states] float32.

    Raises:
        InputError: energies that are not finite, fewer than two, or all equal; a mean outside their range. Traced, a
            mean outside the range gives the nearest end's huge beta.

    Source: Kimura & Naganuma, arXiv 2405.00442, Theorem 1, Eqs. 7-17. Their proof calls maximising the conditional
    entropy "minimizing entropy": the exponential family is the maximum.
    """
    _check(energies, mean_energy)
    energies, mean_energy = floats(energies, mean_energy)
    low, span = jnp.min(energies), jnp.max(energies) - jnp.min(energies)
    scaled, target = (energies - low) / span, (mean_energy - low) / span
    beta = _solve(scaled, target)
    return beta / span, jax.nn.softmax(-beta * scaled)


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
    if np.ndim(energies) != 1 or np.shape(energies)[0] < 2:
        raise InputError(f"energies has shape {np.shape(energies)}: give one axis of two states or more")
    if any(isinstance(value, jax.core.Tracer) for value in (energies, mean_energy)):
        return
    low, high = float(np.min(energies)), float(np.max(energies))
    if low == high:
        raise InputError(f"energies are all {low:g}: every distribution has that mean, so beta is not determined")
    if not low < float(mean_energy) < high:
        raise InputError(f"mean_energy is {float(mean_energy):g}: give one strictly between {low:g} and {high:g}")
