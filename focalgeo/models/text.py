"""Networks for text: the global-pooling convolutional network for documents, the binary Tree-LSTM for sentences."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from focalgeo.models.layers import Count, Counts, Share, WordNetwork, check_trees, embed, last_layer
from focalgeo.types import InputError

POOL = 5


class GPCNN(WordNetwork):
    """Word vectors, convolutions of 5 words with ReLU, between them the maximum of every 5, the maximum over all.

    Then dense layers of the `hidden` widths with ReLU, and one to the classes. Positions where x is 0 are padding and
    count for nothing: features there are 0 before every convolution and never the maximum of a window that holds a
    word. So a document's logits and gradients are the same at every padded length, to the rounding of products that
    are summed in another order; a document without words has those of features 0. Tested in tests/test_text_models.py.

    Source: the Keras example for 20 Newsgroups (F. Chollet, Using pre-trained word embeddings in a Keras model), for
    the Global-Pooling CNN of Mukhoti et al., ICLR 2020 submission, section 5, whose layers are not stated there. In the
    example padding takes part and convolutions shorten the document; here they keep its length, so that a document of
    one word has features.
    """

    embedding_size: Count = 100
    widths: Counts = (128, 128, 128)
    hidden: Counts = (128,)

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, classes] of x int32 [examples, length], token ids with 0 for padding."""
        if x.ndim != 2:
            raise InputError("config.model.name: gp_cnn reads documents, no trees; choose tree_lstm or transformer")
        words = (x != 0)[..., None].astype(jnp.float32)
        x = embed(self, x)
        for layer, width in enumerate(self.widths):
            if layer > 0:
                ends = ((0, -x.shape[1] % POOL),)
                x, words = (nn.max_pool(leaf, (POOL,), (POOL,), ends) for leaf in (x, words))
            x = nn.relu(nn.Conv(width, (5,), dtype=self.dtype)(x))
            x = x * words.astype(x.dtype)
        x = jnp.max(x, axis=1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width, dtype=self.dtype)(x))
        return last_layer(self, x, self.num_classes)


class TreeLSTM(WordNetwork):
    """An LSTM that reads a binary tree from its leaves up and classifies every node by its hidden state.

    With (h, c) the states of both children, `width` numbers each, 0 at leaves, and x the word's vector, 0 elsewhere:
    i, o = sigma(W x + U h + b), u = tanh(W x + U h + b), f_k = sigma(U_k h + b_f) for each child k with its own weights
    for both h; c = i u + f_left c_left + f_right c_right, h = o tanh(c). In training, `dropout` of the hidden states'
    values are dropped before the classifier, and nowhere else; flax's key for it is "dropout".

    x int32 [examples, 2L - 1, 3] holds (word, left, right) of each slot: in 0..L-1 the leaves, in L..2L-2 the inner
    nodes, children before parents, which name their children's slots; (0, 0, 0) is an empty slot, and its logits are
    finite and mean nothing. A slot's number that is none gives NaN. All leaves of a batch are one matrix product, each
    inner slot of all trees is one more.

    Accuracy: every node's logits are within 1e-5 of a recursion over the tree in float64, on 200 trees of the Stanford
    Sentiment Treebank: tests/test_text_models.py.

    Source: Tai, Socher & Manning, arXiv 1503.00075, Eqs. 9-14 with N = 2; dropout as in their program, which
    has no input gate at leaves, c = W x + b, and more biases: 316,800 parameters without word vectors and classifier,
    here 360,600.
    """

    embedding_size: Count = 300
    width: Count = 150
    dropout: Share = 0.5

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, 2L - 1, classes] of x."""
        check_trees(x)
        init = nn.initializers.lecun_normal()
        # columns: input gate, output gate, candidate, left child's and right child's forget gate
        word_kernel = self.param("word_kernel", init, (self.embedding_size, 3 * self.width), jnp.float32)
        child_kernel = self.param("child_kernel", init, (2 * self.width, 5 * self.width), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (4 * self.width,), jnp.float32)
        word_kernel, child_kernel, bias = (leaf.astype(self.dtype) for leaf in (word_kernel, child_kernel, bias))

        leaves = (x.shape[1] + 1) // 2
        words = x[:, :leaves, 0].T
        vectors = embed(self, words)
        children = x[:, leaves:, 1:].transpose(1, 2, 0)
        gates = vectors @ word_kernel + bias[: 3 * self.width].reshape(1, 1, -1)
        states = _compose(_state(*jnp.split(gates, 3, axis=-1)), children, child_kernel, bias)
        features = jnp.swapaxes(states[..., : self.width], 0, 1)
        features = nn.Dropout(self.dropout, deterministic=not train)(features)
        return last_layer(self, features, self.num_classes)


def _compose(leaves, children, kernel, bias):
    """States [slots, examples, 2 hidden] of all slots, from those of the leaves; children [inner, 2, examples]."""
    num_leaves, examples, size = leaves.shape
    inner, example = len(children), jnp.arange(examples, dtype=jnp.int32).reshape(1, -1)
    bias = jnp.concatenate([bias, bias[-(size // 2) :]]).reshape(1, -1)

    def step(states, node):
        slot, children = node
        pair = states.at[children, example].get(mode="fill")  # [2, examples, 2 hidden]
        (h_left, c_left), (h_right, c_right) = (jnp.split(child, 2, axis=-1) for child in pair)
        gates = jnp.concatenate([h_left, h_right], axis=-1) @ kernel + bias
        i, o, u, f_left, f_right = jnp.split(gates, 5, axis=-1)
        state = _state(i, o, u, jax.nn.sigmoid(f_left) * c_left + jax.nn.sigmoid(f_right) * c_right)
        # added to zeros, not set: the reverse mode of setting copies all states twice at every slot
        return states.at[slot].add(state), None

    states = jnp.concatenate([leaves, jnp.zeros((inner, examples, size), leaves.dtype)])
    slots = num_leaves + jnp.arange(inner, dtype=jnp.int32)
    return jax.lax.scan(step, states, (slots, children))[0]


def _state(i, o, u, remembered=0.0):
    """The states [..., 2 hidden], h before c."""
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + remembered
    return jnp.concatenate([jax.nn.sigmoid(o) * jnp.tanh(c), c], axis=-1)
