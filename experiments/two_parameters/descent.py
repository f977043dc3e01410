"""Gradient descent on both losses for many samples of the four clusters, in one compiled program."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import losses
from focalgeo.calibration import ece, temperature_scaling
from focalgeo.data.builtin import make_clusters
from focalgeo.data.splits import Sizes

DEVIATIONS = (0.0, 0.25, 0.5, 1.0)  # of the clusters; 0 is the limit whose optimum is known
LOSSES = {"ce": 0.0, "fl1": 1.0}  # gamma
TITLES = {"ce": "CE", "fl1": "FL-1"}
STEPS, RATE, EVERY = 2000, 0.3, 20
BINS = np.linspace(0.5, 1, 21)


def sample(deviation: float, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Points and labels of the train and the test split, 1,000 each."""
    found = make_clusters(str(deviation), sizes=Sizes(None, None, None), seed=seed).splits
    return {name: (found[name].x, found[name].y) for name in ("train", "test")}


def logits_of(weights: jax.Array, points: jax.Array) -> jax.Array:
    """[0, w.x] of each point: class 1 has the probability sigma(w.x)."""
    score = points @ weights
    return jnp.stack([jnp.zeros_like(score), score], axis=-1)


@jax.jit
@jax.vmap
def descend(points: jax.Array, labels: jax.Array, gamma: jax.Array) -> jax.Array:
    """The weights [STEPS / EVERY + 1, 2] of gradient descent from zero, every EVERY steps."""

    def mean_loss(weights: jax.Array) -> jax.Array:
        return jnp.mean(losses.focal_loss(logits_of(weights, points), labels, gamma))

    def steps(weights: jax.Array, _) -> tuple[jax.Array, jax.Array]:
        def once(_, weights: jax.Array) -> jax.Array:
            return weights - RATE * jax.grad(mean_loss)(weights)

        after = jax.lax.fori_loop(0, EVERY, once, weights)
        return after, after

    start = jnp.zeros(points.shape[-1])
    return jnp.concatenate([start[None], jax.lax.scan(steps, start, length=STEPS // EVERY)[1]])


def measure(seeds: int) -> list[dict[str, Any]]:
    """A run for each deviation, loss and seed; runs of one seed see the same points."""
    found = []
    for deviation in DEVIATIONS:
        samples = [sample(deviation, seed) for seed in range(seeds)]
        points, labels = (np.stack([each["train"][part] for each in samples]) for part in (0, 1))
        for loss, gamma in LOSSES.items():
            paths = np.asarray(descend(points, labels, np.full(seeds, gamma, np.float32)))
            found += [_run(deviation, loss, seed, paths[seed], samples[seed]["test"]) for seed in range(seeds)]
    return found


def _run(
    deviation: float, loss: str, seed: int, path: np.ndarray, test: tuple[np.ndarray, np.ndarray]
) -> dict[str, Any]:
    points, labels = test
    log_probs = temperature_scaling(logits_of(path[-1], points), 1.0)
    confidence = np.exp(np.asarray(log_probs).max(-1))
    wrong = np.asarray(log_probs).argmax(-1) != labels
    return {
        "deviation": deviation,
        "loss": loss,
        "seed": seed,
        "weights": path[-1].tolist(),
        "weight norm": float(np.linalg.norm(path[-1])),
        "last change": float(np.linalg.norm(path[-1] - path[-2])),
        "logit norm": float(np.abs(points @ path[-1]).mean()),
        "error": float(wrong.mean()),
        "ece": float(ece(log_probs, labels)),
        "confidence of wrong": float(confidence[wrong].mean()),
        "nll of wrong": float(-np.asarray(log_probs)[np.flatnonzero(wrong), labels[wrong]].mean()),
        "histogram of wrong": (np.histogram(confidence[wrong], BINS)[0] / wrong.sum()).tolist(),
        "norms": np.linalg.norm(path, axis=-1)[:: len(path) // 25].tolist(),
        "logits": np.abs(points @ path.T).mean(0)[:: len(path) // 25].tolist(),
    }
