"""Information: Fisher information of a softmax and its KL divergence; the largest entropy under a mean energy."""

import jax
import jax.numpy as jnp

from focalgeo import checks
from focalgeo.calibration.newton import bisection, implicit_step
from focalgeo.checks import Batch, Rows, Scalar
from focalgeo.types import Array, InputError

# Beyond it a sum of exponentials may overflow, while a logarithm of sums loses little.
_FAR = 80.0
# Taylor terms of exp(x) - 1 - x below |x| = 1/2: the first one left out is below 1e-10 of the sum.
_TERMS = 10


def softmax_fisher(logits: Rows) -> Array:
    """Fisher information of softmax(logits) in its logits: diag(p) - p p^T.

    Args:
        logits: Float [..., classes].

    Returns:
        [..., classes, classes] float32, symmetric, positive semidefinite, with rows that sum to 0. Absolute error 1e-6;
        tested in tests/theory/test_information.py.

    Raises:
        InputError: logits that are not finite, where they are concrete; fewer than two classes.

    Source: Kimura & Naganuma, arXiv 2405.00442, Theorem 2.

    Example:
        >>> print(np.asarray(theory.softmax_fisher(np.float32([2, 1, 0]))).round(4))
        [[ 0.2227 -0.1628 -0.0599]
         [-0.1628  0.1848 -0.022 ]
         [-0.0599 -0.022   0.0819]]
    """
    checks.check_finite("logits", checks.score_rows("logits", logits))
    (logits,) = checks.floats(logits)
    p = jax.nn.softmax(logits)
    return jnp.vectorize(jnp.diag, signature="(n)->(n,n)")(p) - p[..., :, None] * p[..., None, :]


def softmax_divergence(logits: Rows, displacement: Rows) -> Batch:
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
        InputError: rows that are not finite, where they are concrete; fewer than two classes.

    Source: Kimura & Naganuma, arXiv 2405.00442, Theorem 2, Eqs. 20-26.

    Example:
        >>> z, d = np.float32([2, 1, 0]), np.float32([0.1, 0, 0])
        >>> round(float(theory.softmax_divergence(z, d)), 6), round(float(d @ theory.softmax_fisher(z) @ d / 2), 6)
        (0.001101, 0.001113)
    """
    for name, rows in (("logits", logits), ("displacement", displacement)):
        checks.check_finite(name, checks.score_rows(name, rows))
    logits, displacement = checks.broadcast(logits=logits, displacement=displacement)
    log_p, p = jax.nn.log_softmax(logits), jax.nn.softmax(logits)
    centred = displacement - jnp.sum(p * displacement, axis=-1, keepdims=True)
    far = jnp.max(centred, axis=-1) > _FAR
    near = jnp.log1p(jnp.sum(_exp_minus_line(log_p, jnp.where(far[..., None], 0, centred)), axis=-1))
    return jnp.where(far, jax.nn.logsumexp(log_p + centred, axis=-1), near)


def _exp_minus_line(log_p, x):
    """The function p (exp(x) - 1 - x), by its series where the subtraction would cancel, right where p underflows."""
    p = jnp.exp(log_p)
    small = jnp.abs(x) < 0.5
    near = jnp.where(small, x, 0)
    series = jnp.ones_like(x)
    for order in range(_TERMS + 1, 2, -1):
        series = 1 + series * near / order
    direct = jnp.where(x > 10, jnp.exp(log_p + x) - p * (1 + x), p * (jnp.expm1(jnp.where(x > 10, 1, x)) - x))
    return jnp.where(small, p * near**2 / 2 * series, direct)


# More than float64 has digits: the bracket ends at two neighbouring numbers.
_HALVINGS = 60


def maxwell_boltzmann(energies: Array, mean_energy: Scalar) -> tuple[Array, Array]:
    """Inverse temperature beta and probabilities exp(-beta E_i) / Z that have the given mean energy.

    Among all distributions with that mean this one has the largest entropy, beta U + log Z. The mean falls strictly in
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
        InputError: energies that are not finite, fewer than two, or all equal; a mean outside their range.

    Source: Kimura & Naganuma, arXiv 2405.00442, Theorem 1, Eqs. 7-17. Their proof calls maximising the conditional
    entropy "minimizing entropy": the exponential family is the maximum.

    Example:
        >>> beta, probs = theory.maxwell_boltzmann(np.float32([0, 1, 2]), 0.5)
        >>> print(round(float(beta), 4), np.asarray(probs).round(4))
        0.8341 [0.6162 0.2676 0.1162]
    """
    checks.check_finite("mean_energy", checks.number_array("mean_energy", mean_energy, ()))
    checks.check_finite("energies", energies)
    energies, mean_energy = checks.floats(energies, mean_energy)
    checks.check_array("energies", energies, shape=(None,))
    low, span = jnp.min(energies), jnp.max(energies) - jnp.min(energies)
    scaled, target = (energies - low) / span, (mean_energy - low) / span
    if not checks.is_traced(target) and not 0 < target < 1:  # NaN where all energies are equal
        raise InputError(f"mean_energy is {mean_energy}: give one strictly between the least and the largest energy")
    # Bisection, then one Newton step that carries the implicit derivative. As x exp(-b x) <= 1 / (e b) and Z >= 1, the
    # mean of energies in [0, 1] is below states / (e b): the root lies within these ends.
    fixed, goal = jax.lax.stop_gradient((scaled, target))
    reach = energies.size / jnp.e
    ends = (-reach / jnp.maximum(1 - goal, 1e-6), reach / jnp.maximum(goal, 1e-6))
    beta = bisection(lambda beta: _mean(fixed, beta) > goal, *ends, num_halvings=_HALVINGS)  # the mean falls in beta
    probs = jax.nn.softmax(-beta * fixed)
    variance = jnp.sum(probs * (fixed - jnp.sum(probs * fixed)) ** 2)
    beta = implicit_step(beta, target - _mean(scaled, beta), jnp.maximum(variance, 1e-12))
    return beta / span, jax.nn.softmax(-beta * scaled)


def _mean(energies, beta):
    return jnp.sum(jax.nn.softmax(-beta * energies) * energies)
