"""Gamma*: the gamma from which the focal loss damps a sample's gradient, by the lower branch of Lambert's W."""

import jax
import jax.numpy as jnp

from focalgeo.calibration.roots import implicit_step, newton_in_bracket
from focalgeo.theory.arguments import Batch, Numbers, check_interval, floats
from focalgeo.types import Array


def gamma_star(p0: Numbers) -> Batch:
    """The gamma above 0 at which `gradient_ratio`(p0, gamma) is 1; every larger gamma damps all p above p0.

    In closed form gamma = a/b + W_{-1}(-(a^(1-a/b) / b) log a) / log a, with a = 1 - p0, b = p0 log p0 and W_{-1} the
    lower real branch of Lambert's function.

    Args:
        p0: Probability of the true class, scalar or [...], 0 to 1.

    Returns:
        [...] float32: 14.924 at 0.1, 4.851 at 0.2 (the reason for gamma = 5 below 0.2), 1.957 at 0.3, and 0 from 0.5
        on, where any gamma > 0 damps; infinity at 0. Relative error 2e-6 plus absolute error 2e-6, down to p0 = 0.001;
        held by tests/theory/test_gamma_star.py. Differentiable: implicit derivative below 0.5, 0 from there on.

    Raises:
        InputError: p0 outside [0, 1] where it is concrete; traced, such values give NaN.

    Source: Mukhoti et al., arXiv 2002.09437, Proposition 2 and Appendix B. Two corrections. The principal branch W_0
    does not give "a negative value" for p0 < 0.5 as printed there: it gives 0 exactly, since gamma = 0 always solves
    G = 1 (its value is negative for p0 > 0.5 only). And from p0 = 0.5 on W_{-1} gives 0, so the proposition says
    nothing about which gamma suits confident samples. The argument of W touches the branch point -1/e at p0 = 0.5,
    where rounding would throw it out of the domain; here the same equation is solved as log(1 + x) = r x instead,
    x = gamma u, which has no such point.
    """
    check_interval("p0", p0, 0, 1)
    (p0,) = floats(p0)
    below = (p0 > 0) & (p0 < 0.5)
    p = jnp.where(below, p0, 0.25)
    log_complement = jnp.log1p(-p)
    ratio = -p * jnp.log(p) / (1 - p)
    root = _positive_root(-log_complement / ratio)
    limits = jnp.where(p0 == 0, jnp.inf, jnp.where((p0 >= 0.5) & (p0 <= 1), 0.0, jnp.nan)).astype(p0.dtype)
    return jnp.where(below, root / ratio, limits)


def _positive_root(r: Array) -> Array:
    """The x > 0 with log(1 + x) = r x for r in (0, 1): x = -1 - W_{-1}(-r exp(-r)) / r.

    r x - log(1 + x) is convex with its minimum at 1 / r - 1, where it is negative. Newton's method runs from the right
    of the root, from the bound W_{-1}(-exp(-v-1)) > -1 - sqrt(2v) - v, v = r - log r - 1, or near r = 1, where v drowns
    in rounding, from a series.
    """
    fixed = jax.lax.stop_gradient(r)
    v = jnp.maximum(fixed - jnp.log(fixed) - 1, 0)
    near = 1 - fixed
    start = jnp.where(near < 0.05, 2 * near + 3 * near**2, (1 + jnp.sqrt(2 * v) + v) / fixed - 1)

    def residual(x: Array) -> tuple[Array, Array]:
        return fixed * x - jnp.log1p(x), fixed - 1 / (1 + x)

    x = newton_in_bracket(residual, start, near / fixed, 2 * start).point
    slope = residual(x)[1]
    return implicit_step(x, r * x - jnp.log1p(x), jnp.where(slope > 0, slope, 1))
