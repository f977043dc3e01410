"""Softmax regression and two-layer linear networks on features of a chosen covariance, labels from a known model.

Features are sqrt(scale * eigenvalue_i) times standard normal coordinates g, logits of the truth g @ C with C scaled so
that each class's logit has standard deviation TRUTH: C reaches all coordinates, or only the TOP of largest or least
eigenvalue. Labels are drawn from the softmax of these. Gradient descent, its rate one over the largest eigenvalue of
the features' second moments, ends where the mean loss on train is STOP times that of the truth on the same examples.

With probabilities p, M = diag p - pp', z = B A x, J its derivative in both layers and r = p - e_y the Hessian of mean
cross-entropy is the mean of J'MJ, and of x r' between A and B; the trace is the mean of |x|^2 tr B'MB + |Ax|^2 tr M.
Softmax regression is B alone, with x for Ax. All in float64.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, optimize, special

FEATURES, CLASSES, HIDDEN, EXAMPLES, TESTED = 40, 5, 20, 400, 10_000
TRUTH, TOP, STOP, MOST = 2.0, 8, 0.85, 50_000  # MOST: steps
BINS = 15
MODELS = {"softmax": "softmax regression", "linear": "two-layer linear network"}
TRUTHS = ("all", "steep", "flat")
EIGENVALUES = {  # each of mean 1
    "flat": np.ones(FEATURES),
    "power": 1 / np.arange(1, FEATURES + 1),
    "outliers": np.r_[np.full(4, 40.0), np.ones(FEATURES - 4)],
}
EIGENVALUES = {name: values / values.mean() for name, values in EIGENVALUES.items()}


class Cell(NamedTuple):
    """One way to set the curvature; first: size of a first layer's weights at the start, where the second's are 0."""

    model: str
    spectrum: str
    truth: str = "all"  # the coordinates that it depends on
    scale: float = 1.0
    first: float = 1.0


CELLS = (
    *(Cell(model, name, truth) for model in MODELS for name in EIGENVALUES for truth in TRUTHS),
    *(Cell("softmax", "power", scale=scale) for scale in (0.01, 100.0)),
    *(Cell("linear", "power", first=first) for first in (0.25, 2.0)),
)


def drawn(cell: Cell, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Features, logits of the truth and labels, of train and of test; coordinates are the same in all cells."""
    generator = np.random.default_rng(seed)
    weights = generator.normal(size=(FEATURES, CLASSES))
    places = {"all": slice(None), "steep": slice(TOP), "flat": slice(FEATURES - TOP, None)}[cell.truth]
    reached = np.zeros_like(weights)
    reached[places] = weights[places]
    reached *= TRUTH / np.sqrt((reached**2).sum(0))
    for count in (EXAMPLES, TESTED):
        g, noise = generator.normal(size=(count, FEATURES)), generator.gumbel(size=(count, CLASSES))
        logits = g @ reached
        yield g * np.sqrt(cell.scale * EIGENVALUES[cell.spectrum]), logits, (logits + noise).argmax(-1)


def nll(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean cross-entropy in nats."""
    return float(-special.log_softmax(logits, -1)[np.arange(len(labels)), labels].mean())


def descended(cell: Cell, x: np.ndarray, labels: np.ndarray, target: float, seed: int) -> tuple[list[np.ndarray], int]:
    """Weights [inputs, outputs] of each layer once the loss on train is at most the target, and the steps taken."""
    unit, count = np.eye(CLASSES)[labels], len(labels)
    top, layers = np.linalg.eigvalsh(x.T @ x / count)[-1], [np.zeros((FEATURES, CLASSES))]
    if cell.model == "linear":
        first = np.random.default_rng(1000 + seed).normal(size=(FEATURES, HIDDEN)) / np.sqrt(FEATURES)
        layers = [cell.first * first, np.zeros((HIDDEN, CLASSES))]
    for step in range(MOST):
        hidden = [x]
        for layer in layers:
            hidden.append(hidden[-1] @ layer)
        if nll(hidden[-1], labels) <= target:
            return layers, step
        # M is at most a half, so that no step is longer than two over the Gauss-Newton matrix's largest eigenvalue
        rate = 1 / top / (sum(np.linalg.norm(layer, 2) ** 2 for layer in layers) if len(layers) > 1 else 1)
        slope = (special.softmax(hidden[-1], -1) - unit) / count
        for place in reversed(range(len(layers))):
            change = hidden[place].T @ slope
            slope = slope @ layers[place].T
            layers[place] = layers[place] - rate * change
    return layers, MOST


def spectrum(layers: list[np.ndarray], x: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """lambda_max and trace of the Hessian of mean cross-entropy, by the closed form above."""
    unit, count = np.eye(CLASSES), len(labels)
    hidden = np.linalg.multi_dot([x, *layers[:-1], np.eye(len(layers[-1]))])
    p = special.softmax(hidden @ layers[-1], -1)
    m = unit * p[:, None] - p[:, :, None] * p[:, None]
    jacobian = np.einsum("nh,kj->nkhj", hidden, unit).reshape(count, CLASSES, -1)
    if len(layers) > 1:
        of_first = np.einsum("nd,hk->nkdh", x, layers[1]).reshape(count, CLASSES, -1)
        jacobian = np.concatenate([of_first, jacobian], -1)
    hessian = np.einsum("nkp,nkl,nlq->pq", jacobian, m, jacobian, optimize=True)
    if len(layers) > 1:
        between = np.einsum("nd,nk,hj->dhjk", x, p - unit[labels], np.eye(HIDDEN)).reshape(layers[0].size, -1)
        hessian[: len(between), len(between) :] += between
        hessian[len(between) :, : len(between)] += between.T
    top = linalg.eigvalsh(hessian, subset_by_index=[len(hessian) - 1] * 2)[0]
    return float(top / count), float(np.trace(hessian) / count)


def measure(cell: Cell, seed: int) -> dict[str, Any]:
    """The run of a cell: curvature on train; accuracy, ECE and the best T on test, as the truth expects them."""
    (x, logits, labels), (test_x, truth, _) = drawn(cell, seed)
    layers, steps = descended(cell, x, labels, STOP * nll(logits, labels), seed)
    top, trace = spectrum(layers, x, labels)
    test = np.linalg.multi_dot([test_x, *layers])
    probs = special.softmax(truth, -1)
    expected = lambda log_t: -(probs * special.log_softmax(test / np.exp(log_t), -1)).sum(-1).mean()  # noqa: E731
    best = optimize.minimize_scalar(expected, bounds=(-3, 3), method="bounded")
    right = probs[np.arange(TESTED), test.argmax(-1)]
    confidence = special.softmax(test, -1).max(-1)
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, confidence - right, BINS)
    return cell._asdict() | {
        "seed": seed,
        "steps": steps,
        "train nll": nll(np.linalg.multi_dot([x, *layers]), labels),
        "lambda_max": top,
        "trace": trace,
        "accuracy": float(right.mean()),
        "ece": float(np.abs(gaps).sum() / TESTED),
        "temperature": float(np.exp(best.x)),
    }
