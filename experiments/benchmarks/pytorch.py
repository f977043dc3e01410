"""The rival in PyTorch: a lean search. Without PyTorch there is none."""

from collections.abc import Callable

import numpy as np

try:
    import torch
except ImportError:
    torch = None

NUM_BINS = 15
Point = Callable[[float, float], tuple[float, float]]  # (gamma, temperature) -> (equal-mass ECE, NLL)


def lean_loop(logits: np.ndarray, labels: np.ndarray) -> Point:
    """The least that a loop over points has to do: one pow, the logarithm from log_softmax, bins by slicing."""
    logits, labels = torch.from_numpy(logits), torch.from_numpy(labels).long()[:, None]
    hits = (logits.argmax(dim=1) == labels[:, 0]).float()

    def point(gamma, temperature):
        log_q = torch.log_softmax(logits / temperature, dim=1)
        q = log_q.exp()
        rest = (1 - q).clamp_(min=1e-7)
        h = q / ((rest - gamma * q * log_q) * rest ** (gamma - 1))
        total = h.sum(dim=1)
        nll = (total.log() - h.gather(1, labels)[:, 0].clamp(min=1e-30).log()).mean()
        confidence, order = (h.max(dim=1).values / total).sort()
        bins = torch.tensor_split(hits[order] - confidence, NUM_BINS)
        return sum(abs(part.sum().item()) for part in bins) / len(hits), nll.item()

    return point
