import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.curvature import sign_quadratic_forms, with_spectrum

from focalgeo.curvature import diagonal, leaf_traces, trace
from focalgeo.types import InputError, RunError

SMALL = np.array([[2.0, 1.0, 0.0], [1.0, 3.0, -0.5], [0.0, -0.5, 0.5]])
# A few large eigenvalues over a long tail, as networks have them.
PEAKED = with_spectrum(np.r_[100.0, 60.0, 30.0, -10.0, np.linspace(-0.5, 1.0, 46)])


@jax.jit
def multiply(matrix, tree):
    product = jnp.matmul(matrix, jnp.concatenate([tree["a"], tree["b"]]), precision="highest")
    return {"a": product[:1], "b": product[1:]}


def estimate(matrix, key, num_probes, method="hutchinson"):
    like = {"a": jnp.zeros(1), "b": jnp.zeros(len(matrix) - 1)}
    return trace(functools.partial(multiply, matrix), like, key, num_probes, method=method)


@functools.cache
def many(method, num_probes, count=200):
    keys = jax.random.split(jax.random.key(7), count)
    run = jax.jit(jax.vmap(lambda key: estimate(jnp.asarray(PEAKED, jnp.float32), key, num_probes, method)))
    return jax.tree.map(np.asarray, run(keys))


def test_every_sample_is_one_of_the_sign_vectors_forms():
    # PAPERS.md 1A: over all eight sign vectors the mean is 5.5, exactly the trace, and the variance 5.0.
    forms = sign_quadratic_forms(SMALL)
    assert (forms.mean(), forms.var()) == (5.5, 5.0)
    for seed in range(10):
        pair = estimate(jnp.asarray(SMALL, jnp.float32), jax.random.key(seed), 2)
        # Two samples are mean -+ standard error.
        for sample in (pair.value - pair.stderr, pair.value + pair.stderr):
            assert np.abs(forms - float(sample)).min() < 1e-5


def test_many_samples_have_the_mean_and_variance_of_all_signs():
    result = jax.jit(lambda key: estimate(jnp.asarray(SMALL, jnp.float32), key, 4000))(jax.random.key(0))
    assert abs(result.value - 5.5) < 4 * result.stderr
    assert float(result.stderr**2 * 4000) == pytest.approx(5.0, rel=0.1)
    assert result.n == 4000


def test_a_diagonal_matrix_is_exact_with_random_signs():
    result = trace(lambda v: jnp.arange(5.0) * v, jnp.zeros(5), jax.random.key(0), 2)
    assert (float(result.value), float(result.stderr)) == (10.0, 0.0)


@pytest.mark.parametrize(("method", "num_probes"), [("hutchinson", 12), ("hutch++", 24)])
def test_the_interval_covers_the_trace_and_the_mean_is_unbiased(method, num_probes):
    result, expected = many(method, num_probes), np.trace(PEAKED)
    covered = np.mean((result.low <= expected) & (expected <= result.high))
    assert 0.90 <= covered <= 0.99
    assert abs(result.value.mean() - expected) < 4 * result.value.std() / 200**0.5
    assert np.sqrt((result.stderr**2).mean()) == pytest.approx(result.value.std(), rel=0.15)


def test_within_two_standard_errors_nineteen_times_in_twenty():
    result = many("hutchinson", 60)
    within = np.mean(np.abs(result.value - np.trace(PEAKED)) <= 2 * result.stderr)
    assert 0.90 <= within <= 0.99


def test_hutch_plus_plus_gains_where_few_eigenvalues_carry_the_trace():
    plain, sketched = many("hutchinson", 24), many("hutch++", 24)
    assert sketched.value.std() < 0.2 * plain.value.std()
    assert (sketched.n == 8).all()


def test_hutch_plus_plus_is_exact_below_its_sketch():
    low_rank = jnp.asarray(with_spectrum(np.r_[5.0, -2.0, np.zeros(28)]), jnp.float32)
    result = estimate(low_rank, jax.random.key(0), 12, "hutch++")
    assert float(result.value) == pytest.approx(3.0, abs=1e-4)
    assert result.stderr < 1e-4
    all_of_it = estimate(jnp.asarray(SMALL, jnp.float32), jax.random.key(0), 30, "hutch++")
    assert float(all_of_it.value) == pytest.approx(5.5, rel=1e-5)


@pytest.mark.parametrize("method", ["hutchinson", "hutch++", "xtrace"])
def test_python_jit_and_vmap_agree(method):
    matrices = jnp.asarray(np.stack([PEAKED, 2 * PEAKED]), jnp.float32)
    together = jax.vmap(lambda matrix: estimate(matrix, jax.random.key(3), 9, method))(matrices)
    jitted = jax.jit(lambda matrix: estimate(matrix, jax.random.key(3), 9, method))
    for index in range(2):
        alone = estimate(matrices[index], jax.random.key(3), 9, method)
        for other in (jitted(matrices[index]), jax.tree.map(lambda leaf, i=index: leaf[i], together)):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), other, alone)


@pytest.mark.parametrize(
    ("num_probes", "method", "message"),
    [
        (0, "hutchinson", "num_probes is 0"),
        (1, "hutchinson", "at least 2"),
        (3, "hutch++", "at least 4"),
        (3, "xtrace", "at least 4"),
        (9, "x", "'x'"),
    ],
)
def test_bad_options_are_one_line(num_probes, method, message):
    with pytest.raises(InputError, match=message):
        trace(lambda v: v, jnp.ones(3), jax.random.key(0), num_probes, method=method)


def test_a_product_that_is_not_finite_names_its_leaf():
    with pytest.raises(RunError, match=r"product\['a'\] is not finite"):
        estimate(jnp.asarray(SMALL, jnp.float32).at[0].set(jnp.inf), jax.random.key(0), 3)


@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_errors_are_in_proportion_where_squares_leave_the_range(factor):
    values = np.linspace(-1, 3, 12)
    matrix = with_spectrum(values)

    def measure(scale):
        scaled = jnp.asarray(scale * matrix, jnp.float32)
        product, like, key = lambda v: scaled @ v, jnp.zeros(12), jax.random.key(0)
        found = [trace(product, like, key, 6, method=method) for method in ("hutchinson", "hutch++", "xtrace")]
        found += [diagonal(product, like, key, 4), leaf_traces(product, like, key, 4)]
        return [np.float64(leaf) / scale for each in found for leaf in (each.value, each.stderr, each.low)]

    for plain, scaled in zip(measure(1.0), measure(factor), strict=True):
        np.testing.assert_allclose(scaled, plain, rtol=1e-3, atol=1e-5)
