"""Networks for graphs: the graph convolutional network, which classifies every node."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float32, Int32

from focalgeo.models.layers import Counts, Network, Share, last_layer
from focalgeo.types import NEIGHBOURS, Array, InputError


class GCN(Network):
    """Layers relu(A h W + b) of the `hidden` widths over a graph, then A h W + b to the classes; A as in `propagated`.

    In training `dropout` of the values that each layer after the first reads are dropped; flax's key is "dropout".

    x float [examples, nodes, features + NEIGHBOURS] holds whole graphs: of each node its features, and behind them the
    numbers of its nearest nodes, from 0. A number that is none gives NaN. A node's logits rest on the features of
    nodes as many edges away as there are layers, whether these have labels or not.

    Accuracy: every node's logits are within 1e-5 of dense matrix products in float64: tests/test_graph_models.py.

    Source: Kipf & Welling, arXiv 1609.02907, Eqs. 2 and 9; widths and dropout as there, but none of the input's, and
    flax's own initial weights.
    """

    hidden: Counts = (16,)
    dropout: Share = 0.5

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        """Logits float32 [examples, nodes, classes] of x."""
        if x.ndim != 3 or x.shape[-1] <= NEIGHBOURS:
            mend = f"give graphs [examples, nodes, features + {NEIGHBOURS}], as config.data.name=graph:digits does"
            raise InputError(f"x has shape {list(x.shape)}: {mend}")
        features, neighbours = x[..., :-NEIGHBOURS].astype(self.dtype), x[..., -NEIGHBOURS:].astype(jnp.int32)
        over_edges, drop = jax.vmap(propagated), nn.Dropout(self.dropout, deterministic=not train)
        for layer, width in enumerate(self.hidden):
            features = over_edges(nn.Dense(width, use_bias=False, dtype=self.dtype)(features), neighbours)
            bias = self.param(f"bias_{layer}", nn.initializers.zeros, (1, 1, width), jnp.float32)
            features = drop(nn.relu(features + bias.astype(self.dtype)))
        return last_layer(self, over_edges(features, neighbours), self.num_classes)


def propagated(
    features: Float32[Array, "nodes width"], neighbours: Int32[Array, "nodes nearest"]
) -> Float32[Array, "nodes width"]:
    """D^-1/2 (I + (W + W^T) / 2) D^-1/2 h, W_ij = 1 where j is among the nearest nodes of i, D the sums of the rows.

    So that an edge counts wholly where each end is among the other's nearest, by half where one is. Sparse: a gather
    for W, a sum over segments for its transpose.

    Source: Kipf & Welling, arXiv 1609.02907, Eq. 2; (W + W^T) / 2 as in scikit-learn's SpectralClustering.
    """
    nodes, nearest = neighbours.shape
    ends = neighbours.reshape(-1)

    def received(leaf):
        """W^T h: each node hands what it has to those nearest to it."""
        return jax.ops.segment_sum(jnp.repeat(leaf, nearest, axis=0), ends, num_segments=nodes)

    degrees = 1 + (nearest + received(jnp.ones((nodes, 1), features.dtype))) / 2
    scaled = features * jax.lax.rsqrt(degrees)
    given = scaled.at[neighbours].get(mode="fill").sum(axis=1)
    return (scaled + (given + received(scaled)) / 2) * jax.lax.rsqrt(degrees)
