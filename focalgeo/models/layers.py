"""Layers that the networks share."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from msgspec import Meta

from focalgeo.types import Array, InputError

# what the options of networks may hold, as msgspec reads it
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Counts = tuple[Count, ...]
Stages = Annotated[Counts, Meta(min_length=1)]  # a number for each
Share = Annotated[float, Meta(ge=0, lt=1)]

# Of batch normalisation, as PyTorch has them; its momentum 0.1 is the share of the new batch.
MOMENTUM, EPSILON = 0.9, 1e-5
CONV_INIT = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


class Network(nn.Module):
    """What networks of numbers share."""

    num_classes: int
    dtype: Any = jnp.float32


class ImageNetwork(Network):
    """What networks with batch norm share; batch statistics are summed over `axis_name`, see `BatchNorm`."""

    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, classes] of x."""
        return Classifier(self.num_classes)(self._features(x, train, mask))


class Block(nn.Module):
    """What blocks of convolutions share."""

    width: int
    stride: int = 1
    axis_name: str | None = None
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Features of the same height and width divided by the stride."""
        return self._layers(x, conv_norms(self, train=train, mask=mask))


def word_init(key: Array, shape: tuple[int, int], dtype: Any) -> Array:
    """Word vectors uniform on -0.05 to 0.05, as Keras does, and Tai et al. (2015) where none are given."""
    return jax.random.uniform(key, shape, dtype, -0.05, 0.05)


class WordNetwork(nn.Module):
    """What networks of words share; embedding_init: flax's (key, shape, dtype) -> [vocabulary_size, embedding_size]."""

    num_classes: int
    vocabulary_size: int
    embedding_init: Callable = word_init
    dtype: Any = jnp.float32


def embed(module: WordNetwork, words: Array) -> Array:
    """The vectors [..., embedding_size] of words int32 [...], zeros where the word is 0, which is padding.

    A word that is not below vocabulary_size gives NaN.
    """
    size = module.embedding_size
    layer = nn.Embed(module.vocabulary_size, size, dtype=module.dtype, embedding_init=module.embedding_init)
    return jnp.where((words != 0)[..., None], layer(words), 0)


def check_trees(x: Array) -> None:
    """Refuse what is no batch of trees."""
    if x.ndim != 3 or x.shape[1] % 2 == 0 or x.shape[2] != 3:
        mend = "give trees [examples, 2 leaves - 1, 3], or choose gp_cnn or transformer for documents"
        raise InputError(f"x has shape {list(x.shape)}: {mend}")


class BatchNorm(nn.Module):
    """Batch normalisation over all axes but the last, whose statistics leave padding out and are exact over devices.

    In training, sums and counts of the unmasked examples are reduced over `axis_name` before they are divided, so that
    any number of devices gives one device's result on any (uneven) sharding. All is computed in float32, whatever
    dtype comes in and goes out. Running statistics: `0.9 old + 0.1 new` with the unbiased variance,
    as the papers' reference code (PyTorch, momentum 0.1) has them.
    """

    axis_name: str | None = None
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train, mask=None):
        """Normalise x [examples, ..., channels]; mask [examples] is True where there is no padding."""
        x, of_channels = x.astype(jnp.float32), (x.shape[-1:], jnp.float32)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, *of_channels)
        running_var = self.variable("batch_stats", "var", jnp.ones, *of_channels)
        scale = self.param("scale", nn.initializers.ones, *of_channels)
        bias = self.param("bias", nn.initializers.zeros, *of_channels)
        mean, var = running_mean.value, running_var.value
        if train:
            mean, var, count = self._batch_statistics(x, mask)
            if not self.is_initializing():
                unbiased = var * (count / jnp.maximum(count - 1, 1))
                running_mean.value = MOMENTUM * running_mean.value + (1 - MOMENTUM) * mean
                running_var.value = MOMENTUM * running_var.value + (1 - MOMENTUM) * unbiased
        shape = (1,) * (x.ndim - 1) + (-1,)
        mean, factor, bias = (leaf.reshape(shape) for leaf in (mean, scale * jax.lax.rsqrt(var + EPSILON), bias))
        return ((x - mean) * factor + bias).astype(self.dtype)

    def _batch_statistics(self, x, mask):
        mask = jnp.ones(x.shape[0], bool) if mask is None else mask
        chex.assert_shape(mask, x.shape[:1])
        weight = mask.astype(jnp.float32)
        weight = weight.reshape((-1,) + (1,) * (x.ndim - 1))
        axes, positions = tuple(range(x.ndim - 1)), jnp.float32(x[0, ..., 0].size)
        # in one array, for one sum over devices
        sums = jnp.hstack([jnp.sum(weight * x, axes), jnp.sum(weight * x * x, axes), jnp.sum(weight) * positions])
        if self.axis_name is not None and not self.is_initializing():
            sums = jax.lax.psum(sums, self.axis_name)
        (total, total_of_squares), count = jnp.split(sums[:-1], 2), sums[-1]
        mean = total / count
        return mean, jnp.maximum(total_of_squares / count - mean * mean, 0.0), count


class ConvNorm(nn.Module):
    """A convolution without bias, padded to keep the size at stride 1, and batch norm after it."""

    width: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1
    axis_name: str | None = None
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Normalised features [examples, height / stride, width / stride, channels]."""
        x = conv(x, self.width, self.kernel, stride=self.stride, groups=self.groups, dtype=self.dtype)
        return BatchNorm(axis_name=self.axis_name, dtype=self.dtype)(x, train=train, mask=mask)


def conv_norms(module: nn.Module, *, train: bool, mask: Array | None) -> Callable:
    """ConvNorm as (x, width, kernel=3, stride=1, groups=1) -> features, each call a layer of `module`."""

    def layer(x, *shape, **options):
        return ConvNorm(*shape, **options, axis_name=module.axis_name, dtype=module.dtype)(x, train=train, mask=mask)

    return layer


def conv(x: Array, width: int, kernel: int, *, stride: int = 1, groups: int = 1, dtype: Any = jnp.float32) -> Array:
    """A square convolution without bias, padded by kernel // 2 as PyTorch's are, with He's initial weights.

    Its parameters belong to the module that calls it, named as those of flax's own Conv.
    """
    layer = nn.Conv(
        width,
        (kernel, kernel),
        (stride, stride),
        padding=kernel // 2,
        feature_group_count=groups,
        use_bias=False,
        dtype=dtype,
        kernel_init=CONV_INIT,
        conv_general_dilated=_depthwise if groups == width == x.shape[-1] > 1 else None,
    )
    return layer(_behind_barrier(x))


def _depthwise(x, kernel, strides, padding, **options):
    """A convolution of each channel by itself: on a CPU the sum of shifted products, else XLA's own.

    The same sum in another order. XLA's on CPUs takes 6 to 10 times as long, gradient included; on TPUs the shifted
    products take 2.4 times the cycles, by the compiler. Tested in tests/test_depthwise.py.
    """
    grouped = partial(jax.lax.conv_general_dilated, window_strides=strides, padding=padding, **options)

    def shifted(x, kernel):
        padded = jnp.pad(x, ((0, 0), *padding, (0, 0)))
        _, height, width, _ = jax.eval_shape(grouped, x, kernel).shape
        total = 0.0
        for row, column in np.ndindex(kernel.shape[:2]):
            window = padded[:, row :: strides[0], column :: strides[1]][:, :height, :width]
            total = total + window * kernel[row, column].reshape(1, 1, 1, -1)
        return total

    return jax.lax.platform_dependent(x, kernel, cpu=shifted, default=grouped)


@jax.custom_jvp
def _behind_barrier(x):
    """The input behind a barrier: XLA has it as an array before the convolution and its derivatives read it.

    For the derivative in a convolution's kernel XLA's CPU compiler of jax 0.12 forms the input anew from all residual
    blocks before it: a training step of ResNet-110 took 2.6 times as long, of ResNet-20 1.4 times. With jax 0.10 on CPU
    it does nothing; on a GPU it has not been measured. Tangents and cotangents pass without a barrier.
    """
    return jax.lax.optimization_barrier(x)


@_behind_barrier.defjvp
def _(primals, tangents):
    return _behind_barrier(primals[0]), tangents[0]


class Classifier(nn.Module):
    """The mean over all positions, then a dense layer to the classes, both in float32."""

    num_classes: int

    @nn.compact
    def __call__(self, x):
        """Logits float32 [examples, classes] of features [examples, ..., channels]."""
        x = jnp.mean(x.astype(jnp.float32), axis=tuple(range(1, x.ndim - 1)))
        return last_layer(self, x, self.num_classes)


def last_layer(module: nn.Module, features: Array, num_classes: int) -> Array:
    """Logits float32 [..., classes] of features [..., width]: the dense layer with bias that ends the network `module`.

    `show_last_layer` shows this layer's. Its parameters have the names and initial values of flax's own Dense.
    """
    features = features.astype(jnp.float32)
    dense = nn.Dense(num_classes)
    logits = dense(features)
    show_last_layer(module, features, dense.variables["params"]["kernel"])
    return logits


def show_last_layer(module: nn.Module, features: Array, kernel: Array) -> None:
    """Show the last layer's input [..., width] and weights [width, outputs] to whoever asks for them, nobody else.

    apply(variables, x, mutable=["intermediates"]) returns them under the names "features" and "kernel", each a tuple of
    one, in the subtree of `module`. Initialisation and training ask for no intermediates and neither compute nor return
    them. Tested in tests/test_last_layer.py.
    """
    module.sow("intermediates", "features", features)
    module.sow("intermediates", "kernel", kernel)
