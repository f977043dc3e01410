"""Every network's forward pass in both modes against NumPy's in float64 with the same weights."""

from functools import partial

import jax
import numpy as np
import pytest
from reference import networks as oracle

from focalgeo import models

pytestmark = pytest.mark.long

BATCHES = 5  # examples, of which the last is padding where there is a mask

# name, options of a small one, its definition
SMALL = {
    "linear": ({}, oracle.mlp),
    "mlp": ({"hidden": (7, 5)}, oracle.mlp),
    "cnn": ({"widths": (4, 6)}, oracle.cnn),
    "vgg19": ({"blocks": (1, 2), "widths": (4, 5)}, partial(oracle.vgg, blocks=(1, 2))),
    "resnet20": (
        {"blocks": (1, 2), "widths": (4, 6), "stem_stride": 2},
        partial(oracle.resnet, blocks=(1, 2), stem_stride=2),
    ),
    "resnet50": (
        {"blocks": (2, 1), "widths": (3, 4), "stem_width": 5},
        partial(oracle.resnet, blocks=(2, 1), bottleneck=True),
    ),
    "densenet121": ({"blocks": (2, 1), "growth": 3}, partial(oracle.densenet, blocks=(2, 1))),
    "mobilenet_v2": ({"blocks": (1, 2, 2)}, partial(oracle.mobilenet, blocks=(1, 2, 2))),
    "vit": ({"depth": 2, "width": 12, "heads": 3}, partial(oracle.vit, depth=2)),
}
# the published depths, written out here again
FULL = {
    "resnet18": partial(oracle.resnet, blocks=(2, 2, 2, 2)),
    "resnet18_2w": partial(oracle.resnet, blocks=(2, 2, 2, 2)),
    "resnet20": partial(oracle.resnet, blocks=(3, 3, 3)),
    "resnet50": partial(oracle.resnet, blocks=(3, 4, 6, 3), bottleneck=True),
    "resnet110": partial(oracle.resnet, blocks=(18, 18, 18)),
    "resnet110_bottleneck": partial(oracle.resnet, blocks=(3, 4, 26, 3), bottleneck=True),
    "wide_resnet26_10": partial(oracle.resnet, blocks=(4, 4, 4)),
    "densenet121": oracle.densenet,
    "mobilenet_v2": oracle.mobilenet,
    "vgg19": oracle.vgg,
    "vit": oracle.vit,
    "mlp": oracle.mlp,
    "cnn": oracle.cnn,
}


def drawn(shapes, seed=0):
    """Variables of these shapes: weights of He's size, and scales, biases and statistics that are not those of init."""
    random = np.random.default_rng(seed)

    def draw(path, leaf):
        name = path[-1].key
        if name in ("scale", "var"):
            return random.uniform(0.5, 1.5, leaf.shape).astype(np.float32)
        if name in ("bias", "mean", "positions"):
            return random.normal(0.3, 0.7, leaf.shape).astype(np.float32)
        return (random.normal(size=leaf.shape) * np.sqrt(2 / np.prod(leaf.shape[:-1]))).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def check_both_modes(name, options, definition, *, size, bound):
    """Logits and new running statistics: in evaluation, in training, and in training with padding."""
    x = np.random.default_rng(1).normal(size=(BATCHES, size, size, 3)).astype(np.float32)
    model = models.build(name, 4, **options)
    variables = drawn(jax.eval_shape(model.init, jax.random.key(0), x))
    logits = model.apply(variables, x)
    wanted, _ = oracle.forward(definition, variables, x)
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=bound * np.abs(wanted).max())
    mask = np.arange(BATCHES) < BATCHES - 1
    for counted in (None, mask):
        logits, state = model.apply(variables, x, train=True, mask=counted, mutable=["batch_stats"])
        wanted, stats = oracle.forward(definition, variables, x, train=True, mask=counted)
        rows = slice(None) if counted is None else counted
        np.testing.assert_allclose(logits[rows], wanted[rows], rtol=0, atol=bound * np.abs(wanted).max())
        close = partial(np.testing.assert_allclose, rtol=10 * bound, atol=10 * bound)
        jax.tree.map(close, dict(state.get("batch_stats", {})), {} if "batch_stats" not in variables else stats)


@pytest.mark.parametrize("name", SMALL)
def test_small_networks_are_their_definitions(name):
    options, definition = SMALL[name]
    check_both_modes(name, options, definition, size=8, bound=1e-5)


@pytest.mark.parametrize("name", FULL)
def test_networks_of_full_size_are_their_definitions(name):
    check_both_modes(name, {}, FULL[name], size=16, bound=1e-3)
