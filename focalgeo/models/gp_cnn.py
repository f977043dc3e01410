"""The global-pooling convolutional network for documents."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from focalgeo.models.layers import embed, last_layer
from focalgeo.types import Array, InputError

POOL = 5


class GPCNN(nn.Module):
    """Word vectors, convolutions of 5 words with ReLU, between them the maximum of every 5, the maximum over all.

    Then dense layers of the `hidden` widths with ReLU, and one to the classes. What stands where x is 0 is padding and
    counts for nothing: features there are 0 before every convolution and never the maximum of a window that holds a
    word. So a document's logits and gradients are the same at every padded length, to the rounding of products that
    are summed in another order; a document without words has those of features 0. Held by tests/test_text_models.py.

    Source: the Keras example for 20 Newsgroups (F. Chollet, Using pre-trained word embeddings in a Keras model), for
    the Global-Pooling CNN of Mukhoti et al., arXiv 2002.09437, section 5, whose layers are not stated there. In the
    example padding takes part and convolutions shorten the document; here they keep its length, so that a document of
    one word has features.
    """

    num_classes: int
    vocabulary_size: int
    embedding_size: int = 100
    widths: Sequence[int] = (128, 128, 128)
    hidden: Sequence[int] = (128,)
    embedding_init: Callable | None = None
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, classes] of x int32 [examples, length], token ids with 0 for padding."""
        if x.ndim != 2:
            raise InputError("config.model.name: gp_cnn reads documents, the data is trees; choose tree_lstm")
        words = x != 0
        x = embed(x, self.vocabulary_size, self.embedding_size, init=self.embedding_init, dtype=self.dtype)
        for layer, width in enumerate(self.widths):
            if layer > 0:
                # not nn.max_pool, whose gradient makes the whole step a quarter slower on a CPU
                x, words = jnp.max(_windows(x), axis=2), jnp.any(_windows(words), axis=2)
            x = nn.relu(nn.Conv(width, (5,), dtype=self.dtype)(x))
            x = jnp.where(words[..., None], x, jnp.zeros_like(x))
        x = jnp.max(x, axis=1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width, dtype=self.dtype)(x))
        return last_layer(self, x, self.num_classes)


def _windows(x: Array) -> Array:
    """Windows [examples, windows, POOL, ...] of x [examples, length, ...]; zeros, ReLU's least, fill up the last."""
    short = -x.shape[1] % POOL
    x = jnp.pad(x, ((0, 0), (0, short)) + ((0, 0),) * (x.ndim - 2))
    return x.reshape(x.shape[0], -1, POOL, *x.shape[2:])
