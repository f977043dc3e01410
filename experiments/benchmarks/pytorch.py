"""The rivals in PyTorch: a lean search, and MLPs and CNNs at our weights. Without PyTorch there are none."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from focalgeo.types import Array, PyTree

try:
    import torch
    from torch import nn
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


def _network(params):
    """A CNN or an MLP of the widths of these parameters."""
    if "Conv_0" not in params:
        sizes = [params[f"Dense_{index}"]["kernel"].shape for index in range(len(params))]
        layers = [layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *layers[:-1])
    kernels = [params[name]["kernel"].shape for name in sorted(params) if name.startswith("Conv_")]
    layers = []
    for *_, inputs, outputs in kernels:
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(outputs, 10))


class Measured(NamedTuple):
    """A network in evaluation mode, its loss of (outputs, labels), and the examples."""

    model: Any
    loss: Any
    data: tuple[Any, Any]


def at(params: PyTree, x: Array, y: Array) -> Measured:
    """The MLP or CNN at these weights, which are ours: kernels [..., inputs, outputs], statistics of 0 and 1."""
    model = _network(params).eval()
    layers = [params.get("Classifier_0", params)] + [params] * ("Classifier_0" in params)
    kinds = {nn.Linear: "Dense", nn.Conv2d: "Conv", nn.BatchNorm2d: "BatchNorm"}
    seen = dict.fromkeys(kinds, 0)
    for module in model.modules():
        if (kind := type(module)) in kinds:
            name = f"{kinds[kind]}_{seen[kind]}"
            ours = next(layer[name] for layer in layers if name in layer)
            for leaf in ours:
                value = torch.from_numpy(np.array(ours[leaf]))
                last = value.movedim((-1, -2), (0, 1)) if leaf == "kernel" else value
                getattr(module, "bias" if leaf == "bias" else "weight").data.copy_(last)
            seen[kind] += 1
    images = torch.from_numpy(np.array(x)).permute(0, 3, 1, 2)  # channels first but last in memory
    return Measured(model, nn.CrossEntropyLoss(), (images, torch.from_numpy(np.array(y)).long()))
