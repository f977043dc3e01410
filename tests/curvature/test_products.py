"""Products against a float64 NumPy Hessian: Hessian, Gauss-Newton and Fisher matrix, of all parameters or some."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from reference.curvature import MLP

from focalgeo import trees
from focalgeo.curvature import dense_hessian, fisher_vp, ggn_vp, hvp, lambda_max, linearized_hvp, restrict
from focalgeo.losses import cross_entropy
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


# Kimura and Naganuma, Eq. 27: near its minimum a likelihood is the quadratic form of its Fisher information.
def test_the_quadratic_fit_of_logistic_regression_errs_by_the_cube_of_the_step():
    random = np.random.default_rng(0)
    x, noise = random.normal(size=(60, 3)), random.gumbel(size=(60, 2))
    labels = np.argmax(np.stack([np.zeros(60), x @ [1.0, -2.0, 0.5]], 1) + noise, 1)
    with jax.enable_x64(True):

        def scores(params):
            score = jnp.asarray(x) @ params["w"] + params["b"]
            return jnp.stack([jnp.zeros_like(score), score], axis=1)

        def mean_loss(z):
            return jnp.mean(cross_entropy(z, jnp.asarray(labels)))

        params, unravel = ravel_pytree({"b": jnp.zeros(()), "w": jnp.zeros(3)})
        likelihood = jax.jit(lambda flat: mean_loss(scores(unravel(flat))))
        for _ in range(12):
            params -= jnp.linalg.solve(dense_hessian(likelihood, params), jax.grad(likelihood)(params))
        direction = jnp.asarray(random.normal(size=4))
        fisher = ggn_vp(lambda flat: scores(unravel(flat)), mean_loss, params, direction)
        steps = np.array([0.02, 0.01, 0.005])
        errors = np.array(
            [likelihood(params + e * direction) - likelihood(params) - e**2 / 2 * (direction @ fisher) for e in steps]
        )
        quadratic = steps**2 / 2 * float(direction @ fisher)
    np.testing.assert_allclose(errors[:-1] / errors[1:], 8, rtol=0.03)  # halve the step: an eighth of the error
    assert np.all(np.abs(errors) < 0.1 * quadratic)


def own_logits(params):
    return logits(params, jnp.asarray(ORACLE.x, params["first"]["kernel"].dtype))


def matrix_of(product, params):
    flat, unravel = ravel_pytree(params)
    rows = jax.jit(jax.vmap(lambda unit: ravel_pytree(product(unravel(unit)))[0]))(jnp.eye(flat.size, dtype=flat.dtype))
    return np.asarray(rows)


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
    found = matrix_of(lambda v: fisher_vp(own_logits, params64, v), params64)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert np.linalg.eigvalsh(found).min() > -1e-12


def test_fisher_of_drawn_labels_is_one_matrix_and_right_in_the_mean(params64):
    flat, unravel = ravel_pytree(params64)
    exact = matrix_of(lambda v: fisher_vp(own_logits, params64, v), params64)
    one = matrix_of(lambda v: fisher_vp(own_logits, params64, v, key=jax.random.key(1)), params64)
    np.testing.assert_allclose(one, one.T, atol=1e-12)
    vector = unravel(jnp.ones_like(flat))
    draw = jax.jit(jax.vmap(lambda key: ravel_pytree(fisher_vp(own_logits, params64, vector, key=key))[0]))
    draws = np.asarray(draw(jax.random.split(jax.random.key(2), 2000)))
    error = draws.std(axis=0) / len(draws) ** 0.5
    assert (np.abs(draws.mean(axis=0) - exact @ np.ones(flat.size)) < 4.5 * error).all()
    assert np.abs(one - exact).max() > 1e-3


def test_fisher_has_no_negative_eigenvalue_where_the_focal_loss_has_one(params64):
    labels = jnp.argmin(own_logits(params64), axis=1)  # every example badly wrong

    def focal(z):
        log_p = jnp.take_along_axis(jax.nn.log_softmax(z), labels[:, None], axis=1)
        return -jnp.mean((1 - jnp.exp(log_p)) ** 5.0 * log_p)

    gauss_newton = matrix_of(lambda v: ggn_vp(own_logits, focal, params64, v), params64)
    assert np.linalg.eigvalsh(gauss_newton).min() < -1e-3
    assert np.linalg.eigvalsh(matrix_of(lambda v: fisher_vp(own_logits, params64, v), params64)).min() > -1e-12


def test_fisher_refuses_a_vector_of_another_shape_in_one_line(params64):
    for key in (None, jax.random.key(0)):
        with pytest.raises(InputError, match="structure"):
            fisher_vp(own_logits, params64, {"first": params64["first"]}, key=key)


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
    product = hvp(restricted, kept, kept)
    np.testing.assert_allclose(ravel_pytree(product)[0], block @ ravel_pytree(kept)[0], atol=1e-7)
    top = lambda_max(jax.jit(lambda v: hvp(restricted, kept, v)), kept, jax.random.key(0))
    np.testing.assert_allclose(top.value, np.linalg.eigvalsh(block)[-1], rtol=1e-4)


def test_a_restricted_loss_has_the_value_of_the_loss(params64):
    restricted, kept = restrict(loss, params64, "second/*")
    assert restricted(kept) == loss(params64)


def test_what_matches_nothing_is_one_line(params64):
    with pytest.raises(InputError, match=r'no parameter matches "frist/kernel"; did you mean "first/kernel"\?'):
        restrict(loss, params64, "first/*", "frist/kernel")
    with pytest.raises(InputError, match="no pattern"):
        restrict(loss, params64)


def test_paths_that_collide_and_leaves_that_were_not_kept_are_refused():
    with pytest.raises(InputError, match=r"have: a/b; rename one"):
        restrict(lambda params: params["c"], {"a": {"b": jnp.ones(1)}, "a/b": jnp.ones(2), "c": jnp.ones(())}, "c")
    restricted, kept = restrict(lambda params: jnp.sum(params["a"]), {"a": jnp.ones(2), "b": jnp.ones(2)}, "a")
    assert float(restricted(kept)) == 2
    with pytest.raises(InputError, match=r'"b" is none of the leaves that were kept: a'):
        restricted({"b": jnp.zeros(2)})
