"""The PAC-Bayes-lambda bound, minimised over lambda and posterior in turn."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import checks
from focalgeo.checks import Batch, Numbers, Scalar
from focalgeo.types import Array

_MOST_STEPS = 500
_TOLERANCE = 1e-6
_RANGES = {
    "losses": (0, 1),
    "expected_loss": (0, 1),
    "divergence": (-1e-5,),  # of a divergence of 0, by rounding
    "num_examples": (1,),
    "delta": (np.finfo(np.float32).tiny, 1 - 1e-7),
}


class PacBayes(NamedTuple):
    """The bound, the lambda and posterior that minimise it; `residual` is the last change of lambda."""

    bound: Array
    lambda_: Array
    posterior: Array  # [hypotheses]
    divergence: Array  # KL(posterior || prior) in nats
    expected_loss: Array
    steps: Array
    residual: Array


def pac_bayes_bound(
    losses: Array,
    prior: Array,
    num_examples: Scalar,
    *,
    delta: Scalar = 0.05,
) -> PacBayes:
    """The smallest PAC-Bayes-lambda bound on the expected risk, which holds with probability 1 - delta.

    E[L] <= E[L_hat] / (1 - lambda/2) + (KL(rho || pi) + log(2 sqrt(n) / delta)) / (n lambda (1 - lambda/2)). The two
    minimisers, posterior rho ~ pi exp(-lambda n L_hat) and `pac_bayes_lambda`, are taken in turn from lambda = 1; the
    bound falls at every step.

    Args:
        losses: Empirical loss of each hypothesis, [hypotheses], 0 to 1.
        prior: Probabilities, [hypotheses], above 0 where a hypothesis is to count.
        num_examples: n, the examples behind `losses`, 1 or more.
        delta: Probability with which the bound may fail, above 0 and below 1.

    Returns:
        PacBayes. It has converged if `residual` is at most 1e-6; 500 steps is the most. Relative error of bound and
        lambda 1e-5; tested in tests/theory/test_pac_bayes.py.

    Raises:
        InputError: losses outside [0, 1] (cross-entropy and focal loss are unbounded: clip and rescale them or use the
            0-1 loss), a prior that is no distribution or of another length, n or delta out of range.

    Source: Thiemann et al. 2017, as used by Kimura & Naganuma, arXiv 2405.00442, Corollary 1, Eqs. 18-19. Their
    Maxwell-Boltzmann prior is built from the training loss and so depends on the sample, which the bound forbids: take
    its energies from other data, or read the result as an illustration.

    Example:
        >>> found = theory.pac_bayes_bound(np.float32([0.1, 0.2, 0.5]), np.float32([0.2, 0.3, 0.5]), 1000)
        >>> round(float(found.bound), 4), round(float(found.lambda_), 4), bool(found.residual < 1e-6)
        (0.1515, 0.3399, True)
    """
    _check(losses=losses, num_examples=num_examples, delta=delta)
    checks.check_distribution("prior", prior)
    losses, prior, count, delta = checks.floats(losses, prior, num_examples, delta)
    checks.check_array(f"losses for prior {prior.shape}", losses, shape=(prior.size,))

    def posterior(lambda_):
        log_rho = jax.nn.log_softmax(jnp.log(prior) - lambda_ * count * losses)
        rho = jnp.exp(log_rho)
        divergence = jnp.sum(jnp.where(rho > 0, rho * (log_rho - jnp.log(prior)), 0))
        return rho, divergence, jnp.sum(rho * losses)

    def improve(state):
        lambda_, _, steps = state
        _, divergence, expected = posterior(lambda_)
        better = pac_bayes_lambda(expected, divergence, count, delta=delta)
        return better, jnp.abs(better - lambda_), steps + 1

    start = (jnp.ones_like(count), jnp.full_like(count, jnp.inf), jnp.int32(0))
    going = lambda state: (state[1] > _TOLERANCE) & (state[2] < _MOST_STEPS)  # noqa: E731
    lambda_, residual, steps = jax.lax.while_loop(going, improve, start)
    rho, divergence, expected = posterior(lambda_)
    bound = pac_bayes_value(expected, divergence, count, lambda_=lambda_, delta=delta)
    return PacBayes(bound, lambda_, rho, divergence, expected, steps, residual)


def pac_bayes_value(
    expected_loss: Numbers, divergence: Numbers, num_examples: Numbers, *, lambda_: Numbers, delta: Numbers = 0.05
) -> Batch:
    """The bound of a given posterior and lambda, as written in `pac_bayes_bound`.

    Args:
        expected_loss: Mean empirical loss under the posterior, 0 to 1.
        divergence: KL(posterior || prior) in nats, 0 or more.
        num_examples: n, 1 or more.
        lambda_: Above 0 and below 2; at 2 the denominator changes sign and the formula bounds nothing.
        delta: Above 0 and below 1.

    Returns:
        Scalar float32, relative error 1e-6; NaN for lambda outside (0, 2). Tested in tests/theory/test_pac_bayes.py.

    Raises:
        InputError: another number out of range, where it is concrete, or shapes that do not broadcast.

    Source: Kimura & Naganuma, arXiv 2405.00442, Corollary 1, Eq. 18 (lambda's range is not stated there).

    Example:
        >>> round(float(theory.pac_bayes_value(0.1, 1.6, 1000, lambda_=0.5)), 4)
        0.1566
    """
    expected_loss, divergence, count, delta, lambda_ = checks.broadcast(
        **_check(expected_loss=expected_loss, divergence=divergence, num_examples=num_examples, delta=delta),
        lambda_=lambda_,
    )
    room = jnp.where((lambda_ > 0) & (lambda_ < 2), 1 - lambda_ / 2, jnp.nan)
    return expected_loss / room + _complexity(divergence, count, delta) / (count * lambda_ * room)


def pac_bayes_lambda(
    expected_loss: Numbers, divergence: Numbers, num_examples: Numbers, *, delta: Numbers = 0.05
) -> Batch:
    """The lambda that minimises `pac_bayes_value`: 2 / (sqrt(2 n E / (KL + log(2 sqrt(n) / delta)) + 1) + 1).

    Args:
        expected_loss: Mean empirical loss under the posterior, 0 to 1.
        divergence: KL(posterior || prior) in nats, 0 or more.
        num_examples: n, 1 or more.
        delta: Above 0 and below 1.

    Returns:
        Scalar float32 in (0, 1], relative error 1e-6; tested in tests/theory/test_pac_bayes.py.

    Raises:
        InputError: a number out of its range, where it is concrete, or shapes that do not broadcast.

    Source: Thiemann et al. 2017; Kimura & Naganuma, arXiv 2405.00442, Corollary 1, Eq. 19.

    Example:
        >>> best = theory.pac_bayes_lambda(0.1, 1.6, 1000)
        >>> round(float(best), 4), round(float(theory.pac_bayes_value(0.1, 1.6, 1000, lambda_=best)), 4)
        (0.3398, 0.1515)
    """
    numbers = _check(expected_loss=expected_loss, divergence=divergence, num_examples=num_examples, delta=delta)
    expected_loss, divergence, count, delta = checks.broadcast(**numbers)
    return 2 / (jnp.sqrt(2 * count * expected_loss / _complexity(divergence, count, delta) + 1) + 1)


def _check(**numbers):
    """The numbers, each within its range."""
    for name, value in numbers.items():
        checks.check_interval(name, value, *_RANGES[name])
    return numbers


def _complexity(divergence, count, delta):
    return divergence + jnp.log(2 * jnp.sqrt(count) / delta)
