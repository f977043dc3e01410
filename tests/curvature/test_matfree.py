"""matfree as a second oracle: its Lanczos, trace estimators and matrix functions on the same matrices and vectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matfree import decomp, funm, stochtrace
from reference.curvature import MLP, with_spectrum

from focalgeo.curvature import spectral_density, trace
from focalgeo.curvature.lanczos import grown, krylov_start, ritz
from focalgeo.curvature.matvec import layout_of
from focalgeo.curvature.quadratic_forms import sign_probe

KEY = jax.random.key(4)
MATRICES = {
    "indefinite": with_spectrum(np.random.default_rng(3).normal(size=40)),
    "a few peaks": with_spectrum(np.r_[100.0, 60.0, 30.0, -10.0, np.linspace(-0.5, 1.0, 36)]),
    "network": MLP().hessian(),
}


@pytest.fixture(autouse=True)
def their_settings():
    """Their functions promote dtypes and ranks; float64, so that both sides differ by rounding alone."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(params=MATRICES)
def matrix(request):
    return jnp.asarray(MATRICES[request.param])


def product_of(matrix):
    return lambda vector: jnp.matmul(matrix, vector, precision="highest")


def probes_of(size, count):
    layout = layout_of(jnp.zeros(size))
    return jnp.stack([sign_probe(KEY, jnp.int32(index), None, layout=layout) for index in range(count)])


def test_the_krylov_basis_and_the_matrix_in_it_are_theirs(matrix):
    steps = 12
    start = jax.random.normal(KEY, (len(matrix),))
    theirs = decomp.tridiag_sym(steps)(product_of(matrix), start)
    ours = krylov_start((start / jnp.linalg.norm(start))[None], steps=steps)
    for _ in range(steps):
        ours = grown(ours, product_of(matrix))
    size = np.abs(theirs.J_small).max()
    np.testing.assert_allclose(ours.basis[:steps], theirs.Q_tall, atol=1e-8)
    np.testing.assert_allclose(ours.unit * ritz(ours)[0], np.linalg.eigvalsh(theirs.J_small), atol=1e-10 * size)


def test_hutchinsons_trace_and_its_error_are_theirs_on_the_same_probes(matrix):
    count = 20
    probes = probes_of(len(matrix), count)
    estimator = stochtrace.estimator_monte_carlo_mean_and_sem(stochtrace.monte_carlo_trace(), lambda _: probes)
    mean, error = estimator(product_of(matrix), KEY)
    found = trace(product_of(matrix), matrix[0], KEY, count)
    np.testing.assert_allclose(found.value, mean, rtol=1e-10)
    np.testing.assert_allclose(found.stderr, error * (count / (count - 1)) ** 0.5, rtol=1e-8)  # theirs divides by n


def test_xtrace_is_theirs_on_the_same_vectors(matrix):
    count = 8
    vectors = jax.random.normal(KEY, (count, len(matrix)), matrix.dtype)
    estimator = stochtrace.estimator_leave_one_out(stochtrace.leave_one_out_xtrace(), lambda _: vectors)
    found = trace(product_of(matrix), matrix[0], KEY, 2 * count, method="xtrace")
    np.testing.assert_allclose(found.value, estimator(product_of(matrix), KEY), rtol=1e-8)


def test_the_density_integrates_functions_as_their_quadrature_does(matrix):
    count, steps = 5, 9
    probes, size = probes_of(len(matrix), count), float(jnp.abs(matrix).max())
    found = spectral_density(product_of(matrix), matrix[0], KEY, num_probes=count, steps=steps)
    for function in (lambda x: jnp.exp(-((x / size) ** 2)), lambda x: jnp.tanh(3 * x / size), lambda x: x**2):
        quadrature = funm.monte_carlo_funm_sym(funm.dense_funm_sym_eigh(function), decomp.tridiag_sym(steps))
        theirs = jax.vmap(lambda probe, quadrature=quadrature: quadrature(product_of(matrix), probe))(probes)
        ours = len(matrix) * jnp.sum(found.weights * function(found.nodes), axis=1)
        np.testing.assert_allclose(ours, theirs, rtol=1e-7)
