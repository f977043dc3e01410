import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from reference.curvature import MLP

from focalgeo.curvature import fisher_vp, ggn_vp
from focalgeo.types import InputError

ORACLE = MLP()
X = ORACLE.x


def logits(params):
    hidden = jnp.tanh(
        jnp.asarray(X, params["first"]["kernel"].dtype) @ params["first"]["kernel"] + params["first"]["bias"][None]
    )
    return hidden @ params["second"]["kernel"] + params["second"]["bias"][None]


@pytest.fixture
def params64():
    with jax.enable_x64(True):
        yield jax.tree.map(jnp.asarray, ORACLE.tree())


def matrix(product, params):
    flat, unravel = ravel_pytree(params)
    rows = jax.jit(jax.vmap(lambda unit: ravel_pytree(product(unravel(unit)))[0]))(jnp.eye(flat.size, dtype=flat.dtype))
    return np.asarray(rows)


def jacobian_and_probs(params):
    flat, unravel = ravel_pytree(params)
    jacobian = np.asarray(jax.jacobian(lambda flat: logits(unravel(flat)))(flat))
    return jacobian, np.asarray(jax.nn.softmax(logits(params)))


def test_is_the_expectation_over_the_models_labels(params64):
    jacobian, probs = jacobian_and_probs(params64)
    expected = 0
    for label in range(probs.shape[1]):
        slopes = np.einsum("ekn,ek->en", jacobian, probs - np.eye(probs.shape[1])[label])
        expected = expected + np.einsum("e,en,em->nm", probs[:, label], slopes, slopes) / len(probs)
    found = matrix(lambda v: fisher_vp(logits, params64, v), params64)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert np.linalg.eigvalsh(found).min() > -1e-12


def test_drawn_labels_are_one_matrix_and_right_in_the_mean(params64):
    flat, unravel = ravel_pytree(params64)
    exact = matrix(lambda v: fisher_vp(logits, params64, v), params64)
    one = matrix(lambda v: fisher_vp(logits, params64, v, key=jax.random.key(1)), params64)
    np.testing.assert_allclose(one, one.T, atol=1e-12)
    vector = unravel(jnp.ones_like(flat))
    draw = jax.jit(jax.vmap(lambda key: ravel_pytree(fisher_vp(logits, params64, vector, key=key))[0]))
    draws = np.asarray(draw(jax.random.split(jax.random.key(2), 2000)))
    error = draws.std(axis=0) / len(draws) ** 0.5
    assert (np.abs(draws.mean(axis=0) - exact @ np.ones(flat.size)) < 4.5 * error).all()
    assert np.abs(one - exact).max() > 1e-3


def test_has_no_negative_eigenvalue_where_the_focal_loss_has_one(params64):
    labels = jnp.argmin(logits(params64), axis=1)  # every example badly wrong

    def focal(z):
        log_p = jnp.take_along_axis(jax.nn.log_softmax(z), labels[:, None], axis=1)
        return -jnp.mean((1 - jnp.exp(log_p)) ** 5.0 * log_p)

    gauss_newton = matrix(lambda v: ggn_vp(logits, focal, params64, v), params64)
    assert np.linalg.eigvalsh(gauss_newton).min() < -1e-3
    assert np.linalg.eigvalsh(matrix(lambda v: fisher_vp(logits, params64, v), params64)).min() > -1e-12


def test_a_vector_of_another_shape_is_one_line(params64):
    for key in (None, jax.random.key(0)):
        with pytest.raises(InputError, match="structure"):
            fisher_vp(logits, params64, {"first": params64["first"]}, key=key)


def test_drawn_labels_keep_their_gradient_where_the_probability_rounds_to_one():
    def saturated(params):
        return params[None] * jnp.array([[1.0, 0.0, 0.0]])

    product = fisher_vp(saturated, jnp.array([20.0, 0.0, 0.0]), jnp.array([1.0, 0.0, 0.0]), key=jax.random.key(0))
    rest = 2 * np.exp(-20.0) / (1 + 2 * np.exp(-20.0))  # of the two other classes; the drawn label is the first
    np.testing.assert_allclose(product, [rest**2, 0, 0], rtol=1e-5)


@pytest.mark.parametrize("key", [None, jax.random.key(0)])
def test_outputs_without_an_axis_of_classes_are_refused(key):
    params = jnp.ones(3)
    with pytest.raises(InputError, match=r"no array \[..., classes\]"):
        fisher_vp(jnp.sum, params, params, key=key)
