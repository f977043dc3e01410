"""The last layer sows its input and weights as intermediates, and is otherwise flax's own Dense, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo import models

KEY = jax.random.PRNGKey(3)
IMAGES = jax.random.normal(jax.random.PRNGKey(5), (2, 8, 8, 3))
SMALL = {
    "linear": (IMAGES, {}),
    "mlp": (IMAGES, {}),
    "cnn": (IMAGES, {}),
    "resnet20": (IMAGES, {"blocks": (1, 1), "widths": (4, 8)}),
    "densenet121": (IMAGES, {"blocks": (1, 1), "growth": 4}),
    "vgg19": (IMAGES, {"blocks": (1,), "widths": (4,)}),
    "vit": (IMAGES, {"depth": 1, "width": 6}),
    "gp_cnn": (jnp.ones((2, 9), jnp.int32), {"widths": (4,), "vocabulary_size": 5}),
    "tree_lstm": (jnp.ones((2, 5, 3), jnp.int32), {"width": 4, "vocabulary_size": 5}),
    "transformer": (jnp.ones((2, 5), jnp.int32), {"width": 4, "heads": 2, "depth": 1, "vocabulary_size": 5}),
    "gcn": (jnp.ones((2, 7, 12)), {}),
    "logistic": (IMAGES[:, 0, 0], {}),
}


def shown(tree, name):
    """All intermediates of this name, at any depth."""
    paths = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda leaf: isinstance(leaf, tuple))
    return [leaf for path, leaf in paths if path[-1].key == name]


@pytest.mark.parametrize("name", SMALL)
def test_intermediates_are_the_last_layers_input_and_weights(name):
    x, options = SMALL[name]
    model = models.build(name, 2, **options)
    variables = jax.jit(model.init)(KEY, x)
    assert "intermediates" not in variables
    logits, asked = jax.jit(lambda v: model.apply(v, x, mutable=["intermediates"]))(variables)
    ((features,),), ((kernel,),) = shown(asked, "features"), shown(asked, "kernel")
    assert features.shape[-1] == kernel.shape[0]
    # initial biases are zero; of logistic's logits the first is 0
    np.testing.assert_allclose(features @ kernel, logits[..., -kernel.shape[-1] :], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.jit(model.apply)(variables, x), logits, rtol=1e-6, atol=1e-6)
