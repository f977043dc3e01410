"""Traces by every method, trace to an error, diagonal: exact where they must be, unbiased, with errors that cover."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from reference.curvature import MLP, with_spectrum

from focalgeo import trees
from focalgeo.curvature import diagonal, leaf_traces, trace

SMALL = np.array([[2.0, 1.0, 0.0], [1.0, 3.0, -0.5], [0.0, -0.5, 0.5]])
SPECTRA = {
    "a few peaks": np.r_[100.0, 60.0, 30.0, -10.0, np.linspace(-0.5, 1.0, 46)],  # as networks have them
    "slow decay": 5 / np.arange(1, 121),
    "fast decay": 0.8 ** np.arange(100),
    "both signs": np.linspace(-1, 2, 80),
    "flat": np.linspace(0.2, 1, 40),
}


@jax.jit
def multiply(matrix, vector):
    return jnp.matmul(matrix, vector, precision="highest")


def problem(matrix):
    return functools.partial(multiply, jnp.asarray(matrix, jnp.float32)), jnp.zeros(len(matrix))


@functools.cache
def many(name, method, num_probes, count=200):
    matvec, like = problem(MLP().hessian() if name == "network" else with_spectrum(SPECTRA[name]))
    run = jax.jit(jax.vmap(lambda key: trace(matvec, like, key, num_probes, method=method)))
    return jax.tree.map(np.asarray, run(jax.random.split(jax.random.key(7), count)))


CASES = [("a few peaks", "hutchinson", 12), ("a few peaks", "hutchinson", 60), ("a few peaks", "hutch++", 24)]
CASES += [(name, "xtrace", products) for name in SPECTRA if name != "flat" for products in (16, 40)]


@pytest.mark.parametrize(("name", "method", "num_probes"), [*CASES, ("network", "xtrace", 12)])
def test_errors_cover_and_the_mean_is_unbiased(name, method, num_probes):
    result = many(name, method, num_probes)
    true = np.trace(MLP().hessian()) if name == "network" else SPECTRA[name].sum()
    assert 0.90 <= np.mean(np.abs(result.value - true) <= 2 * result.stderr) <= 0.99
    assert np.mean((result.low <= true) & (true <= result.high)) >= 0.90
    assert abs(result.value.mean() - true) < 4.5 * result.value.std() / 200**0.5
    if method != "xtrace":
        assert np.sqrt((result.stderr**2).mean()) == pytest.approx(result.value.std(), rel=0.15)
    samples = {"hutchinson": num_probes, "hutch++": num_probes // 3, "xtrace": num_probes // 2}[method]
    assert (result.n == samples).all()


def test_each_method_scatters_less_than_the_one_before_where_few_eigenvalues_carry_the_trace():
    plain, sketched = many("a few peaks", "hutchinson", 24), many("a few peaks", "hutch++", 24)
    assert sketched.value.std() < 0.2 * plain.value.std()
    for name in ("a few peaks", "slow decay", "fast decay"):
        assert many(name, "xtrace", 40).value.std() < 0.9 * many(name, "hutch++", 40).value.std()


@pytest.mark.parametrize("method", ["hutch++", "xtrace"])
def test_exact_where_the_rank_is_small_or_the_vectors_span_everything(method):
    for num_probes in (20, 200):
        result = trace(
            *problem(with_spectrum(np.r_[5.0, -2.0, np.zeros(28)])), jax.random.key(0), num_probes, method=method
        )
        np.testing.assert_allclose(result.value, 3.0, rtol=1e-4)
        assert result.stderr < 1e-3


def test_rounding_of_a_short_remainder_is_part_of_the_error():
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0]
    matrix = basis * [0, 0, 0.2, 0.5, 1] @ basis.T  # of rank 3: five products span the rest by noise
    for key in (19, 73, 107):
        found = trace(*problem(matrix), jax.random.key(key), 10, method="xtrace")
        assert abs(found.value - np.trace(matrix)) < 2 * found.stderr
        assert found.stderr < 2e-3


HESSIAN = MLP().hessian()
TREE = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), MLP().tree())
UNRAVEL = ravel_pytree(TREE)[1]


def of_tree(tree):
    return UNRAVEL(multiply(jnp.asarray(HESSIAN, jnp.float32), ravel_pytree(tree)[0]))


@pytest.mark.parametrize("function", [diagonal, leaf_traces])
def test_diagonal_and_leaf_traces_cover_the_dense_hessian_and_are_unbiased(function):
    keys = jax.random.split(jax.random.key(5), 200)
    result = jax.tree.map(np.asarray, jax.jit(jax.vmap(lambda key: function(of_tree, TREE, key, 30)))(keys))
    expected = UNRAVEL(jnp.asarray(np.diag(HESSIAN), jnp.float32))
    expected = expected if function is diagonal else jax.tree.map(np.sum, expected)

    def check(value, stderr, truth):
        truth = np.asarray(truth)[None]
        within = np.mean(np.abs(value - truth) <= 2 * stderr, axis=0)
        assert 0.90 <= within.mean() <= 0.99
        assert (within > 0.85).all()
        assert (np.abs(value.mean(0) - truth) <= 4.5 * value.std(0) / len(value) ** 0.5).all()

    jax.tree.map(check, result.value, result.stderr, expected)


def test_the_diagonals_error_is_that_of_the_mean_of_the_samples_and_0_of_a_diagonal_matrix():
    key = jax.random.key(3)
    result = diagonal(*problem(SMALL), key, 5)
    probes = [trees.rademacher(jax.random.fold_in(key, index), jnp.zeros(3)) for index in range(5)]
    samples = np.stack([v * (SMALL @ v) for v in probes])
    np.testing.assert_allclose(result.value, samples.mean(0), rtol=1e-5)
    np.testing.assert_allclose(result.stderr, samples.std(0, ddof=1) / 5**0.5, rtol=1e-5)
    for estimate in (diagonal, trace):
        exact = estimate(lambda v: jnp.arange(5.0) * v, jnp.zeros(5), key, 2)
        assert (np.sum(exact.value), np.max(exact.stderr)) == (10, 0)


@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_errors_are_in_proportion_where_squares_leave_the_range(factor):
    matrix, key = with_spectrum(np.linspace(-1, 3, 12)), jax.random.key(0)

    def measure(scale):
        product, like = problem(scale * matrix)
        found = [trace(product, like, key, 6, method=method) for method in ("hutchinson", "hutch++", "xtrace")]
        found += [diagonal(product, like, key, 4), leaf_traces(product, like, key, 4)]
        return [np.float64(leaf) / scale for one in found for leaf in (one.value, one.stderr, one.low)]

    for plain, scaled in zip(measure(1.0), measure(factor), strict=True):
        np.testing.assert_allclose(scaled, plain, rtol=1e-3, atol=1e-5)
