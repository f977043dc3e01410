"""The step, the optimiser and the device path: one device's result on any number of devices, on uneven batches too."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from focalgeo import losses, models, parallel
from focalgeo.training import optimiser, penalties
from focalgeo.training.step import make_members_step, make_step, member_state, stack
from focalgeo.types import Batch, RunError, TrainState

LOSS = losses.make_loss("focal_loss")


def make_batch(examples: int, valid: int, *, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, 8, 8, 3)).astype(np.float32)
    x[valid:] = 1e3  # padding that must count for nothing
    return Batch(x, rng.integers(0, 4, examples).astype(np.int32), np.arange(examples) < valid)


def make_tx(**changes) -> optax.GradientTransformation:
    settings = dict(momentum=0.9, nesterov=False, weight_decay=5e-4, clip_norm=0.0) | changes
    return optimiser.make_optimiser("sgd", optimiser.step_schedule([2], 0.1), **settings)


def make_state(model, tx, *, gamma: float = 2.0, learning_rate: float = 0.1) -> TrainState:
    variables = dict(model.init(jax.random.PRNGKey(0), jnp.zeros((2, 8, 8, 3))))
    params = variables.pop("params")
    values, rate = {"gamma": jnp.float32(gamma)}, jnp.float32(learning_rate)
    return TrainState(jnp.int32(0), params, variables, tx.init(params), jax.random.PRNGKey(1), values, rate)


close = functools.partial(chex.assert_trees_all_close, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def tx():
    return make_tx()


@pytest.fixture(scope="module")
def two_devices(tx):
    model = models.build("cnn", 4, widths=(4, 8), axis_name=parallel.AXIS)
    return parallel.pmapped(make_step(model.apply, LOSS, tx, parallel.reduce_sum))


@pytest.fixture(scope="module")
def one_device(tx):
    model = models.build("cnn", 4, widths=(4, 8))
    return jax.jit(make_step(model.apply, LOSS, tx, lambda tree: tree))


def fresh_state(tx):
    return make_state(models.build("cnn", 4, widths=(4, 8)), tx)


@pytest.mark.parametrize("valid", [16, 11, 3])
def test_two_devices_equal_one_on_an_uneven_batch(tx, two_devices, one_device, valid):
    # 3 valid examples of 16: the second device holds padding alone.
    batch = make_batch(16, valid)
    trimmed = jax.tree.map(lambda leaf: leaf[:valid], batch)
    state, metrics, fingerprints = two_devices(fresh_state(tx), parallel.shard(batch))
    expected, expected_metrics = one_device(fresh_state(tx), trimmed)
    parallel.check_replicas(fingerprints)
    close(state.params, expected.params)
    close(state.model_state, expected.model_state)
    close(metrics, expected_metrics, rtol=1e-4)
    assert metrics["count"] == valid


@pytest.mark.parametrize("name", ["sgd", "adam", "adagrad"])
def test_word_vectors_without_a_gradient_stay_where_they_are(name):
    settings = dict(momentum=0.9, nesterov=False, weight_decay=0.1, clip_norm=0.0)
    tx = optimiser.make_optimiser(name, optimiser.step_schedule([2], 0.1), **settings)
    params = {"Embed_0": {"embedding": jnp.ones((4, 2))}, "Dense_0": {"kernel": jnp.ones((2, 2))}}
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, params), tx.init(params), params)
    np.testing.assert_array_equal(updates["Embed_0"]["embedding"], 0)
    assert (np.asarray(updates["Dense_0"]["kernel"]) < 0).all()


def test_the_sum_of_losses_moves_parameters_by_the_mean_s_step_times_the_examples():
    tx = make_tx(momentum=0.0, weight_decay=0.0)
    model = models.build("mlp", 4, hidden=(8,))
    batch = make_batch(16, 11)
    moved = []
    for mean in (True, False):
        step = make_step(model.apply, LOSS, tx, parallel.reduce_sum, mean=mean)
        state = make_state(model, tx, learning_rate=1e-3)
        before = jax.device_get(state.params)
        after, _, _ = parallel.pmapped(step)(state, parallel.shard(batch))
        moved.append(jax.tree.map(lambda new, old: np.asarray(new) - old, after.params, before))
    close(moved[1], jax.tree.map(lambda leaf: np.float32(11) * leaf, moved[0]), rtol=1e-3)


@pytest.mark.parametrize("at_once", [1, 2])  # each batch over both devices, or a member on each
def test_members_take_a_penalty_on_the_batch_as_a_run_alone_does(tx, at_once):
    model, batch = models.build("cnn", 4, widths=(4, 8), axis_name=parallel.AXIS), make_batch(8, 5)
    outputs = penalties.make_outputs(on_batch=losses.mmce)
    step = make_step(model.apply, LOSS, tx, parallel.reduce_sum, outputs=outputs)

    def start(gamma):
        state = make_state(models.build("cnn", 4, widths=(4, 8)), tx)
        return state._replace(loss_values={"gamma": jnp.float32(gamma), "penalty_weight": jnp.float32(2)})

    program = parallel.make_program(make_members_step(step), at_once=at_once)
    groups = program.place(stack([start(0), start(3)]))
    groups, _, fingerprints = program.step(groups, jax.tree.map(lambda leaf: leaf[None], batch))
    parallel.check_replicas(np.stack(fingerprints))
    together = program.gather(groups)
    for index, gamma in enumerate((0, 3)):
        alone, _, _ = parallel.pmapped(step)(start(gamma), parallel.shard(batch))
        member = member_state(together, index)
        close(member.params, alone.params)
        close(member.model_state, alone.model_state)
    assert not member.frozen


@pytest.mark.parametrize(
    ("name", "options", "reduce"),
    [
        ("mlp", {"hidden": (5,)}, lambda tree: tree),  # a forgotten reduction
        ("cnn", {"widths": (4, 8)}, parallel.reduce_sum),  # no axis_name: each device normalises by its own examples
    ],
)
def test_devices_that_part_are_caught(tx, name, options, reduce):
    model = models.build(name, 4, **options)
    step = parallel.pmapped(make_step(model.apply, LOSS, tx, reduce))
    _, _, fingerprints = step(make_state(model, tx), parallel.shard(make_batch(8, 8)))
    with pytest.raises(RunError, match="devices hold different parameters"):
        parallel.check_replicas(fingerprints)


@pytest.mark.parametrize("seen", [[[1, 1, 2]], [[1, 2, 2]], [[1, 1, 1], [3, 4, 3]], [5, 6]])
def test_any_device_that_differs_is_caught(seen):
    parallel.check_replicas(np.full((2, 3), 7, np.uint32))
    with pytest.raises(RunError, match="devices hold different parameters"):
        parallel.check_replicas(np.array(seen, np.uint32))


def test_each_device_draws_noise_of_its_own(tx):
    state = make_state(models.build("mlp", 4, hidden=(5,)), tx)

    def drawing(state, batch):
        noise = jax.random.uniform(jax.random.fold_in(state.key, state.step), (64,))
        return state._replace(params=noise), {}

    before = np.asarray(state.key)
    after, _, fingerprints = parallel.pmapped(drawing)(state, parallel.shard(make_batch(4, 4)))
    assert len(set(np.asarray(fingerprints).tolist())) == jax.device_count() == 2
    np.testing.assert_array_equal(after.key, before)  # the state's own key stays one


def of_noise(variables, x, *, rngs, **_):
    """Logits that are the parameters times noise, and batch statistics that are the number of an infinite one."""
    noise = jax.random.normal(rngs["dropout"], (len(x), 4))
    return variables["params"] * noise, {"mean": variables["mean"]}


def test_each_step_draws_noise_of_its_own_and_statistics_must_be_finite():
    tx = make_tx(momentum=0.0, weight_decay=0.0)
    step = jax.jit(make_step(of_noise, LOSS, tx, lambda tree: tree))
    params, values = jnp.ones((1, 4)), {"gamma": jnp.float32(2)}
    state = TrainState(jnp.int32(0), params, {"mean": jnp.ones(2)}, tx.init(params), jax.random.PRNGKey(1), values, 0.0)
    batch = make_batch(6, 6)
    after, first = step(state, batch)
    _, again = step(state, batch)
    _, second = step(after, batch)
    assert first["loss"] == again["loss"]
    assert first["loss"] != second["loss"]
    np.testing.assert_allclose(first["parameter_norm"], 6**0.5, rtol=1e-6)
    infinite = {"mean": jnp.array([jnp.inf, 1])}
    assert not np.isfinite(step(state._replace(model_state=infinite), batch)[1]["parameter_norm"])


def test_bfloat16_compute_keeps_float32_parameters(tx):
    model = models.build("cnn", 4, widths=(4, 8), dtype=jnp.bfloat16)
    state = make_state(model, tx)
    new_state, metrics = jax.jit(make_step(model.apply, LOSS, tx, lambda tree: tree))(state, make_batch(8, 8))
    assert {leaf.dtype for leaf in jax.tree.leaves(new_state.params)} == {jnp.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(new_state.model_state)} == {jnp.dtype("float32")}
    assert bool(jnp.isfinite(metrics["loss"]))


@pytest.mark.parametrize("nesterov", [False, True])
def test_weight_decay_and_momentum_follow_pytorch(nesterov):
    tx = make_tx(weight_decay=0.1, nesterov=nesterov)
    weight, gradient, velocity, expected = jnp.array([2.0]), jnp.array([0.5]), 0.0, 2.0
    opt_state = tx.init(weight)
    for step in range(4):  # PyTorch: g = g + wd w, v = 0.9 v + g; w -= lr v, Nesterov's form: w -= lr (g + 0.9 v)
        updates, opt_state = tx.update(gradient, opt_state, weight)
        weight = weight + updates
        decayed = 0.5 + 0.1 * expected
        velocity = 0.9 * velocity + decayed
        expected -= (1.0 if step < 2 else 0.1) * (decayed + 0.9 * velocity if nesterov else velocity)
        np.testing.assert_allclose(weight[0], expected, rtol=1e-5)


def test_two_boundaries_in_one_step_drop_twice():
    schedule = optimiser.step_schedule([3.2, 3.7, 5], 0.1)
    np.testing.assert_allclose([schedule(count) for count in (2, 4, 6)], [1, 1e-2, 1e-3], rtol=1e-5)


@pytest.mark.parametrize("name", ["adam", "adagrad"])
def test_adaptive_optimisers_follow_pytorch(name):
    settings = dict(momentum=0.9, nesterov=False, weight_decay=0.0, clip_norm=0.0)
    tx = optimiser.make_optimiser(name, optimiser.step_schedule([], 0.1), **settings)
    weight, expected, first, second, total = jnp.zeros(2), np.zeros(2), 0.0, 0.0, 0.0
    opt_state = tx.init(weight)
    for step, gradient in enumerate(np.random.default_rng(0).normal(size=(5, 2)), 1):
        updates, opt_state = tx.update(jnp.float32(gradient), opt_state, weight)
        weight = weight + updates
        first, second, total = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2, total + gradient**2
        adam = first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        expected -= adam if name == "adam" else gradient / np.sqrt(total)
        np.testing.assert_allclose(weight, expected, rtol=1e-4)


def test_the_norm_is_clipped_before_weight_decay():
    tx = make_tx(weight_decay=0.1, clip_norm=1.0, momentum=0.0)
    weight = jnp.array([1.0, 2.0])
    updates, _ = tx.update(jnp.array([30.0, 40.0]), tx.init(weight), weight)
    np.testing.assert_allclose(updates, [-0.7, -1.0], rtol=1e-5)
