"""Spectral densities: quadratures that are exact where they must be, and shares whose errors cover."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.curvature import MLP, with_spectrum
from test_lanczos import SPECTRA, N, problem
from test_products import loss

from focalgeo.curvature import (
    SpectralDensity,
    cumulative_distribution,
    hvp,
    share_in_bins,
    smoothed_density,
    spectral_density,
    trace,
)
from focalgeo.types import InputError

KEY = jax.random.key(2)
SMALL = np.r_[-3.0, -1.0, np.linspace(0, 1, 20), 5.0, 8.0]  # two below, a bulk, two above


@jax.jit
def multiply(matrix, vector):
    return jnp.matmul(matrix, vector, precision="highest")


def small(eigenvalues=SMALL, dtype=jnp.float32):
    matrix = jnp.asarray(with_spectrum(eigenvalues), dtype)
    return functools.partial(multiply, matrix), jnp.zeros(len(eigenvalues), dtype)


def recorded(matvec, like, **options):
    """The density as NumPy arrays, and the probes of norm 1 that it began with."""
    probes = []

    def watched(vector):
        probes.append(np.asarray(vector))
        return matvec(vector)

    density = jax.tree.map(np.asarray, spectral_density(watched, like, KEY, **options))
    steps = density.nodes.shape[1]
    assert density.num_matvecs == len(probes) == density.nodes.size
    return density, np.stack(probes[::steps])


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_moments_are_exact_to_degree_2_steps_less_1(steps):
    with jax.enable_x64(True):
        density, starts = recorded(*small(dtype=jnp.float64), num_probes=3, steps=steps)
    eigenvalues, vectors = np.linalg.eigh(with_spectrum(SMALL))
    true = (starts @ vectors) ** 2
    np.testing.assert_allclose(starts**2, 1 / len(SMALL), rtol=1e-12)
    for degree in range(2 * steps):
        moments = np.sum(density.weights * density.nodes**degree, axis=1)
        np.testing.assert_allclose(moments, true @ eigenvalues**degree, rtol=1e-9, atol=1e-10 * 8.0**degree)
    # And no further: what quadrature leaves out of the next moment is never negative.
    beyond = np.sum(density.weights * density.nodes ** (2 * steps), axis=1)
    assert (beyond < (true @ eigenvalues ** (2 * steps)) * (1 - 1e-9)).all()


def test_cumulative_weights_keep_the_bounds_of_chebyshev_markov_and_stieltjes():
    with jax.enable_x64(True):
        density, starts = recorded(*small(dtype=jnp.float64), num_probes=4, steps=6)
    eigenvalues, vectors = np.linalg.eigh(with_spectrum(SMALL))
    for nodes, weights, start in zip(density.nodes, density.weights, starts, strict=True):
        for index, node in enumerate(nodes):
            true = np.sum((start @ vectors)[eigenvalues <= node] ** 2)
            assert weights[:index].sum() - 1e-9 <= true <= weights[: index + 1].sum() + 1e-9


def test_steps_of_the_dimension_give_the_eigenvalues_of_a_networks_hessian():
    with jax.enable_x64(True):
        oracle = MLP()
        params = jax.tree.map(jnp.asarray, oracle.tree())
        matvec = jax.jit(lambda vector: hvp(loss, params, vector))
        density = spectral_density(matvec, params, KEY, num_probes=2, steps=100)
        assert density.nodes.shape == (2, oracle.flat.size)
        eigenvalues = np.linalg.eigvalsh(oracle.hessian())
        np.testing.assert_allclose(density.nodes[:, [0, -1]], eigenvalues[[[0, -1]] * 2], atol=1e-8)


@pytest.mark.parametrize("name", ["indefinite", "small scale", "zero"])
def test_the_first_moment_is_hutchinsons_trace_of_the_same_key(name):
    matvec, like = problem(SPECTRA[name])
    density = spectral_density(matvec, like, KEY, num_probes=5, steps=3)
    mean = N * np.mean(np.sum(np.asarray(density.weights) * np.asarray(density.nodes), axis=1))
    np.testing.assert_allclose(mean, trace(matvec, like, KEY, 5).value, atol=2e-6 * N * np.abs(SPECTRA[name]).max())


@pytest.mark.parametrize("name", ["zero", "minus identity"])
def test_a_krylov_space_that_closes_ends_the_probe(name):
    density = spectral_density(*problem(SPECTRA[name]), KEY, num_probes=3, steps=10)
    assert density.num_matvecs == 3
    np.testing.assert_allclose(density.nodes, SPECTRA[name][0], rtol=1e-5)
    np.testing.assert_array_equal(density.weights, np.eye(10)[[9, 9, 9]])


def test_repeated_eigenvalues_are_one_node_that_weighs_as_much_as_they_do():
    with jax.enable_x64(True):
        matvec, like = problem(np.repeat([-2.0, 1.0, 5.0], [4, 40, 16]), jnp.float64)
        density = spectral_density(matvec, like, KEY, num_probes=50, steps=10)
        found = jax.tree.map(np.asarray, share_in_bins(density, np.array([-2.1, -1.9, 0.9, 1.1, 4.9, 5.1])))
    assert (np.abs(found.value[::2] - [4 / 60, 40 / 60, 16 / 60]) <= 4 * found.stderr[::2]).all()
    np.testing.assert_allclose(found.value.sum(), 1)


def test_two_standard_errors_cover_the_shares_about_95_times_in_100():
    eigenvalues = np.r_[-3.0, -3.1, -1.0, -1.1, np.linspace(0, 1, 80), 5.0, 5.1, 5.2, 8.0, 8.1]
    matvec, like = small(eigenvalues)
    edges = np.array([-4.0, -2.0, -0.5, 2.0, 6.5, 9.0])  # all in gaps
    true = np.histogram(eigenvalues, edges)[0] / len(eigenvalues)

    @jax.jit
    @jax.vmap
    def shares(key):
        return share_in_bins(spectral_density(matvec, like, key, num_probes=40, steps=12), edges)

    found = jax.tree.map(np.asarray, shares(jax.random.split(KEY, 200)))
    within = np.mean(np.abs(found.value - true) <= 2 * found.stderr, axis=0)
    assert ((within >= 0.90) & (within <= 0.99)).all()
    assert (np.abs(found.value.mean(0) - true) <= 4 * found.value.std(0) / 200**0.5).all()
    np.testing.assert_allclose(np.sqrt((found.stderr**2).mean(0)), found.value.std(0), rtol=0.15)
    np.testing.assert_array_equal(found.n, 40)


def two_probes():
    nodes = jnp.array([[0.0, 1.0, 2.0], [0.0, 0.0, 2.0]])
    return SpectralDensity(nodes, jnp.array([[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]]), jnp.int32(6), jnp.int32(10))


def test_bins_hold_their_lower_edges_and_the_last_one_both_and_a_point_what_is_at_it():
    found = cumulative_distribution(two_probes(), jnp.array([2.0, 1.9, 0.0, -0.1]))
    np.testing.assert_allclose(found.value, [1, 0.625, 0.5, 0])
    np.testing.assert_allclose(found.stderr, [0, 0.125, 0, 0], atol=1e-7)
    found = share_in_bins(two_probes(), [-jnp.inf, 0, 1, 2])
    np.testing.assert_allclose(found.value, [0, 0.5, 0.5])
    np.testing.assert_allclose(found.stderr, [0, 0, 0], atol=1e-7)
    found = share_in_bins(two_probes(), np.array([0.5, 1.5, np.inf]))
    np.testing.assert_allclose(found.value, [0.125, 0.375])
    np.testing.assert_allclose(found.stderr, [0.125, 0.125])
    np.testing.assert_allclose(found.high - found.value, 12.706205 * found.stderr, rtol=1e-5)


def test_a_smoothed_density_is_a_mixture_of_gaussians_of_this_width():
    points = jnp.linspace(-3, 5, 801)
    found = smoothed_density(two_probes(), points, width=0.3)
    assert float(jnp.trapezoid(found.value, points)) == pytest.approx(1, rel=1e-5)
    at_one = np.exp(-0.5 * (np.array([1.0, 0.0, 1.0]) / 0.3) ** 2) @ [0.5, 0.125, 0.375] / (0.3 * (2 * np.pi) ** 0.5)
    assert float(found.value[400]) == pytest.approx(at_one, rel=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda d: share_in_bins(d, [1.0]),
        lambda d: share_in_bins(d, [1.0, 1.0, 2.0]),
        lambda d: share_in_bins(d, [0.0, np.nan]),
        lambda d: cumulative_distribution(d, [[1.0]]),
        lambda d: smoothed_density(d, [np.nan], width=1.0),
        lambda d: smoothed_density(d, [1.0], width=0.0),
    ],
)
def test_points_edges_and_widths_that_are_none_are_refused(function):
    with pytest.raises(InputError):
        function(two_probes())
