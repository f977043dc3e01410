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


def basic_net(stem, widths, blocks, classes=10):
    """Parameters of a net of basic blocks: convolutions, two numbers a channel of batch norm, 1x1 shortcuts."""
    count, before = 3 * stem * 9 + 2 * stem, stem
    for width in widths:
        for _ in range(blocks):
            count += before * width * 9 + width * width * 9 + 4 * width
            count += before * width + 2 * width if before != width else 0
            before = width
    return count + before * classes + classes


# counted from the published architectures, the classifier's weights and biases and batch norm's scale and bias included
PARAMETERS = {
    "linear": ((32, 32, 3), 3072 * 10 + 10),
    "mlp": ((8, 8, 1), 3_466),
    "resnet18": ((32, 32, 3), 11_173_962),
    "resnet18_2w": ((32, 32, 3), 44_662_922),
    "resnet50": ((32, 32, 3), 23_520_842),
    "resnet20": ((32, 32, 3), basic_net(16, (16, 32, 64), 3)),
    "resnet110": ((32, 32, 3), 1_727_962 + 2_752),  # He's, and parameters in the two shortcuts that change shape
    "wide_resnet26_10": ((32, 32, 3), basic_net(16, (160, 320, 640), 4)),
    "densenet121": ((32, 32, 3), 6_956_298),
    "mobilenet_v2": ((32, 32, 3), 2_296_922),
    "vgg19": ((32, 32, 3), 20_040_522 - 5_504),  # without the biases before batch norm
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_number_of_parameters(name):
    shape, expected = PARAMETERS[name]
    variables = jax.eval_shape(models.build(name).init, jax.random.PRNGKey(0), jnp.zeros((1, *shape)))
    assert trees.size(variables["params"]) == expected


@pytest.mark.parametrize(
    "name", [name for name in models.MODELS if name not in ("gp_cnn", "tree_lstm", "transformer", "logistic")]
)
def test_logits_are_float32_of_the_right_shape_where_all_else_is_bfloat16(name):
    model = models.build(name, 7, dtype=jnp.bfloat16)
    x = jnp.zeros((2, 32, 32, 3))
    variables = jax.eval_shape(model.init, jax.random.PRNGKey(0), x)
    logits = jax.eval_shape(model.apply, variables, x)
    assert (logits.shape, logits.dtype) == ((2, 7), jnp.float32)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}


def test_options_are_what_the_constructors_take():
    assert models.options("vit") == {"patch": 4, "depth": 6, "width": 192, "heads": 3}
    assert models.options("densenet121") == {"blocks": (6, 12, 24, 16), "growth": 32, "stem_stride": 1}
    assert models.options("tree_lstm") == {"embedding_size": 300, "width": 150, "dropout": 0.5}
    assert models.options("wide_resnet26_10")["stem_width"] == 16  # of MODELS, not of the constructor
    assert models.options("logistic") == {}


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("vit", {"patch": 8, "heads": 2, "width": 12, "depth": 1}, 192 * 12 + 12 + 16 * 12 + 12 * 12**2 + 15 * 12),
        ("densenet121", {"blocks": (1,), "growth": 2}, 3 * 4 * 9 + (8 + 4 * 8) + (16 + 8 * 2 * 9) + 12),
        ("mlp", {"hidden": None}, 3072 * 32 + 32 + 32 * 32 + 32),  # None: its own
    ],
)
def test_options_reach_the_network(name, options, parameters):
    x = jnp.zeros((1, 32, 32, 3))
    variables = jax.eval_shape(models.build(name, 10, **options).init, jax.random.PRNGKey(0), x)
    last = {"vit": 12, "densenet121": 6, "mlp": 32}[name]
    assert trees.size(variables["params"]) == parameters + 10 * last + 10


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
    for options, message in (({"activation": 1}, "it must be text"), ({"share": "big"}, "it must be a finite number")):
        with pytest.raises(InputError, match=message):
            models.build("own", 3, **options)


def test_patches_that_do_not_divide_are_named():
    for options in ({"patch": 5}, {"heads": 5}):
        with pytest.raises(InputError, match=r"patch \d must divide the images' sides \(32, 32\), and heads \d"):
            jax.eval_shape(models.build("vit", **options).init, jax.random.PRNGKey(0), jnp.zeros((1, 32, 32, 3)))


@pytest.fixture(scope="module")
def cnn():
    model = models.build("cnn", 3, widths=(4,))
    x = jax.random.normal(jax.random.PRNGKey(1), (6, 8, 8, 2)) * 3 + 1
    return model, model.init(jax.random.PRNGKey(0), x), x


def test_padding_counts_for_nothing_in_batch_statistics(cnn):
    model, variables, x = cnn
    padded = jnp.concatenate([x, jnp.full((3, 8, 8, 2), 50.0)])
    mask = jnp.arange(9) < 6
    logits, state = model.apply(variables, x, train=True, mutable=["batch_stats"])
    padded_logits, padded_state = model.apply(variables, padded, train=True, mask=mask, mutable=["batch_stats"])
    np.testing.assert_allclose(padded_logits[:6], logits, rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), padded_state, state)


def test_running_statistics_are_those_of_pytorch(cnn):
    model, variables, x = cnn
    _, state = model.apply(variables, x, train=True, mutable=["batch_stats"])
    kernel = variables["params"]["Conv_0"]["kernel"]
    features = jax.lax.conv_general_dilated(
        x, kernel, (2, 2), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    columns = np.asarray(features, np.float64).reshape(-1, 4)
    running = state["batch_stats"]["BatchNorm_0"]
    np.testing.assert_allclose(running["mean"], 0.1 * columns.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(running["var"], 0.9 + 0.1 * columns.var(0, ddof=1), rtol=1e-4)


def test_evaluation_mode_uses_running_statistics_alone(cnn):
    model, variables, x = cnn
    alone = model.apply(variables, x[:1])
    np.testing.assert_allclose(model.apply(variables, x)[:1], alone, rtol=1e-5, atol=1e-6)


def test_bfloat16_changes_logits_by_its_rounding_only(cnn):
    model, variables, x = cnn
    rounded = models.build("cnn", 3, widths=(4,), dtype=jnp.bfloat16).apply(variables, x)
    exact = model.apply(variables, x)
    assert float(jnp.max(jnp.abs(rounded - exact))) < 0.02 * float(jnp.max(jnp.abs(exact)))
    assert not bool(jnp.all(rounded == rounded.astype(jnp.bfloat16).astype(jnp.float32)))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet81", {}, "config.model.name is 'resnet81': did you mean 'resnet18'?"),
        ("zzz", {}, "config.model.name is 'zzz': choose one of linear, mlp"),
        ("mlp", {"widths": (3,)}, r"config.model.options.widths: mlp has no such option \(it has: hidden\)"),
        ("vit", {"head": 2}, r"\(it has: patch, depth, width, heads\); did you mean 'heads'\?"),
        ("densenet121", {"growth": 0}, "config.model.options.growth is 0: it must be a whole number of 1 or more"),
        ("cnn", {"widths": 0}, "config.model.options.widths is 0: it must hold whole numbers of 1 or more, or None"),
        ("logistic", {"hidden": ()}, r"logistic has no such option \(it has: none\)"),
    ],
)
def test_a_wrong_name_is_one_line(name, options, message):
    with pytest.raises(InputError, match=message):
        models.build(name, 10, **options)


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


def test_a_single_size_is_a_list_of_one():
    image = np.zeros((1, 8, 8, 1), np.float32)
    single, listed = (models.build("mlp", 10, hidden=hidden).init(jax.random.key(0), image) for hidden in (16, (16,)))
    assert jax.tree.map(np.shape, single) == jax.tree.map(np.shape, listed)


@pytest.mark.parametrize("options", [{"blocks": (1, 1)}, {"widths": ()}, {"blocks": (), "widths": ()}])
def test_blocks_and_widths_of_a_resnet_go_together(options):
    with pytest.raises(InputError, match="give one entry of each for every stage"):
        models.build("resnet18", **options)
