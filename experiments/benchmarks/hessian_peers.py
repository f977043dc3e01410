"""The curvature rivals: PyTorch's double and triple backward, PyHessian and curvlinops, on networks of equal shapes.

Each is imported only where it is installed; what is missing gives no functions, and the table says so.
"""

import importlib
import warnings
from collections.abc import Callable

import numpy as np

from experiments.benchmarks.problems import Problem


def _quietly(call: Callable, *arguments, **options):
    """What the call returns, without the warnings that PyTorch and its tools give of their own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*arguments, **options)


def _optional(name: str):
    try:
        return _quietly(importlib.import_module, name)
    except ImportError:
        return None


torch, pyhessian, curvlinops = map(_optional, ("torch", "pyhessian", "curvlinops"))
MISSING = [name for name in ("torch", "pyhessian", "curvlinops") if _optional(name) is None]


def torch_calls(problem: Problem) -> dict[str, Callable[[], None]]:
    """Gradient, products and trace-regularised gradient of the problem, as calls without arguments."""
    if torch is None or problem.name == "ResNet-18":
        return {}
    model, data = network(problem), examples(problem)
    params = list(model.parameters())
    vector = [torch.randn_like(p) for p in params]
    signs = [torch.randint_like(p, 2) * 2 - 1 for p in params]

    def loss():
        return torch.nn.functional.cross_entropy(model(data[0]), data[1])

    def gradient(create_graph=False):
        return torch.autograd.grad(loss(), params, create_graph=create_graph)

    def regularised():
        value = loss()
        slopes = torch.autograd.grad(value, params, create_graph=True)
        product = torch.autograd.grad(slopes, params, signs, create_graph=True)
        penalty = sum((v * h).sum() for v, h in zip(signs, product, strict=True))
        torch.autograd.grad(value + 0.1 * penalty, params)

    calls = {
        "torch gradient": gradient,
        "torch double backward": lambda: torch.autograd.grad(gradient(True), params, vector),
        "torch trace-regularised gradient": regularised,
    }
    if pyhessian is not None:
        kept = _pyhessian(model, data)
        product = pyhessian.utils.hessian_vector_product
        calls["PyHessian, graph kept"] = lambda: product(kept.gradsH, kept.params, vector)
        calls["PyHessian, data anew"] = lambda: _loader_hessian(model, data).dataloader_hv_product(vector)
    if curvlinops is not None:
        operator = curvlinops.HessianLinearOperator(
            model, torch.nn.CrossEntropyLoss(), params, [data], check_deterministic=False, num_data=len(data[1])
        )
        calls["curvlinops"] = lambda: operator @ vector
        _quietly(calls["curvlinops"])  # at its first forward derivative PyTorch warns of its own torch.jit.script
    return calls


def pyhessian_estimates(problem: Problem, *, seeds: int) -> dict[str, list[tuple[float, int]]]:
    """What PyHessian's eigenvalues() and trace() return with their own stopping rules, and the products they took.

    The problem's network is copied weight by weight, so that both sides have one Hessian.
    """
    if pyhessian is None or torch is None:
        return {}
    model, data = network(problem, copy=True), examples(problem)
    measured, found = _pyhessian(model, data), {"eigenvalues()": [], "trace()": []}
    for seed in range(seeds):
        torch.manual_seed(seed)
        with _CountedProducts() as count:
            found["eigenvalues()"].append((measured.eigenvalues()[0][0], count))
        samples = measured.trace()
        found["trace()"].append((float(np.mean(samples)), len(samples)))
    return {name: [(value, int(count)) for value, count in values] for name, values in found.items()}


class _CountedProducts:
    """Counts PyHessian's products while it is entered; a number once it is left."""

    def __enter__(self):
        self.module, self.count = importlib.import_module("pyhessian.hessian"), 0
        self.original = self.module.hessian_vector_product

        def counting(*arguments):
            self.count += 1
            return self.original(*arguments)

        self.module.hessian_vector_product = counting
        return self

    def __exit__(self, *_):
        self.module.hessian_vector_product = self.original

    def __int__(self) -> int:
        return self.count


def _pyhessian(model, data):
    # PyTorch warns of the reference cycle that a kept graph is.
    return _quietly(pyhessian.hessian, model, torch.nn.CrossEntropyLoss(), data=data, cuda=False)


def _loader_hessian(model, data):
    return pyhessian.hessian(model, torch.nn.CrossEntropyLoss(), dataloader=[data], cuda=False)


def network(problem: Problem, *, copy: bool = False):
    """The PyTorch network of the problem's shapes, in evaluation mode; `copy` takes an MLP's weights over."""
    model = ResNet20() if problem.name == "ResNet-20" else _mlp(problem)
    sizes = [sum(p.numel() for p in model.parameters()), sum(p.size for p in _leaves(problem.params))]
    if sizes[0] != sizes[1]:
        raise RuntimeError(f"{problem.name}: {sizes[0]} parameters in PyTorch, {sizes[1]} in JAX")
    if copy:
        layers = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
        for index, layer in enumerate(layers):
            weights = problem.params[f"Dense_{index}"]
            layer.weight.data = torch.from_numpy(np.array(weights["kernel"]).T.copy())
            layer.bias.data = torch.from_numpy(np.array(weights["bias"]))
    return model.eval()


def examples(problem: Problem):
    """The problem's examples as tensors, channels first."""
    x = np.moveaxis(np.array(problem.x), -1, 1)
    return torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(np.array(problem.y)).long()


def _leaves(params):
    return [leaf for part in params.values() for leaf in (_leaves(part) if isinstance(part, dict) else [part])]


def _mlp(problem: Problem):
    sizes = [problem.params[f"Dense_{index}"]["kernel"].shape for index in range(len(problem.params))]
    layers = [torch.nn.Flatten()]
    for index, (inputs, outputs) in enumerate(sizes):
        layers += [torch.nn.Linear(inputs, outputs)] + [torch.nn.ReLU()] * (index < len(sizes) - 1)
    return torch.nn.Sequential(*layers)


if torch is not None:

    class Block(torch.nn.Module):
        """Two 3x3 convolutions with batch norm around a shortcut."""

        def __init__(self, inputs: int, outputs: int, stride: int):
            super().__init__()
            self.first, self.second = _conv_norm(inputs, outputs, 3, stride), _conv_norm(outputs, outputs, 3, 1)
            same = inputs == outputs and stride == 1
            self.shortcut = torch.nn.Identity() if same else _conv_norm(inputs, outputs, 1, stride)

        def forward(self, x):
            """Features of the same height and width divided by the stride."""
            return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))

    class ResNet20(torch.nn.Module):
        """Three stages of three blocks with 16, 32 and 64 channels, as focalgeo.models has it."""

        def __init__(self):
            super().__init__()
            layers, inputs = [_conv_norm(3, 16, 3, 1), torch.nn.ReLU()], 16
            for outputs in (16, 32, 64):
                for block in range(3):
                    stride = 2 if block == 0 and outputs > 16 else 1
                    layers.append(Block(inputs, outputs, stride))
                    inputs = outputs
            self.features, self.head = torch.nn.Sequential(*layers), torch.nn.Linear(64, 10)

        def forward(self, x):
            """Logits [examples, 10]."""
            return self.head(self.features(x).mean(dim=(2, 3)))

    def _conv_norm(inputs: int, outputs: int, kernel: int, stride: int):
        convolution = torch.nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        return torch.nn.Sequential(convolution, torch.nn.BatchNorm2d(outputs))
