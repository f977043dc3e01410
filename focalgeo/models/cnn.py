"""Plain convolutional networks with batch normalisation: a small one for quick runs, and VGG for small images."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from focalgeo.models.layers import BatchNorm, Classifier, ConvNorm, check_stages


class CNN(nn.Module):
    """One block per width of 3x3 convolution with stride 2, batch norm and ReLU; global average pooling; a dense layer.

    Strides, not max pooling: on a CPU the gradient of pooling takes several times the rest of the step.
    """

    num_classes: int
    widths: Sequence[int] = (32, 64, 128)
    axis_name: str | None = None
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, classes] of x."""
        x = x.astype(self.dtype)
        for width in self.widths:
            x = nn.Conv(width, (3, 3), (2, 2), padding=1, use_bias=False, dtype=self.dtype)(x)
            x = nn.relu(BatchNorm(axis_name=self.axis_name, dtype=self.dtype)(x, train=train, mask=mask))
        return Classifier(self.num_classes)(x)


class VGG(nn.Module):
    """Stages of `blocks[i]` 3x3 convolutions with batch norm and ReLU, each followed by 2x2 max pooling.

    One dense layer to the classes, as is usual for 32x32 images.

    Source: Simonyan & Zisserman (2015), configuration E for the default; no bias before batch norm.
    """

    num_classes: int
    blocks: Sequence[int] = (2, 2, 4, 4, 4)
    widths: Sequence[int] = (64, 128, 256, 512, 512)
    axis_name: str | None = None
    dtype: Any = jnp.float32

    def __post_init__(self):
        check_stages(self.blocks, self.widths)
        super().__post_init__()

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, classes] of x, of 32x32 pixels or more."""
        layer = partial(ConvNorm, axis_name=self.axis_name, dtype=self.dtype)
        x = x.astype(self.dtype)
        for blocks, width in zip(self.blocks, self.widths, strict=True):
            for _ in range(blocks):
                x = nn.relu(layer(width)(x, train=train, mask=mask))
            x = nn.max_pool(x, (2, 2), (2, 2), padding="SAME")
        return Classifier(self.num_classes)(x)
