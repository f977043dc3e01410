"""The papers' closed forms from their definitions, in 50 digits; imports no focalgeo."""

import mpmath

DIGITS = 50


def loss(p, gamma):
    """-(1-p)^gamma log p."""
    return -((1 - p) ** gamma) * mpmath.log(p)


def derivative(p, gamma, order=1):
    """Derivative of the loss in p, by mpmath's numerical differentiation; p is taken as the exact float."""
    with mpmath.workdps(DIGITS):
        p, gamma = mpmath.mpf(float(p)), mpmath.mpf(float(gamma))
        return float(mpmath.diff(lambda x: loss(x, gamma), p, order, h=mpmath.mpf(10) ** -15 * p))


def logit_curvature_ratio(p, gamma):
    """Second derivative of the loss in the logit over that of cross-entropy."""
    with mpmath.workdps(DIGITS):
        p, gamma = mpmath.mpf(float(p)), mpmath.mpf(float(gamma))
        s = mpmath.log(p / (1 - p))

        def along(x):
            return loss(1 / (1 + mpmath.exp(-x)), gamma)

        return float(mpmath.diff(along, s, 2) / (p * (1 - p)))


def gamma_star(p0):
    """The Lambert form of the paper, lower branch."""
    with mpmath.workdps(DIGITS):
        p0 = mpmath.mpf(float(p0))
        a, b = 1 - p0, p0 * mpmath.log(p0)
        argument = -(a ** (1 - a / b) / b) * mpmath.log(a)
        return float(mpmath.re(a / b + mpmath.lambertw(argument, -1) / mpmath.log(a)))


def optimal_prediction(p, gamma):
    """Minimiser of sum p_k l(q_k): p_k l'(q_k) = -mu for all k, with mu such that they sum to 1; nested bisection."""
    with mpmath.workdps(30):
        p, gamma = [mpmath.mpf(float(x)) for x in p], mpmath.mpf(float(gamma))

        def slope(q):
            return (1 - q) ** gamma / q - gamma * (1 - q) ** (gamma - 1) * mpmath.log(q)

        def shares(log_mu):
            mu = mpmath.exp(log_mu)
            return [
                _root(lambda q, x=x: slope(q) - mu / x, mpmath.mpf(10) ** -20, 1 - mpmath.mpf(10) ** -20) for x in p
            ]

        log_mu = _root(lambda x: mpmath.fsum(shares(x)) - 1, mpmath.mpf(-40), mpmath.mpf(40), 60)
        return [float(q) for q in shares(log_mu)]


def _root(falling, low, high, halvings=70):
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2
