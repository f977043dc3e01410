"""A transformer for documents and for the phrases of trees."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.models.layers import embed, last_layer
from focalgeo.types import Array, InputError


class Transformer(nn.Module):
    """Word vectors with sinusoidal positions, pre-norm transformer blocks, the mean over words, a dense layer.

    Of a document x int32 [examples, length] the mean is over all its words; of a tree x int32 [examples, 2L - 1, 3], as
    `TreeLSTM` reads it, every node's is over the words of its phrase, which have seen the whole sentence. Positions
    where a word is 0 are padding and count for nothing: logits are the same at every padded length, to rounding. A word
    or a slot's number that is none gives NaN.

    By default 2 blocks of width 128 with 4 heads and a hidden layer of 512. In training `dropout` of the values are
    dropped after the word vectors, in the attention and at the end of each half of a block; flax's key for it is
    "dropout".

    Source: Vaswani et al., arXiv 1706.03762, with normalisation first (Xiong et al., arXiv 2002.04745) and the mean in
    place of a class token. Tested in tests/test_text_models.py.
    """

    num_classes: int
    vocabulary_size: int
    embedding_size: int = 128
    depth: int = 2
    width: int = 128
    heads: int = 4
    dropout: float = 0.1
    embedding_init: Callable | None = None
    dtype: Any = jnp.float32

    def __post_init__(self):
        if not 0 <= self.dropout < 1:
            raise InputError(f"config.model.options.dropout is {self.dropout}: it must be at least 0 and below 1")
        if self.width % self.heads or self.width % 2:
            raise InputError(
                f"config.model.options: heads {self.heads} must divide the width {self.width}, which must be even"
            )
        super().__post_init__()

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, classes] of documents, [examples, 2L - 1, classes] of trees."""
        words, phrases = (x, None) if x.ndim == 2 else (x[:, : (x.shape[1] + 1) // 2, 0], _phrases(x))
        there = words != 0
        drop = nn.Dropout(self.dropout, deterministic=not train)
        vectors = embed(words, self.vocabulary_size, self.embedding_size, init=self.embedding_init, dtype=self.dtype)
        positions = _positions(words.shape[1], self.width).astype(self.dtype)
        y = drop(nn.Dense(self.width, dtype=self.dtype)(vectors) + positions[None])

        def normalised(y):
            return nn.LayerNorm()(y.astype(jnp.float32)).astype(self.dtype)

        for _ in range(self.depth):
            attention = nn.MultiHeadDotProductAttention(
                self.heads, dtype=self.dtype, dropout_rate=self.dropout, deterministic=not train
            )
            y = y + drop(attention(normalised(y), mask=there[:, None, None]))
            hidden = nn.gelu(nn.Dense(4 * self.width, dtype=self.dtype)(normalised(y)))
            y = y + drop(nn.Dense(self.width, dtype=self.dtype)(hidden))
        counted = there[:, None] if phrases is None else there[:, None] & phrases  # [examples, nodes, words]
        features = _means(normalised(y).astype(jnp.float32), counted)
        if phrases is None:
            return last_layer(self, features[:, 0], self.num_classes)
        are_slots = jnp.all((x[..., 1:] >= 0) & (x[..., 1:] < x.shape[1]), axis=(1, 2), keepdims=True)
        return last_layer(self, jnp.where(are_slots, features, jnp.nan), self.num_classes)


def _positions(length: int, width: int) -> Array:
    """Sines and cosines [length, width] of wavelengths from 2 pi to 20,000 pi."""
    rates = 10_000.0 ** (-np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, None] * rates
    return jnp.asarray(np.concatenate([np.sin(angles), np.cos(angles)], axis=-1), jnp.float32)


def _means(states: Array, counted: Array) -> Array:
    """Means [examples, nodes, width] of states [examples, words, width] over the words that count; 0 of none."""
    weight = counted.astype(states.dtype)
    total = jnp.einsum("enw,ewd->end", weight, states, precision=jax.lax.Precision.HIGHEST)
    return total / jnp.maximum(jnp.sum(weight, axis=-1, keepdims=True), 1)


def _phrases(x: Array) -> Array:
    """Which words [examples, 2L - 1, L] each node of the trees x [examples, 2L - 1, 3] spans; none of empty slots."""
    if x.shape[1] % 2 == 0 or x.shape[2] != 3:
        raise InputError(f"x has shape {list(x.shape)}: transformer reads trees [examples, 2 leaves - 1, 3]")
    examples, slots = x.shape[:2]
    leaves = (slots + 1) // 2
    own = jnp.arange(examples)[:, None]

    def step(spans, node):
        slot, children = node  # children [examples, 2]
        union = jnp.any(spans[own, children], axis=1) & jnp.any(children != 0, axis=-1, keepdims=True)
        return spans.at[:, slot].set(union), None

    spans = jnp.zeros((examples, slots, leaves), bool).at[:, :leaves].set(jnp.eye(leaves, dtype=bool))
    inner = jnp.arange(leaves, slots), jnp.swapaxes(x[:, leaves:, 1:], 0, 1)
    return jax.lax.scan(step, spans, inner)[0]
