"""The residual networks of focalgeo.models in PyTorch, and how our weights come into them."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from focalgeo.types import PyTree

SHAPES = {
    "ResNet-18": {},
    "ResNet-50": {"blocks": (3, 4, 6, 3), "bottleneck": True},
    "WRN-26-10": {"blocks": (4, 4, 4), "widths": (160, 320, 640), "stem_width": 16},
    "ResNet-20": {"blocks": (3, 3, 3), "widths": (16, 32, 64)},
    "tiny ResNet": {"blocks": (1, 2), "widths": (4, 8)},
    "tiny bottleneck ResNet": {"blocks": (1, 1), "widths": (4, 8), "stem_width": 6, "bottleneck": True},
}


class ConvNorm(torch.nn.Sequential):
    """A convolution without bias, padded to keep the size at stride 1, and batch norm after it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1):
        super().__init__(
            torch.nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), torch.nn.BatchNorm2d(outputs)
        )


class Block(torch.nn.Module):
    """Convolutions with batch norm around a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, layers: Sequence[tuple[int, int, int]]):
        """layers: (width, kernel, stride) of each convolution."""
        super().__init__()
        widths, stride = [inputs, *(width for width, _, _ in layers)], max(stride for _, _, stride in layers)
        self.layers = torch.nn.ModuleList(
            ConvNorm(before, *layer) for before, layer in zip(widths[:-1], layers, strict=True)
        )
        same = inputs == widths[-1] and stride == 1
        self.shortcut = torch.nn.Identity() if same else ConvNorm(inputs, widths[-1], 1, stride)

    def forward(self, x):
        """Features of the same height and width divided by the stride."""
        y = x
        for layer in self.layers[:-1]:
            y = torch.relu(layer(y))
        return torch.relu(self.layers[-1](y) + self.shortcut(x))


class ResNet(torch.nn.Module):
    """Stages of `blocks[i]` blocks with `widths[i]` channels, every one but the first at half the size of the last."""

    def __init__(
        self,
        num_classes: int = 10,
        *,
        blocks: Sequence[int] = (2, 2, 2, 2),
        widths: Sequence[int] = (64, 128, 256, 512),
        stem_width: int = 0,
        bottleneck: bool = False,
    ):
        """stem_width: channels of the first convolution, 0 for those of the first stage."""
        super().__init__()
        inputs = stem_width or widths[0]
        self.stem, made = ConvNorm(3, inputs, 3), []
        for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                basic = ((width, 3, stride), (width, 3, 1))
                layers = ((width, 1, 1), (width, 3, stride), (4 * width, 1, 1)) if bottleneck else basic
                made.append(Block(inputs, layers))
                inputs = layers[-1][0]
        self.blocks, self.head = torch.nn.Sequential(*made), torch.nn.Linear(inputs, num_classes)

    def forward(self, x):
        """Logits [examples, classes] of x [examples, 3, height, width]."""
        return self.head(self.blocks(torch.relu(self.stem(x))).mean(dim=(2, 3)))


def network(name: str) -> ResNet:
    """The network of that name in SHAPES, with PyTorch's initial weights."""
    return ResNet(**SHAPES[name])


def copy_weights(model: ResNet, params: PyTree, batch_stats: PyTree) -> None:
    """Give the network the parameters and running statistics of the same one of focalgeo.models."""
    with torch.no_grad():
        for layer, own, statistics in _layers(model, params, batch_stats):
            convolution, norm = layer
            convolution.weight.copy_(_tensor(own["Conv_0"]["kernel"]).permute(3, 2, 0, 1))
            norm.weight.copy_(_tensor(own["BatchNorm_0"]["scale"]))
            norm.bias.copy_(_tensor(own["BatchNorm_0"]["bias"]))
            norm.running_mean.copy_(_tensor(statistics["BatchNorm_0"]["mean"]))
            norm.running_var.copy_(_tensor(statistics["BatchNorm_0"]["var"]))
        head = params["Classifier_0"]["Dense_0"]
        model.head.weight.copy_(_tensor(head["kernel"]).T)
        model.head.bias.copy_(_tensor(head["bias"]))


def _layers(model: ResNet, params: PyTree, batch_stats: PyTree) -> Iterator[tuple[ConvNorm, PyTree, PyTree]]:
    """Every convolution with its parameters and running statistics; flax numbers them in the order of their making."""
    yield model.stem, params["ConvNorm_0"], batch_stats["ConvNorm_0"]
    for number, block in enumerate(model.blocks):
        kind = "BasicBlock" if len(block.layers) == 2 else "Bottleneck"
        own, statistics = params[f"{kind}_{number}"], batch_stats[f"{kind}_{number}"]
        shortcut = [block.shortcut] if isinstance(block.shortcut, ConvNorm) else []
        for index, layer in enumerate([*block.layers, *shortcut]):
            yield layer, own[f"ConvNorm_{index}"], statistics[f"ConvNorm_{index}"]


def _tensor(leaf) -> torch.Tensor:
    return torch.from_numpy(np.array(leaf))
