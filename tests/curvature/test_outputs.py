"""Outputs and trace in one pass equal the two apart."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from focalgeo import curvature
from focalgeo.curvature.outputs import outputs_and_trace


def make_case():
    rng = np.random.default_rng(0)
    shapes = {"first": (4, 5), "second": (5, 3)}
    params = {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    x, y = jnp.asarray(rng.normal(size=(7, 4)), jnp.float32), jnp.asarray(rng.integers(0, 3, 7))

    def network(params):
        hidden = jnp.tanh(x @ params["first"])
        return hidden @ params["second"], {"mean": jnp.mean(hidden)}

    def loss(logits):
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], -1))

    return params, network, loss


def test_outputs_auxiliary_results_and_trace_are_those_of_each_apart():
    params, network, loss = make_case()
    key = jax.random.PRNGKey(3)
    outputs, auxiliary, trace = jax.jit(lambda p, k: outputs_and_trace(network, loss, p, k))(params, key)
    chex.assert_trees_all_close((outputs, auxiliary), network(params), rtol=1e-6)
    (probe_key,) = jax.random.split(key, 1)
    _, _, same_probe = outputs_and_trace(network, loss, params, probe_key)
    _, expected = curvature.value_and_trace(lambda p: loss(network(p)[0]), params, key)
    np.testing.assert_allclose(same_probe, expected, rtol=1e-5)
    assert abs(trace) > 0.1


def test_a_sum_of_outputs_loss_and_trace_has_the_gradient_of_both():
    params, network, loss = make_case()
    key = jax.random.PRNGKey(3)

    def together(params):
        outputs, _, trace = outputs_and_trace(network, loss, params, jax.random.split(key, 1)[0])
        return jnp.sum(outputs**2) + 0.3 * trace

    def apart(params):
        _, trace = curvature.value_and_trace(lambda p: loss(network(p)[0]), params, key, form="forward_over_reverse")
        return jnp.sum(network(params)[0] ** 2) + 0.3 * trace

    chex.assert_trees_all_close(jax.grad(together)(params), jax.grad(apart)(params), rtol=2e-4, atol=1e-4)
