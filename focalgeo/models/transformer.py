"""Pre-norm transformers: of documents, of the phrases of trees, of small images."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from focalgeo.models.layers import Classifier, Count, Network, Share, WordNetwork, check_trees, embed, last_layer
from focalgeo.types import InputError


class Transformer(WordNetwork):
    """Word vectors with sinusoidal positions, pre-norm transformer blocks, the mean over words, a dense layer.

    Of a document x int32 [examples, length] the mean is over all its words; of a tree x int32 [examples, 2L - 1, 3], as
    `TreeLSTM` reads it, every node's is over the words of its phrase, which have seen the whole sentence. Positions
    where a word is 0 are padding and count for nothing: logits are the same at every padded length, to rounding. A word
    that is none gives NaN.

    By default 2 blocks of width 128 with 4 heads and a hidden layer of 512. In training `dropout` of the values are
    dropped after the word vectors, in the attention and at the end of each half of a block; flax's key for it is
    "dropout".

    Source: Vaswani et al., arXiv 1706.03762, with normalisation first (Xiong et al., arXiv 2002.04745) and the mean in
    place of a class token. Tested in tests/test_text_models.py.
    """

    embedding_size: Count = 128
    depth: Count = 2
    width: Count = 128
    heads: Count = 4
    dropout: Share = 0.1

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, classes] of documents, [examples, 2L - 1, classes] of trees."""
        words, phrases = (x, None) if x.ndim == 2 else (x[:, : (x.shape[1] + 1) // 2, 0], _phrases(x))
        there = words != 0
        drop = nn.Dropout(self.dropout, deterministic=not train)
        vectors = embed(self, words)
        rates = 10_000.0 ** (-np.arange(0, self.width, 2) / self.width)  # wavelengths from 2 pi to 20,000 pi
        angles = np.arange(words.shape[1])[:, None] * rates
        positions = jnp.asarray(np.concatenate([np.sin(angles), np.cos(angles)], axis=-1), jnp.float32)
        y = drop(nn.Dense(self.width, dtype=self.dtype)(vectors) + positions.astype(self.dtype)[None])

        for _ in range(self.depth):
            y = _block(y, self.heads, drop, there[:, None, None], dropout_rate=self.dropout, deterministic=not train)
        counted = there[:, None] if phrases is None else there[:, None] & phrases  # [examples, nodes, words]
        weight, states = counted.astype(jnp.float32), _normalised(y).astype(jnp.float32)
        total = jnp.einsum("enw,ewd->end", weight, states, precision=jax.lax.Precision.HIGHEST)
        # Means over words, and 0 of an empty slot, which has none.
        features = total / jnp.maximum(jnp.sum(weight, axis=-1, keepdims=True), 1)
        return last_layer(self, features[:, 0] if phrases is None else features, self.num_classes)


def _normalised(x):
    return nn.LayerNorm()(x.astype(jnp.float32)).astype(x.dtype)


def _block(x, heads, drop=lambda x: x, mask=None, **attention):
    """Features [examples, positions, width] after attention and a hidden layer four times as wide, each added.

    Its layers belong to the module that calls it.
    """
    layer = nn.MultiHeadDotProductAttention(heads, dtype=x.dtype, **attention)
    x = x + drop(layer(_normalised(x), mask=mask))
    hidden = nn.gelu(nn.Dense(4 * x.shape[-1], dtype=x.dtype)(_normalised(x)))
    return x + drop(nn.Dense(x.shape[-1], dtype=x.dtype)(hidden))


def _phrases(x):
    """Which words [examples, 2L - 1, L] each node of the trees x [examples, 2L - 1, 3] spans; none of empty slots."""
    check_trees(x)
    examples, slots = x.shape[:2]
    leaves = (slots + 1) // 2
    example = jnp.arange(examples)[:, None]

    def step(spans, node):
        slot, children = node  # children [examples, 2]
        union = jnp.any(spans[example, children], axis=1) & jnp.any(children != 0, axis=-1, keepdims=True)
        return spans.at[:, slot].set(union), None

    spans = jnp.zeros((examples, slots, leaves), bool).at[:, :leaves].set(jnp.eye(leaves, dtype=bool))
    inner = jnp.arange(leaves, slots), jnp.swapaxes(x[:, leaves:, 1:], 0, 1)
    return jax.lax.scan(step, spans, inner)[0]


class ViT(Network):
    """Patches of 4x4 pixels with learnt positions, pre-norm transformer blocks, the mean over patches, a dense layer.

    By default 6 blocks of width 192 with 3 heads and a hidden layer of 768: 2.7 million parameters on 32x32 images.

    Source: Dosovitskiy et al. (2021), with mean pooling in place of the class token.
    """

    patch: Count = 4
    depth: Count = 6
    width: Count = 192
    heads: Count = 3

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, classes] of x, whose height and width the patch divides, and heads the width."""
        if x.shape[1] % self.patch or x.shape[2] % self.patch:
            raise InputError(f"config.model.options.patch {self.patch} must divide the images' sides {x.shape[1:3]}")
        size = (self.patch, self.patch)
        x = nn.Conv(self.width, size, size, padding="VALID", dtype=self.dtype)(x)
        x = x.reshape(x.shape[0], -1, self.width)
        positions = self.param("positions", nn.initializers.normal(0.02), (1, x.shape[1], self.width), jnp.float32)
        x = x + positions.astype(self.dtype)

        for _ in range(self.depth):
            x = _block(x, self.heads)
        return Classifier(self.num_classes)(_normalised(x))
