"""A vision transformer for small images."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from focalgeo.models.layers import Classifier
from focalgeo.types import InputError


class ViT(nn.Module):
    """Patches of 4x4 pixels with learnt positions, pre-norm transformer blocks, the mean over patches, a dense layer.

    By default 6 blocks of width 192 with 3 heads and a hidden layer of 768: 2.7 million parameters on 32x32 images.

    Source: Dosovitskiy et al. (2021), with mean pooling in place of the class token.
    """

    num_classes: int
    patch: int = 4
    depth: int = 6
    width: int = 192
    heads: int = 3
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, classes] of x, whose height and width the patch divides, and heads the width."""
        if x.shape[1] % self.patch or x.shape[2] % self.patch or self.width % self.heads:
            raise InputError(
                f"config.model.options: patch {self.patch} must divide the images' sides {x.shape[1:3]}, and heads "
                f"{self.heads} the width {self.width}"
            )
        size = (self.patch, self.patch)
        x = nn.Conv(self.width, size, size, padding="VALID", dtype=self.dtype)(x.astype(self.dtype))
        x = x.reshape(x.shape[0], -1, self.width)
        positions = self.param("positions", nn.initializers.normal(0.02), (1, x.shape[1], self.width), jnp.float32)
        x = x + positions.astype(self.dtype)

        def normalised(y):
            return nn.LayerNorm()(y.astype(jnp.float32)).astype(self.dtype)

        for _ in range(self.depth):
            y = normalised(x)
            x = x + nn.MultiHeadDotProductAttention(self.heads, dtype=self.dtype)(y, y)
            y = nn.Dense(4 * self.width, dtype=self.dtype)(normalised(x))
            x = x + nn.Dense(self.width, dtype=self.dtype)(nn.gelu(y))
        return Classifier(self.num_classes)(normalised(x))
