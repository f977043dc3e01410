"""Predictions, batch losses, products and curvature rows against dense matrices on small data, on two devices."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from networks import padded_batches

from focalgeo import curvature, data, evaluation, losses, parallel
from focalgeo.evaluation.curvature import add_product, on_device
from focalgeo.rows import Eigenvalue, Trace
from focalgeo.types import Batch, InputError, Split

EXAMPLES, ROWS = 13, 8  # two batches, the second with five examples and three rows of padding


def apply(variables, x):
    """A network of 23 parameters; `scale` stands for what a model keeps beside its parameters."""
    hidden = jnp.tanh(x @ variables["params"]["hidden"] * variables["state"]["scale"])
    return hidden @ variables["params"]["head"] + variables["params"]["bias"][None]


def loss(logits, labels):
    return losses.focal_loss(logits, labels, 2.0)


@pytest.fixture(scope="module")
def net():
    """Parameters, model state and examples."""
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "hidden": jax.random.normal(keys[0], (2, 4)),
        "head": jax.random.normal(keys[1], (4, 3)),
        "bias": jnp.zeros(3),
    }
    x = np.array(jax.random.normal(keys[2], (EXAMPLES, 2)))
    y = np.array(jax.random.randint(keys[3], (EXAMPLES,), 0, 3))
    return params, {"state": {"scale": jnp.float32(0.7)}}, Split(x, y)


@pytest.fixture(scope="module")
def batches(net):
    return list(padded_batches(net[2], 50.0, ROWS))


@pytest.fixture(scope="module")
def hessian(net):
    params, state, (x, y) = net
    return np.asarray(
        curvature.dense_hessian(lambda at: jnp.mean(loss(apply({"params": at, **state}, x), y)), params), np.float64
    )


def test_predictions_are_all_examples_once_and_in_order(net):
    params, state, split = net
    forward = parallel.pmapped_forward(apply)
    padded = data.evaluation_batches(split, batch_size=5, multiple_of=parallel.device_count())
    predicted = evaluation.predict(forward, {"params": params, **state}, padded)
    expected = apply({"params": params, **state}, split.x)
    np.testing.assert_allclose(predicted.logits, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(predicted.labels, split.y)
    assert (predicted.logits.dtype, len(predicted.labels)) == (np.float32, EXAMPLES)
    with pytest.raises(InputError, match="batches hold no example"):
        evaluation.predict(forward, {}, [])


def test_a_product_is_computed_by_all_devices_and_equals_that_of_one(net, batches):
    params, state, _ = net
    problem = evaluation.Problem(apply, {"focal_loss": loss}, params, state, batches)
    laid_out = on_device(problem)
    assert all(len(leaf.sharding.device_set) == 2 for leaf in jax.tree.leaves((laid_out.params, laid_out.batches)))
    x = laid_out.batches[0].x
    assert [shard.data.shape[0] for shard in x.addressable_shards] == [ROWS // 2, ROWS // 2]
    products = []
    for each in (problem, laid_out):
        batch_loss = evaluation.make_batch_loss(each.apply, each.losses["focal_loss"], EXAMPLES)
        matvec = evaluation.data_matvec(batch_loss, each.params, each.model_state, each.batches)
        products.append(matvec(jax.tree.map(np.ones_like, params)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *map(jax.device_get, products))
    arguments = (batch_loss, laid_out.params, laid_out.model_state, laid_out.batches[0])
    assert "all-reduce" in add_product.lower(products[1], products[1], *arguments).compile().as_text()


def measured(problem, num_probes):
    options = {"split": "val", "max_products": 40, "tolerance": 1e-4, "trace_method": "hutch++"}
    return evaluation.measure_curvature(problem, jax.random.key(3), num_probes=num_probes, **options)


def rows_of_curvature(net, batches, *, apply=apply, num_probes=69):
    params, state, _ = net
    return measured(evaluation.Problem(apply, {"focal_loss": loss}, params, state, batches), num_probes).rows


def test_curvature_rows_are_the_spectrum_of_the_dense_hessian(net, batches, hessian):
    top, total = rows_of_curvature(net, batches)
    of_all = {"split": "val", "loss": "focal_loss", "n": EXAMPLES}
    assert top == Eigenvalue("lambda_max", top.value, top.residual, top.products, converged=True, **of_all)
    assert top.residual <= 1e-4 * top.value
    np.testing.assert_allclose(top.value, np.linalg.eigvalsh(hessian)[-1], rtol=1e-4)
    spread = (total.value, total.low, total.high, total.stderr)
    assert total == Trace("trace", *spread, probes=69, estimator="hutch++", **of_all)
    np.testing.assert_allclose(total.value, np.trace(hessian), rtol=1e-4)  # three products for each dimension
    assert total.low <= total.value <= total.high


def test_the_determinism_check_and_the_products_share_one_trace_of_the_network(net, batches):
    rows_of_curvature(net, batches, apply=chex.assert_max_traces(apply, n=1), num_probes=4)


def test_one_program_serves_other_parameters_and_other_values_of_the_loss(net, batches):
    traced = []

    def counted(gamma, logits, labels):
        traced.append(logits.shape)
        return losses.focal_loss(logits, labels, gamma)

    def values(gamma, scale):
        named = {"cross_entropy": losses.cross_entropy, "focal_loss": Partial(counted, np.float32(gamma))}
        params = jax.tree.map(lambda leaf: scale * leaf, net[0])
        problem = evaluation.Problem(apply, named, params, net[1], batches)
        found = measured(problem, 4)
        parts = evaluation.attribution_rows(problem, found, jax.random.key(1), split="val", num_probes=4)
        return [row.value for row in (*found.rows, *parts)]

    first, count = values(2.0, 1.0), len(traced)
    assert count > 0
    second = values(3.0, 1.5)
    assert len(traced) == count
    assert not np.allclose(first, second, rtol=1e-3)


def test_noise_that_only_the_second_batch_meets_is_refused(net, batches):
    random = np.random.default_rng(0)

    def noisy(variables, x):
        noise = jax.pure_callback(lambda: np.float32(random.normal()), jax.ShapeDtypeStruct((), jnp.float32))
        return apply(variables, x) * jnp.where(jnp.any(x == 50.0), 1 + 0.1 * noise, 1.0)

    with pytest.raises(InputError, match="changes from call to call"):
        rows_of_curvature(net, batches, apply=noisy)
    quiet = [Batch(np.zeros_like(batch.x), batch.y, batch.mask) for batch in batches]
    assert len(rows_of_curvature(net, quiet, apply=noisy, num_probes=4)) == 2


SPECTRA = {
    "narrow": jnp.array([-1.0, 0.5, 1.0]),
    "wide": jnp.array([-100.0, 20.0, 60.0]),
    "high": jnp.array([0.0, 1.0, 300.0]),
}


@pytest.mark.parametrize("names", [("narrow", "wide"), ("wide", "narrow"), ("narrow", "high"), ("high", "wide")])
def test_density_bins_serve_the_spectra_of_all_losses(batches, names):
    """Of a narrow spectrum and of one a hundred times as wide, on both sides of it, no eigenvalue is outside."""
    matvecs = {name: functools.partial(jnp.multiply, SPECTRA[name]) for name in names}
    problem = evaluation.Problem(apply, dict.fromkeys(names, loss), jnp.zeros(3), {}, batches)
    found = evaluation.Curvature([], matvecs, {})
    rows = evaluation.density_rows(problem, found, jax.random.key(0), split="val", num_probes=2, steps=3)
    by_loss = {name: [row for row in rows if row.loss == name] for name in names}
    assert len({tuple((row.lower, row.upper) for row in own) for own in by_loss.values()}) == 1
    for name, own in by_loss.items():
        assert sum(row.value for row in own) == pytest.approx(1, abs=1e-5)
        assert own[0].lower <= SPECTRA[name].min()
        assert own[-1].upper >= SPECTRA[name].max()
        assert {row.n for row in own} == {EXAMPLES}
