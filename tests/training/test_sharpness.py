"""Sharpness-aware minimisation: optax's on one device, on two devices, and where no way leads up."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from focalgeo import losses, models, parallel
from focalgeo.training import optimiser
from focalgeo.training.step import make_ascent, make_step
from focalgeo.types import Batch, TrainState

LOSS = losses.make_loss("focal_loss")
RADIUS, RATE, GAMMA = 0.3, 0.1, 2.0


@pytest.fixture(scope="module")
def model():
    return models.build("mlp", 4, hidden=(8,))


@pytest.fixture(scope="module")
def tx():
    return optimiser.make_optimiser(
        "sgd", optimiser.step_schedule([99], 0.1), momentum=0.9, nesterov=False, weight_decay=0.0, clip_norm=0.0
    )


def _batch(examples: int = 12, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, 8, 8, 1)).astype(np.float32)
    return Batch(x, rng.integers(0, 4, examples).astype(np.int32), np.ones(examples, bool))


def _state(model, tx) -> TrainState:
    params = model.init(jax.random.PRNGKey(0), _batch().x)["params"]
    values = {"gamma": jnp.float32(GAMMA)}
    return TrainState(jnp.int32(0), params, {}, tx.init(params), jax.random.PRNGKey(1), values, jnp.float32(RATE))


def test_three_steps_are_those_of_optax(model, tx):
    step = jax.jit(make_step(model.apply, LOSS, tx, lambda tree: tree, ascent=make_ascent(RADIUS)))
    uphill = optax.chain(contrib.normalize(), optax.sgd(RADIUS))
    theirs = contrib.sam(optax.sgd(RATE, momentum=0.9), uphill, sync_period=2, opaque_mode=True)
    state = _state(model, tx)
    params, values = state.params, state.loss_values
    kept = theirs.init(params)
    for seed in range(3):
        batch = _batch(seed=seed)

        def gradient(at, _=0, batch=batch):
            return jax.grad(lambda p: LOSS(model.apply({"params": p}, batch.x), batch.y, values).mean())(at)

        updates, kept = theirs.update(gradient(params), kept, params, grad_fn=gradient)
        params = optax.apply_updates(params, updates)
        state, metrics = step(state, batch)
    chex.assert_trees_all_close(state.params, params, rtol=1e-5, atol=1e-6)
    plain = jax.jit(make_step(model.apply, LOSS, tx, lambda tree: tree))(_state(model, tx), _batch())
    assert float(metrics["count"]) == 12
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(plain[0].params, step(_state(model, tx), _batch())[0].params, rtol=1e-3)


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_step_uphill_is_a_piece_of_optax(adaptive):
    """As docs/training.md has it: the gradient of x^4 / 4 at the end of the step, and 0 where there is none."""
    uphill = optax.chain(optax.stateless(make_ascent(RADIUS, adaptive=adaptive)), optax.scale(-1.0))
    sam = contrib.sam(optax.sgd(RATE), uphill, opaque_mode=True)

    def gradient(params, adversarial_step):
        return params**3

    for params in jnp.array([2.0, 0.0]), jnp.zeros(2):
        updates, _ = sam.update(gradient(params, 0), sam.init(params), params, grad_fn=gradient)
        end = params * (1 + RADIUS) if adaptive else params + RADIUS * jnp.sign(params)
        np.testing.assert_allclose(updates, -RATE * end**3, rtol=1e-6)


def test_two_devices_go_up_together(model, tx):
    ascent = make_ascent(RADIUS, adaptive=True)
    batch = _batch()._replace(mask=np.arange(12) < 7)
    two = parallel.pmapped(make_step(model.apply, LOSS, tx, parallel.reduce_sum, ascent=ascent))
    state, metrics, fingerprints = two(_state(model, tx), parallel.shard(batch))
    parallel.check_replicas(fingerprints)
    one = jax.jit(make_step(model.apply, LOSS, tx, lambda tree: tree, ascent=ascent))
    expected, expected_metrics = one(_state(model, tx), jax.tree.map(lambda leaf: leaf[:7], batch))
    chex.assert_trees_all_close(state.params, expected.params, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(metrics, expected_metrics, rtol=1e-4)


def test_the_adaptive_step_does_not_change_when_a_layer_is_scaled_and_the_next_unscaled():
    """w2 w1 x: doubling w1 and halving w2 doubles and halves the steps, so that the product is the same."""
    gradient = {"w1": jnp.array([0.3, -0.2]), "w2": jnp.array([0.5])}
    params = {"w1": jnp.array([1.0, 2.0]), "w2": jnp.array([-0.7])}
    found = make_ascent(RADIUS, adaptive=True)(gradient, params)
    scaled = make_ascent(RADIUS, adaptive=True)(
        {"w1": gradient["w1"] / 2, "w2": gradient["w2"] * 2}, {"w1": params["w1"] * 2, "w2": params["w2"] / 2}
    )
    np.testing.assert_allclose(scaled["w1"], 2 * found["w1"], rtol=1e-6)
    np.testing.assert_allclose(scaled["w2"], found["w2"] / 2, rtol=1e-6)
    lengths = jax.tree.map(lambda step, at: step / jnp.abs(at), found, params)
    np.testing.assert_allclose(optax.tree.norm(lengths), RADIUS, rtol=1e-6)


def test_a_radius_of_0_is_the_plain_step():
    assert make_ascent(0.0) is None
