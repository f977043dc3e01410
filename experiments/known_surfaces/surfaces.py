"""Losses with Hessians in closed form: quadratics of chosen spectra, a two-layer linear network, softmax regression."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from focalgeo import losses

SIZE = 500  # of the quadratics
SPECTRA = {  # name -> (title, eigenvalues)
    "flat": ("flat, 0.5 to 1.5", np.linspace(0.5, 1.5, SIZE)),
    "power": ("power law, 1/i", 1 / np.arange(1, SIZE + 1)),
    "outliers": ("10 outliers over a bulk", np.r_[np.linspace(50, 100, 10), np.linspace(0, 0.2, SIZE - 10)]),
    "low rank": ("nine eigenvalues, else 0", np.r_[np.linspace(1, 10, 9), np.zeros(SIZE - 9)]),
    "clustered": ("20 clustered at the top", np.r_[np.linspace(0.999, 1, 20), np.linspace(0, 0.9, SIZE - 20)]),
    "both signs": ("both signs, trace near 0", np.linspace(-1, 1, SIZE) + 1 / SIZE),
    "negative": ("negative, but one of 0.01", np.r_[np.linspace(-1, -0.001, SIZE - 1), 0.01]),
}
STEPS, RATE = 300, 1.0  # of softmax regression, by gradient descent
GAMMA = 5.0
CLASSES = 10


class Surface(NamedTuple):
    """A loss of one array of parameters, a point, and its Hessian there in float64, row by row of the flat array."""

    name: str
    title: str
    loss: Callable
    params: jax.Array
    hessian: np.ndarray


def surfaces() -> Iterator[Surface]:
    """All surfaces, one after the other; the same at every call."""
    for seed, (name, (title, eigenvalues)) in enumerate(SPECTRA.items()):
        yield quadratic(name, title, eigenvalues, seed)
    yield linear_network()
    yield from softmax_regression()


def quadratic(name: str, title: str, eigenvalues: np.ndarray, seed: int) -> Surface:
    """The form x'Hx / 2 with these eigenvalues in a random basis, at a random point."""
    generator = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(generator.normal(size=(len(eigenvalues),) * 2))
    hessian = (basis * eigenvalues) @ basis.T
    matrix = jnp.asarray(hessian, jnp.float32)
    point = jnp.asarray(generator.normal(size=len(eigenvalues)), jnp.float32)
    return Surface(name, title, lambda x: 0.5 * x @ (matrix @ x), point, hessian)


def linear_network(inputs: int = 20, hidden: int = 15, outputs: int = 10, examples: int = 200) -> Surface:
    """Mean of |B A x - y|^2 / 2 at random A and B, whose Hessian has eigenvalues of both signs.

    With S = mean xx', C = mean yx' and G = BAS - C: H_AA = B'B (x) S, H_BB = I (x) ASA', and the block between entry
    (h, d) of A and (k, j) of B is B_kh (SA')_dj + [h = j] G_kd.
    """
    generator = np.random.default_rng(100)
    x, y = generator.normal(size=(examples, inputs)), generator.normal(size=(examples, outputs))
    a = generator.normal(size=(hidden, inputs)) / np.sqrt(inputs)
    b = generator.normal(size=(outputs, hidden)) / np.sqrt(hidden)
    s = x.T @ x / examples
    g = b @ a @ s - y.T @ x / examples
    between = np.einsum("kh,dj->hdkj", b, s @ a.T) + np.einsum("hj,kd->hdkj", np.eye(hidden), g)
    between = between.reshape(hidden * inputs, outputs * hidden)
    hessian = np.block([[np.kron(b.T @ b, s), between], [between.T, np.kron(np.eye(outputs), a @ s @ a.T)]])
    single = [jnp.asarray(each, jnp.float32) for each in (x, y)]

    def loss(params):
        first, second = params[: a.size].reshape(a.shape), params[a.size :].reshape(b.shape)
        return 0.5 * jnp.mean(jnp.sum((single[0] @ first.T @ second.T - single[1]) ** 2, -1))

    params = jnp.asarray(np.r_[a.ravel(), b.ravel()], jnp.float32)
    return Surface("linear network", "two-layer linear network", loss, params, hessian)


def softmax_regression(examples: int = 300) -> Iterator[Surface]:
    """Softmax regression on digits: cross-entropy where it was trained, and focal loss there and at random weights.

    H = mean of xx' (x) M, with M the second derivative of the example's loss in its logits. At random weights many
    labels have a small probability, where focal loss is not convex in the logits.
    """
    images, labels = _digits(examples)
    x, y = jnp.asarray(images, jnp.float32), jnp.asarray(labels)

    def loss(gamma):
        return lambda weights: jnp.mean(losses.focal_loss(x @ weights.reshape(-1, CLASSES), y, gamma))

    gradient = jax.jit(jax.grad(loss(0.0)))
    trained = jnp.zeros(images.shape[1] * CLASSES, jnp.float32)
    for _ in range(STEPS):
        trained = trained - RATE * gradient(trained)
    random = jnp.asarray(np.random.default_rng(101).normal(size=trained.size), jnp.float32)
    for name, gamma, weights, where in (
        ("softmax", 0.0, trained, "cross-entropy, trained"),
        ("softmax, focal", GAMMA, trained, f"focal loss, γ = {GAMMA:g}, trained"),
        ("softmax, random", GAMMA, random, f"focal loss, γ = {GAMMA:g}, random weights"),
    ):
        logits = images @ np.asarray(weights, np.float64).reshape(-1, CLASSES)
        second = second_derivative(logits, labels, gamma)
        hessian = np.einsum("nd,nkl,ne->dkel", images, second, images, optimize=True) / len(images)
        size = weights.size
        yield Surface(name, f"softmax regression, {where}", loss(gamma), weights, hessian.reshape(size, size))


def second_derivative(logits: np.ndarray, labels: np.ndarray, gamma: float) -> np.ndarray:
    """Of -(1 - p)^gamma log p in the logits, p the probability of the label: [examples, classes, classes].

    With u = log p: l''(u) (e - q)(e - q)' - l'(u) (diag q - qq'), q the softmax and e the label's unit vector.
    """
    shifted = logits - logits.max(-1, keepdims=True)
    q = np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)
    unit = np.eye(logits.shape[-1])[labels]
    p = (q * unit).sum(-1)
    u, rest = np.log(p), (q * (1 - unit)).sum(-1)  # rest: 1 - p, without cancellation
    first = gamma * rest ** (gamma - 1) * p * u - rest**gamma
    more = gamma * p * (2 * rest ** (gamma - 1) + rest ** (gamma - 1) * u - (gamma - 1) * p * rest ** (gamma - 2) * u)
    spread = np.einsum("nk,kl->nkl", q, np.eye(q.shape[-1])) - q[:, :, None] * q[:, None]
    away = unit - q
    return more[:, None, None] * away[:, :, None] * away[:, None] - first[:, None, None] * spread


def _digits(examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels about their mean, with a constant for the bias, and labels."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels[:examples] / 16
    return np.c_[pixels - pixels.mean(), np.ones(examples)], labels[:examples].astype(np.int32)
