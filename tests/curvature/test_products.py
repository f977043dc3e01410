"""Products against a float64 NumPy Hessian: Hessian, Gauss-Newton and Fisher matrix, of all parameters or some."""

import itertools
import re

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax.flatten_util import ravel_pytree
from reference.curvature import MLP

from focalgeo import losses
from focalgeo.curvature import (
    check_deterministic,
    dense_hessian,
    empirical_fisher_vp,
    fisher_vp,
    ggn_vp,
    hvp,
    linearized_hvp,
    outputs_and_trace,
    restrict,
)
from focalgeo.types import InputError, RunError

ORACLE = MLP()


def own_logits(params):
    x = jnp.asarray(ORACLE.x, params["first"]["kernel"].dtype)
    hidden = jnp.tanh(x @ params["first"]["kernel"] + params["first"]["bias"][None])
    return hidden @ params["second"]["kernel"] + params["second"]["bias"][None]


def output_loss(z):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(z), jnp.asarray(ORACLE.y)[:, None], axis=1))


def loss(params):
    return output_loss(own_logits(params))


@pytest.fixture
def params64():
    with jax.enable_x64(True):
        yield jax.tree.map(jnp.asarray, ORACLE.tree())


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def rows_of(matvec, params):
    vectors, unravel = ravel_pytree(params)
    product = jax.jit(lambda unit: ravel_pytree(matvec(unravel(unit)))[0])
    return np.stack([product(unit) for unit in jnp.eye(vectors.size, dtype=vectors.dtype)])


def test_dense_hessian_and_hvp_equal_the_numpy_hessian(params64):
    expected = ORACLE.hessian()
    dense = jax.jit(lambda params: dense_hessian(loss, params))(params64)
    assert dense.dtype == jnp.float64
    np.testing.assert_allclose(dense, expected, atol=1e-8)
    np.testing.assert_allclose(rows_of(lambda v: hvp(loss, params64, v), params64), dense, atol=1e-14)
    np.testing.assert_allclose(rows_of(linearized_hvp(loss, params64), params64), dense, atol=1e-14)


def test_ggn_vp_equals_the_numpy_gauss_newton_matrix(params64):
    found = rows_of(lambda v: ggn_vp(own_logits, output_loss, params64, v), params64)
    np.testing.assert_allclose(found, ORACLE.ggn(), atol=1e-8)


@pytest.mark.parametrize(
    ("bad", "params", "message"),
    [
        (lambda p: p["w"], {"w": jnp.ones(3)}, r"returns float32\[3\]"),
        (lambda p: (p["w"].sum(), 0), {"w": jnp.ones(3)}, "returns tuple"),
        (lambda p: 0.0, {}, "holds no number"),
        (lambda p: p["w"].sum(), {"w": jnp.ones(3, jnp.int32)}, r"params\['w'\] is int32"),
        (lambda p: p.sum(), jnp.ones(5001), "at most 5000"),
    ],
)
def test_bad_losses_and_params_are_refused(bad, params, message):
    with pytest.raises(InputError, match=message):
        dense_hessian(bad, params)


@pytest.mark.parametrize("vector", [jnp.ones(2), jnp.ones(3, jnp.bfloat16), {"v": jnp.ones(3)}])
def test_vectors_that_do_not_match_are_refused(vector):
    with pytest.raises(InputError, match="same structure"):
        hvp(jnp.sum, jnp.ones(3), vector)


def jacobian_and_probs(params):
    flat, unravel = ravel_pytree(params)
    jacobian = np.asarray(jax.jacobian(lambda flat: own_logits(unravel(flat)))(flat))
    return jacobian, np.asarray(jax.nn.softmax(own_logits(params)))


def test_the_fisher_matrix_is_the_expectation_over_the_models_labels(params64):
    jacobian, probs = jacobian_and_probs(params64)
    expected = 0
    for label in range(probs.shape[1]):
        slopes = np.einsum("ekn,ek->en", jacobian, probs - np.eye(probs.shape[1])[label])
        expected = expected + np.einsum("e,en,em->nm", probs[:, label], slopes, slopes) / len(probs)
    found = rows_of(lambda v: fisher_vp(own_logits, params64, v), params64)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert np.linalg.eigvalsh(found).min() > -1e-12


def test_the_empirical_fisher_is_the_mean_of_the_gradients_squares(params64):
    jacobian, probs = jacobian_and_probs(params64)
    slopes = np.einsum("ekn,ek->en", jacobian, probs - np.eye(probs.shape[1])[ORACLE.y])

    def each(params):
        return -jnp.take_along_axis(jax.nn.log_softmax(own_logits(params)), jnp.asarray(ORACLE.y)[:, None], 1)[:, 0]

    found = rows_of(lambda v: empirical_fisher_vp(each, params64, v), params64)
    np.testing.assert_allclose(found, slopes.T @ slopes / len(slopes), atol=1e-12)
    with pytest.raises(InputError, match="losses"):
        empirical_fisher_vp(lambda params: each(params).mean(), params64, params64)


def test_outputs_without_an_axis_of_classes_are_refused():
    with pytest.raises(InputError, match="logits"):
        fisher_vp(jnp.sum, jnp.ones(3), jnp.ones(3))


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (("first/*",), ["first/bias", "first/kernel"]),
        (("*/bias",), ["first/bias", "second/bias"]),
        (("second/kernel", "first/bias"), ["first/bias", "second/kernel"]),
    ],
)
def test_a_restricted_loss_has_a_block_of_the_whole_hessian(params64, patterns, names):
    restricted, kept = restrict(loss, params64, *patterns)
    assert sorted(kept) == names
    # ravel_pytree orders both trees by their sorted paths, so that the block's rows are in one order
    marked = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.full(leaf.shape, jax.tree_util.keystr(path, simple=True, separator="/") in names),
        params64,
    )
    inside = np.flatnonzero(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(marked)]))
    block = ORACLE.hessian()[np.ix_(inside, inside)]
    np.testing.assert_allclose(dense_hessian(restricted, kept), block, atol=1e-8)
    assert restricted(kept) == loss(params64)


def test_patterns_that_match_nothing_paths_that_collide_and_leaves_that_were_not_kept_are_refused(params64):
    with pytest.raises(InputError, match="did you mean 'first/kernel'"):
        restrict(loss, params64, "first/*", "frist/kernel")
    with pytest.raises(InputError, match="pattern"):
        restrict(loss, params64)
    with pytest.raises(InputError, match=r"patterns are .*: give globs of paths, as 'first/bias'"):
        restrict(loss, params64, ["first/*"])
    with pytest.raises(InputError, match="rename one"):
        restrict(lambda params: params["c"], {"a": {"b": jnp.ones(1)}, "a/b": jnp.ones(2), "c": jnp.ones(())}, "c")
    restricted, _ = restrict(lambda params: jnp.sum(params["a"]), {"a": jnp.ones(2), "b": jnp.ones(2)}, "a")
    with pytest.raises(InputError, match="kept: a"):
        restricted({"b": jnp.zeros(2)})


PARAMS = {"dense": jnp.linspace(-1.0, 1.0, 5), "head": jnp.ones(3)}


def smooth(params):
    return jnp.sum(params["dense"] ** 2) + jnp.sum(jnp.exp(params["head"]))


def test_a_deterministic_loss_passes_bit_for_bit_and_a_shuffled_sum_to_rounding():
    check_deterministic(smooth, PARAMS, tolerance=0.0)
    check_deterministic(jax.jit(smooth), PARAMS, tolerance=0.0)
    random = np.random.default_rng(0)
    data = random.normal(size=(1000, 5)).astype(np.float32)
    check_deterministic(
        lambda params: jnp.mean((jnp.asarray(random.permutation(data)) @ params["dense"] - 1) ** 2), PARAMS
    )


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e25])
def test_a_change_of_a_thousandth_between_calls_is_refused_in_the_gradients_own_size(size):
    factor = itertools.cycle([1.0, 1.001])

    def noisy(params):  # at 0, where the gradient alone changes
        return jnp.float32(size) * next(factor) * jnp.sum(params)

    with pytest.raises(InputError, match=re.escape(f"its size is {2 * size:.2g}")):
        check_deterministic(noisy, jnp.zeros(4))
    with pytest.raises(InputError, match="the loss changes"):
        check_deterministic(noisy, jnp.ones(4))


def test_values_that_are_not_finite_and_traced_ones_are_refused():
    with pytest.raises(RunError, match=r"^loss is not finite"):
        check_deterministic(lambda params: smooth(params) / 0.0, PARAMS)
    # The square root has a finite value and an infinite slope at zero.
    with pytest.raises(RunError, match=r"^gradient\['head'\] is not finite"):
        check_deterministic(lambda params: jnp.sum(jnp.sqrt(params["head"])), PARAMS | {"head": jnp.zeros(3)})
    with pytest.raises(InputError, match="outside jit"):
        jax.jit(lambda params: check_deterministic(smooth, params))(PARAMS)


@jax.custom_vjp
def cubed(x):
    return jnp.sum(x**3)


cubed.defvjp(lambda x: (cubed(x), x), lambda x, slope: (3 * x**2 * slope,))


def test_a_loss_with_its_own_gradient_has_the_product_of_two_gradients():
    x, v = jnp.arange(3.0), jnp.float32([1, -2, 0.5])
    with pytest.raises(InputError, match=r'custom_vjp, .* give form="reverse_over_reverse"'):
        hvp(cubed, x, v)
    np.testing.assert_allclose(hvp(cubed, x, v, form="reverse_over_reverse"), 6 * x * v)
    np.testing.assert_allclose(linearized_hvp(cubed, x, form="reverse_over_reverse")(v), 6 * x * v)
    params = jax.tree.map(jnp.float32, ORACLE.tree())
    vector = jax.tree.map(jnp.ones_like, params)
    both = (hvp(loss, params, vector, form=form) for form in ("forward_over_reverse", "reverse_over_reverse"))
    jax.tree.map(lambda *pair: np.testing.assert_allclose(*pair, atol=1e-5), *both)


class Normed(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(3)(linen.BatchNorm(use_running_average=True)(x))


class NormedNNX(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.out = nnx.BatchNorm(5, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)


class Moving(nnx.Variable):
    pass


def test_statistics_of_flax_are_no_weights():
    """Of linen every collection beside params, of NNX every Variable that is no Param, wherever it lies."""
    square = lambda tree: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree))  # noqa: E731
    variables = Normed().init(jax.random.key(0), jnp.ones((4, 5)))
    _, params, rest = nnx.split(NormedNNX(nnx.Rngs(0)), nnx.Param, ...)
    statistics = (
        (variables, "batch_stats"),
        (flax.core.freeze(variables), "batch_stats"),
        ({"one": variables, "other": variables}, "batch_stats"),
        ({"batch_stats": variables["batch_stats"]}, "batch_stats"),
        ({"params": variables["params"], "cache": {"key": jnp.ones(2)}}, "cache"),
        (nnx.split(NormedNNX(nnx.Rngs(0)))[1], "BatchStat"),
        (rest, "BatchStat"),
        ({"mean": Moving(jnp.ones(2))}, "Moving"),
    )
    for tree, named in statistics:
        with pytest.raises(InputError, match=f"is of {named}, no weights, as batch_stats are: give variables"):
            hvp(square, tree, tree)
    for weights in (variables["params"], {"params": variables["params"]}, params, {"a": nnx.LoRAParam(jnp.ones(2))}):
        jax.tree.map(np.testing.assert_allclose, hvp(square, weights, weights), jax.tree.map(lambda x: 2 * x, weights))


WORDS, POSITIONS = 8192, 128


def penalty(of, form):
    """The gradient of a trace, a function of network, loss and weights."""

    def trace(network, loss, weights):
        return outputs_and_trace(lambda at: (network(at), ()), loss, weights, jax.random.key(0), of=of, form=form)[2]

    return lambda network, loss, w: jax.grad(lambda at: trace(network, loss, at))(w)


def hessian_product(network, loss, weights):
    return hvp(lambda at: loss(network(at)), weights, weights)


def gauss_newton_product(network, loss, weights):
    return ggn_vp(network, loss, weights, weights)


@pytest.mark.parametrize("name", ["cross_entropy", "focal_loss"])
@pytest.mark.parametrize(
    ("most", "function"),
    [
        (2.1, hessian_product),
        (2.1, gauss_newton_product),
        (3.1, penalty("hessian", "jvp_of_jvp")),
        (3.1, penalty("gauss_newton", "jvp_of_jvp")),
        (5.1, penalty("hessian", "jvp_of_grad")),
        (5.1, penalty("gauss_newton", "jvp_of_grad")),
    ],
    ids=["hvp", "ggn_vp", *(f"{of}, {form}" for form in ("jvp_of_jvp", "jvp_of_grad") for of in ("hessian", "ggn"))],
)
def test_arrays_of_logits_that_many_classes_take(name, most, function):
    assert arrays_of_logits(name, function) <= most


@pytest.mark.parametrize("function", [hessian_product, gauss_newton_product])
def test_constant_labels_take_as_little(function):
    assert arrays_of_logits("focal_loss", function, labels=np.arange(POSITIONS, dtype=np.int32)) <= 2.1


def arrays_of_logits(name, function, labels=None):
    """A last layer of few weights, so that what XLA holds are arrays of logits; each of them counts as 1."""

    def of_weights(weights, hidden, traced, gamma):
        loss, labels_here = losses.make_loss(name), traced if labels is None else labels
        return function(lambda w: hidden @ w, lambda z: jnp.mean(loss(z, labels_here, {"gamma": gamma})), weights)

    shapes = [(4, WORDS), (POSITIONS, 4), (POSITIONS,), ()]
    types = [jnp.float32, jnp.float32, jnp.int32, jnp.float32]
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, types, strict=True)]
    memory = jax.jit(of_weights).lower(*arguments).compile().memory_analysis().temp_size_in_bytes
    return memory / (4 * WORDS * POSITIONS)
