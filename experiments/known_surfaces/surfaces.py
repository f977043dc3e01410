"""Losses with Hessians in closed form: quadratics of chosen spectra, a two-layer linear network, softmax regression."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from focalgeo import losses

SIZE = 500  # of the quadratics
STEPS, RATE = 300, 1.0  # of softmax regression, by gradient descent
CLASSES = 10


class Surface(NamedTuple):
    """A loss of one array of parameters, a point, and its Hessian there in float64, row by row of the flat array."""

    loss: Callable
    params: jax.Array
    hessian: np.ndarray


def quadratic(eigenvalues: np.ndarray, seed: int) -> Surface:
    """The form x'Hx / 2 with these eigenvalues in a random basis, at a random point."""
    generator = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(generator.normal(size=(len(eigenvalues),) * 2))
    hessian = (basis * eigenvalues) @ basis.T
    matrix = jnp.asarray(hessian, jnp.float32)
    point = jnp.asarray(generator.normal(size=len(eigenvalues)), jnp.float32)
    return Surface(lambda x: 0.5 * x @ (matrix @ x), point, hessian)


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
    x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)

    def loss(params):
        first, second = params[: a.size].reshape(a.shape), params[a.size :].reshape(b.shape)
        return 0.5 * jnp.mean(jnp.sum((x @ first.T @ second.T - y) ** 2, -1))

    return Surface(loss, jnp.asarray(np.r_[a.ravel(), b.ravel()], jnp.float32), hessian)


def softmax_regression(gamma: float, *, trained: bool, examples: int = 300) -> Surface:
    """Focal loss of softmax regression on digits, where cross-entropy was trained or at random weights.

    H = mean of xx' (x) M, with M the second derivative of the example's loss in its logits. At random weights many
    labels have a small probability, where focal loss is not convex in the logits.
    """
    pixels, labels = load_digits(return_X_y=True)
    pixels, labels = pixels[:examples] / 16, labels[:examples].astype(np.int32)
    images = np.c_[pixels - pixels.mean(), np.ones(examples)]  # with a constant for the bias
    x, y = jnp.asarray(images, jnp.float32), jnp.asarray(labels)

    def loss(weights, gamma=gamma):
        return jnp.mean(losses.focal_loss(x @ weights.reshape(-1, CLASSES), y, gamma))

    size = images.shape[1] * CLASSES
    weights = jnp.asarray(np.random.default_rng(101).normal(size=size), jnp.float32)
    if trained:
        weights, slope = jnp.zeros(size, jnp.float32), jax.jit(jax.grad(partial(loss, gamma=0.0)))
        for _ in range(STEPS):
            weights = weights - RATE * slope(weights)
    logits = images @ np.asarray(weights, np.float64).reshape(-1, CLASSES)
    second = second_derivative(logits, labels, gamma)
    hessian = np.einsum("nd,nkl,ne->dkel", images, second, images, optimize=True) / examples
    return Surface(loss, weights, hessian.reshape(size, size))


def second_derivative(logits: np.ndarray, labels: np.ndarray, gamma: float) -> np.ndarray:
    """Of -(1 - p)^gamma log p in the logits, p the probability of the label: [examples, classes, classes].

    With u = log p: l''(u) (e - q)(e - q)' - l'(u) (diag q - qq'), q the softmax and e the label's unit vector.
    """
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    q = shifted / shifted.sum(-1, keepdims=True)
    unit = np.eye(logits.shape[-1])[labels]
    p, rest = (q * unit).sum(-1), (q * (1 - unit)).sum(-1)  # rest: 1 - p, without cancellation
    u = np.log(p)
    first = gamma * rest ** (gamma - 1) * p * u - rest**gamma
    more = gamma * p * (2 * rest ** (gamma - 1) + rest ** (gamma - 1) * u - (gamma - 1) * p * rest ** (gamma - 2) * u)
    spread = np.einsum("nk,kl->nkl", q, np.eye(q.shape[-1])) - q[:, :, None] * q[:, None]
    away = unit - q
    return more[:, None, None] * away[:, :, None] * away[:, None] - first[:, None, None] * spread


_SPECTRA = {  # name -> title, eigenvalues
    "flat": ("flat, 0.5 to 1.5", np.linspace(0.5, 1.5, SIZE)),
    "power": ("power law, 1/i", 1 / np.arange(1, SIZE + 1)),
    "outliers": ("10 outliers over a bulk", np.r_[np.linspace(50, 100, 10), np.linspace(0, 0.2, SIZE - 10)]),
    "low rank": ("nine eigenvalues, else 0", np.r_[np.linspace(1, 10, 9), np.zeros(SIZE - 9)]),
    "clustered": ("20 clustered at the top", np.r_[np.linspace(0.999, 1, 20), np.linspace(0, 0.9, SIZE - 20)]),
    "both signs": ("both signs, trace near 0", np.linspace(-1, 1, SIZE) + 1 / SIZE),
    "negative": ("negative, but one of 0.01", np.r_[np.linspace(-1, -0.001, SIZE - 1), 0.01]),
}
SURFACES: dict[str, tuple[str, Callable[..., Surface]]] = {  # name -> title, how it is made
    **{
        name: (title, partial(quadratic, eigenvalues, seed))
        for seed, (name, (title, eigenvalues)) in enumerate(_SPECTRA.items())
    },
    "linear network": ("two-layer linear network", linear_network),
    "softmax": ("softmax regression, cross-entropy, trained", partial(softmax_regression, 0.0, trained=True)),
    "softmax, focal": (
        "softmax regression, focal loss, γ = 5, trained",
        partial(softmax_regression, 5.0, trained=True),
    ),
    "softmax, random": (
        "softmax regression, focal loss, γ = 5, random weights",
        partial(softmax_regression, 5.0, trained=False),
    ),
}
