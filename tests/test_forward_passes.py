"""Every network's forward pass in both modes against NumPy's in float64 with the same weights."""

from functools import partial

import jax
import numpy as np
import pytest
from reference import networks as oracle

from focalgeo import models

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


@pytest.mark.long
@pytest.mark.parametrize("name", FULL)
def test_networks_of_full_size_are_their_definitions(name):
    check_both_modes(name, {}, FULL[name], size=16, bound=1e-3)


def test_each_network_of_images_has_a_definition_of_full_size():
    elsewhere = {"linear", "logistic", "gp_cnn", "tree_lstm", "transformer"}  # above, and in test_text_models.py
    assert set(FULL) | elsewhere == set(models.MODELS)


def test_the_definitions_meet_what_they_are_there_to_tell_apart():
    """Values beyond ReLU6's cap, and residual sums below 0: without them a wrong activation would not show."""
    x = np.random.default_rng(1).normal(size=(BATCHES, 8, 8, 3)).astype(np.float32)
    for name, changed in (("mobilenet_v2", "relu6"), ("resnet20", "relu")):
        options, definition = SMALL[name]
        variables = drawn(jax.eval_shape(models.build(name, 4, **options).init, jax.random.key(0), x))
        wanted, _ = oracle.forward(definition, variables, x)
        kept = getattr(oracle, changed)
        try:
            setattr(oracle, changed, oracle.relu if changed == "relu6" else (lambda y: y))
            other, _ = oracle.forward(definition, variables, x)
        finally:
            setattr(oracle, changed, kept)
        assert np.abs(other - wanted).max() > 1e-2 * np.abs(wanted).max()


def test_words_are_read_alike_in_training_but_for_dropout():
    x = np.random.default_rng(2).integers(1, 9, (3, 7)).astype(np.int32)
    model = models.build("gp_cnn", 3, vocabulary_size=9, embedding_size=4, widths=(5,), hidden=(4,))
    variables = model.init(jax.random.key(0), x)
    np.testing.assert_array_equal(model.apply(variables, x, train=True), model.apply(variables, x))
    options = {"embedding_size": 4, "width": 6, "heads": 2}
    model = models.build("transformer", 3, vocabulary_size=9, dropout=0.0, **options)
    variables = model.init(jax.random.key(0), x)
    np.testing.assert_array_equal(model.apply(variables, x, train=True), model.apply(variables, x))
    dropping = models.build("transformer", 3, vocabulary_size=9, dropout=0.5, **options)
    np.testing.assert_array_equal(dropping.apply(variables, x), model.apply(variables, x))
    logits = dropping.apply(variables, x, train=True, rngs={"dropout": jax.random.key(1)})
    assert np.abs(logits - model.apply(variables, x)).max() > 1e-3
    tree = np.array([[[2, 0, 0], [3, 0, 0], [0, 0, 1]]], np.int32)
    for dropout, rngs in ((0.0, {}), (0.5, {"dropout": jax.random.key(1)})):
        model = models.build("tree_lstm", 3, vocabulary_size=9, embedding_size=4, width=6, dropout=dropout)
        variables = model.init(jax.random.key(0), tree)
        logits, sown = model.apply(variables, tree, train=True, mutable=["intermediates"], rngs=rngs)
        last = jax.tree.map(np.asarray, variables["params"]["Dense_0"])
        wanted = np.asarray(sown["intermediates"]["features"][0]) @ last["kernel"] + last["bias"]
        np.testing.assert_allclose(logits, wanted, rtol=1e-5, atol=1e-6)
        if not dropout:
            np.testing.assert_array_equal(logits, model.apply(variables, tree))
