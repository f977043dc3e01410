"""Calibration maps in mpmath and metrics as plain loops in exact arithmetic; imports no focalgeo."""

from fractions import Fraction

import mpmath
import numpy as np


def focal_temperature_scaling(logits, gamma, temperature, digits=60):
    """Log-probabilities [classes] of the focal map of softmax(z / T), from the definition h = q / G(q)."""
    with mpmath.workdps(digits + int(0.9 * (max(logits) - min(logits)) / temperature)):
        g, t = mpmath.mpf(float(gamma)), mpmath.mpf(float(temperature))
        exponentials = [mpmath.exp(mpmath.mpf(float(value)) / t) for value in logits]
        weights = [
            _h(e, mpmath.fsum(x for j, x in enumerate(exponentials) if j != i), g) for i, e in enumerate(exponentials)
        ]
        total = mpmath.fsum(weights)
        return np.array([float(_log_share(i, weights, total)) for i in range(len(weights))])


def _h(inside, outside, g):
    q, rest = inside / (inside + outside), outside / (inside + outside)
    return q / (rest**g - g * q * rest ** (g - 1) * mpmath.log(q))


def _log_share(i, weights, total):
    rest = mpmath.fsum(w for j, w in enumerate(weights) if j != i) / total
    return mpmath.log1p(-rest) if rest < 0.5 else mpmath.log(weights[i] / total)


def ece(confidences, correct, num_bins):
    """Equal-width ECE and MCE; bin i is ((i-1)/M, i/M], where what is within 1e-6 of an edge is on it."""
    bins = [[] for _ in range(num_bins)]
    for confidence, right in zip(confidences, correct, strict=True):
        bins[bin_number(confidence, num_bins)].append((float(confidence), float(right)))
    return _summed(bins, len(confidences))


def bin_number(confidence, num_bins):
    """Number from 0 of the equal-width bin, decided with fractions."""
    scaled = (Fraction(float(confidence)) - Fraction(1, 10**6)) * num_bins
    return min(max(-(-scaled.numerator // scaled.denominator) - 1, 0), num_bins - 1)


def equal_mass(confidences, num_bins):
    """The examples of each bin: an array split in order, whose cuts move to the nearer end of equal confidences."""
    confidences = np.asarray(confidences, float)
    order = np.argsort(confidences, kind="stable")
    cuts = [0]
    for bound in np.cumsum([len(part) for part in np.array_split(order, num_bins)])[:-1]:
        at_bound = confidences[order[max(bound, 1) - 1]]
        below, up_to = np.sum(confidences < at_bound - 5e-7), np.sum(confidences <= at_bound + 5e-7)
        cuts.append(below if bound - below <= up_to - bound else up_to)
    return np.split(order, cuts[1:])


def adaptive_ece(confidences, correct, num_bins):
    """Equal-mass ECE by rank."""
    pairs = np.stack([np.asarray(confidences, float), np.asarray(correct, float)], axis=1)
    return _summed([pairs[part] for part in equal_mass(confidences, num_bins)], len(pairs))[0]


def classwise_ece(probs, labels, num_bins):
    per_class = [ece(probs[:, k], np.asarray(labels) == k, num_bins)[0] for k in range(probs.shape[1])]
    return float(np.mean(per_class))


def _summed(bins, total):
    bins = [pairs for pairs in bins if len(pairs)]
    gaps = [abs(np.mean([p - c for p, c in pairs])) for pairs in bins]
    return sum(len(pairs) * gap for pairs, gap in zip(bins, gaps, strict=True)) / total, max(gaps)


def metrics_dataset():
    """The twenty examples of the papers' metrics record: probabilities in 64ths, so that bin edges are exact."""
    rows = [
        (40, 16, 8), (60, 3, 1), (63, 1, 0), (32, 24, 8), (48, 8, 8), (22, 21, 21), (16, 32, 16), (4, 56, 4),
        (10, 44, 10), (1, 62, 1), (20, 12, 32), (8, 8, 48), (2, 2, 60), (30, 29, 5), (52, 10, 2), (12, 40, 12),
        (24, 8, 32), (6, 50, 8), (58, 4, 2), (16, 0.5, 47.5),
    ]  # fmt: skip
    labels = [0, 0, 0, 1, 0, 2, 1, 1, 0, 1, 2, 2, 0, 0, 0, 1, 0, 1, 0, 2]
    return np.array(rows) / 64, np.array(labels, np.int32)


def smooth_ece(confidences, correct, points=4001):
    """Smooth ECE by summing the reflected kernel at many points and halving the width."""
    place = (np.arange(points) + 0.5) / points
    residual = np.asarray(correct, float) - np.asarray(confidences, float)
    mirrors = [sign * np.asarray(confidences, float) + shift for sign in (1, -1) for shift in (-4, -2, 0, 2, 4)]

    def error(width):
        kernel = sum(np.exp(-(((place[:, None] - mirror) / width) ** 2) / 2) for mirror in mirrors)
        return np.mean(np.abs(kernel @ residual)) / (len(residual) * width * np.sqrt(2 * np.pi))

    low, high = 1e-3, 1.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return (low + high) / 2


def debiased_squared_ece(confidences, correct, num_bins):
    """Squared gap less the estimated variance of the accuracy, over equal-mass bins by rank."""
    total = 0.0
    for part in equal_mass(confidences, num_bins):
        if len(part) > 1:
            hits = np.asarray(correct, float)[part]
            gap = np.mean(np.asarray(confidences, float)[part]) - hits.mean()
            total += len(part) * (gap**2 - hits.var() / (len(part) - 1))
    return total / len(confidences)


def confidence_auroc(confidences, correct):
    """Share of the pairs of a right and a wrong prediction in which the right one is more confident; ties are half."""
    confidences, correct = np.asarray(confidences, float), np.asarray(correct, bool)
    right, wrong = confidences[correct][:, None], confidences[~correct][None, :]
    return float(np.mean((right > wrong) + (right == wrong) / 2))


def aurc(confidences, correct):
    """Mean over examples of the share of wrong predictions among those that are at least as confident."""
    confidences, correct = np.asarray(confidences, float), np.asarray(correct, bool)
    return float(np.mean([np.mean(~correct[confidences >= each]) for each in confidences]))
