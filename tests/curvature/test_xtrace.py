import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.curvature import MLP, with_spectrum

from focalgeo.curvature import trace

SPECTRA = {
    "a few peaks": np.r_[100.0, 60.0, 30.0, -10.0, np.linspace(-0.5, 1.0, 46)],
    "slow decay": 5 / np.arange(1, 201),
    "fast decay": 0.8 ** np.arange(100),
    "both signs": np.linspace(-1, 2, 80),
}


def estimates(matrix, num_probes, method="xtrace", count=200):
    matrix = jnp.asarray(matrix, jnp.float32)
    like = jnp.zeros(len(matrix))

    def one(key):
        return trace(lambda v: jnp.matmul(matrix, v, precision="highest"), like, key, num_probes, method=method)

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(3), count)))


@pytest.mark.parametrize("num_probes", [16, 40])
@pytest.mark.parametrize("name", SPECTRA)
def test_two_standard_errors_cover_and_the_mean_is_unbiased(name, num_probes):
    result, expected = estimates(with_spectrum(SPECTRA[name]), num_probes), SPECTRA[name].sum()
    within = np.mean(np.abs(result.value - expected) <= 2 * result.stderr)
    assert 0.90 <= within <= 0.99
    assert abs(result.value.mean() - expected) < 4 * result.value.std() / 200**0.5
    assert (result.n == num_probes // 2).all()


def test_covers_the_trace_of_a_networks_hessian():
    matrix = MLP().hessian()
    result = estimates(matrix, 12)
    assert 0.90 <= np.mean(np.abs(result.value - np.trace(matrix)) <= 2 * result.stderr) <= 0.99


@pytest.mark.parametrize("name", ["a few peaks", "slow decay", "fast decay"])
def test_scatters_less_than_hutch_plus_plus_with_as_many_products(name):
    matrix = with_spectrum(SPECTRA[name])
    assert estimates(matrix, 40).value.std() < 0.9 * estimates(matrix, 40, "hutch++").value.std()


def test_exact_where_the_rank_is_small_or_the_vectors_span_everything():
    low_rank = with_spectrum(np.r_[5.0, 3.0, np.zeros(28)])
    for num_probes in (20, 200):
        result = estimates(low_rank, num_probes, count=1)
        np.testing.assert_allclose(result.value, 8.0, rtol=1e-4)
        assert result.stderr < 1e-3


def test_rounding_of_a_short_remainder_is_part_of_the_error():
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0]
    matrix = (basis * [0, 0, 0.2, 0.5, 1] @ basis.T).astype(
        np.float32
    )  # of rank 3: five products span the rest by noise
    for key in (19, 73, 107):
        found = trace(
            lambda vector: jnp.matmul(matrix, vector, precision="highest"),
            jnp.zeros(5),
            jax.random.key(key),
            10,
            method="xtrace",
        )
        assert abs(found.value - np.trace(matrix)) < 2 * found.stderr
        assert found.stderr < 2e-3
