"""Curvature rows, products and batch losses against a dense Hessian on small data, on two devices."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from focalgeo import curvature, data, evaluation, losses
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
    """The examples in two batches; the padding holds values that would be seen in any result."""
    whole = list(data.evaluation_batches(net[2], batch_size=ROWS))
    return [batch._replace(x=np.where(batch.mask[:, None], batch.x, 50.0).astype(np.float32)) for batch in whole]


@pytest.fixture(scope="module")
def hessian(net):
    params, state, (x, y) = net
    return np.asarray(
        curvature.dense_hessian(lambda at: jnp.mean(loss(apply({"params": at, **state}, x), y)), params), np.float64
    )


def test_shares_of_the_batches_add_up_to_the_mean_loss_of_what_is_not_padding(net, batches):
    params, state, (x, y) = net
    batch_loss = evaluation.make_batch_loss(apply, loss, EXAMPLES)
    expected = np.asarray(loss(apply({"params": params, **state}, x), y))
    shares = [float(batch_loss(params, state, batch)) for batch in batches]
    np.testing.assert_allclose(shares, [expected[:8].sum() / EXAMPLES, expected[8:].sum() / EXAMPLES], rtol=1e-5)


def test_products_over_uneven_batches_are_the_dense_hessian_of_the_mean_loss(net, batches, hessian):
    params, state, _ = net
    batch_loss = evaluation.make_batch_loss(apply, loss, EXAMPLES)
    matvec = evaluation.data_matvec(batch_loss, params, state, batches)
    flat, unravel = ravel_pytree(params)
    columns = [ravel_pytree(matvec(unravel(unit)))[0] for unit in jnp.eye(flat.size)]
    np.testing.assert_allclose(columns, hessian, rtol=1e-4, atol=1e-5 * np.abs(hessian).max())
    np.testing.assert_allclose(
        jax.jit(matvec)(unravel(jnp.eye(flat.size)[3]))["head"],
        matvec(unravel(jnp.eye(flat.size)[3]))["head"],
        rtol=1e-5,
    )


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


def rows_of_curvature(net, batches, *, apply=apply, num_probes=69):
    params, state, _ = net
    options = {"split": "val", "max_products": 40, "tolerance": 1e-4, "trace_method": "hutch++"}
    problem = evaluation.Problem(apply, {"focal_loss": loss}, params, state, batches)
    return evaluation.measure_curvature(problem, jax.random.key(3), num_probes=num_probes, **options).rows


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


def test_noise_that_only_the_second_batch_meets_is_refused(net, batches):
    random = np.random.default_rng(0)

    def noisy(variables, x):
        noise = jax.pure_callback(lambda: np.float32(random.normal()), jax.ShapeDtypeStruct((), jnp.float32))
        return apply(variables, x) * jnp.where(jnp.any(x == 50.0), 1 + 0.1 * noise, 1.0)

    with pytest.raises(InputError, match="changes from call to call"):
        rows_of_curvature(net, batches, apply=noisy)
    quiet = [Batch(np.zeros_like(batch.x), batch.y, batch.mask) for batch in batches]
    assert len(rows_of_curvature(net, quiet, apply=noisy, num_probes=4)) == 2


def test_density_bins_serve_the_spectra_of_all_losses(batches):
    """Of a narrow spectrum and of one a hundred times as wide, on both sides of it, no eigenvalue is outside."""
    spectra = {
        "narrow": jnp.array([-1.0, 0.5, 1.0]),
        "wide": jnp.array([-100.0, 20.0, 60.0]),
        "high": jnp.array([0.0, 1.0, 300.0]),
    }
    params = jnp.zeros(3)
    for names in (("narrow", "wide"), ("wide", "narrow"), ("narrow", "high"), ("high", "wide")):
        matvecs = {name: lambda vector, values=spectra[name]: values * vector for name in names}
        problem = evaluation.Problem(apply, dict.fromkeys(names, loss), params, {}, batches)
        measured = evaluation.Curvature([], matvecs, {})
        rows = evaluation.density_rows(problem, measured, jax.random.key(0), split="val", num_probes=2, steps=3)
        by_loss = {name: [row for row in rows if row.loss == name] for name in names}
        assert len({tuple((row.lower, row.upper) for row in own) for own in by_loss.values()}) == 1
        for name, own in by_loss.items():
            assert sum(row.value for row in own) == pytest.approx(1, abs=1e-5)
            assert own[0].lower <= spectra[name].min()
            assert own[-1].upper >= spectra[name].max()
            assert {row.n for row in own} == {EXAMPLES}
