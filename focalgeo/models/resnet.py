"""Residual networks with the CIFAR stem (3x3 convolution, no pooling)."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from focalgeo.models.layers import BatchNorm

CONV_INIT = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm around a shortcut; where the shape changes, it is a 1x1 convolution."""

    width: int
    stride: int = 1
    axis_name: str | None = None
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Features of the same height and width divided by the stride."""

        def conv_norm(y, kernel, stride):
            y = nn.Conv(
                self.width,
                (kernel, kernel),
                (stride, stride),
                padding=kernel // 2,
                use_bias=False,
                dtype=self.dtype,
                kernel_init=CONV_INIT,
            )(y)
            return BatchNorm(axis_name=self.axis_name, dtype=self.dtype)(y, train=train, mask=mask)

        y = nn.relu(conv_norm(x, 3, self.stride))
        y = conv_norm(y, 3, 1)
        shortcut = x if x.shape == y.shape else conv_norm(x, 1, self.stride)
        return nn.relu(y + shortcut)


class ResNet(nn.Module):
    """Stages of `blocks[i]` basic blocks with `widths[i]` channels; every stage but the first halves the image."""

    num_classes: int
    blocks: Sequence[int] = (2, 2, 2, 2)
    widths: Sequence[int] = (64, 128, 256, 512)
    axis_name: str | None = None
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, classes] of x."""
        x = x.astype(self.dtype)
        x = nn.Conv(self.widths[0], (3, 3), use_bias=False, dtype=self.dtype, kernel_init=CONV_INIT)(x)
        x = nn.relu(BatchNorm(axis_name=self.axis_name, dtype=self.dtype)(x, train=train, mask=mask))
        for stage, (blocks, width) in enumerate(zip(self.blocks, self.widths, strict=True)):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = BasicBlock(width, stride, self.axis_name, self.dtype)(x, train=train, mask=mask)
        x = jnp.mean(x.astype(jnp.float32), axis=(1, 2))
        return nn.Dense(self.num_classes)(x.astype(jnp.float32))
