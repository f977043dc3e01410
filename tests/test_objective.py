"""config.loss: every name trains, keeps its schedule over epochs, and bad values are one line."""

import functools
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from focalgeo import curvature, losses, models, parallel, trees
from focalgeo.config import load_config as config_file
from focalgeo.job import preparation, training
from focalgeo.job.preparation import make_members
from focalgeo.training.step import make_step, member_state
from focalgeo.types import Batch, InputError, Predictions, TrainState

ROOT = Path(__file__).parent.parent


def load_config(**changes):
    config = config_file(ROOT / "configs" / "digits.py", "quick")
    config.model.options.hidden = (8,)
    config.loss.update(changes)
    return config


@pytest.fixture(scope="module")
def prepared():
    config = load_config()
    rest = preparation.prepare(config)
    return config, rest, member_state(preparation.initial_state(rest, make_members(config)), 0)


def test_the_warm_up_of_the_cosine_schedule_counts_epochs(prepared):
    config = load_config()
    config.optimizer.update({"schedule": "cosine", "epochs": 10, "warmup_epochs": 4})
    rest = preparation.prepare(config)
    epoch = rest.plan.steps_per_epoch
    assert epoch > 4
    rates = [float(rest.schedule(step)) for step in (0, epoch, 4 * epoch, 7 * epoch, 10 * epoch)]
    np.testing.assert_allclose(rates, [0, 0.25, 1, 0.5, 0], atol=1e-6)


def stepped(model, params, batch, statistics=None, *, rate, **changes):
    """The state and the metrics after a step on both devices, uphill by `rate` along the gradient of config.loss."""
    objective, tx, statistics = preparation.make_objective(load_config(**changes)), optax.identity(), statistics or {}
    values = (jax.random.PRNGKey(1), objective.loss_values, jnp.float32(rate))
    state = TrainState(jnp.int32(0), params, statistics, tx.init(params), *values)
    step = parallel.pmapped(make_step(model.apply, objective.loss, tx, parallel.reduce_sum, outputs=objective.outputs))
    new, metrics, fingerprints = step(jax.tree.map(jnp.copy, state), parallel.shard(batch))
    parallel.check_replicas(fingerprints)
    return new, metrics


def probe_of(params):
    """The random vector of the first step, the first device's on both."""
    key = jax.random.fold_in(jax.random.PRNGKey(1), 0)
    return trees.rademacher(jax.random.fold_in(jax.random.fold_in(key, 0), 1), params)


def moved(new, start):
    return jax.tree.map(lambda after, before: after - before, dict(new.params), start)


@pytest.mark.parametrize("name", losses.FUNCTIONS)
def test_every_loss_name_takes_a_step_that_agrees_on_two_devices(prepared, name):
    config, rest, start = prepared
    changes = {"gammas": (5.0, 3.0, 2.0)} if name == "scheduled_focal_loss" else {}  # one more than its boundaries
    chosen = preparation.make_objective(load_config(name=name, **changes))
    state = start._replace(loss_values=chosen.loss_values, learning_rate=jnp.float32(0.1))
    pipeline = preparation.make_pipeline(config, rest.dataset, [0])
    spec = jax.tree.map(lambda leaf: leaf[0], next(pipeline.specs(0, 0)))
    batch = pipeline.make_batch(spec, *pipeline.resident)

    def loss(params):
        logits = rest.model.apply({"params": params}, batch.x)
        values = chosen.loss(logits, batch.y, state.loss_values)
        if name not in losses.PENALTIES:
            return jnp.mean(values)
        return jnp.mean(values) + jnp.float32(2) * losses.PENALTIES[name](logits, batch.y, batch.mask)

    value, gradient = jax.value_and_grad(loss)(state.params)
    step = make_step(rest.model.apply, chosen.loss, rest.tx, parallel.reduce_sum, outputs=chosen.outputs)
    params = jax.tree.map(np.copy, state.params)
    new, metrics, fingerprints = parallel.pmapped(step)(jax.tree.map(jnp.copy, state), parallel.shard(batch))
    parallel.check_replicas(fingerprints)
    np.testing.assert_allclose(float(metrics["loss"] + metrics["penalty"]) / int(metrics["count"]), value, rtol=1e-5)
    expected = jax.tree.map(
        lambda leaf, slope: leaf - np.float32(0.1) * (slope + np.float32(5e-4) * leaf), params, gradient
    )
    chex.assert_trees_all_close(new.params, expected, atol=1e-6)
    np.testing.assert_allclose(metrics["gradient_norm"], trees.norm(gradient), rtol=1e-5)


@pytest.mark.parametrize(
    ("of", "form"),
    [
        pytest.param("hessian", "jvp_of_jvp", marks=pytest.mark.long),
        pytest.param("hessian", "jvp_of_grad", marks=pytest.mark.long),
        ("gauss_newton", "jvp_of_grad"),
    ],
)
def test_a_trace_penalty_is_the_probe_s_quadratic_form_with_synchronised_batch_statistics(of, form):
    model, alone = (models.build("cnn", 3, widths=(4, 4), axis_name=axis) for axis in (parallel.AXIS, None))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 8, 8, 3)).astype(np.float32)
    batch = Batch(x, rng.integers(0, 3, 8).astype(np.int32), np.arange(8) < 5)  # the second device: one example
    variables = dict(alone.init(jax.random.PRNGKey(0), x[:2]))
    params = variables.pop("params")
    loss = {"name": "focal_loss", "trace_penalty": 0.5, "trace_of": of, "trace_form": form}
    new, metrics = stepped(model, params, batch, variables, rate=1, **loss)
    probe = probe_of(params)

    def logits_of(params):
        variables_here = {"params": params, **variables}
        return alone.apply(variables_here, x, train=True, mask=batch.mask, mutable=list(variables), rngs={})[0][:5]

    def own_loss(logits):
        return jnp.mean(losses.cross_entropy(logits, batch.y[:5]))

    def form(params):
        if of == "gauss_newton":
            return trees.dot(probe, curvature.ggn_vp(logits_of, own_loss, params, probe))
        return trees.dot(probe, curvature.hvp(lambda p: own_loss(logits_of(p)), params, probe))

    def whole(params):
        return jnp.mean(losses.focal_loss(logits_of(params), batch.y[:5], 3.0)) + 0.5 * form(params)

    np.testing.assert_allclose(metrics["penalty"] / 5, 0.5 * form(params), rtol=1e-4)
    chex.assert_trees_all_close(moved(new, params), jax.grad(whole)(params), rtol=1e-3, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("of", ["hessian", "gauss_newton"])
def test_the_trace_of_a_part_of_the_batch_is_in_the_mean_over_orders_that_of_the_batch(of):
    def one_step(batch, examples):
        model = models.build("mlp", 3, hidden=(4,))
        params = model.init(jax.random.PRNGKey(0), batch.x)["params"]
        loss = {"trace_penalty": 0.5, "trace_of": of, "trace_examples": examples}
        new, metrics = stepped(model, params, batch, rate=1, **loss)
        return metrics["penalty"], moved(new, params)

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 6)).astype(np.float32), rng.integers(0, 3, 8).astype(np.int32)
    x[5:] = 1e3  # padding that must count for nothing; the second device has one example
    orders = [[*np.roll(np.arange(5), shift), 5, 6, 7] for shift in range(5)]  # each example in each row once
    parts = [one_step(Batch(x[order], y[order], np.arange(8) < 5), 4) for order in orders]
    expected = one_step(Batch(x, y, np.arange(8) < 5), 0)
    mean = jax.tree.map(lambda *leaves: np.mean(leaves, 0), *parts)
    chex.assert_trees_all_close(mean, expected, rtol=1e-5, atol=1e-5)
    assert np.ptp([penalty for penalty, _ in parts]) > 0.1 * abs(expected[0])
    assert one_step(Batch(x, y, np.arange(8) % 2 > 0), 4)[0] == 0  # rows 0 and 2 of both devices


@pytest.mark.long
def test_a_trace_of_a_part_leaves_loss_and_running_statistics_those_of_the_batch():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 8, 8, 3)).astype(np.float32), rng.integers(0, 3, 8).astype(np.int32)
    batch = Batch(x, y, np.arange(8) < 7)
    model, alone = (models.build("cnn", 3, widths=(4, 4), axis_name=axis) for axis in (parallel.AXIS, None))
    variables = dict(alone.init(jax.random.PRNGKey(0), x))
    params = variables.pop("params")

    one_step = functools.partial(stepped, model, params, batch, variables, rate=0)
    new, metrics = one_step(trace_penalty=0.5, trace_of="gauss_newton", trace_examples=4)
    expected, plain = one_step()
    running = [(state.model_state, sums["loss"]) for state, sums in ((new, metrics), (expected, plain))]
    chex.assert_trees_all_close(*running, rtol=1e-6)
    probe = probe_of(params)

    def logits_of(params):  # rows 0, 2, 4, 6 by their own mean and variance
        return alone.apply({"params": params, **variables}, x[::2], train=True, mutable=list(variables), rngs={})[0]

    product = curvature.ggn_vp(logits_of, lambda logits: jnp.mean(losses.cross_entropy(logits, y[::2])), params, probe)
    np.testing.assert_allclose(metrics["penalty"], 0.5 * 7 * trees.dot(probe, product), rtol=1e-4)


def test_thresholds_and_gammas_of_the_config_are_the_loss_s():
    own = preparation.make_objective(
        load_config(name="sample_dependent_focal_loss", thresholds=(0.3,), gammas=(4.0, 1.0))
    )
    np.testing.assert_allclose(own.loss_values["thresholds"], [0.3], rtol=1e-7)
    np.testing.assert_array_equal(own.loss_values["gammas"], [4, 1])


def test_class_weights_multiply_any_loss():
    alpha = tuple(float(i) for i in range(10))
    plain, weighted = (preparation.make_objective(load_config(name="focal_loss", alpha=each)) for each in ((), alpha))
    logits, labels = jnp.asarray(np.random.default_rng(0).normal(size=(10, 10)), jnp.float32), jnp.arange(10)
    expected = plain.loss(logits, labels, plain.loss_values) * jnp.arange(10, dtype=jnp.float32)
    np.testing.assert_allclose(weighted.loss(logits, labels, weighted.loss_values), expected, rtol=1e-6)
    assert weighted.name == "class_weighted_focal_loss"


@pytest.mark.parametrize(
    ("changes", "gamma"),
    [
        ({}, 3.0),
        ({"gamma": 0.0}, None),
        ({"name": "cross_entropy"}, None),
        ({"name": "dual_focal_loss"}, None),
        ({"name": "confidence_penalised_cross_entropy"}, None),
        ({"alpha": (1.0,) * 10}, None),
        ({"trace_penalty": 0.1}, None),
    ],
)
def test_the_map_of_the_loss_is_known_where_nothing_else_was_minimised(changes, gamma):
    config = load_config(**{"name": "focal_loss", "gamma": 3.0, **changes})
    assert preparation.trained_gamma(preparation.check_config(config)) == gamma


def test_adafocal_moves_by_the_calibration_of_val_from_the_second_epoch_on(prepared):
    chosen = preparation.make_objective(load_config(name="adafocal_loss"))
    state = of_two(prepared[2], chosen.loss_values)
    logits = np.float32([[4, 0], [3, 0], [2, 0], [1, 0]] * 15)
    both = np.stack([logits, -logits], axis=1)  # the second member is always right and sure
    seen = []

    def predict(state):
        seen.append(state)
        return Predictions(both, np.ones(60, np.int32))  # always wrong and sure: overconfident

    adapt = training.make_adapt(predict, None)
    assert adapt(state, 0).loss_values == state.loss_values
    assert not seen
    after = adapt(state, 1)
    moved, other = (jax.tree.map(lambda leaf, i=i: leaf[i], after.loss_values["adafocal"]) for i in (0, 1))
    confidence = 1 / (1 + np.exp(-np.float64(logits[:, 0])))
    expected = np.exp(np.sort(confidence).reshape(15, 4).mean(1))
    np.testing.assert_allclose(moved.gammas, expected, rtol=1e-5)
    np.testing.assert_allclose(other.gammas, np.exp(np.sort(confidence).reshape(15, 4).mean(1) - 1), rtol=1e-5)


def of_two(state, loss_values):
    """The states of two members with these loss values."""
    two = state._replace(loss_values=loss_values)
    return parallel.replicated(jax.tree.map(lambda leaf: np.stack([leaf, leaf]), jax.device_get(two)))


def test_a_schedule_learns_the_epoch_and_other_losses_are_left_alone(prepared):
    adapt = training.make_adapt(None, None)
    plain = prepared[2]
    leaves = map(jax.tree.leaves, (adapt(plain, 7), plain))
    assert all(new is old for new, old in zip(*leaves, strict=True))
    scheduled = of_two(plain, preparation.make_objective(load_config(name="fls_532")).loss_values)
    np.testing.assert_array_equal(adapt(scheduled, 7).loss_values["epoch"], [7, 7])


def test_a_part_of_the_batch_that_the_devices_do_not_divide_is_one_line():
    with pytest.raises(InputError, match="trace_examples is 5: it must be a multiple of the 2 devices"):
        preparation.make_objective(load_config(trace_penalty=0.1, trace_examples=5))
