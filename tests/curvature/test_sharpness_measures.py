"""Sharpness against closed forms in float64: trust regions, corners, noise in quadratics, dense Jacobians."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.curvature import MLP, with_spectrum
from scipy import optimize
from test_products import own_logits

from focalgeo import curvature
from focalgeo.types import InputError, RunError

ORACLE = MLP()
SPECTRA = {
    "convex": [5.0, 3.0, 1.0, 0.5, 0.1, 0.0],
    "saddle": [4.0, 1.0, 0.2, -0.5, -2.0, -6.0],
    "concave": [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0],
}
SIZE = 6


@pytest.fixture(autouse=True)
def wide():
    """Float64."""
    with jax.enable_x64(True):
        yield


def quadratic(spectrum, seed=0, slope=0.3):
    """L = 2 + g' e + e' H e / 2 of e = w - w0, as a function of a tree; w0, g and H."""
    random = np.random.default_rng(seed)
    matrix, gradient = with_spectrum(spectrum, seed), slope * random.normal(size=len(spectrum))
    point = random.normal(size=len(spectrum))

    def loss(params):
        apart = jnp.concatenate([params["a"], params["b"].ravel()]) - point
        return 2 + jnp.vdot(gradient, apart) + jnp.vdot(apart, matrix @ apart) / 2

    return loss, {"a": jnp.asarray(point[:2]), "b": jnp.asarray(point[2:].reshape(2, -1))}, point, gradient, matrix


def trust_region(gradient, matrix, radius):
    """The largest g' u + u' H u / 2 over |u| <= radius, by the multiplier: (mu - H) u = g with mu >= the largest."""
    values, vectors = np.linalg.eigh(matrix)
    along = vectors.T @ gradient

    def length(mu):
        return np.linalg.norm(along / (mu - values))

    least = max(values[-1], 0.0)
    if values[-1] < 0 and length(0.0) <= radius:
        mu = 0.0
    else:
        mu = optimize.brentq(lambda mu: length(mu) - radius, least + 1e-12, least + 1e6, xtol=1e-14)
    place = along / (mu - values)
    return along @ place + values @ place**2 / 2


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("radius", [0.05, 0.5, 3.0])
def test_the_worst_case_of_a_quadratic_is_the_solution_of_its_trust_region(spectrum, radius):
    loss, params, point, gradient, matrix = quadratic(SPECTRA[spectrum])
    scale = np.abs(point)
    exact = trust_region(scale * gradient, scale[:, None] * matrix * scale, radius)
    slope, key = jax.jit(jax.value_and_grad(loss)), jax.random.key(0)
    value, error = curvature.adaptive_sharpness(slope, params, key, radius=radius)
    assert value <= exact * (1 + 1e-9)
    assert exact - value <= error + 1e-9 * exact
    if spectrum == "concave" and radius > 0.1:  # the best is inside, and so badly conditioned that steps creep
        return
    np.testing.assert_allclose(value, exact, rtol=3e-3)
    value, error = curvature.adaptive_sharpness(slope, params, key, radius=radius, steps=100)
    np.testing.assert_allclose(value, exact, rtol=1e-6)
    alone, promise = curvature.adaptive_sharpness(slope, params, key, radius=radius, steps=100, starts=1)
    np.testing.assert_allclose(alone, value)
    assert -1e-12 <= promise <= 1e-5 * exact


def test_two_hills_are_told_by_the_error():
    """A loss of one parameter that rises to 1 on one side and to 3 on the other: starts come to both."""

    def loss(params):
        apart = params[0] - 1
        return jnp.where(apart < 0, 1, 3) * apart**2 + 0.01 * apart

    found = curvature.adaptive_sharpness(jax.value_and_grad(loss), jnp.ones(1), jax.random.key(0), radius=1.0, starts=8)
    np.testing.assert_allclose(found, [3.01, 2.02])


def test_a_layer_multiplied_and_another_divided_is_as_sharp():
    random = np.random.default_rng(3)
    x, y = random.normal(size=(20, 4)), random.integers(0, 3, 20)

    def logits(params):
        return jax.nn.relu(x @ params["first"]) @ params["second"]

    def loss(params):
        return -jnp.mean(jax.nn.log_softmax(logits(params))[np.arange(20), y])

    params = {"first": jnp.asarray(random.normal(size=(4, 5))), "second": jnp.asarray(random.normal(size=(5, 3)))}
    other = {"first": 100 * params["first"], "second": params["second"] / 100}
    key, slope = jax.random.key(0), jax.jit(jax.value_and_grad(loss))

    def measures(params):
        worst, _ = curvature.adaptive_sharpness(slope, params, key, radius=0.1)
        mean = curvature.noise_rises(loss, params, key, 0.1, adaptive=True).mean()
        return [worst, mean, curvature.fisher_rao(logits, params).mean()]

    np.testing.assert_allclose(measures(params), measures(other), rtol=1e-6)
    plain = [curvature.pac_bayes_sigma(loss, at, key, num_samples=8).value for at in (params, other)]
    assert plain[0] > 3 * plain[1]


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_mean_rise_of_a_quadratic_is_half_its_trace(adaptive):
    loss, params, point, gradient, matrix = quadratic(SPECTRA["saddle"])
    scale = np.abs(point) if adaptive else np.ones(SIZE)
    exact = 0.3**2 * scale @ (np.diag(matrix) * scale) / 2
    estimate = curvature.sample_mean(
        curvature.noise_rises(jax.jit(loss), params, jax.random.key(2), 0.3, num_samples=400, adaptive=adaptive)
    )
    assert abs(estimate.value - exact) < 3 * estimate.stderr
    # variance of a sample: sigma^2 |g|^2 + sigma^4 |H|^2 / 2
    scaled = scale[:, None] * matrix * scale
    spread = np.sqrt(0.3**2 * np.sum((scale * gradient) ** 2) + 0.3**4 * np.sum(scaled**2) / 2)
    np.testing.assert_allclose(estimate.stderr, spread / 20, rtol=0.15)


def test_the_noise_borne_by_a_quadratic_is_that_of_its_trace_within_its_error():
    loss, params, *_, matrix = quadratic(SPECTRA["convex"], slope=0.0)
    loss = jax.jit(loss)
    rise = 0.1 * float(loss(params))
    exact = np.sqrt(2 * rise / np.trace(matrix))
    found = [curvature.pac_bayes_sigma(loss, params, jax.random.key(k), rise=rise) for k in range(12)]
    apart = np.array([(one.value - exact) / one.stderr for one in found])
    assert (abs(apart) < 2.5).all()
    assert 0.4 < apart.std() < 1.6
    assert np.mean([one.stderr for one in found]) < 0.12 * exact
    mean = curvature.noise_rises(loss, params, jax.random.key(0), found[0].value).mean()
    np.testing.assert_allclose(mean, rise, rtol=1e-4)


def test_a_rise_that_no_noise_gives_is_refused():
    with pytest.raises(RunError, match="no noise raises the loss by 2"):
        curvature.pac_bayes_sigma(lambda p: jnp.tanh(jnp.sum(p**2)), jnp.ones(3), jax.random.key(0), rise=2.0)


def test_noise_that_is_too_much_at_once_is_refused_and_a_falling_rise_has_an_error():
    with pytest.raises(RunError, match="noise of 1e-9 raises the loss by"):
        curvature.pac_bayes_sigma(lambda p: 1e20 * jnp.sum(p**2), jnp.zeros(6), jax.random.key(0))
    with pytest.raises(RunError, match="noise of 1e-9 raises the loss by nan"):
        curvature.pac_bayes_sigma(lambda p: jnp.nan * jnp.sum(p), jnp.zeros(6), jax.random.key(0))
    sigma = curvature.pac_bayes_sigma(lambda p: jnp.sin(3 * p[0]), jnp.zeros(1), jax.random.key(0))
    assert sigma.stderr > 0
    assert sigma.low < sigma.value < sigma.high


def test_the_fisher_rao_norm_is_that_of_dense_jacobians():
    params = jax.tree.map(jnp.asarray, ORACLE.tree())
    shares = curvature.fisher_rao(own_logits, params)
    assert shares.shape == (12,)
    np.testing.assert_allclose(shares.mean(), ORACLE.flat @ ORACLE.ggn() @ ORACLE.flat, rtol=1e-7)
    product = curvature.fisher_vp(own_logits, params, params)
    along = sum(np.vdot(a, b) for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(product), strict=True))
    np.testing.assert_allclose(shares.mean(), along, rtol=1e-12)


def test_arguments_out_of_range_are_refused():
    loss, params, key = (lambda p: jnp.sum(p**2)), jnp.ones(2), jax.random.key(0)
    slope = jax.value_and_grad(loss)
    for error, call in {
        "radius is 0": lambda: curvature.adaptive_sharpness(slope, params, key, radius=0.0),
        "starts is 0": lambda: curvature.adaptive_sharpness(slope, params, key, radius=1.0, starts=0),
        "standard error takes 2": lambda: curvature.pac_bayes_sigma(loss, params, key, num_samples=1),
        "rise is 0": lambda: curvature.pac_bayes_sigma(loss, params, key, rise=0.0),
        "logits have shape": lambda: curvature.fisher_rao(loss, params),
        "steps is -1": lambda: curvature.adaptive_sharpness(slope, params, key, radius=1.0, steps=-1),
        "value_and_grad is": lambda: curvature.adaptive_sharpness(1.0, params, key, radius=1.0),
        "the loss: has shape": lambda: curvature.adaptive_sharpness(lambda p: (p, p), params, key, radius=1.0),
        "the gradient": lambda: curvature.adaptive_sharpness(lambda p: (loss(p), {"w": p}), params, key, radius=1.0),
        "sigma is nan": lambda: curvature.noise_rises(loss, params, key, jnp.nan),
        "num_samples is 0": lambda: curvature.noise_rises(loss, params, key, 1.0, num_samples=0),
        "num_samples is 2.5": lambda: curvature.pac_bayes_sigma(loss, params, key, num_samples=2.5),
    }.items():
        with pytest.raises(InputError, match=error):
            call()
    with pytest.raises(RunError, match="not finite"):
        curvature.adaptive_sharpness(jax.value_and_grad(lambda p: jnp.sum(jnp.log(p))), params, key, radius=9.0)
