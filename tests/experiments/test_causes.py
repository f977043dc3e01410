"""Causes: what leaves a network's function as it is, and which curvature that moves; the held slope."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.flatten_util import ravel_pytree
from scipy import special

from experiments import causes
from experiments.causes import networks
from focalgeo import losses, models

EXAMPLES = 60


def network():
    """Layers at random weights, and data."""
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    model = models.build("mlp", networks.CLASSES, hidden=(6, 6))
    x, y = jax.random.normal(keys[0], (EXAMPLES, 8, 8, 1)), jax.random.randint(keys[1], (EXAMPLES,), 0, 10)
    variables = model.init(keys[2], x[:2])
    return networks.Trained(model.apply, variables, dict.fromkeys(("train", "val", "test"), (x, y)))


def make_dense(trained):
    """Variables -> lambda_max, trace and scale-free trace of mean cross-entropy, by the whole Hessian."""
    x, y = trained.splits["val"]
    _, unravel = ravel_pytree(trained.variables["params"])

    def loss(weights):
        return jnp.mean(losses.cross_entropy(trained.apply({"params": unravel(weights)}, x), y))

    hessian = jax.jit(jax.hessian(loss))

    def measured(variables):
        weights, _ = ravel_pytree(variables["params"])
        matrix, weights = (np.asarray(array, np.float64) for array in (hessian(weights), weights))
        return np.linalg.eigvalsh(matrix)[-1], np.trace(matrix), np.diag(matrix) @ weights**2

    return measured


def test_rescaled_layers_move_curvature_by_four_decades_the_outputs_and_the_scale_free_trace_not():
    trained = network()
    moved, dense = trained.at(networks.rescaled(trained.variables, 2.0**-8)), make_dense(trained)
    before, after = (special.softmax(each.logits("test"), -1) for each in (trained, moved))
    np.testing.assert_allclose(after, before, atol=1e-5)
    (top, trace, free), (moved_top, moved_trace, moved_free) = dense(trained.variables), dense(moved.variables)
    assert min(moved_top / top, moved_trace / trace) > 1e4
    assert moved_free == pytest.approx(free, rel=1e-3)


def test_a_folded_network_has_the_confidence_that_was_asked_for():
    trained = network()
    logits = trained.logits("val")
    less_sure = networks.folded(trained, networks.matching(logits, 0.3))
    assert networks.confidence(less_sure.logits("val")) == pytest.approx(0.3, abs=1e-5)
    np.testing.assert_array_equal(less_sure.logits("val").argmax(-1), logits.argmax(-1))


def test_the_held_slope_is_that_of_least_squares_with_a_mean_for_each_seed():
    rng = np.random.default_rng(0)
    x, accuracy, loss = rng.normal(size=(3, 40))
    runs = pd.DataFrame({"seed": np.repeat(np.arange(8), 5), "x": 10**x, "accuracy": accuracy})
    runs["train nll"] = np.exp(loss + 0.5 * x)
    runs["y"] = 2 * x - accuracy + 3 * loss + runs.seed + 0.1 * rng.normal(size=40)
    columns = np.c_[x, accuracy, np.log(runs["train nll"]), np.eye(8)[runs.seed]]
    held, free = (causes.effect(runs, "y", "x", *fixed) for fixed in (causes.fixed(runs), ()))
    assert held.mean == pytest.approx(np.linalg.lstsq(columns, runs.y, rcond=None)[0][0])
    assert held.low < 0.5 < held.high
    assert free.mean > held.high
