import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from focalgeo.calibration import (
    fit_focal_temperature,
    fit_temperature,
    fits,
    focal_temperature_scaling,
    nll,
    temperature_scaling,
)

scaled = jax.jit(focal_temperature_scaling)
mean_nll = jax.jit(lambda z, y, gamma, temperature: nll(focal_temperature_scaling(z, gamma, temperature), y))


def drawn(gamma, temperature, num_examples=1000):
    """Labels drawn from the map of the logits, so that (gamma, T) is right in the limit."""
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(num_examples, 5)) * 4).astype(np.float32)
    log_probs = np.asarray(scaled(logits, np.float32(gamma), np.float32(temperature)))
    return logits, np.argmax(log_probs + rng.gumbel(size=log_probs.shape), axis=1).astype(np.int32)


@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_temperature_equals_scipy_and_a_dense_grid(temperature):
    logits, labels = drawn(0.0, temperature)

    def oracle(log_temperature):
        scores = logits.astype(float) / np.exp(log_temperature)
        scores -= scores.max(axis=1, keepdims=True)
        return np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels])

    best = optimize.minimize_scalar(oracle, bounds=(-4, 4), method="bounded", options={"xatol": 1e-8})
    found = fit_temperature(logits, labels)
    assert found.converged
    assert not found.at_bound
    assert found.gamma == 0
    np.testing.assert_allclose(found.temperature, np.exp(best.x), rtol=1e-3)
    np.testing.assert_allclose(found.nll, best.fun, atol=1e-6)
    assert found.nll <= min(oracle(t) for t in np.linspace(-4, 4, 400)) + 1e-6


@pytest.mark.parametrize("temperature", [0.05, 1.7])
def test_derivatives_are_those_that_jax_derives(temperature):
    logits, labels = drawn(0.5, 1.0, 100)
    weight = np.arange(100, dtype=np.float32) % 3
    with jax.enable_x64(True):
        given = logits.astype(float), labels, weight.astype(float)
        point = np.array([0.5, np.log(temperature)])
        nll_of = lambda rows: nll(rows, given[1], mask=given[2])  # noqa: E731
        alone = lambda t: nll_of(temperature_scaling(given[0], jnp.exp(t)))  # noqa: E731
        pair = lambda at: nll_of(focal_temperature_scaling(given[0], at[0], jnp.exp(at[1])))  # noqa: E731
        expected = jax.grad(alone)(point[1]), jax.grad(jax.grad(alone))(point[1])
        np.testing.assert_allclose(fits._temperature_slopes(*given, point[1]), expected, rtol=1e-8)
        slope, curvature = fits._slope_and_curvature(pair, point)
        np.testing.assert_allclose(slope, jax.grad(pair)(point), rtol=1e-8)
        np.testing.assert_allclose(curvature, jax.hessian(pair)(point), rtol=1e-7)


@pytest.mark.parametrize(("gamma", "temperature"), [(1.0, 1.5), (-0.5, 0.7)])
def test_pair_equals_scipy_from_many_starts(gamma, temperature):
    logits, labels = drawn(gamma, temperature)
    found = fit_focal_temperature(logits, labels)
    assert found.converged
    with jax.enable_x64(True):
        wide = logits.astype(np.float64)

        def oracle(point):
            return float(mean_nll(wide, labels, point[0], np.exp(point[1])))

        bounds = [(-0.9, 20), (np.log(0.01), np.log(100))]
        starts = [(-0.5, 0.0), (0.0, 0.5), (3.0, 1.0)]
        best = min(optimize.minimize(oracle, s, bounds=bounds, method="Nelder-Mead").fun for s in starts)
    np.testing.assert_allclose(found.nll, best, atol=1e-6)
    assert found.nll <= fit_temperature(logits, labels).nll


def test_separable_labels_end_at_the_bracket():
    logits = np.eye(5, dtype=np.float32)[np.arange(1000) % 5] * 5
    for fit in (fit_temperature, fit_focal_temperature):
        found = fit(logits, np.argmax(logits, axis=1).astype(np.int32))
        np.testing.assert_allclose(found.temperature, 0.01, rtol=1e-5)
        assert found.at_bound
        assert not found.converged


def test_equal_logits_leave_temperature_one():
    for fit in (fit_temperature, fit_focal_temperature):
        found = fit(np.ones((1000, 5), np.float32), np.zeros(1000, np.int32))
        assert (found.gamma, found.temperature) == (0, 1)
        assert not found.converged


def test_mask_leaves_out_what_it_says_even_nan():
    logits, labels = drawn(0.0, 1.7)
    mask = np.arange(1000) < 900
    full = fit_temperature(logits[mask], labels[mask])
    logits[~mask] = np.nan
    found = fit_temperature(logits, labels, mask)
    np.testing.assert_allclose(found.temperature, full.temperature, rtol=1e-5)


def test_jit_and_vmap_of_the_pair():
    logits, labels = drawn(1.0, 1.5, 300)
    both = np.stack([logits, 2 * logits])
    apart = [fit_focal_temperature(z, labels) for z in both]
    together = jax.jit(jax.vmap(fit_focal_temperature, in_axes=(0, None)))(both, labels)
    np.testing.assert_allclose(together.nll, [found.nll for found in apart], atol=1e-6)
    np.testing.assert_allclose(together.temperature[1], 2 * together.temperature[0], rtol=0.01)
    assert together.converged.all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "matrix",
    [
        [[1, -5], [-5, 1]],
        [[0, 0], [0, 0]],
        [[4, 0], [0, -7]],
        [[1e-3, 30], [30, -1e4]],
        [[1e20, 1], [1, 1e-20]],
    ],
)
def test_eigenpairs_of_two_by_two_equal_lapack(matrix, dtype):
    matrix, rounding = np.array(matrix, dtype), 3 * np.finfo(dtype).eps
    with jax.enable_x64(True):
        values, vectors = map(np.asarray, jax.jit(fits._eigenpairs)(matrix))
    assert values.dtype == vectors.dtype == dtype
    largest = np.abs(matrix).max()
    np.testing.assert_allclose(np.sort(values), np.linalg.eigvalsh(matrix.astype(float)), atol=rounding * largest)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(2), atol=rounding)
    np.testing.assert_allclose(vectors * values @ vectors.T, matrix, atol=rounding * largest)


def test_a_fit_calls_no_lapack():
    """Several at once would wait for each other in the thread pool of jaxlib 0.10.2's CPU."""

    def program(function, *arguments):
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cpu",)).as_text()

    assert "lapack" not in program(fit_focal_temperature, np.zeros((6, 3), np.float32), np.arange(6) % 3)
    assert "lapack" in program(jax.numpy.linalg.eigh, np.eye(2))
