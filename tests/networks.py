"""Three tiny smooth networks in plain jnp, for oracles: an MLP, a CNN with batch statistics, a vision transformer."""

import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import data

CLASSES = 3


def mlp(variables, x):
    """Two layers with tanh on flattened images."""
    params = variables["params"]
    hidden = jnp.tanh(x.reshape(len(x), -1) @ params["first"] + params["bias"][None])
    return hidden @ params["second"]


def cnn(variables, x):
    """A 3x3 convolution, batch norm by running statistics, tanh, the mean over positions, a dense layer."""
    params, running = variables["params"], variables["batch_stats"]
    layout = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(x, params["kernel"], (1, 1), "SAME", dimension_numbers=layout)
    scale = params["scale"] / jnp.sqrt(running["var"] + 1e-5)
    x = jnp.tanh((x - running["mean"]) * scale + params["bias"])
    return jnp.mean(x, axis=(1, 2)) @ params["head"]


def vit(variables, x):
    """Patches of 2x2, an attention head, a gelu layer, layer norm before each; mean over patches; a dense layer."""
    params = variables["params"]
    patches = x.reshape(len(x), 2, 2, 2, 2, -1).transpose(0, 1, 3, 2, 4, 5).reshape(len(x), 4, -1)
    x = patches @ params["embed"] + params["positions"]
    query, key, value = (_normalised(x) @ params[name] for name in ("query", "key", "value"))
    weights = jax.nn.softmax(query @ key.transpose(0, 2, 1) / 2.0)
    x = x + weights @ value
    x = x + jax.nn.gelu(_normalised(x) @ params["up"]) @ params["down"]
    return jnp.mean(_normalised(x), axis=1) @ params["head"]


def _normalised(x):
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


_SHAPES = {
    "mlp": {"first": (16, 5), "bias": (5,), "second": (5, CLASSES)},
    "cnn": {"kernel": (3, 3, 1, 6), "scale": (1, 1, 1, 6), "bias": (1, 1, 1, 6), "head": (6, CLASSES)},
    "vit": {
        "embed": (4, 4),
        "positions": (1, 4, 4),
        **{name: (4, 4) for name in ("query", "key", "value")},
        "up": (4, 6),
        "down": (6, 4),
        "head": (4, CLASSES),
    },
}
NETWORKS = {"mlp": mlp, "cnn": cnn, "vit": vit}


def draw(name, examples):
    """(params, model_state, images [examples, 4, 4, 1], labels), float64 and fixed."""
    random = np.random.default_rng(len(name) + 10 * examples)
    params = {key: 0.7 * random.normal(size=shape) for key, shape in _SHAPES[name].items()}
    statistics = {"mean": random.normal(size=(1, 1, 1, 6)), "var": random.uniform(0.5, 2, (1, 1, 1, 6))}
    state = {"batch_stats": statistics} if name == "cnn" else {}
    x = random.normal(size=(examples, 4, 4, 1))
    return params, state, x, random.integers(0, CLASSES, examples).astype(np.int32)


def padded_batches(split, value, rows=8):
    """Batches of `rows`, whose padding holds a value that would be seen in any result."""
    for batch in data.evaluation_batches(split, batch_size=rows):
        x = np.array(batch.x)
        x[~batch.mask] = value
        yield batch._replace(x=x)
