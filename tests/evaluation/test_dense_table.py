"""Every measurement of a Hessian against the dense matrix in float64: networks x losses, on ragged batches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from networks import NETWORKS, draw, padded_batches
from reference.losses import focal_loss as closed_form

from focalgeo import curvature, evaluation, losses
from focalgeo.evaluation.attribution import make_form
from focalgeo.evaluation.curvature import on_device
from focalgeo.types import Split

pytestmark = pytest.mark.long

EXAMPLES = 13  # two batches, the second with three rows of padding
GAMMAS = (0.0, 0.5, 2.0, 5.0)  # 0 is cross-entropy
CASES = [(network, gamma) for network in NETWORKS for gamma in GAMMAS]


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def focal(gamma, logits, labels):
    return losses.focal_loss(logits, labels, gamma)


def loss_of(gamma):
    return Partial(focal, jnp.float64(gamma))


def problem_of(network, gamma):
    params, state, x, y = draw(network, EXAMPLES)
    batches = list(padded_batches(Split(x, y), 3.0))
    chosen = {"cross_entropy": loss_of(0.0), "focal_loss": loss_of(gamma)}
    return evaluation.Problem(NETWORKS[network], chosen, params, state, batches)


@functools.cache
def dense(network, gamma):
    """The Hessian [n, n] by jax.hessian of the mean loss over all examples at once, none of our products in it."""
    with jax.enable_x64(True):
        flat = ravel_pytree(draw(network, EXAMPLES)[0])[0]
        return np.asarray(hessian_of(network)(flat, jnp.float64(gamma)))


@functools.cache
def hessian_of(network):
    """The jitted Hessian of (flat parameters, gamma): compiled once for all gammas."""
    params, state, x, y = draw(network, EXAMPLES)
    unravel = ravel_pytree(params)[1]

    def mean_loss(flat, gamma):
        return jnp.mean(focal(gamma, NETWORKS[network]({"params": unravel(flat), **state}, x), y))

    return jax.jit(jax.hessian(mean_loss))


@functools.cache
def jacobian_of(network):
    """The Jacobian of the logits by jax.jacobian, the logits and the labels."""
    with jax.enable_x64(True):
        params, state, x, y = draw(network, EXAMPLES)
        flat, unravel = ravel_pytree(params)
        outputs = lambda flat: NETWORKS[network]({"params": unravel(flat), **state}, x)  # noqa: E731
        return np.asarray(jax.jit(jax.jacobian(outputs))(flat)), np.asarray(outputs(flat)), y


def gauss_newton(network, gamma, *, weighted=False):
    """J' H_out J / examples, H_out of the focal loss from its closed form in high precision.

    weighted: H_out of cross-entropy, with each example weighted by focal loss's gradient over its own.
    """
    jacobian, logits, labels = jacobian_of(network)
    own = 0.0 if weighted else gamma
    blocks = np.stack([closed_form(z, label, own)[2] for z, label in zip(logits, labels, strict=True)])
    if weighted:
        p = np.exp(logits)[np.arange(EXAMPLES), labels] / np.exp(logits).sum(1)
        weights = (1 - p) ** gamma - (gamma * (1 - p) ** (gamma - 1) * p * np.log(p) if gamma else 0)
        blocks = weights[:, None, None] * blocks
    return np.einsum("nci,ncd,ndj->ij", jacobian, blocks, jacobian) / EXAMPLES


def matvec_of(network, gamma):
    problem = problem_of(network, gamma)
    batch_loss = evaluation.make_batch_loss(problem.apply, problem.losses["focal_loss"], EXAMPLES)
    return evaluation.data_matvec(batch_loss, problem.params, problem.model_state, problem.batches), problem.params


def close(found, expected, tolerance=1e-6):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.max(np.abs(expected)))


@pytest.mark.parametrize(("network", "gamma"), CASES)
def test_products_and_trace(network, gamma):
    matvec, params = matvec_of(network, gamma)
    flat, unravel = ravel_pytree(params)
    expected = dense(network, gamma)
    columns = np.stack([ravel_pytree(matvec(unravel(unit)))[0] for unit in jnp.eye(flat.size)])
    close(columns, expected)
    close(np.trace(columns), np.trace(expected))


@pytest.mark.parametrize(("network", "gamma"), CASES)
def test_the_top_five_and_the_most_negative_eigenvalue(network, gamma):
    matvec, params = matvec_of(network, gamma)
    expected = dense(network, gamma)
    values, vectors = np.linalg.eigh(expected)
    options = {"max_products": 2 * len(expected), "tolerance": 1e-5}
    top = curvature.extreme_eigenvalues(matvec, params, jax.random.key(1), k=5, **options)
    close(top.value, values[::-1][:5])
    low = curvature.extreme_eigenvalues(matvec, params, jax.random.key(2), which="smallest", **options)
    close(low.value, values[:1])
    assert bool(top.converged.all())
    assert bool(low.converged.all())
    for value, residual in zip((*top.value, *low.value), (*top.residual, *low.residual), strict=True):
        assert np.abs(values - value).min() <= residual + 1e-12  # what a residual certifies
    first = np.asarray(ravel_pytree(jax.tree.map(lambda leaf: leaf[0], top.vector))[0])
    assert abs(first @ vectors[:, -1]) > 1 - 1e-5


@pytest.mark.parametrize(("network", "gamma"), CASES)
def test_every_part_of_the_attribution(network, gamma):
    problem = problem_of(network, gamma)
    flat, unravel = ravel_pytree(problem.params)
    form = make_form(on_device(problem), split=("focal_loss",))
    whole, inner = dense(network, gamma), gauss_newton(network, gamma)
    random = np.random.default_rng(0)
    for vector in (random.normal(size=flat.size), np.linalg.eigh(whole)[1][:, -1]):
        tree = unravel(jnp.asarray(vector))
        parts = {name: float(value) for name, value in form(tree)["focal_loss"].items()}
        size = abs(vector @ inner @ vector) + abs(vector @ whole @ vector)
        assert abs(parts["gauss_newton"] - vector @ inner @ vector) < 1e-6 * size
        assert abs(parts["whole"] - vector @ whole @ vector) < 1e-6 * size
        assert abs(parts["residual"] - vector @ (whole - inner) @ vector) < 1e-6 * size
        held = vector @ gauss_newton(network, gamma, weighted=True) @ vector
        assert abs(parts["softmax_weighted"] - held) < 1e-6 * size
        assert abs(parts["softmax_weighted"] + parts["rank_one"] - parts["gauss_newton"]) < 1e-9 * size


@pytest.mark.parametrize(("network", "gamma"), [("mlp", 5.0), ("cnn", 2.0), ("vit", 0.5)])
def test_rows_of_the_attribution_are_within_their_errors(network, gamma):
    problem = problem_of(network, gamma)
    measured = evaluation.measure_curvature(
        problem,
        jax.random.key(3),
        split="val",
        max_products=100,
        tolerance=1e-5,
        num_probes=30,
        trace_method="hutch++",
    )
    rows = evaluation.attribution_rows(problem, measured, jax.random.key(4), split="val", num_probes=30)
    whole, inner = dense(network, gamma), gauss_newton(network, gamma)
    held = gauss_newton(network, gamma, weighted=True)
    matrices = {"whole": whole, "gauss_newton": inner, "residual": whole - inner}
    matrices |= {"softmax_weighted": held, "rank_one": inner - held}
    top = np.linalg.eigh(whole)[1][:, -1]
    seen = set()
    for row in rows:
        if row.name == "attribution" and row.loss == "focal_loss" and row.part in matrices:
            matrix = matrices[row.part]
            seen.add((row.of, row.part))
            if row.of == "trace":
                assert abs(row.value - np.trace(matrix)) <= 4 * row.stderr + 1e-9
            else:
                assert abs(row.value - top @ matrix @ top) < 1e-5 * abs(top @ whole @ top)
    assert len(seen) == 10
    (free,) = [row for row in rows if row.name == "scale_free_trace" and row.loss == "focal_loss"]
    theta = np.asarray(ravel_pytree(problem.params)[0])
    assert abs(free.value - theta @ (np.diag(whole) * theta)) <= 4 * free.stderr
