"""Multi-layer perceptrons, the linear classifier among them."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from focalgeo.models.layers import last_layer


class MLP(nn.Module):
    """Dense layers of the `hidden` widths with ReLU on the flattened input, then a linear one to the classes."""

    num_classes: int
    hidden: Sequence[int] = (32, 32)
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, classes] of x."""
        x = x.reshape(x.shape[0], -1).astype(self.dtype)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width, dtype=self.dtype)(x))
        return last_layer(self, x, self.num_classes)
