import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from reference.curvature import MLP

from focalgeo import trees
from focalgeo.curvature import dense_hessian, ggn_vp, hvp, linearized_hvp
from focalgeo.types import InputError

ORACLE = MLP()


def logits(params, x):
    hidden = jnp.tanh(x @ params["first"]["kernel"] + params["first"]["bias"][None])
    return hidden @ params["second"]["kernel"] + params["second"]["bias"][None]


def output_loss(z):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(z), jnp.asarray(ORACLE.y)[:, None], axis=1))


def loss(params):
    return output_loss(logits(params, jnp.asarray(ORACLE.x, params["first"]["kernel"].dtype)))


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
    def product(vector):
        return ggn_vp(lambda p: logits(p, jnp.asarray(ORACLE.x)), output_loss, params64, vector)

    np.testing.assert_allclose(rows_of(product, params64), ORACLE.ggn(), atol=1e-8)


def test_float32_hvp_is_symmetric_and_near_float64():
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), ORACLE.tree())
    left, right = (trees.gaussian(jax.random.key(seed), params) for seed in (1, 2))
    product = jax.jit(lambda vector: hvp(loss, params, vector))
    forward, backward = (trees.dot(a, product(b)) for a, b in ((left, right), (right, left)))
    np.testing.assert_allclose(forward, backward, rtol=1e-5)
    np.testing.assert_allclose(forward, flat(left) @ ORACLE.hessian() @ flat(right), rtol=1e-4)


def test_dense_hessian_of_one_parameter():
    np.testing.assert_allclose(dense_hessian(lambda p: p["x"] ** 3, {"x": jnp.float32(2)}), [[12.0]], rtol=1e-6)


def test_second_order_loss_expansion_is_the_fisher_quadratic_form():
    # Kimura and Naganuma, Theorem 2: KL(p_z || p_{z+d}) = d'Fd/2 + O(|d|^3); ratios computed with mpmath.
    with jax.enable_x64(True):
        z, direction = jnp.array([2.0, 0.5, -1.25]), jnp.array([0.3, -0.2, 0.1])
        log_p = jax.nn.log_softmax(z)
        for size, expected in ((0.1, 0.98983), (0.01, 0.99898), (0.001, 0.999898)):
            d = size * direction
            kl = jnp.sum(jnp.exp(log_p) * (log_p - jax.nn.log_softmax(z + d)))
            fisher = jnp.vdot(d, hvp(jax.nn.logsumexp, z, d))
            assert float(2 * kl / fisher) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("bad", "params", "message"),
    [
        (lambda p: p["w"], {"w": jnp.ones(3)}, r"returns float32\[3\], not one"),
        (lambda p: (p["w"].sum(), 0), {"w": jnp.ones(3)}, "returns tuple, not one"),
        (lambda p: p["w"].sum() > 0, {"w": jnp.ones(3)}, r"returns bool\[\]"),
        (lambda p: 0.0, {}, "empty tree"),
        (lambda p: p["w"].sum(), {"w": jnp.ones(3, jnp.int32)}, r"params\['w'\] is int32"),
        (lambda p: p["w"] * 1.0, {"w": 1.0}, r"params\['w'\] is float,"),
    ],
)
def test_bad_losses_and_params_are_one_line(bad, params, message):
    for call in (lambda: hvp(bad, params, params), lambda: dense_hessian(bad, params)):
        with pytest.raises(InputError, match=message) as error:
            call()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "vector", [{"w": jnp.ones(2)}, {"w": jnp.ones(3, jnp.bfloat16)}, {"v": jnp.ones(3)}, jnp.ones(3)]
)
def test_vectors_that_do_not_match_are_refused(vector):
    with pytest.raises(InputError, match="must be the same"):
        hvp(lambda p: p["w"].sum(), {"w": jnp.ones(3)}, vector)


def test_dense_hessian_refuses_large_problems():
    with pytest.raises(InputError, match="5001 parameters"):
        dense_hessian(lambda p: p.sum(), jnp.ones(5001))
