"""Samples of traces: unbiased, exact on the basis, and means whose errors cover."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.curvature import sign_quadratic_forms, with_spectrum

from focalgeo.curvature import dominant_basis, sample_mean, trace_samples
from focalgeo.types import InputError

LIKE = {"a": jnp.zeros((2, 3)), "b": jnp.zeros(6)}  # 12 numbers
SIZE = 12


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(np.float64)


def form_of(matrix):
    return lambda tree: {"value": np.float32(flat(tree) @ matrix @ flat(tree))}


def matvec_of(matrix):
    dense = jnp.asarray(matrix, jnp.float32)

    def matvec(tree):
        product = dense @ jnp.concatenate([tree["a"].ravel(), tree["b"]])
        return {"a": product[:6].reshape(2, 3), "b": product[6:]}

    return matvec


def test_records_of_hutchinson(papers):
    record = papers["hutchinson"]
    matrix = np.array(record["H"])
    samples = trace_samples(lambda v: np.asarray(v, float) @ matrix @ np.asarray(v, float), jnp.zeros(3), KEY, 400)
    assert set(samples) == set(record["rademacher_values"])
    np.testing.assert_allclose(sign_quadratic_forms(matrix), record["rademacher_values"])
    found = sample_mean(samples)
    assert abs(found.value - record["mean"]) < 4 * found.stderr
    np.testing.assert_allclose(found.stderr, np.sqrt(record["var"] / 400), rtol=0.1)
    np.testing.assert_allclose([np.trace(matrix), 2 * np.sum(np.triu(matrix, 1) ** 2) * 2], [5.5, 5.0])


KEY = jax.random.key(0)


def test_on_a_basis_of_the_range_every_sample_is_the_trace():
    matrix = with_spectrum([9, 4, 1, -2] + [0] * 8)
    basis = dominant_basis([matvec_of(matrix)], LIKE, KEY, 6)
    assert basis.shape == (6, SIZE)
    np.testing.assert_allclose(basis @ basis.T, np.eye(6), atol=1e-6)
    samples = trace_samples(form_of(matrix), LIKE, KEY, 5, basis=basis)["value"]
    np.testing.assert_allclose(samples, 12, rtol=1e-5)
    assert np.ptp(trace_samples(form_of(matrix), LIKE, KEY, 5)["value"]) > 1


def test_a_basis_of_two_matrices_of_very_different_size_holds_both():
    large, small = with_spectrum([9, 4] + [0] * 10, 1), 1e-6 * with_spectrum([5, 3] + [0] * 10, 2)
    basis = dominant_basis([matvec_of(large), matvec_of(small)], LIKE, KEY, 3)
    for matrix, expected in ((large, 13), (small, 8e-6)):
        samples = trace_samples(form_of(matrix), LIKE, KEY, 4, basis=basis)["value"]
        np.testing.assert_allclose(samples, expected, rtol=1e-3)


def test_a_basis_has_at_most_as_many_rows_as_there_are_dimensions_and_a_matrix_of_zeros_gives_one():
    identity = matvec_of(np.eye(SIZE))
    assert dominant_basis([identity, identity], LIKE, KEY, 40).shape == (SIZE, SIZE)
    basis = dominant_basis([matvec_of(np.zeros((SIZE, SIZE)))], LIKE, KEY, 2)
    np.testing.assert_allclose(basis @ basis.T, np.eye(2), atol=1e-6)


def test_all_forms_see_the_same_probes():
    one, two = with_spectrum(range(SIZE), 3), with_spectrum(range(SIZE), 4)
    basis = dominant_basis([matvec_of(one)], LIKE, KEY, 3)

    def both(tree):
        values = [form_of(matrix)(tree)["value"] for matrix in (one, two, one + two)]
        return dict(zip("abc", values, strict=True))

    samples = trace_samples(both, LIKE, KEY, 7, basis=basis)
    np.testing.assert_allclose(samples["a"] + samples["b"], samples["c"], rtol=1e-5)


@pytest.mark.parametrize("rows", [0, 4])
def test_two_standard_errors_cover_the_trace_about_95_times_in_100(rows):
    matrix = with_spectrum([30, 12, 5, 3, 1, 1, 0.5, 0.2, 0, 0, -0.5, -2])
    covered = 0
    for seed in range(200):
        basis_key, key = jax.random.split(jax.random.key(seed))
        basis = dominant_basis([matvec_of(matrix)], LIKE, basis_key, rows) if rows else None
        found = sample_mean(trace_samples(form_of(matrix), LIKE, key, 20, basis=basis)["value"])
        covered += abs(found.value - np.trace(matrix)) <= 2 * found.stderr
    assert 180 <= covered <= 198


def test_a_mean_has_the_interval_of_students_t():
    found = sample_mean(np.array([1.0, 2.0, 4.0]))
    np.testing.assert_allclose([found.value, found.stderr], [7 / 3, np.sqrt(7 / 9)])
    np.testing.assert_allclose(
        [found.low, found.high], 7 / 3 + 4.302653 * np.sqrt(7 / 9) * np.array([-1, 1]), rtol=1e-6
    )


def test_too_few_vectors_are_refused():
    with pytest.raises(InputError, match="num_samples is 0"):
        trace_samples(lambda v: v[0], jnp.ones(3), KEY, 0)
    with pytest.raises(InputError, match="num_products is 0"):
        dominant_basis([lambda v: v], jnp.ones(3), KEY, 0)
    with pytest.raises(InputError, match="1 sample has no standard error"):
        sample_mean(np.ones(1))
