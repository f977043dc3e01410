"""The networks' forward passes in NumPy, float64, from the definitions of their architectures; imports no focalgeo.

Each takes (params, stats, x, ...) with nested dicts of arrays named as flax names layers in the order of their making,
and gives (logits, running statistics after the pass). Layers are taken in order: `Weights` hands them out.

Sources: He et al. (2016), Zagoruyko & Komodakis (2016), Huang et al. (2017), Sandler et al. (2018), Simonyan &
Zisserman (2015), Dosovitskiy et al. (2021), Ioffe & Szegedy (2015); for text see tests/reference/tree_lstm.py.
"""

import math

import numpy as np

MOMENTUM, EPSILON = 0.9, 1e-5


class Weights:
    """A module's own layers by kind, each in the order of making: `take("Conv")` gives Conv_0, then Conv_1 ..."""

    def __init__(self, params, stats=None):
        """The layers of one module; stats: its running statistics."""
        self.params, self.stats, self.taken, self.new = params, stats or {}, {}, {}

    def take(self, kind):
        """The next layer of a kind as (its name, params)."""
        number = self.taken.get(kind, 0)
        self.taken[kind] = number + 1
        name = f"{kind}_{number}"
        return name, self.params[name]

    def inner(self, kind):
        """The next submodule of a kind, whose new statistics become part of this one's."""
        name, params = self.take(kind)
        weights = Weights(params, self.stats.get(name))
        if weights.stats:
            self.new[name] = weights.new
        return weights

    def done(self):
        """Whether every layer was taken, so that none of the network's own is left out."""
        return sum(self.taken.values()) == len(self.params)


def relu(x):
    """Rectified linear."""
    return np.maximum(x, 0)


def relu6(x):
    """Rectified linear, capped at 6."""
    return np.minimum(np.maximum(x, 0), 6)


def convolve(x, kernel, stride=1, padding=None, groups=1):
    """Cross-correlation of x [n, h, w, c] with kernel [k, k, c / groups, out], zeros past the edges, k // 2 of them."""
    size = kernel.shape[0]
    pad = size // 2 if padding is None else padding
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    height, width = ((length - size) // stride + 1 for length in x.shape[1:3])
    out = np.zeros((len(x), height, width, kernel.shape[3]))
    inside, outside = x.shape[3] // groups, kernel.shape[3] // groups
    for row in range(size):
        for column in range(size):
            seen = x[:, row : row + stride * height : stride, column : column + stride * width : stride]
            for group in range(groups):
                part, to = slice(group * inside, (group + 1) * inside), slice(group * outside, (group + 1) * outside)
                out[..., to] += seen[..., part] @ kernel[row, column, :, to]
    return out


def pooled(x, size, reduce):
    """`reduce` over windows of size x size; a last window that is not full is kept by `max`, dropped by `mean`."""
    rows, columns = x.shape[1:3]
    if reduce is np.mean:
        rows, columns = rows // size * size, columns // size * size
    starts = [(top, left) for top in range(0, rows, size) for left in range(0, columns, size)]
    windows = [reduce(x[:, top : top + size, left : left + size], axis=(1, 2)) for top, left in starts]
    return np.stack(windows, 1).reshape(len(x), -(-rows // size), -(-columns // size), x.shape[3])


def batch_norm(weights, x, train, mask):
    """Normalised by the batch in training (without padding), by running statistics else."""
    name, params = weights.take("BatchNorm")
    stats, axes = weights.stats[name], tuple(range(x.ndim - 1))
    mean, var = stats["mean"], stats["var"]
    if train:
        seen = x if mask is None else x[mask]
        mean, var = seen.mean(axes), seen.var(axes)
        unbiased = seen.reshape(-1, x.shape[-1]).var(0, ddof=1)
        new = {"mean": (mean, stats["mean"]), "var": (unbiased, stats["var"])}
        weights.new[name] = {key: MOMENTUM * old + (1 - MOMENTUM) * now for key, (now, old) in new.items()}
    return (x - mean) / np.sqrt(var + EPSILON) * params["scale"] + params["bias"]


def conv_norm(weights, x, train, mask, stride=1, groups=1):
    """A convolution without bias, then batch norm."""
    own = weights.inner("ConvNorm")
    kernel = own.take("Conv")[1]["kernel"]
    x = convolve(x, kernel, stride, groups=groups)
    return batch_norm(own, x, train, mask)


def dense(weights, x):
    """The product x W + b."""
    params = weights.take("Dense")[1]
    return x @ params["kernel"] + params["bias"]


def classified(weights, x):
    """The mean over positions and a dense layer."""
    return dense(weights.inner("Classifier"), x.mean(axis=tuple(range(1, x.ndim - 1))))


def mlp(weights, x, train, mask):
    """Dense layers with ReLU between them."""
    x = x.reshape(len(x), -1)
    layers = len(weights.params)
    for layer in range(layers):
        x = dense(weights, x)
        x = relu(x) if layer < layers - 1 else x
    return x


def cnn(weights, x, train, mask):
    """3x3 convolutions of stride 2 with batch norm and ReLU."""
    for _ in range(sum(name.startswith("Conv_") for name in weights.params)):
        x = relu(batch_norm(weights, convolve(x, weights.take("Conv")[1]["kernel"], 2), train, mask))
    return classified(weights, x)


def vgg(weights, x, train, mask, blocks=(2, 2, 4, 4, 4)):
    """Convolutions with batch norm and ReLU, 2x2 max pooling after each stage."""
    for number in blocks:
        for _ in range(number):
            x = relu(conv_norm(weights, x, train, mask))
        x = pooled(x, 2, np.max)
    return classified(weights, x)


def resnet(weights, x, train, mask, blocks=(2, 2, 2, 2), bottleneck=False, stem_stride=1):
    """Residual stages: y = relu(F(x) + shortcut), a 1x1 convolution with batch norm as shortcut where shapes change."""
    x = relu(conv_norm(weights, x, train, mask, stem_stride))
    for stage, number in enumerate(blocks):
        for first in [True] + [False] * (number - 1):
            stride = 2 if stage > 0 and first else 1
            own = weights.inner("Bottleneck" if bottleneck else "BasicBlock")
            strides = (1, stride, 1) if bottleneck else (stride, 1)
            y = x
            for layer, each in enumerate(strides):
                y = conv_norm(own, y, train, mask, each)
                y = y if layer == len(strides) - 1 else relu(y)
            shortcut = x if x.shape == y.shape else conv_norm(own, x, train, mask, stride)
            assert own.done()
            x = relu(y + shortcut)
    return classified(weights, x)


def densenet(weights, x, train, mask, blocks=(6, 12, 24, 16), stem_stride=1):
    """Layers see all features before them: BN, ReLU, 1x1, BN, ReLU, 3x3, concatenated; halved between the blocks."""

    def normalised(y):
        return relu(batch_norm(weights, y, train, mask))

    def conv(y, stride=1):
        return convolve(y, weights.take("Conv")[1]["kernel"], stride)

    x = conv(x, stem_stride)
    for block, layers in enumerate(blocks):
        if block:
            x = pooled(conv(normalised(x)), 2, np.mean)
        for _ in range(layers):
            x = np.concatenate([x, conv(normalised(conv(normalised(x))))], axis=-1)
    return classified(weights, normalised(x))


INVERTED = ((1, 16, 1), (6, 24, 1), (6, 32, 2), (6, 64, 2), (6, 96, 1), (6, 160, 2), (6, 320, 1))


def mobilenet(weights, x, train, mask, blocks=(1, 2, 3, 4, 3, 3, 1), stem_stride=1):
    """Inverted residuals with ReLU6 and a linear end; those of stride 1 are added to their input or its 1x1 image."""
    x = relu6(conv_norm(weights, x, train, mask, stem_stride))
    for (expansion, width, stage_stride), number in zip(INVERTED, blocks, strict=False):
        for first in [True] + [False] * (number - 1):
            own, stride = weights.inner("InvertedResidual"), stage_stride if first else 1
            y = relu6(conv_norm(own, x, train, mask))
            assert y.shape[-1] == expansion * x.shape[-1]
            y = relu6(conv_norm(own, y, train, mask, stride, groups=y.shape[-1]))
            y = conv_norm(own, y, train, mask)
            assert y.shape[-1] == width
            if stride == 1:
                y = y + (x if x.shape == y.shape else conv_norm(own, x, train, mask))
            assert own.done()
            x = y
    return classified(weights, relu6(conv_norm(weights, x, train, mask)))


def gelu(x):
    """The product x Phi(x), in the approximation by tanh."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def layer_norm(weights, x):
    """Normalised over features, epsilon 1e-6."""
    params = weights.take("LayerNorm")[1]
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-6) * params["scale"] + params["bias"]


def attention(params, x):
    """Multi-head self-attention: softmax(q k' / sqrt(size)) v of each head, then a dense layer over all heads."""
    query, key, value = (
        np.einsum("npf,fhd->nphd", x, params[name]["kernel"]) + params[name]["bias"]
        for name in ("query", "key", "value")
    )
    scores = np.einsum("nphd,nqhd->nhpq", query, key) / math.sqrt(query.shape[-1])
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("nhpq,nqhd->nphd", scores / scores.sum(-1, keepdims=True), value)
    return np.einsum("nphd,hdf->npf", mixed, params["out"]["kernel"]) + params["out"]["bias"]


def vit(weights, x, train, mask, depth=6):
    """Patches with positions, pre-norm blocks of attention and a GELU layer, the mean over patches of a last norm."""
    params = weights.take("Conv")[1]
    patch = params["kernel"].shape[0]
    x = convolve(x, params["kernel"], patch, padding=0) + params["bias"]
    x = x.reshape(len(x), -1, x.shape[-1]) + weights.params["positions"]
    for _ in range(depth):
        x = x + attention(weights.take("MultiHeadDotProductAttention")[1], layer_norm(weights, x))
        x = x + dense(weights, gelu(dense(weights, layer_norm(weights, x))))
    return classified(weights, layer_norm(weights, x))


def forward(network, variables, x, *, train=False, mask=None, **options):
    """(logits, new running statistics) of a network above, in float64, with flax's variables."""
    params, stats = (_as_float64(variables.get(name, {})) for name in ("params", "batch_stats"))
    weights = Weights(params, stats)
    logits = network(weights, np.asarray(x, np.float64), train, mask, **options)
    assert weights.done() or "positions" in params
    return logits, weights.new


def _as_float64(tree):
    if hasattr(tree, "items"):
        return {name: _as_float64(each) for name, each in tree.items()}
    return np.asarray(tree, np.float64)
