"""The rivals: one grid point after another, in PyTorch where it is installed and else in NumPy.

Each is a function (gamma, temperature) -> (equal-mass ECE, NLL). The papers' way follows the steps of the published
search: softmax, clipped map, NLL, edges interpolated from the sorted confidences, a mask per bin. The lean loop keeps
what is needed: one pow, the logarithm from log_softmax, bins by slicing the sorted order.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

try:
    import torch
except ModuleNotFoundError:
    torch = None

LIBRARY = "PyTorch" if torch else "NumPy"
Point = Callable[[float, float], tuple[float, float]]


def papers_way(logits: np.ndarray, labels: np.ndarray, num_bins: int = 15) -> Point:
    """The published search's steps at one point, written anew."""
    if torch is None:
        return _papers_way_numpy(logits, labels, num_bins)
    logits, labels = torch.from_numpy(logits), torch.from_numpy(labels).long()

    def point(gamma: float, temperature: float) -> tuple[float, float]:
        q = torch.softmax(logits / temperature, dim=1).clip(1e-12, 1 - 1e-12)
        h = q / ((1 - q) ** gamma - gamma * q * (1 - q) ** (gamma - 1) * torch.log(q))
        p = h / h.sum(dim=1, keepdim=True)
        nll = torch.nn.functional.nll_loss(torch.log(p.clip(1e-12)), labels)
        confidence, predicted = p.max(dim=1)
        confidence, hits = confidence.numpy(), (predicted == labels).numpy()
        return _interpolated_ece(confidence, hits, num_bins), nll.item()

    return point


def lean_loop(logits: np.ndarray, labels: np.ndarray, num_bins: int = 15) -> Point:
    """The least that a loop over points has to do."""
    if torch is None:
        return _lean_loop_numpy(logits, labels, num_bins)
    logits, labels = torch.from_numpy(logits), torch.from_numpy(labels).long()[:, None]
    hits = (logits.argmax(dim=1) == labels[:, 0]).float()

    def point(gamma: float, temperature: float) -> tuple[float, float]:
        log_q = torch.log_softmax(logits / temperature, dim=1)
        q = log_q.exp()
        rest = (1 - q).clamp_(min=1e-7)
        h = q / ((rest - gamma * q * log_q) * rest ** (gamma - 1))
        total = h.sum(dim=1)
        nll = (total.log() - h.gather(1, labels)[:, 0].clamp(min=1e-30).log()).mean()
        confidence, order = (h.max(dim=1).values / total).sort()
        bins = torch.tensor_split(hits[order] - confidence, num_bins)
        return sum(abs(part.sum().item()) for part in bins) / len(hits), nll.item()

    return point


def _papers_way_numpy(logits: np.ndarray, labels: np.ndarray, num_bins: int) -> Point:
    rows = np.arange(len(labels))

    def point(gamma: float, temperature: float) -> tuple[float, float]:
        q = np.clip(_softmax(logits / np.float32(temperature)), 1e-12, 1 - 1e-12)
        with np.errstate(divide="ignore", invalid="ignore"):
            h = q / ((1 - q) ** gamma - gamma * q * (1 - q) ** (gamma - 1) * np.log(q))
            p = h / h.sum(axis=1, keepdims=True)
        nll = -np.log(np.clip(p[rows, labels], 1e-12, None)).mean()
        return _interpolated_ece(p.max(axis=1), p.argmax(axis=1) == labels, num_bins), float(nll)

    return point


def _lean_loop_numpy(logits: np.ndarray, labels: np.ndarray, num_bins: int) -> Point:
    rows, hits = np.arange(len(labels)), logits.argmax(axis=1) == labels
    shifted = logits - logits.max(axis=1, keepdims=True)

    def point(gamma: float, temperature: float) -> tuple[float, float]:
        log_q = shifted / np.float32(temperature)
        log_q -= np.log(np.exp(log_q).sum(axis=1, keepdims=True))
        q = np.exp(log_q)
        rest = np.maximum(1 - q, np.float32(1e-7))
        h = q / ((rest - np.float32(gamma) * q * log_q) * rest ** np.float32(gamma - 1))
        total = h.sum(axis=1)
        nll = (np.log(total) - np.log(np.maximum(h[rows, labels], np.float32(1e-30)))).mean()
        confidence = h.max(axis=1) / total
        order = confidence.argsort()
        bins = np.array_split(hits[order] - confidence[order], num_bins)
        return float(sum(abs(part.sum()) for part in bins) / len(hits)), float(nll)

    return point


def _interpolated_ece(confidence: np.ndarray, hits: np.ndarray, num_bins: int) -> float:
    size = len(confidence)
    edges = np.interp(np.linspace(0, size, num_bins + 1), np.arange(size), np.sort(confidence))
    total = 0.0
    for lower, upper in pairwise(edges):
        inside = (confidence > lower) & (confidence <= upper)
        if inside.any():
            total += inside.mean() * abs(hits[inside].mean() - confidence[inside].mean())
    return float(total)


def _softmax(logits: np.ndarray) -> np.ndarray:
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)
