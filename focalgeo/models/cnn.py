"""A small convolutional network with batch normalisation, for quick runs on real images."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from focalgeo.models.layers import BatchNorm, Classifier


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
