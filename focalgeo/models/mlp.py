"""Multi-layer perceptrons, the linear classifier among them, and logistic regression of two classes."""

import flax.linen as nn
import jax.numpy as jnp

from focalgeo.models.layers import Counts, Network, last_layer, show_last_layer
from focalgeo.types import InputError


class MLP(Network):
    """Dense layers of the `hidden` widths with ReLU on the flattened input, then a linear one to the classes."""

    hidden: Counts = (32, 32)

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, classes] of x."""
        x = x.reshape(x.shape[0], -1).astype(self.dtype)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width, dtype=self.dtype)(x))
        return last_layer(self, x, self.num_classes)


class Logistic(Network):
    """Logits [0, w.x] of two classes: the softmax gives class 1 the probability sigma(w.x); one weight a feature.

    Weights begin at zero: there is no hidden layer whose units must differ, so the path of training and the
    norm of w on it belong to the data and the loss alone.

    Raises:
      InputError: num_classes is not 2.

    Source: Mukhoti et al., ICLR 2020 submission, App. G: sigma(w1 x1 + w2 x2). It does not state the initial weights.
    """

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, 2] of x [examples, features]."""
        if self.num_classes != 2:
            raise InputError(f"config.model.name: logistic tells 2 classes apart, the data has {self.num_classes}")
        kernel = self.param("kernel", nn.initializers.zeros, (x.shape[-1], 1), jnp.float32)
        show_last_layer(self, x.astype(jnp.float32), kernel)
        score = (x.astype(self.dtype) @ kernel.astype(self.dtype)).astype(jnp.float32)
        return jnp.concatenate([jnp.zeros_like(score), score], axis=-1)
