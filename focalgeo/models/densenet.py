"""DenseNet for small images: every layer sees the features of all layers before it in its block."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from focalgeo.models.layers import BatchNorm, Classifier, conv
from focalgeo.types import InputError


class DenseNet(nn.Module):
    """Dense blocks of `blocks[i]` layers, between them 1x1 convolutions to half the channels and 2x2 mean pooling.

    A layer is batch norm, ReLU, 1x1 convolution to four times the growth, batch norm, ReLU, 3x3 convolution.

    Source: Huang et al., Densely connected convolutional networks (2017), DenseNet-BC with compression 0.5; 3x3 stem.
    """

    num_classes: int
    blocks: Sequence[int] = (6, 12, 24, 16)
    growth: int = 32
    stem_stride: int = 1
    axis_name: str | None = None
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, classes] of x."""

        def normalised(y):
            return nn.relu(BatchNorm(axis_name=self.axis_name, dtype=self.dtype)(y, train=train, mask=mask))

        x = conv(x.astype(self.dtype), 2 * self.growth, 3, stride=self.stem_stride, dtype=self.dtype)
        for block, layers in enumerate(self.blocks):
            if block > 0:
                x = conv(normalised(x), x.shape[-1] // 2, 1, dtype=self.dtype)
                x = _halved(x)
            for _ in range(layers):
                y = conv(normalised(x), 4 * self.growth, 1, dtype=self.dtype)
                y = conv(normalised(y), self.growth, 3, dtype=self.dtype)
                x = jnp.concatenate([x, y], axis=-1)
        return Classifier(self.num_classes)(normalised(x))


def _halved(x):
    """Means over 2x2 positions; flax's own pooling divides by an integer, which strict dtype promotion refuses."""
    examples, height, width, channels = x.shape
    if min(height, width) < 2:
        raise InputError(
            "x: the images are too small for config.model.options.blocks, of which each but the first halves them; "
            "give larger ones, or fewer blocks"
        )
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    return jnp.mean(x.reshape(examples, height // 2, 2, width // 2, 2, channels), axis=(2, 4))
