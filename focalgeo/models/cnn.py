"""A small convolutional network with batch normalisation, for quick runs on real images."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from focalgeo.models.layers import BatchNorm


class CNN(nn.Module):
    """Blocks of 3x3 convolution, batch norm, ReLU and 2x2 max pooling, one per width; global average pooling; dense layer."""

    num_classes: int
    widths: Sequence[int] = (32, 64, 128)
    axis_name: str | None = None
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        x = x.astype(self.dtype)
        for width in self.widths:
            x = nn.Conv(width, (3, 3), use_bias=False, dtype=self.dtype)(x)
            x = BatchNorm(axis_name=self.axis_name, dtype=self.dtype)(x, train=train, mask=mask)
            x = nn.max_pool(nn.relu(x), (2, 2), strides=(2, 2))
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(self.num_classes, dtype=self.dtype)(x).astype(jnp.float32)
