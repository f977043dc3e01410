"""Networks: counted parameters, output shape and type, padding that counts for nothing."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo import models, trees
from focalgeo.models import layers
from focalgeo.types import InputError

IMAGES, DIGITS = (1, 32, 32, 3), (1, 8, 8, 1)
# name -> input, options, parameters as counted from the published architectures: the classifier's weights and biases
# and batch norm's scale and bias included; of networks on words in their inputs' types, with so many words
PARAMETERS = [
    ("linear", IMAGES, {}, 3072 * 10 + 10),
    ("mlp", DIGITS, {}, 3_466),
    ("mlp", IMAGES, {"hidden": None}, 3072 * 32 + 32 + 32 * 32 + 32 + 330),  # None: its own
    ("mlp", IMAGES, {"hidden": 32}, 3072 * 32 + 32 + 330),  # a list of one
    ("cnn", IMAGES, {"widths": (4,)}, 3 * 4 * 9 + 8 + 50),
    ("resnet18", IMAGES, {}, 11_173_962),
    ("resnet18_2w", IMAGES, {}, 44_662_922),
    ("resnet50", IMAGES, {}, 23_520_842),
    ("resnet20", IMAGES, {}, 272_474),
    ("resnet110", IMAGES, {}, 1_727_962 + 2_752),  # He's, and parameters in the two shortcuts that change shape
    ("wide_resnet26_10", IMAGES, {}, 36_481_434),
    ("densenet121", IMAGES, {}, 6_956_298),
    ("densenet121", IMAGES, {"blocks": (1,), "growth": 2}, 3 * 4 * 9 + (8 + 4 * 8) + (16 + 8 * 2 * 9) + 12 + 70),
    ("mobilenet_v2", IMAGES, {}, 2_296_922),
    ("vgg19", IMAGES, {}, 20_040_522 - 5_504),  # without the biases before batch norm
    ("vit", IMAGES, {"patch": 8, "heads": 2, "width": 12, "depth": 1}, 192 * 12 + 17 * 12 + 12**3 + 15 * 12 + 130),
    # word vectors, then the layers as published or as their docstring says
    ("gp_cnn", (1, 9), {"vocabulary_size": 20_000}, 20_000 * 100 + 64_128 + 2 * (5 * 128**2 + 128) + 129 * 138),
    # 316,800 in the published program, without the input gate at leaves and with more biases
    ("tree_lstm", (1, 7, 3), {"vocabulary_size": 18_000}, 18_000 * 300 + 360_600 + 151 * 10),
    ("transformer", (1, 9), {"vocabulary_size": 9_000}, 9_000 * 128 + 129 * 138 + 2 * 198_272 + 2 * 128),
]


@pytest.mark.parametrize(("name", "shape", "options", "expected"), PARAMETERS)
def test_number_of_parameters_all_float32_and_logits_too_where_all_else_is_bfloat16(name, shape, options, expected):
    model = models.build(name, dtype=jnp.bfloat16, **options)
    x = jnp.zeros(shape, jnp.int32 if "vocabulary_size" in options else jnp.float32)
    variables = jax.eval_shape(model.init, jax.random.PRNGKey(0), x)
    assert trees.size(variables["params"]) == expected
    logits = jax.eval_shape(model.apply, variables, x)
    assert logits.shape[-1] == 10
    assert {leaf.dtype for leaf in jax.tree.leaves((variables, logits))} == {jnp.dtype("float32")}


class OwnNetwork(nn.Module):
    num_classes: int
    activation: str = "tanh"
    share: float = 0.5
    layer: type = nn.Dense

    @nn.compact
    def __call__(self, x, *, train=False, mask=None):
        return self.layer(self.num_classes)(getattr(jnp, self.activation)(self.share * x))


def test_a_new_network_s_own_options_need_one_line_of_models(monkeypatch):
    monkeypatch.setitem(models.MODELS, "own", OwnNetwork)
    assert models.options("own") == {"activation": "tanh", "share": 0.5}
    model = models.build("own", 3, activation="cos", share=0, axis_name="devices")
    logits = model.apply(model.init(jax.random.PRNGKey(0), jnp.ones((1, 2))), jnp.ones((1, 2)))
    assert bool(jnp.any(logits != 0))  # tanh of 0 is 0
    for option, value in (("activation", 1), ("share", "big")):
        with pytest.raises(InputError, match=f"options.{option} is"):
            models.build("own", 3, **{option: value})


@pytest.fixture(scope="module")
def cnn():
    model = models.build("cnn", 3, widths=(4,))
    x = jax.random.normal(jax.random.PRNGKey(1), (6, 8, 8, 2)) * 3 + 1
    return model, model.init(jax.random.PRNGKey(0), x), x


class OneConvolution(nn.Module):
    barrier: bool

    @nn.compact
    def __call__(self, x):
        if self.barrier:
            return layers.conv(x, 4, 3, stride=2)
        return nn.Conv(4, (3, 3), (2, 2), padding=1, use_bias=False, kernel_init=layers.CONV_INIT)(x)


def test_the_barrier_before_a_convolution_changes_no_parameter_and_no_derivative():
    x, direction = jax.random.normal(jax.random.key(0), (2, 2, 6, 6, 3))
    ours, plain = OneConvolution(True), OneConvolution(False)
    variables = ours.init(jax.random.key(1), x)
    chex.assert_trees_all_equal(variables, plain.init(jax.random.key(1), x))

    def derivatives(network):
        def loss(variables, x):
            return jnp.sum(jnp.tanh(network.apply(variables, jnp.sin(x))) ** 2)

        gradient = jax.grad(loss, argnums=(0, 1))
        return jax.jit(lambda v, x: jax.jvp(lambda x: gradient(v, x), (x,), (direction,)))(variables, x)

    chex.assert_trees_all_close(derivatives(ours), derivatives(plain), rtol=1e-5, atol=1e-5)
    assert "optimization_barrier" in str(jax.make_jaxpr(jax.grad(lambda v: ours.apply(v, x).sum()))(variables))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet81", {}, "config.model.name is 'resnet81': did you mean 'resnet18'?"),
        ("vit", {"head": 2}, "option of vit in config.model.options is 'head': did you mean 'heads'?"),
        ("densenet121", {"growth": 0}, "config.model.options.growth is 0"),
        ("cnn", {"widths": (4, True)}, "config.model.options.widths is"),
        ("vit", {"depth": 501}, "at most 500 layers"),
        ("resnet18", {"blocks": ()}, "config.model.options.blocks is"),
        ("mobilenet_v2", {"blocks": (1,) * 8}, "config.model.options.blocks is .* <= 7"),
        ("mlp", {"num_classes": 1}, "num_classes is 1"),
        ("mlp", {"vocabulary_size": 9}, "mlp does not read words"),
        ("gp_cnn", {}, "gp_cnn reads words"),
        ("tree_lstm", {"vocabulary_size": 5, "dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_names_and_options_that_make_no_network_are_one_line(name, options, message):
    with pytest.raises(InputError, match=message):
        models.build(name, **options)


@pytest.mark.parametrize(
    ("name", "x", "options"),
    [
        ("cnn", np.zeros((2, 8, 8), np.float32), {}),
        ("cnn", np.zeros((2, 8, 8, 3), np.uint8), {}),
        ("vit", np.zeros((2, 30, 30, 3), np.float32), {"patch": 4}),
        ("densenet121", np.zeros((2, 2, 2, 3), np.float32), {}),
        ("logistic", np.zeros((2, 5), np.float32), {"num_classes": 3}),
        ("transformer", np.zeros((2, 9), np.int32), {"vocabulary_size": 5, "heads": 1, "width": 7}),
        ("gp_cnn", np.zeros((2, 9, 3), np.int32), {"vocabulary_size": 5}),
        ("tree_lstm", np.zeros((2, 9), np.int32), {"vocabulary_size": 5}),
    ],
)
def test_an_input_that_a_network_does_not_read_is_one_line(name, x, options):
    with pytest.raises(InputError, match=r"x |images|does not fit|2 classes|reads documents"):
        jax.eval_shape(models.build(name, **options).init, jax.random.key(0), x)


def test_variables_of_another_network_and_a_mask_of_another_length_are_one_line(cnn):
    model, variables, x = cnn
    with pytest.raises(InputError, match="cnn does not fit"):
        models.build("cnn", 3, widths=(5,)).apply(variables, x)
    with pytest.raises(InputError, match="cnn does not fit"):
        model.apply(variables, x, train=True, mask=np.ones(3, bool), mutable=["batch_stats"])


def test_positions_and_word_vectors_begin_at_their_published_size():
    vit = models.build("vit", depth=1)
    positions = vit.init(jax.random.PRNGKey(0), np.zeros((1, 32, 32, 3), np.float32))["params"]["positions"]
    np.testing.assert_allclose(np.std(positions), 0.02, rtol=0.03)
    words = models.build("gp_cnn", vocabulary_size=500)
    variables = words.init(jax.random.PRNGKey(0), np.ones((1, 20), np.int32))
    (table,) = [leaf for path, leaf in jax.tree.leaves_with_path(variables) if "embedding" in str(path[-1])]
    assert 0.0499 < np.max(np.abs(table)) <= 0.05
