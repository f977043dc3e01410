"""Layers that the networks share."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


class BatchNorm(nn.Module):
    """Batch normalisation over all axes but the last, whose statistics leave padding out and are exact over devices.

    In training, sums and counts of the unmasked examples are reduced over `axis_name` before they are divided, so that
    any number of devices gives one device's result on any (uneven) sharding. All is computed in float32, whatever
    dtype comes in and goes out. Running statistics: `momentum * old + (1 - momentum) * new` with the unbiased variance,
    as the papers' reference code (PyTorch, momentum 0.1) has them.
    """

    momentum: float = 0.9
    epsilon: float = 1e-5
    axis_name: str | None = None
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train, mask=None):
        """Normalise x [examples, ..., channels]; mask [examples] is True where there is no padding."""
        channels = x.shape[-1]
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,), jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,), jnp.float32)
        scale = self.param("scale", nn.initializers.ones, (channels,), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (channels,), jnp.float32)
        mean, var = running_mean.value, running_var.value
        if train:
            mean, var, count = self._batch_statistics(x, mask)
            if not self.is_initializing():
                unbiased = var * (count / jnp.maximum(count - 1, 1))
                running_mean.value = self.momentum * running_mean.value + (1 - self.momentum) * mean
                running_var.value = self.momentum * running_var.value + (1 - self.momentum) * unbiased
        factor = scale * jax.lax.rsqrt(var + self.epsilon)
        shape = (1,) * (x.ndim - 1) + (channels,)
        normalised = (x.astype(jnp.float32) - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)
        return normalised.astype(self.dtype)

    def _batch_statistics(self, x, mask):
        x = x.astype(jnp.float32)
        mask = jnp.ones(x.shape[0], bool) if mask is None else mask
        weight = mask.astype(jnp.float32).reshape((-1,) + (1,) * (x.ndim - 1))
        axes = tuple(range(x.ndim - 1))
        positions = jnp.float32(x[0, ..., 0].size)
        sums = (jnp.sum(weight * x, axes), jnp.sum(weight * x * x, axes), jnp.sum(weight) * positions)
        if self.axis_name is not None and not self.is_initializing():
            sums = jax.lax.psum(sums, self.axis_name)
        total, total_of_squares, count = sums
        mean = total / count
        return mean, jnp.maximum(total_of_squares / count - mean * mean, 0.0), count
