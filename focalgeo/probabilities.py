"""Probabilities where logits or log-probabilities belong: how they look, and the floor of their logarithm."""

import numpy as np
from jaxtyping import Float, Shaped

PROBABILITY_FLOOR = 1.1754944e-38  # the least that float32 holds to full precision; its log is -87.3


class ProbabilityWarning(UserWarning):
    """Probabilities were given where logits belong, by all appearance."""


def look_like_probabilities(scores: Shaped[np.ndarray, "examples classes"], tolerance: float = 1e-3) -> bool:
    """Whether every row of two or more lies in [0, 1] and sums to 1 within the tolerance, as logits hardly ever do."""
    if len(scores) < 2 or scores.shape[1] < 2 or not (scores.min() >= 0 and scores.max() <= 1):
        return False
    return bool((np.abs(scores.sum(axis=1, dtype=np.float64) - 1) <= tolerance).all())


def floored_log(probs: Shaped[np.ndarray, "*batch classes"]) -> Float[np.ndarray, "*batch classes"]:
    """Log max(p, PROBABILITY_FLOOR) as float32, whatever the type of p: 0 has no logarithm."""
    return np.log(np.maximum(probs.astype(np.float64), PROBABILITY_FLOOR)).astype(np.float32)
