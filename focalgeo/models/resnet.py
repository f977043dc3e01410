"""Residual networks for small images: He's CIFAR nets, ResNet-18 and -50, wide ones; a 3x3 stem and no max pooling."""

import flax.linen as nn

from focalgeo.models.layers import Block, Classifier, Count, ImageNetwork, Stages, conv_norms


class BasicBlock(Block):
    """Two 3x3 convolutions with batch norm around a shortcut; where the shape changes, it is a 1x1 convolution."""

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Features of the same height and width divided by the stride."""
        layer = conv_norms(self, train=train, mask=mask)
        y = nn.relu(layer(x, self.width, stride=self.stride))
        return _added(x, layer(y, self.width), layer, self.stride)


class Bottleneck(Block):
    """1x1, 3x3 and 1x1 convolutions with batch norm around a shortcut; the last is four times as wide."""

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Features of the same height and width divided by the stride."""
        layer = conv_norms(self, train=train, mask=mask)
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

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, classes] of x."""
        stem = self.stem_width or self.widths[0]
        x = conv_norms(self, train=train, mask=mask)(x, stem, stride=self.stem_stride)
        x = nn.relu(x)
        for stage, (blocks, width) in enumerate(zip(self.blocks, self.widths, strict=True)):
            for number in range(blocks):
                stride = 2 if stage > number == 0 else 1
                x = self.block(width, stride, self.axis_name, self.dtype)(x, train=train, mask=mask)
        return Classifier(self.num_classes)(x)
