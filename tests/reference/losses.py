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
        e = [mpmath.mpf(int(k == label)) for k in range(len(z))]
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


def loss_and_derivatives(name, logits, label, *hyper):
    """Value, gradient and Hessian of any loss in the logits: its definition in p, by central differences in mpmath."""
    with mpmath.workdps(200):
        z = [mpmath.mpf(float(value)) for value in logits]
        hyper = [mpmath.mpf(float(value)) for value in hyper]
        rival = _next_below(z, label)
        step, n = mpmath.mpf(10) ** -25, range(len(z))

        def at(*moves):
            moved = list(z)
            for k, sign in moves:
                moved[k] += sign * step
            e = [mpmath.exp(value) for value in moved]
            p = [value / mpmath.fsum(e) for value in e]
            rest = mpmath.fsum(value for k, value in enumerate(e) if k != label) / mpmath.fsum(e)
            return _DEFINITIONS[name](p, rest, label, rival, *hyper)

        gradient = [(at((i, 1)) - at((i, -1))) / (2 * step) for i in n]
        signs = [(1, 1, 1), (-1, -1, 1), (1, -1, -1), (-1, 1, -1)]
        hessian = [[sum(s * at((i, a), (j, b)) for a, b, s in signs) / (4 * step**2) for j in n] for i in n]
        return float(at()), np.array(gradient, float), np.array(hessian, float)


def _next_below(z, label):
    below = [k for k in range(len(z)) if z[k] < z[label]]
    return max(below, key=lambda k: z[k]) if below else None


def _signed(p, rest, label, _, gamma):
    factor = rest**gamma if gamma >= 0 else (1 + p[label]) ** -gamma
    return -factor * mpmath.log(p[label])


def _smoothed(p, _, label, __, smoothing):
    targets = [smoothing / len(p) + (1 - smoothing) * (k == label) for k in range(len(p))]
    return -mpmath.fsum(t * mpmath.log(q) for t, q in zip(targets, p, strict=True))


def _brier(p, rest, label, _):
    return rest**2 + mpmath.fsum(q**2 for k, q in enumerate(p) if k != label)


def _dual(p, rest, label, rival, gamma):
    return -((rest + (0 if rival is None else p[rival])) ** gamma) * mpmath.log(p[label])


def _penalised(p, _, label, __, gamma):
    return -mpmath.log(p[label]) + gamma * mpmath.fsum(q * mpmath.log(q * len(p)) for q in p)


_DEFINITIONS = {"signed": _signed, "smoothed": _smoothed, "brier": _brier, "dual": _dual, "penalised": _penalised}


def mmce(p, labels, *, weighted=False, width=0.4):
    """MMCE of rows of probabilities by the double sum; the weighted one from its three sums over pairs."""
    confidence, right = np.max(p, axis=1), np.argmax(p, axis=1) == labels
    groups = {True: np.flatnonzero(right), False: np.flatnonzero(~right)}
    kernel = np.exp(-np.abs(confidence[:, None] - confidence) / width)
    miss = np.where(right, 1 - confidence, confidence)
    total = 0.0
    for a in (True, False):
        for b in (True, False):
            pairs = sum(miss[i] * miss[j] * kernel[i, j] for i in groups[a] for j in groups[b])
            size = len(groups[a]) * len(groups[b]) if weighted else len(labels) ** 2
            total += (1 if a == b else -1) * pairs / max(size, 1)
    return np.sqrt(total)
