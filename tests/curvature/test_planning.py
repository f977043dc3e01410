"""The trace to a requested error: what it claims is right, what was asked for is met, and it takes few products."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.curvature import with_spectrum

from focalgeo.curvature import trace_to
from focalgeo.types import InputError, RunError

SPECTRA = {
    "a few peaks": np.r_[100.0, 60.0, 30.0, -10.0, np.linspace(-0.5, 1.0, 46)],
    "slow decay": 5 / np.arange(1, 201),
    "flat": np.linspace(0.2, 1, 40),
}
MOST = {"a few peaks": 40, "slow decay": 70, "flat": 40}  # products


@jax.jit
def multiply(matrix, tree):
    product = jnp.matmul(matrix, jnp.concatenate([tree["a"], tree["b"]]), precision="highest")
    return {"a": product[:1], "b": product[1:]}


def measured(matrix, seed, **options):
    like = {"a": jnp.zeros(1), "b": jnp.zeros(len(matrix) - 1)}
    return trace_to(
        functools.partial(multiply, jnp.asarray(matrix, jnp.float32)), like, jax.random.key(seed), **options
    )


@pytest.mark.parametrize("name", SPECTRA)
def test_two_standard_errors_cover_and_the_request_is_met_nine_times_in_ten(name):
    matrix = with_spectrum(SPECTRA[name])
    found = [measured(matrix, seed) for seed in range(200)]
    value, stderr, low, high, count = (
        np.array(column) for column in zip(*(one.estimate for one in found), strict=True)
    )
    true = SPECTRA[name].sum()
    assert 0.90 <= np.mean(np.abs(value - true) <= 2 * stderr) <= 0.99
    assert 0.90 <= np.mean((low <= true) & (true <= high)) <= 0.99
    assert abs(value.mean() - true) < 4 * value.std() / 200**0.5
    reached = np.array([one.reached for one in found])
    np.testing.assert_array_equal(reached, stderr <= 0.02 * abs(value))
    assert reached.mean() >= 0.9
    assert np.median([one.num_matvecs for one in found]) <= MOST[name]
    assert count.min() >= 20


def test_every_product_is_counted_and_none_is_beyond_the_limit():
    calls = []
    matrix = with_spectrum(np.linspace(-1, 1.1, 60))

    def counting(vector):
        calls.append(1)
        return jnp.matmul(jnp.asarray(matrix, jnp.float32), vector, precision="highest")

    found = trace_to(counting, jnp.zeros(60), jax.random.key(0), max_products=90)
    assert found.num_matvecs == len(calls) == 90
    assert not found.reached
    assert abs(found.estimate.value - np.trace(matrix)) <= 4 * found.estimate.stderr


def test_a_request_within_is_met_and_a_wider_one_takes_fewer_products():
    matrix = with_spectrum(SPECTRA["slow decay"])
    fine, coarse = measured(matrix, 1, relative_error=0.01), measured(matrix, 1, relative_error=0.05)
    assert fine.num_matvecs > coarse.num_matvecs
    assert fine.reached
    assert abs(fine.estimate.value / np.trace(matrix) - 1) < 0.04


def test_the_subspace_grows_where_that_saves_samples():
    # Sixteen products of a pilot alone would leave some 150 samples to draw.
    found = [measured(with_spectrum(0.8 ** np.arange(100)), seed) for seed in range(10)]
    assert np.median([one.num_matvecs for one in found]) <= 60


def test_rows_are_limited_where_memory_is():
    matrix = with_spectrum(SPECTRA["slow decay"])
    narrow = measured(matrix, 0, max_rows=8)
    assert narrow.num_matvecs == 16 + narrow.estimate.n


@pytest.mark.parametrize("eigenvalues", [np.zeros(30), np.ones(30), np.r_[5.0, -2.0, np.zeros(28)], np.r_[3.0, 1.0]])
def test_exact_where_the_subspace_holds_all_or_signs_are_exact(eigenvalues):
    found = measured(with_spectrum(eigenvalues), 0)
    assert found.reached
    np.testing.assert_allclose(found.estimate.value, eigenvalues.sum(), rtol=1e-4, atol=1e-4)
    assert found.estimate.stderr <= 1e-4 * max(1.0, eigenvalues.max())


def test_inside_jit_it_is_refused():
    with pytest.raises(InputError, match="outside jit"):
        jax.jit(lambda key: trace_to(lambda v: v, jnp.zeros(30), key))(jax.random.key(0))
    with pytest.raises(InputError, match="outside jit"):
        jax.jit(lambda factor: trace_to(lambda v: factor * v, np.zeros(30, np.float32), jax.random.key(0)))(2.0)


def test_a_product_that_is_not_finite_names_its_leaf():
    with pytest.raises(RunError, match=r"product\['b'\] is not finite"):
        measured(np.diag([1.0, 2.0, np.nan]) + np.eye(3), 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relative_error": 0.0}, "relative_error is 0"),
        ({"relative_error": float("nan")}, "relative_error is nan"),
        ({"max_products": 35}, "max_products is 35; a plan and its samples take at least 36"),
        ({"max_rows": 7}, "max_rows is 7"),
    ],
)
def test_bad_options_are_one_line(options, message):
    with pytest.raises(InputError, match=message):
        trace_to(lambda v: v, jnp.ones(3), jax.random.key(0), **options)
