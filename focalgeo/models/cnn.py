"""Convolutional networks for small images: a small one for quick runs, VGG, ResNets, DenseNet, MobileNet."""

from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from msgspec import Meta

from focalgeo.models.layers import BatchNorm, Block, Count, Counts, ImageNetwork, Stages, conv, conv_norms
from focalgeo.types import InputError


class CNN(ImageNetwork):
    """One block per width of 3x3 convolution with stride 2, batch norm and ReLU; global average pooling; a dense layer.

    Strides, not max pooling: on a CPU the gradient of pooling takes several times the rest of the step.
    """

    widths: Counts = (32, 64, 128)

    def _features(self, x, train, mask):
        for width in self.widths:
            x = nn.Conv(width, (3, 3), (2, 2), padding=1, use_bias=False, dtype=self.dtype)(x)
            x = nn.relu(BatchNorm(axis_name=self.axis_name, dtype=self.dtype)(x, train=train, mask=mask))
        return x


class VGG(ImageNetwork):
    """Stages of `blocks[i]` 3x3 convolutions with batch norm and ReLU, each followed by 2x2 max pooling.

    One dense layer to the classes, as is usual for 32x32 images.

    Source: Simonyan & Zisserman (2015), configuration E for the default; no bias before batch norm.
    """

    blocks: Stages = (2, 2, 4, 4, 4)
    widths: Stages = (64, 128, 256, 512, 512)

    def _features(self, x, train, mask):
        layer = conv_norms(self, train=train, mask=mask)
        for blocks, width in zip(self.blocks, self.widths, strict=True):
            for _ in range(blocks):
                x = nn.relu(layer(x, width))
            x = nn.max_pool(x, (2, 2), (2, 2), padding="SAME")
        return x


class BasicBlock(Block):
    """Two 3x3 convolutions with batch norm around a shortcut; where the shape changes, it is a 1x1 convolution."""

    def _layers(self, x, layer):
        y = nn.relu(layer(x, self.width, stride=self.stride))
        return _added(x, layer(y, self.width), layer, self.stride)


class Bottleneck(Block):
    """1x1, 3x3 and 1x1 convolutions with batch norm around a shortcut; the last is four times as wide."""

    def _layers(self, x, layer):
        y = nn.relu(layer(nn.relu(layer(x, self.width, 1)), self.width, 3, self.stride))
        return _added(x, layer(y, 4 * self.width, 1), layer, self.stride)


def _added(x, y, layer, stride):
    return nn.relu(y + (x if x.shape == y.shape else layer(x, y.shape[-1], 1, stride)))


class ResNet(ImageNetwork):
    """Stages of `blocks[i]` residual blocks with `widths[i]` channels; every stage but the first halves the image.

    Source: He et al. (2016); Zagoruyko & Komodakis (2016) for wide ones, here with activations after the sum and no
    dropout, as the papers' published code has them. Shortcuts that change shape are 1x1 convolutions throughout.
    """

    blocks: Stages = (2, 2, 2, 2)
    widths: Stages = (64, 128, 256, 512)
    stem_width: Count | None = None  # None: that of the first stage
    stem_stride: Count = 1  # 2 for 64x64 images, which then cost as much as 32x32 ones
    block: type = BasicBlock

    def _features(self, x, train, mask):
        stem = self.stem_width or self.widths[0]
        x = conv_norms(self, train=train, mask=mask)(x, stem, stride=self.stem_stride)
        x = nn.relu(x)
        for stage, (blocks, width) in enumerate(zip(self.blocks, self.widths, strict=True)):
            for number in range(blocks):
                stride = 2 if stage > number == 0 else 1
                x = self.block(width, stride, self.axis_name, self.dtype)(x, train=train, mask=mask)
        return x


class DenseNet(ImageNetwork):
    """Dense blocks of `blocks[i]` layers, between them 1x1 convolutions to half the channels and 2x2 mean pooling.

    A layer is batch norm, ReLU, 1x1 convolution to four times the growth, batch norm, ReLU, 3x3 convolution.

    Source: Huang et al., Densely connected convolutional networks (2017), DenseNet-BC with compression 0.5; 3x3 stem.
    """

    blocks: Counts = (6, 12, 24, 16)
    growth: Count = 32
    stem_stride: Count = 1

    def _features(self, x, train, mask):

        def normalised(y):
            return nn.relu(BatchNorm(axis_name=self.axis_name, dtype=self.dtype)(y, train=train, mask=mask))

        x = conv(x, 2 * self.growth, 3, stride=self.stem_stride, dtype=self.dtype)
        for block, layers in enumerate(self.blocks):
            if block > 0:
                x = conv(normalised(x), x.shape[-1] // 2, 1, dtype=self.dtype)
                if min(x.shape[1:3]) < 2:
                    raise InputError(
                        "config.model.options.blocks: each but the first halves the images, which are too small"
                    )
                # flax's own mean divides by an integer, which strict dtype promotion refuses
                x = 0.25 * nn.pooling.pool(x, 0.0, jax.lax.add, (2, 2), (2, 2), "VALID")
            for _ in range(layers):
                y = conv(normalised(x), 4 * self.growth, 1, dtype=self.dtype)
                y = conv(normalised(y), self.growth, 3, dtype=self.dtype)
                x = jnp.concatenate([x, y], axis=-1)
        return normalised(x)


# (expansion, width, stride of the first block) of each stage; the strides of small images
STAGES = ((1, 16, 1), (6, 24, 1), (6, 32, 2), (6, 64, 2), (6, 96, 1), (6, 160, 2), (6, 320, 1))


class InvertedResidual(Block):
    """1x1 convolution to more channels, 3x3 for each channel by itself, 1x1 to `width` without activation."""

    expansion: int = 6

    def _layers(self, x, layer):
        inner = self.expansion * x.shape[-1]
        y = nn.relu6(layer(nn.relu6(layer(x, inner, 1)), inner, 3, self.stride, inner))
        y = layer(y, self.width, 1)
        if self.stride > 1:
            return y
        return y + (x if x.shape == y.shape else layer(x, self.width, 1))


class MobileNetV2(ImageNetwork):
    """The published stages with a stem and a second stage of stride 1, which 32x32 images need.

    Stage i has `blocks[i]` blocks; fewer numbers leave the last stages out. Blocks of stride 1 that change the width
    have a 1x1 convolution as shortcut, as the common CIFAR variant does.

    Source: Sandler et al., MobileNetV2 (2018).
    """

    blocks: Annotated[Counts, Meta(max_length=len(STAGES))] = (1, 2, 3, 4, 3, 3, 1)
    stem_stride: Count = 1

    def _features(self, x, train, mask):
        layer = conv_norms(self, train=train, mask=mask)
        x = nn.relu6(layer(x, 32, stride=self.stem_stride))
        for (expansion, width, first_stride), blocks in zip(STAGES, self.blocks, strict=False):
            for stride in (first_stride, *[1] * (blocks - 1)):
                block = InvertedResidual(width, stride, self.axis_name, self.dtype, expansion)
                x = block(x, train=train, mask=mask)
        return nn.relu6(layer(x, 1280, 1))
