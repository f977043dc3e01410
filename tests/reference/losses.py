"""Focal loss with gradient and Hessian in the logits, in 60 digits, from its definition in p; imports no focalgeo."""

import mpmath
import numpy as np

DIGITS = 120  # 1 - p must survive at a logit gap of 100


def focal_loss(logits, label, gamma):
    """Value, gradient [classes] and Hessian [classes, classes] of -(1-p)^gamma log p, as float64."""
    with mpmath.workdps(DIGITS):
        z, g = [mpmath.mpf(float(value)) for value in logits], mpmath.mpf(float(gamma))
        total = mpmath.fsum(mpmath.exp(value) for value in z)
        p = [mpmath.exp(value) / total for value in z]
        true = p[label]
        factor, slope = _gradient_factor(true, g), _factor_slope(true, g)
        e = [mpmath.mpf(k == label) for k in range(len(z))]
        gradient = [-factor * (e[i] - p[i]) for i in range(len(z))]
        hessian = [
            [
                factor * ((i == j) * p[i] - p[i] * p[j]) - true * slope * (e[i] - p[i]) * (e[j] - p[j])
                for j in range(len(z))
            ]
            for i in range(len(z))
        ]
        value = -((1 - true) ** g) * mpmath.log(true)
        return float(value), np.array(gradient, float), np.array(hessian, float)


def directional_third(logits, label, gamma, direction):
    """Third derivative of the loss along `direction`, by numerical differentiation in high precision."""
    with mpmath.workdps(DIGITS):
        z, d = [mpmath.mpf(float(v)) for v in logits], [mpmath.mpf(float(v)) for v in direction]
        g = mpmath.mpf(float(gamma))

        def along(t):
            moved = [mpmath.exp(a + t * b) for a, b in zip(z, d, strict=True)]
            p = moved[label] / mpmath.fsum(moved)
            return -((1 - p) ** g) * mpmath.log(p)

        return float(mpmath.diff(along, 0, 3))


def _gradient_factor(p, g):
    return (1 - p) ** g - g * p * (1 - p) ** (g - 1) * mpmath.log(p)


def _factor_slope(p, g):
    return g * (1 - p) ** (g - 2) * (-2 * (1 - p) - (1 - p) * mpmath.log(p) + (g - 1) * p * mpmath.log(p))
