"""Suspicions of a classifier's outputs before anything is fitted, a sentence each: order of columns, chance, leakage.

In 21,600 simulated files without a fault, none was warned of columns in another order, and 5 of neighbours. Outputs
that say next to nothing, or of too few examples to tell, are at chance.
"""

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import softmax, xlogy

from focalgeo.calibration import blocks
from focalgeo.types import Array

_MOST_CLASSES = 2000  # whose table of confusion is made
_SHOWN = 20  # columns that a sentence lists
_LOG_CHANCE = math.log(1e-4)
_ERRORS, _LEAST_INFORMED = 4.0, 2.0  # standard errors
_ROUNDING = 1e-20  # a variance of probabilities that is none


def of_split(name: str, logits: Array, labels: Array, weights: Array, *, clustered: bool) -> Iterator[str]:
    """What speaks against one split: float [examples, classes], int [examples], and whether clusters are known."""
    n, classes = logits.shape
    if (total := np.sum(weights)) < n / 2:
        yield (
            f"Weights of {name} sum to {total:.4g} for {n:,} rows, and count as numbers of rows: intervals and fits are"
            " those of so few. Of importances give such whose mean is 1."
        )
    predicted, (confidence, errors) = logits.argmax(axis=1), informed(logits, labels)
    right, at_chance = predicted == labels, errors < _LEAST_INFORMED
    order = permutation(predicted, labels, classes) if classes <= _MOST_CLASSES else np.arange(classes)
    moved = np.flatnonzero(order != np.arange(classes))
    if moved.size:
        after = np.mean(np.argsort(order)[predicted] == labels)
        listed = ", ".join(f"column {order[k]} is class {k}" for k in moved[:8])
        mend = f"logits[:, {order.tolist()}]" if classes <= _SHOWN else f"{moved.size} of them: {listed}, ..."
        what = f"{100 * right.mean():.1f}%, {'no better than chance' if at_chance else 'less than it could be'}"
        yield (
            f"Columns of {name} seem, beyond chance, to be in another order than the labels: accuracy is {what}, and"
            f" {100 * after:.1f}% by {mend}."
        )
    elif at_chance:
        what = f"Outputs of {name} say no more of the labels than chance (accuracy {100 * right.mean():.1f}%)"
        always = len(set(predicted.tolist())) == 1
        why = "labels may be shuffled, or belong to other rows"
        yield f"{what}: {f'the predicted class is always {predicted[0]}' if always else why}."
    if clustered:
        return
    together, by_chance = neighbours(right, confidence, labels), 1 / math.sqrt(n)
    if together > _ERRORS * by_chance:
        yield (
            f"Neighbouring rows of {name} are right and wrong together (correlation {together:.2f}, by chance"
            f" {by_chance:.2f}): intervals that take them for independent are too narrow. Name those that belong"
            " together in an array cluster."
        )


def confidence(logits: Array) -> np.ndarray:
    """The largest probability of each row, in float64."""
    return np.concatenate(blocks.in_blocks(lambda rows: softmax(np.float64(rows), axis=1).max(axis=1), logits))


def informed(logits: Array, labels: Array) -> tuple[np.ndarray, float]:
    """Confidences [examples], and by how many standard errors p of the label is more than that of shuffled labels.

    Exact are the mean and the variance over all orders, which doubly centred probabilities give.

    Source: Hoeffding, Ann. Math. Stat. 22 (1951), the combinatorial central limit theorem.
    """
    shares = np.bincount(labels, minlength=logits.shape[1]) / len(labels)

    def of_rows(logits, labels):
        probs = softmax(logits.astype(np.float64), axis=1)
        true = probs[np.arange(len(labels)), labels]
        return probs.sum(axis=0), np.stack([probs.max(axis=1), true, probs @ shares, probs**2 @ shares])

    sums, numbers = zip(*blocks.in_blocks(of_rows, logits, labels), strict=True)
    n, (confidence, true, by_row, squares) = len(labels), np.concatenate(numbers, axis=1)
    mean = sum(sums) / n
    variance = (squares - mean**2 @ shares - (by_row - mean @ shares) ** 2).sum() * n / max(n - 1, 1)
    return confidence, (true - mean @ shares).sum() / math.sqrt(max(variance, n * _ROUNDING))


def permutation(predicted: Array, labels: Array, classes: int) -> np.ndarray:
    """The order of columns [classes] that makes sense of the labels; 0, 1, ... where theirs does.

    It assigns labels to columns by the most examples. That is believed where each half of the examples gains by the
    assignment of the other: given that a column's own label is no less likely than another, of m examples with one of
    the two at least half have its own, and the chance of so few is below 1e-4; and where it gains by counts over those
    of independent columns and labels too, which no preference for a class changes.
    """

    def table(part):
        return np.bincount(predicted[part] * classes + labels[part], minlength=classes**2).reshape(classes, classes)

    def gain(counts, to):
        """Log of Chernoff's bound on the chance that as many have the label assigned to them, and not their own."""
        own = np.flatnonzero(to != every)
        other, own = counts[own, to[own]].sum(), counts[own, own].sum()
        half = max(other + own, 1) / 2
        return -(xlogy(other, other / half) + xlogy(own, own / half)) if other > own else 0.0

    every, even = np.arange(classes), np.arange(len(labels)) % 2 == 0
    halves = table(even), table(~even)
    counts = sum(halves)
    to = linear_sum_assignment(-counts)[1]
    # an assignment is judged on the half that it was not made from, else noise alone would gain by it
    by_other = [gain(half, linear_sum_assignment(-other)[1]) for half, other in (halves, halves[::-1])]
    own = np.flatnonzero(to != every)
    both = own, np.array([to[own], own])  # as assigned, and their own
    lift = (counts + 0.5) / (np.outer(counts.sum(axis=1), counts.sum(axis=0)) / len(labels) + 0.5)
    gained, error = [1, -1] @ np.log(lift[both]).sum(axis=1), math.sqrt((1 / (counts[both] + 0.5)).sum())
    return np.argsort(to) if max(by_other) < _LOG_CHANCE and gained > 1.5 * error else every


def neighbours(right: Array, confidence: Array, labels: Array) -> float:
    """Rank correlation of [right] - confidence in neighbouring rows, less means by label and tenth of confidence."""
    residual = right - confidence
    tenth = np.argsort(np.argsort(confidence, kind="stable")) * 10 // len(labels)
    for part in (labels, tenth):
        residual = residual - (np.bincount(part, residual) / np.maximum(np.bincount(part), 1))[part]
    rank = np.argsort(np.argsort(residual)) - (len(residual) - 1) / 2
    return rank[1:] @ rank[:-1] / (rank @ rank)


def of_both(val: tuple[Array, Array], test: tuple[Array, Array], name: str = "test") -> Iterator[str]:
    """Rows of test, logits and label, that are rows of val too, beyond those that are alike by chance.

    By chance as many are as rows of val are like another of val, which is next to none but of few votes or digits.
    """
    of_val, of_test = (list(zip(hashes(logits), labels.tolist(), strict=True)) for logits, labels in (val, test))
    times = Counter(of_val)
    shared, alike = sum(row in times for row in of_test), sum(times[row] > 1 for row in of_val) / len(of_val)
    n, expected = len(of_test), alike * len(of_test)
    if shared > expected + _ERRORS * math.sqrt(expected * (1 - alike) * (1 + n / len(of_val))):
        yield (
            f"{shared:,} of {n:,} rows of {name} are rows of val too, logits and label, {expected:,.0f} by chance:"
            " there the methods are measured on what they were fitted on."
        )


def hashes(logits: Array) -> list[int]:
    """A number of each row, by which equal ones are found; -0 is 0."""
    return [hash(row.tobytes()) for row in logits + np.float32(0)]
