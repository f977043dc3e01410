"""Multi-layer perceptrons, the linear classifier among them."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp


class MLP(nn.Module):
    """Flattens its input; dense layers of the `hidden` widths with ReLU, then one to the classes. No hidden layer: linear."""

    num_classes: int
    hidden: Sequence[int] = (32, 32)
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        x = x.reshape(x.shape[0], -1).astype(self.dtype)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width, dtype=self.dtype)(x))
        return nn.Dense(self.num_classes, dtype=self.dtype)(x).astype(jnp.float32)
