"""Extreme eigenvalues on chosen spectra and a network: values, vectors, residuals, multiplicities."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.curvature import with_spectrum

from focalgeo import trees
from focalgeo.curvature import extreme_eigenvalues, lambda_max

N = 60
SPECTRA = {
    "negative larger in magnitude": np.r_[5.0, 4.0, np.linspace(-1, 1, 56), -30.0, -50.0],
    "clustered at the top": np.r_[10.0, 9.999, 9.998, np.linspace(-2, 5, 57)],
    "repeated at the top": np.r_[7.0, 7.0, 7.0, np.linspace(-2, 3, 57)],
    "low rank": np.r_[3.0, 2.0, np.zeros(56), -1.0, -4.0],
    "indefinite": np.random.default_rng(3).normal(size=N),
    "negative definite": np.r_[-1.0, -np.linspace(2, 9, 59)],
    "small scale": 1e-9 * np.r_[5.0, np.linspace(-8, 1, 59)],
    "zero": np.zeros(N),
    "identity": np.ones(N),
    "minus identity": -np.ones(N),
    "large scale": 1e9 * np.r_[5.0, np.linspace(-8, 1, 59)],
    "squares below float32": 1e-30 * np.r_[5.0, np.linspace(-8, 1, 59)],
    "squares beyond float32": 1e30 * np.r_[5.0, np.linspace(-8, 1, 59)],
}


def as_tree(vector):
    return {"a": vector[..., :20].reshape(*vector.shape[:-1], 4, 5), "b": [vector[..., 20:]]}


def as_vector(tree):
    return jnp.concatenate([tree["a"].reshape(*tree["b"][0].shape[:-1], 20), tree["b"][0]], axis=-1)


@jax.jit
def multiply(matrix, tree):
    return as_tree(jnp.matmul(matrix, as_vector(tree), precision="highest"))


def problem(eigenvalues, dtype=jnp.float32):
    matrix = jnp.asarray(with_spectrum(eigenvalues), dtype)
    return functools.partial(multiply, matrix), as_tree(jnp.zeros(N, dtype))


@pytest.mark.parametrize("name", SPECTRA)
def test_lambda_max_is_the_most_positive_eigenvalue(name):
    matvec, like = problem(SPECTRA[name])
    pair = lambda_max(matvec, like, jax.random.key(0), max_products=N + 1)
    expected, size = SPECTRA[name].max(), np.abs(SPECTRA[name]).max()
    assert pair.converged
    assert pair.residual <= 1e-3 * abs(expected) * 1.01
    # The residual is a bound, and its square over the gap is the usual error.
    assert abs(pair.value - expected) <= pair.residual + 1e-6 * size
    # The vector belongs to the value, and the residual is the true one.
    np.testing.assert_allclose(trees.norm(pair.vector), 1, rtol=1e-5)
    rest = jax.tree.map(lambda product, vector: product - pair.value * vector, matvec(pair.vector), pair.vector)
    rest = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), jax.tree.leaves(rest))
    length = np.sqrt(sum(np.sum(leaf**2) for leaf in rest))
    np.testing.assert_allclose(length, pair.residual, rtol=1e-2, atol=1e-6 * size)


@pytest.mark.parametrize("name", SPECTRA)
def test_extreme_eigenvalues_in_float64_with_multiplicity(name):
    with jax.enable_x64(True):
        matvec, like = problem(SPECTRA[name], jnp.float64)
        ordered, size = np.sort(SPECTRA[name]), np.abs(SPECTRA[name]).max()
        for which, expected in (("largest", ordered[::-1][:4]), ("smallest", ordered[:4])):
            pairs = extreme_eigenvalues(matvec, like, jax.random.key(1), k=4, which=which, tolerance=1e-8)
            assert pairs.converged.all()
            np.testing.assert_allclose(pairs.value, expected, atol=1e-10 * size)
            vectors = np.asarray(as_vector(pairs.vector))
            np.testing.assert_allclose(vectors @ vectors.T, np.eye(4), atol=1e-10)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_dimension_below_the_number_of_products(k):
    diagonal = jnp.array([3.0, 3.0, 1.0, -1.0, -9.0])
    pairs = extreme_eigenvalues(
        lambda v: diagonal * v, diagonal, jax.random.key(0), k=k, max_products=50, tolerance=1e-6
    )
    np.testing.assert_allclose(pairs.value, diagonal[:k], rtol=1e-5)
    assert pairs.converged.all()
    one = lambda_max(lambda v: -3 * v, jnp.float32(0), jax.random.key(0))
    assert (float(one.value), bool(one.converged), one.vector.shape, int(one.num_matvecs)) == (-3.0, True, (), 2)


def test_too_few_products_are_reported_not_hidden():
    matvec, like = problem(SPECTRA["clustered at the top"])
    pair = lambda_max(matvec, like, jax.random.key(0), max_products=4, tolerance=1e-6)
    assert not pair.converged
    assert pair.num_matvecs == 4
    assert pair.residual > 1e-6 * pair.value


def test_a_matvec_that_changes_between_calls_does_not_converge():
    # The search alone would not notice; the residual from a product of its own does.
    diagonal, calls = jnp.array([4.0, 2.0, 1.0, 0.0, -1.0]), []

    def drifting(vector):
        calls.append(1)
        return (1 + 0.05 * len(calls)) * diagonal * vector

    assert not lambda_max(drifting, diagonal, jax.random.key(0)).converged


def test_members_under_vmap_stop_each_by_itself_as_alone():
    names = list(SPECTRA)[:4]
    matrices = jnp.stack([jnp.asarray(with_spectrum(SPECTRA[name]), jnp.float32) for name in names])
    like, keys = as_tree(jnp.zeros(N)), jax.random.split(jax.random.key(5), 4)

    def search(matrix, key):
        return extreme_eigenvalues(functools.partial(multiply, matrix), like, key, k=2, max_products=24)

    together = jax.jit(jax.vmap(search))(matrices, keys)
    assert len(set(together.num_matvecs.tolist())) > 1
    for index, (name, key) in enumerate(zip(names, keys, strict=True)):
        alone, member = search(matrices[index], key), jax.tree.map(lambda leaf, i=index: leaf[i], together)
        assert member.num_matvecs == alone.num_matvecs
        assert member.converged.all() == alone.converged.all()
        np.testing.assert_allclose(member.value, alone.value, rtol=1e-4)
        # Two vectors of one eigenvalue are any basis of its space: rounding turns them and leaves the norm of both.
        size = np.linalg.norm if name == "repeated at the top" else np.asarray
        np.testing.assert_allclose(size(member.residual), size(alone.residual), rtol=0.02, atol=1e-4)


def test_bfloat16_trees_keep_a_float32_basis():
    diagonal = jnp.array([8.0, 4.0, 2.0, 1.0, -16.0])
    like = {"x": jnp.zeros(2, jnp.bfloat16), "y": jnp.zeros(3, jnp.float32)}

    def matvec(tree):
        return {"x": tree["x"] * diagonal[:2].astype(jnp.bfloat16), "y": tree["y"] * diagonal[2:]}

    pair = lambda_max(matvec, like, jax.random.key(0), tolerance=2e-2)
    assert pair.vector["x"].dtype == jnp.bfloat16
    assert float(pair.value) == pytest.approx(8, rel=2e-2)
