import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from reference.curvature import MLP

from focalgeo import trees
from focalgeo.curvature import diagonal, leaf_traces, trace
from focalgeo.types import InputError, RunError

HESSIAN = MLP().hessian()
TREE = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), MLP().tree())
FLAT, UNRAVEL = ravel_pytree(TREE)


@jax.jit
def matvec(tree):
    return UNRAVEL(jnp.matmul(jnp.asarray(HESSIAN, jnp.float32), ravel_pytree(tree)[0], precision="highest"))


def over_keys(function, num_probes, count=200):
    keys = jax.random.split(jax.random.key(5), count)
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(lambda key: function(matvec, TREE, key, num_probes)))(keys))


def blocks_of(diagonal):
    return jax.tree.map(np.sum, UNRAVEL(jnp.asarray(diagonal, jnp.float32)))


@pytest.mark.parametrize("function", [diagonal, leaf_traces])
def test_covers_the_dense_hessian_and_is_unbiased(function):
    result = over_keys(function, 30)
    exact = np.diag(HESSIAN)
    expected = UNRAVEL(jnp.asarray(exact, jnp.float32)) if function is diagonal else blocks_of(exact)

    def check(value, stderr, truth):
        truth = np.asarray(truth)[None]
        within = np.mean(np.abs(value - truth) <= 2 * stderr, axis=0)
        assert 0.90 <= within.mean() <= 0.99
        assert (within > 0.85).all()
        assert (np.abs(value.mean(0) - truth) <= 4.5 * value.std(0) / len(value) ** 0.5).all()

    jax.tree.map(check, result.value, result.stderr, expected)
    assert (result.n == 30).all()


def test_a_diagonal_matrix_is_exact():
    result = diagonal(lambda v: jnp.arange(5.0) * v, jnp.zeros(5), jax.random.key(0), 2)
    np.testing.assert_array_equal(result.value, np.arange(5.0))
    np.testing.assert_array_equal(result.stderr, np.zeros(5))


def test_the_error_is_that_of_the_mean_of_the_samples():
    key, matrix = jax.random.key(3), jnp.float32([[2, 1], [1, 3]])
    result = diagonal(lambda v: jnp.matmul(matrix, v, precision="highest"), jnp.zeros(2), key, 5)
    probes = [trees.rademacher(jax.random.fold_in(key, index), jnp.zeros(2)) for index in range(5)]
    samples = np.stack([v * (matrix @ v) for v in probes])
    assert (samples.std(0) > 0).all()
    np.testing.assert_allclose(result.value, samples.mean(0), rtol=1e-5)
    np.testing.assert_allclose(result.stderr, samples.std(0, ddof=1) / 5**0.5, rtol=1e-5)


def test_leaf_traces_sum_to_a_trace_and_entries_to_the_leaves():
    key = jax.random.key(2)
    entries, leaves = (function(matvec, TREE, key, 40).value for function in (diagonal, leaf_traces))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a.sum(), b, rtol=1e-4, atol=1e-6), entries, leaves)
    whole = trace(matvec, TREE, key, 400)
    assert abs(sum(jax.tree.leaves(leaves)) - np.trace(HESSIAN)) < 1.0
    assert abs(whole.value - np.trace(HESSIAN)) < 4 * whole.stderr


@pytest.mark.parametrize("function", [diagonal, leaf_traces])
def test_python_and_jit_agree(function):
    alone = function(matvec, TREE, jax.random.key(1), 5)
    jitted = jax.jit(lambda key: function(matvec, TREE, key, 5))(jax.random.key(1))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), alone, jitted)


def test_bad_input_is_one_line():
    with pytest.raises(InputError, match="num_probes is 1"):
        diagonal(matvec, TREE, jax.random.key(0), 1)
    with pytest.raises(RunError, match="product is not finite"):
        leaf_traces(lambda v: v * jnp.nan, jnp.ones(3), jax.random.key(0), 3)
