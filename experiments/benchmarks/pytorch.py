"""The rivals in PyTorch: searches, residual networks and MLPs of our shapes, curvature with its tools, training steps.

Without the libraries there are none.
"""

import os
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from focalgeo.types import Array, PyTree

# Unset, a step of ResNet-18 took three times as long on cores that other work shared: an unfair rival. Read when
# PyTorch loads OpenMP.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of their own code
        import curvlinops
        import pyhessian
        import torch
        from torch import nn
except ImportError:
    torch = None

NUM_BINS = 15
SHAPES = {"ResNet-18": (2, (64, 128, 256, 512)), "ResNet-20": (3, (16, 32, 64))}  # blocks of a stage, its widths
Point = Callable[[float, float], tuple[float, float]]  # (gamma, temperature) -> (equal-mass ECE, NLL)


def papers_way(logits: np.ndarray, labels: np.ndarray) -> Point:
    """The published search's steps at one point, written anew: edges from the sorted confidences, a mask per bin."""
    logits, labels = torch.from_numpy(logits), torch.from_numpy(labels).long()

    def point(gamma, temperature):
        q = torch.softmax(logits / temperature, dim=1).clip(1e-12, 1 - 1e-12)
        h = q / ((1 - q) ** gamma - gamma * q * (1 - q) ** (gamma - 1) * torch.log(q))
        p = h / h.sum(dim=1, keepdim=True)
        nll = nn.functional.nll_loss(torch.log(p.clip(1e-12)), labels)
        confidence, predicted = p.max(dim=1)
        confidence, hits = confidence.numpy(), (predicted == labels).numpy()
        size, total = len(hits), 0.0
        edges = np.interp(np.linspace(0, size, NUM_BINS + 1), np.arange(size), np.sort(confidence))
        for lower, upper in pairwise(edges):
            inside = (confidence > lower) & (confidence <= upper)
            if inside.any():
                total += inside.mean() * abs(hits[inside].mean() - confidence[inside].mean())
        return total, nll.item()

    return point


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


SEARCHES = {"lean loop": lean_loop, "papers' way": papers_way} if torch else {}


def network(name: str, params: PyTree) -> Any:
    """The network of that name in SHAPES, else a CNN or an MLP of the widths of these parameters."""
    if name in SHAPES:
        return _resnet(*SHAPES[name])
    if "Conv_0" in params:
        kernels = [params[name]["kernel"].shape for name in sorted(params) if name.startswith("Conv_")]
        layers = [layer for shape in kernels for layer in (*_conv_norm(*shape[2:], 3, 2), nn.ReLU())]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(kernels[-1][-1], 10))
    sizes = [params[f"Dense_{index}"]["kernel"].shape for index in range(len(params))]
    layers = [layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


def _conv_norm(inputs, outputs, kernel, stride=1):
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class Block(nn.Module if torch else object):
    """Two convolutions with batch norm around a shortcut, which is 1x1 where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.layers = nn.Sequential(_conv_norm(inputs, width, 3, stride), nn.ReLU(), _conv_norm(width, width, 3))
        self.shortcut = nn.Identity() if inputs == width else _conv_norm(inputs, width, 1, stride)

    def forward(self, x):
        """Features of the same height and width divided by the stride."""
        return torch.relu(self.layers(x) + self.shortcut(x))


def _resnet(blocks, widths):
    """Stages of `blocks` blocks with `widths[i]` channels, every one but the first at half the size of the last."""
    inputs = widths[0]
    layers = [_conv_norm(3, inputs, 3), nn.ReLU()]
    for width in widths:
        for _ in range(blocks):
            layers.append(Block(inputs, width, 1 if inputs == width else 2))
            inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def curvature_calls(name: str, params: PyTree, x: Array, y: Array) -> dict[str, Callable[[], Any]]:
    """Gradient, products and trace-regularised gradient of the network on x and y, as calls without arguments."""
    if torch is None:
        return {}
    model, loss_of, data = network(name, params).eval(), nn.CrossEntropyLoss(), _examples(x, y)
    leaves = list(model.parameters())
    vector = [torch.randn_like(leaf) for leaf in leaves]
    signs = [torch.randint_like(leaf, 2) * 2 - 1 for leaf in leaves]

    def gradient(create_graph=False):
        return torch.autograd.grad(loss_of(model(data[0]), data[1]), leaves, create_graph=create_graph)

    def regularised():
        value = loss_of(model(data[0]), data[1])
        slopes = torch.autograd.grad(value, leaves, create_graph=True)
        product = torch.autograd.grad(slopes, leaves, signs, create_graph=True)
        trace = sum((sign * part).sum() for sign, part in zip(signs, product, strict=True))
        torch.autograd.grad(value + 0.1 * trace, leaves)

    options = {"check_deterministic": False, "num_data": len(y)}
    operator = curvlinops.HessianLinearOperator(model, loss_of, leaves, [data], **options)
    anew = partial(pyhessian.hessian, model, loss_of, dataloader=[data], cuda=False)
    calls = {
        "torch gradient": gradient,
        "torch double backward": lambda: torch.autograd.grad(gradient(True), leaves, vector),
        "torch trace-regularised gradient": regularised,
        "PyHessian": lambda: anew().dataloader_hv_product(vector),
        "curvlinops": lambda: operator @ vector,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference cycle that a kept graph is, of its own torch.jit.script
        calls["PyHessian"]()
        calls["curvlinops"]()
    return calls


class Measured(NamedTuple):
    """A network in evaluation mode, its loss of (outputs, labels), and the examples."""

    model: Any
    loss: Any
    data: tuple[Any, Any]


def at(params: PyTree, x: Array, y: Array) -> Measured:
    """The MLP or CNN at these weights, which are ours: kernels [..., inputs, outputs], statistics of 0 and 1."""
    model = network("", params).eval()
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
    return Measured(model, nn.CrossEntropyLoss(), _examples(x, y))


def training_steps(name: str, params: PyTree, x: Array, y: Array, config: Any) -> dict[str, Callable[[int], None]]:
    """So many training steps on one batch by the recipe of config.optimizer, eager and compiled; autocast as ours."""
    if torch is None:
        return {}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True  # looks for the fastest convolutions
    settings, low = config.optimizer, config.model.dtype == "bfloat16"
    x, y = (part.to(device) for part in _examples(x, y))
    calls = {}
    for mode in ("eager", "default", *["reduce-overhead"] * (device.type == "cuda")):
        model = network(name, params).to(device, memory_format=torch.channels_last).train()
        rule = {"lr": settings.learning_rate, "momentum": settings.momentum, "weight_decay": settings.weight_decay}
        optimiser = torch.optim.SGD(model.parameters(), fused=True, **rule)
        forward = model if mode == "eager" else torch.compile(model, mode=mode)

        def steps(count, forward=forward, optimiser=optimiser):
            for _ in range(count):
                optimiser.zero_grad()
                with torch.autocast(device.type, torch.bfloat16, enabled=low):
                    logits = forward(x)
                nn.functional.cross_entropy(logits.float(), y).backward()
                optimiser.step()
            if device.type == "cuda":
                torch.cuda.synchronize()

        calls[f"PyTorch, {mode}"] = steps
    return calls


def _examples(x, y):
    """Tensors of examples, channels first but last in memory."""
    return torch.from_numpy(np.array(x)).permute(0, 3, 1, 2), torch.from_numpy(np.array(y)).long()
