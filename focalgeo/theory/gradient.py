"""Derivatives of the focal loss in one probability, l(p) = -(1-p)^gamma log p, and their ratios to cross-entropy's.

All are computed from u = -p log(p) / (1-p), which lies in [0, 1] and tends to 1 with p, so that nothing cancels where
p nears 1.
"""

import jax
import jax.numpy as jnp

from focalgeo import checks
from focalgeo.calibration.maps import surprise_ratio
from focalgeo.calibration.newton import implicit_step, newton_in_bracket
from focalgeo.checks import Batch, Numbers
from focalgeo.types import Array


def gradient_ratio(p: Numbers, gamma: Numbers, *, complement: Numbers | None = None) -> Batch:
    """Ratio of the focal loss's gradient to cross-entropy's: G = (1-p)^gamma - gamma p (1-p)^(gamma-1) log p.

    By any parameter w, d focal / dw = G d cross_entropy / dw. G is 1 at p = 0, rises above 1 for confident mistakes
    (peak below p = 0.2032 for every gamma), crosses 1 at the p0 with `gamma_star`(p0) = gamma, and falls to 0 at p = 1.

    Args:
        p: Probability of the true class, [...], 0 to 1.
        gamma: Focal parameter, scalar or [...], above -1; broadcast with p.
        complement: 1 - p, [...], for a p so near 1 that its float type cannot tell; taken from p if left out.

    Returns:
        [...] float32 (float64 for float64 arguments under JAX's x64 mode), relative error below 1e-5 for float32 p and
        complement down to where (1-p)^gamma underflows; tested in tests/theory/test_gradient.py. At p = 1: 0 for
        gamma > 0, 1 for gamma = 0 and infinity for gamma < 0.

    Raises:
        InputError: p outside [0, 1] or gamma below -1, where they are concrete.

    Source: Mukhoti et al., ICLR 2020 submission, Proposition 1 (there g(p, gamma)).

    Example:
        >>> ratio = theory.gradient_ratio(np.float32([0.05, 0.2, 0.5, 0.9]), 2.0)
        >>> print(np.asarray(ratio).round(4))
        [1.1871 1.155  0.5966 0.029 ]
    """
    p, c, gamma = _arguments(p, gamma, complement)
    return power(c, gamma) * (1 + gamma * _surprise_ratio(p, c))


def focal_slope(p: Numbers, gamma: Numbers, *, complement: Numbers | None = None) -> Batch:
    """First derivative of the focal loss in p: l'(p) = -G(p, gamma) / p, in nats per unit of probability.

    As p tends to 1 it behaves like -(1 + gamma) (1-p)^gamma: it tends to 0 for gamma > 0, to -1 for gamma = 0 and to
    minus infinity for gamma < 0. As p tends to 0, p l'(p) tends to -1 for every gamma.

    Args:
        p: Probability of the true class, [...], above 0 and up to 1.
        gamma: Focal parameter, scalar or [...], above -1.
        complement: 1 - p, as for `gradient_ratio`.

    Returns:
        [...] float32, accuracy as `gradient_ratio`; tested in tests/theory/test_gradient.py.

    Raises:
        InputError: p outside [0, 1] or gamma below -1, where they are concrete.

    Source: Kimura & Naganuma, arXiv 2405.00442, Eqs. 30-32.

    Example:
        >>> print(np.asarray(theory.focal_slope(np.float32([0.05, 0.5, 0.9]), 2.0)).round(4))
        [-23.7419  -1.1931  -0.0322]
    """
    ratio = gradient_ratio(p, gamma, complement=complement)
    return -ratio / checks.broadcast(p=p, ratio=ratio)[0]


def logit_curvature_ratio(p: Numbers, gamma: Numbers, *, complement: Numbers | None = None) -> Batch:
    """Ratio of the focal loss's curvature in a binary logit to cross-entropy's: rho = G - (1-p) dG/dp.

    With s the true class's logit and p = sigmoid(s), d2 focal / ds2 = rho p (1-p). Closed form:
    (1-p)^gamma [1 + 2 gamma + gamma log p + gamma^2 u], u = -p log(p) / (1-p).

    Args:
        p: Probability of the true class, [...], above 0 and up to 1 (at 0: minus infinity).
        gamma: Focal parameter, scalar or [...], above -1.
        complement: 1 - p, as for `gradient_ratio`.

    Returns:
        [...] float32, absolute error 1e-5 of the largest term; tested in tests/theory/test_gradient.py.

    Raises:
        InputError: p outside [0, 1] or gamma below -1, where they are concrete.

    The factor is not (1-p)^gamma, as Kimura & Naganuma, arXiv 2405.00442, Eq. 28 has it with the modulating factor
    held fixed. For gamma = 2 it is negative below p = 0.058 and above 1 on (0.093, 0.628): the focal loss flattens the
    surface only where the model is already confident, and raises curvature at initialisation. So their statement that
    a larger gamma makes the curvature term smaller holds for confident samples only.

    Example:
        >>> ratio = theory.logit_curvature_ratio(np.float32([0.05, 0.2, 0.5, 0.9]), 2.0)
        >>> print(np.asarray(ratio).round(4))  # negative, above 1, then small
        [-0.3256  2.17    1.5966  0.0858]
    """
    p, c, gamma = _arguments(p, gamma, complement)
    factor = 1 + 2 * gamma + gamma * _log(p, c) + gamma**2 * _surprise_ratio(p, c)
    return power(c, gamma) * factor


def _arguments(p, gamma, complement):
    """The probability, its complement and gamma, checked and broadcast."""
    checks.check_interval("p", p, 0, 1)
    checks.check_interval("gamma", gamma, -1)
    if complement is None:
        p, gamma = checks.broadcast(p=p, gamma=gamma)
        return p, 1 - p, gamma
    checks.check_interval("complement", complement, 0, 1)
    return checks.broadcast(p=p, complement=complement, gamma=gamma)


def _log(p, c):
    """The log of p, from whichever of p and 1 - p is the smaller and so the sharper."""
    return jnp.where(p < 0.5, jnp.log(p), jnp.log1p(-jnp.minimum(c, 0.5)))


def _surprise_ratio(p, c):
    """The ratio u; 0 at p = 0 and 1 at p = 1, where its derivatives are 0."""
    inside = (p > 0) & (c > 0)
    log_odds = _log(jnp.where(inside, p, 0.5), c) - jnp.log(jnp.where(inside, c, 0.5))
    return jnp.where(inside, surprise_ratio(log_odds), jnp.where(p > 0, 1, 0).astype(p.dtype))


def power(base: Array, exponent: Array) -> Array:
    """base^exponent with the limits of a zero base, and derivatives that are finite where the power is."""
    safe = jnp.where(base > 0, base, 1)
    at_zero = jnp.where(exponent > 0, 0.0, jnp.where(exponent == 0, 1.0, jnp.inf)).astype(base.dtype)
    return jnp.where(base > 0, jnp.exp(exponent * jnp.log(safe)), at_zero)


def gamma_star(p0: Numbers) -> Batch:
    """The gamma above 0 at which `gradient_ratio`(p0, gamma) is 1; every larger gamma damps all p above p0.

    In closed form gamma = a/b + W_{-1}(-(a^(1-a/b) / b) log a) / log a, with a = 1 - p0, b = p0 log p0 and W_{-1} the
    lower real branch of Lambert's function.

    Args:
        p0: Probability of the true class, scalar or [...], 0 to 1.

    Returns:
        [...] float32: 14.924 at 0.1, 4.851 at 0.2 (the reason for gamma = 5 below 0.2), 1.957 at 0.3, and 0 from 0.5
        on, where any gamma > 0 damps; infinity at 0. Relative error 2e-6 plus absolute error 2e-6, down to p0 = 0.001;
        tested in tests/theory/test_gamma_star.py. Differentiable: implicit derivative below 0.5, 0 from there on.

    Raises:
        InputError: p0 outside [0, 1] where it is concrete.

    Source: Mukhoti et al., ICLR 2020 submission, Proposition 2 and Appendix B. Two corrections. The principal branch
    W_0 does not give "a negative value" for p0 < 0.5 as printed: it gives 0 exactly, since gamma = 0 always solves
    G = 1 (its value is negative for p0 > 0.5 only). And from p0 = 0.5 on W_{-1} gives 0, so the proposition says
    nothing about which gamma suits confident samples. The argument of W touches the branch point -1/e at p0 = 0.5,
    where rounding would throw it out of the domain; here the same equation is solved as log(1 + x) = r x instead,
    x = gamma u, which has no such point.

    Example:
        >>> print(np.asarray(theory.gamma_star(np.float32([0.1, 0.2, 0.3, 0.5]))).round(3))
        [14.924  4.851  1.957  0.   ]
    """
    checks.check_interval("p0", p0, 0, 1)
    (p0,) = checks.floats(p0)
    below = (p0 > 0) & (p0 < 0.5)
    p = jnp.where(below, p0, 0.25)
    log_complement = jnp.log1p(-p)
    ratio = -p * jnp.log(p) / (1 - p)
    root = _positive_root(-log_complement / ratio)
    return jnp.where(below, root / ratio, jnp.where(p0 == 0, jnp.inf, 0).astype(p0.dtype))


def _positive_root(r):
    """The x > 0 with log(1 + x) = r x for r in (0, 1): x = -1 - W_{-1}(-r exp(-r)) / r.

    r x - log(1 + x) is convex with its minimum at 1 / r - 1, where it is negative. Newton's method runs from the right
    of the root, from the bound W_{-1}(-exp(-v-1)) > -1 - sqrt(2v) - v, v = r - log r - 1, or near r = 1, where v drowns
    in rounding, from a series.
    """
    fixed = jax.lax.stop_gradient(r)
    v = jnp.maximum(fixed - jnp.log(fixed) - 1, 0)
    near = 1 - fixed
    start = jnp.where(near < 0.05, 2 * near + 3 * near**2, (1 + jnp.sqrt(2 * v) + v) / fixed - 1)

    def residual(x):
        return fixed * x - jnp.log1p(x), fixed - 1 / (1 + x)

    x = newton_in_bracket(residual, start, near / fixed, 2 * start)
    slope = residual(x)[1]
    return implicit_step(x, r * x - jnp.log1p(x), jnp.where(slope > 0, slope, 1))
