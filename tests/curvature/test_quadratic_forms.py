"""Quadratic forms: both parts of v' H v against dense float64 matrices; samples of traces, unbiased and with errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from reference.curvature import MLP, sign_quadratic_forms, with_spectrum
from reference.losses import focal_loss as closed_form
from test_products import own_logits

from focalgeo import trees
from focalgeo.curvature import dense_hessian, dominant_basis, quadratic_parts, sample_mean, trace_samples
from focalgeo.losses import cross_entropy, focal_loss
from focalgeo.types import InputError

GAMMAS = (0.0, 0.5, 2.0, 5.0)
ORACLE = MLP()
IMAGES, LABELS = np.random.default_rng(1).normal(size=(7, 4, 4, 1)), np.array([0, 1, 2, 2, 1, 0, 0])


def cnn(params):
    """Convolution, batch norm with fixed statistics, ReLU, mean over positions, dense."""
    maps = jax.lax.conv_general_dilated(
        jnp.asarray(IMAGES), params["conv"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    mean, variance = jnp.array([0.1, -0.2]).reshape(1, 1, 1, 2), jnp.array([0.7, 1.3]).reshape(1, 1, 1, 2)
    normed = params["scale"] * (maps - mean) / jnp.sqrt(variance) + params["shift"]
    return jnp.mean(jax.nn.relu(normed), axis=(1, 2)) @ params["dense"]


def cnn_params():
    random = np.random.default_rng(2)
    shapes = {"conv": (3, 3, 1, 2), "dense": (2, 3), "scale": (1, 1, 1, 2), "shift": (1, 1, 1, 2)}
    return {name: random.normal(size=shape) for name, shape in shapes.items()}


NETWORKS = {"mlp": (own_logits, ORACLE.tree, ORACLE.y), "cnn": (cnn, cnn_params, LABELS)}


def mean_losses(labels):
    def mean(gamma):
        return lambda logits: jnp.mean(focal_loss(logits, jnp.asarray(labels), gamma))

    return {str(gamma): mean(gamma) for gamma in GAMMAS}


def matrices(form, size):
    """The symmetric matrix behind every leaf of a quadratic form of vectors [size], by polarisation."""
    units = jnp.eye(size)
    pairs = (units[:, None] + units[None, :]).reshape(-1, size)
    apart = jax.jit(jax.vmap(form))(jnp.concatenate([units, pairs]))

    def matrix(values):
        alone, together = values[:size], values[size:].reshape(size, size)
        return np.asarray(together - alone[:, None] - alone[None, :]) / 2

    return jax.tree.map(matrix, apart)


@pytest.fixture(scope="module", params=NETWORKS)
def case(request):
    """Network, parameters, labels and the matrices of all parts, in float64."""
    network, make_params, labels = NETWORKS[request.param]
    with jax.enable_x64(True):
        params = jax.tree.map(jnp.asarray, make_params())
        flat, unravel = ravel_pytree(params)
        losses = mean_losses(labels)
        found = matrices(lambda v: quadratic_parts(network, losses, params, unravel(v)), flat.size)
    return request.param, network, params, labels, found


@pytest.fixture
def wide():
    """Float64 for one test."""
    with jax.enable_x64(True):
        yield


def test_the_parts_are_the_gauss_newton_matrix_and_the_rest_of_the_hessian(case, wide):
    _, network, params, labels, found = case
    flat, unravel = ravel_pytree(params)
    jacobian = np.asarray(jax.jacobian(lambda at: network(unravel(at)))(flat))
    logits, losses = np.asarray(network(params)), mean_losses(labels)
    for name, parts in found.items():
        inner = np.stack([closed_form(z, y, float(name))[2] for z, y in zip(logits, labels, strict=True)])
        expected = np.einsum("nci,ncd,ndj->ij", jacobian, inner, jacobian) / len(labels)
        np.testing.assert_allclose(parts.gauss_newton, expected, atol=1e-9)
        whole = dense_hessian(lambda at, loss=losses[name]: loss(network(at)), params)
        np.testing.assert_allclose(parts.gauss_newton + parts.residual, whole, atol=1e-9)
        assert np.abs(parts.residual).max() > 1e-3


def test_the_residual_has_trace_0_where_outputs_are_linear_in_each_parameter(case):
    name, *_, found = case
    diagonals = np.abs([np.diag(parts.residual) for parts in found.values()])
    if name == "cnn":
        assert diagonals.max() < 1e-9
    else:  # tanh is not linear in the weights before it
        assert diagonals.max() > 1e-3


def test_float32_keeps_the_parts_where_probabilities_saturate():
    params, vector = jnp.float32([40.0, 0.0, -1.0]), jnp.float32([1.0, -1.0, 0.5])
    losses = {"plain": lambda z: cross_entropy(z, 0), "focal": lambda z: focal_loss(z, 0, 0.5)}
    found = quadratic_parts(lambda at: at, losses, params, vector)
    for name, gamma in (("plain", 0.0), ("focal", 0.5)):
        matrix = closed_form(params, 0, gamma)[2]
        expected = np.float64(vector) @ matrix @ np.float64(vector)
        np.testing.assert_allclose(found[name].gauss_newton, expected, rtol=1e-4)


KEY = jax.random.key(0)
LIKE = {"a": jnp.zeros((2, 3)), "b": jnp.zeros(6)}  # 12 numbers
SIZE = 12


def form_of(matrix):
    matrix = jnp.asarray(matrix, jnp.float32)

    def form(tree):
        vector = jnp.concatenate([tree["a"].ravel(), tree["b"]])
        return {"value": vector @ matrix @ vector}

    return jax.jit(form)


def matvec_of(matrix):
    dense = jnp.asarray(matrix, jnp.float32)

    def matvec(tree):
        product = dense @ jnp.concatenate([tree["a"].ravel(), tree["b"]])
        return {"a": product[:6].reshape(2, 3), "b": product[6:]}

    return matvec


def test_records_of_hutchinson(papers):
    record = papers["hutchinson"]
    matrix = np.array(record["H"])
    samples = trace_samples(jax.jit(lambda v: v @ jnp.float32(matrix) @ v), jnp.zeros(3), KEY, 400)
    assert set(samples) == set(record["rademacher_values"])
    np.testing.assert_allclose(sign_quadratic_forms(matrix), record["rademacher_values"])
    found = sample_mean(samples)
    assert abs(found.value - record["mean"]) < 4 * found.stderr
    three = sample_mean(np.array([1.0, 2.0, 4.0]))  # Student's t
    np.testing.assert_allclose(
        [three.stderr, three.high], np.sqrt(7 / 9) * np.array([1, 4.302653]) + [0, 7 / 3], rtol=1e-6
    )
    np.testing.assert_allclose(found.stderr, np.sqrt(record["var"] / 400), rtol=0.1)


def test_on_a_basis_of_the_range_every_sample_is_the_trace():
    matrix = with_spectrum([9, 4, 1, -2] + [0] * 8)
    basis = dominant_basis([matvec_of(matrix)], LIKE, KEY, 6)
    assert basis.shape == (6, SIZE)
    assert dominant_basis([matvec_of(matrix)] * 2, LIKE, KEY, 40).shape == (SIZE, SIZE)
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


def test_two_standard_errors_cover_the_trace_about_95_times_in_100():
    matrix, covered = with_spectrum([30, 12, 5, 3, 1, 1, 0.5, 0.2, 0, 0, -0.5, -2]), 0
    matvec, form = matvec_of(matrix), form_of(matrix)
    for seed in range(200):
        basis_key, key = jax.random.split(jax.random.key(seed))
        basis = dominant_basis([matvec], LIKE, basis_key, 4)
        found = sample_mean(trace_samples(form, LIKE, key, 20, basis=basis)["value"])
        covered += abs(found.value - np.trace(matrix)) <= 2 * found.stderr
    assert 180 <= covered <= 198


def test_too_few_samples_and_a_basis_of_another_dimension_are_refused():
    with pytest.raises(InputError, match="num_samples is 0"):
        trace_samples(jnp.sum, jnp.ones(3), KEY, 0)
    with pytest.raises(InputError, match="basis is"):
        trace_samples(jnp.sum, jnp.ones(3), KEY, 1, basis=np.eye(2))
    with pytest.raises(InputError, match="takes 2 or more"):
        sample_mean(np.ones(1))


@pytest.mark.parametrize(("values", "unit"), [([3, -5], 4), ([0.75], 0.5), ([0, 0], 1), ([np.inf], 1), ([], 1)])
def test_the_power_of_two_next_below(values, unit):
    assert trees.power_of_two(np.float32(values)) == unit
    assert trees.power_of_two(jnp.float32(values)) == unit
