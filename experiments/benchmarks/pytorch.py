"""The rivals in PyTorch: residual networks and MLPs of our shapes, curvature with its tools, training steps.

Each library is used where it is installed.
"""

import importlib
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from focalgeo import trees
from focalgeo.types import Array, Batch, PyTree

# Unset, a step of ResNet-18 took three times as long on cores that other work shared: an unfair rival. Read when
# PyTorch loads OpenMP.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _optional(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of their own code
        try:
            return importlib.import_module(name)
        except ImportError:
            return None


torch, pyhessian, curvlinops = map(_optional, ("torch", "pyhessian", "curvlinops"))
MISSING = [name for name in ("torch", "pyhessian", "curvlinops") if globals()[name] is None]
SHAPES = {  # name -> blocks and widths of the stages, width of the stem, whether blocks are bottlenecks
    "ResNet-18": ((2, 2, 2, 2), (64, 128, 256, 512), 64, False),
    "ResNet-20": ((3, 3, 3), (16, 32, 64), 16, False),
    "ResNet-50": ((3, 4, 6, 3), (64, 128, 256, 512), 64, True),
    "WRN-26-10": ((4, 4, 4), (160, 320, 640), 16, False),
    "tiny ResNet": ((1, 2), (4, 8), 4, False),
}


def network(name: str, params: PyTree) -> Any:
    """The network of that name in SHAPES, else an MLP; it has as many parameters as ours.

    Raises:
        RuntimeError: it has not.
    """
    model = _resnet(*SHAPES[name]) if name in SHAPES else _mlp(params)
    sizes = sum(leaf.numel() for leaf in model.parameters()), trees.size(params)
    if sizes[0] != sizes[1]:
        raise RuntimeError(f"{name}: {sizes[0]} parameters in PyTorch, {sizes[1]} in JAX")
    return model


def _mlp(params: PyTree) -> Any:
    sizes = [params[f"Dense_{index}"]["kernel"].shape for index in range(len(params))]
    layers = [layer for size in sizes for layer in (torch.nn.Linear(*size), torch.nn.ReLU())]
    return torch.nn.Sequential(torch.nn.Flatten(), *layers[:-1])


def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> Any:
    convolution = torch.nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return torch.nn.Sequential(convolution, torch.nn.BatchNorm2d(outputs))


class Block(torch.nn.Module if torch else object):
    """Convolutions (width, kernel, stride) with batch norm around a shortcut, which is 1x1 where the shape changes."""

    def __init__(self, inputs: int, layers: Sequence[tuple[int, int, int]]):
        super().__init__()
        widths, stride = [inputs, *(width for width, _, _ in layers)], max(stride for _, _, stride in layers)
        made = [_conv_norm(before, *layer) for before, layer in zip(widths[:-1], layers, strict=True)]
        between = [part for layer in made for part in (layer, torch.nn.ReLU())][:-1]
        same = inputs == widths[-1] and stride == 1
        self.layers = torch.nn.Sequential(*between)
        self.shortcut = torch.nn.Identity() if same else _conv_norm(inputs, widths[-1], 1, stride)

    def forward(self, x):
        """Features of the same height and width divided by the stride."""
        return torch.relu(self.layers(x) + self.shortcut(x))


def _resnet(blocks: Sequence[int], widths: Sequence[int], stem: int, bottleneck: bool) -> Any:
    """Stages of `blocks[i]` blocks with `widths[i]` channels, every one but the first at half the size of the last."""
    inputs, layers = stem, [_conv_norm(3, stem, 3), torch.nn.ReLU()]
    for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
        for number in range(count):
            stride = 2 if stage > 0 and number == 0 else 1
            basic = ((width, 3, stride), (width, 3, 1))
            convolutions = ((width, 1, 1), (width, 3, stride), (4 * width, 1, 1)) if bottleneck else basic
            layers.append(Block(inputs, convolutions))
            inputs = convolutions[-1][0]
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(inputs, 10))


def curvature_calls(name: str, params: PyTree, x: Array, y: Array) -> dict[str, Callable[[], Any]]:
    """Gradient, products and trace-regularised gradient of the network on x and y, as calls without arguments."""
    if torch is None:
        return {}
    model, loss_of = network(name, params).eval(), torch.nn.CrossEntropyLoss()
    data = _examples(x, y)
    leaves = list(model.parameters())
    vector, signs = ([draw(leaf) for leaf in leaves] for draw in (torch.randn_like, _signs))

    def gradient(create_graph: bool = False) -> Any:
        return torch.autograd.grad(loss_of(model(data[0]), data[1]), leaves, create_graph=create_graph)

    def regularised() -> None:
        value = loss_of(model(data[0]), data[1])
        slopes = torch.autograd.grad(value, leaves, create_graph=True)
        product = torch.autograd.grad(slopes, leaves, signs, create_graph=True)
        trace = sum((sign * part).sum() for sign, part in zip(signs, product, strict=True))
        torch.autograd.grad(value + 0.1 * trace, leaves)

    calls = {
        "torch gradient": gradient,
        "torch double backward": lambda: torch.autograd.grad(gradient(True), leaves, vector),
        "torch trace-regularised gradient": regularised,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference cycle that a kept graph is, of its own torch.jit.script
        if pyhessian is not None:
            kept = pyhessian.hessian(model, loss_of, data=data, cuda=False)
            product = pyhessian.utils.hessian_vector_product
            calls["PyHessian, graph kept"] = lambda: product(kept.gradsH, kept.params, vector)
            anew = lambda: pyhessian.hessian(model, loss_of, dataloader=[data], cuda=False)  # noqa: E731
            calls["PyHessian, data anew"] = lambda: anew().dataloader_hv_product(vector)
        if curvlinops is not None:
            options = {"check_deterministic": False, "num_data": len(y)}
            operator = curvlinops.HessianLinearOperator(model, loss_of, leaves, [data], **options)
            calls["curvlinops"] = lambda: operator @ vector
            calls["curvlinops"]()
    return calls


def _signs(leaf: Any) -> Any:
    return torch.randint_like(leaf, 2) * 2 - 1


def training_steps(name: str, params: PyTree, batch: Batch, config: Any) -> dict[str, Callable[[], Any]]:
    """Training steps on one batch by the recipe of config.optimizer, eager and compiled; autocast as ours computes."""
    if torch is None:
        return {}
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True  # looks for the fastest convolutions
    settings, low = config.optimizer, config.model.dtype == "bfloat16"
    x, y = (part.to(place) for part in _examples(batch.x, batch.y))
    calls = {}
    for mode in ("eager", "default", *["reduce-overhead"] * (place.type == "cuda")):
        model = network(name, params).to(place, memory_format=torch.channels_last).train()
        rule = {"lr": settings.learning_rate, "momentum": settings.momentum, "weight_decay": settings.weight_decay}
        optimiser = torch.optim.SGD(model.parameters(), fused=True, **rule)
        forward = model if mode == "eager" else torch.compile(model, mode=mode)

        def step(forward=forward, optimiser=optimiser) -> None:
            optimiser.zero_grad(set_to_none=True)
            with torch.autocast(place.type, torch.bfloat16, enabled=low):
                logits = forward(x)
            torch.nn.functional.cross_entropy(logits.float(), y).backward()
            optimiser.step()
            if place.type == "cuda":
                torch.cuda.synchronize()

        calls[f"PyTorch, {mode}"] = step
    return calls


def _examples(x: Any, y: Any) -> tuple[Any, Any]:
    """Tensors of examples, channels first but last in memory."""
    return torch.from_numpy(np.array(x)).permute(0, 3, 1, 2), torch.from_numpy(np.array(y)).long()
