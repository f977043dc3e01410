"""MobileNet-v2 for small images."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from focalgeo.models.layers import Classifier, ConvNorm
from focalgeo.types import InputError

# (expansion, width, stride of the first block) of each stage; the strides of small images
STAGES = ((1, 16, 1), (6, 24, 1), (6, 32, 2), (6, 64, 2), (6, 96, 1), (6, 160, 2), (6, 320, 1))


class InvertedResidual(nn.Module):
    """1x1 convolution to more channels, 3x3 for each channel by itself, 1x1 to `width` without activation."""

    expansion: int
    width: int
    stride: int = 1
    axis_name: str | None = None
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Features of the same height and width divided by the stride."""
        layer = partial(ConvNorm, axis_name=self.axis_name, dtype=self.dtype)
        inner = self.expansion * x.shape[-1]
        y = nn.relu6(layer(inner, 1)(x, train=train, mask=mask))
        y = nn.relu6(layer(inner, 3, self.stride, inner)(y, train=train, mask=mask))
        y = layer(self.width, 1)(y, train=train, mask=mask)
        if self.stride > 1:
            return y
        return y + (x if x.shape == y.shape else layer(self.width, 1)(x, train=train, mask=mask))


class MobileNetV2(nn.Module):
    """The published stages with a stem and a second stage of stride 1, which 32x32 images need.

    Stage i has `blocks[i]` blocks; fewer numbers leave the last stages out. Blocks of stride 1 that change the width
    have a 1x1 convolution as shortcut, as the common CIFAR variant does.

    Source: Sandler et al., MobileNetV2 (2018).
    """

    num_classes: int
    blocks: Sequence[int] = (1, 2, 3, 4, 3, 3, 1)
    stem_stride: int = 1
    axis_name: str | None = None
    dtype: Any = jnp.float32

    def __post_init__(self):
        if len(self.blocks) > len(STAGES):
            raise InputError(
                f"config.model.options.blocks has {len(self.blocks)} entries: mobilenet_v2 has {len(STAGES)} stages"
            )
        super().__post_init__()

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, classes] of x."""
        layer = partial(ConvNorm, axis_name=self.axis_name, dtype=self.dtype)
        x = nn.relu6(layer(32, stride=self.stem_stride)(x.astype(self.dtype), train=train, mask=mask))
        for (expansion, width, first_stride), blocks in zip(STAGES[: len(self.blocks)], self.blocks, strict=True):
            for number in range(blocks):
                stride = first_stride if number == 0 else 1
                block = InvertedResidual(expansion, width, stride, self.axis_name, self.dtype)
                x = block(x, train=train, mask=mask)
        x = nn.relu6(layer(1280, 1)(x, train=train, mask=mask))
        return Classifier(self.num_classes)(x)
